"""Compilation: with and without a folder for its cache, and when the cache is out of date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from treadle.planner.search.compiled import COMPILES, compiled

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not COMPILES, reason="numba is not installed")
def test_a_function_without_a_folder_for_its_cache_is_compiled_all_the_same():
    scope: dict[str, object] = {}
    exec("def double(value):\n    return 2 * value", scope)
    double = compiled(scope["double"])
    assert double(21) == 42
    assert double.nopython_signatures


@pytest.mark.slow
@pytest.mark.skipif(not COMPILES, reason="numba is not installed")
def test_code_in_the_cache_is_made_again_when_what_it_calls_has_changed(tmp_path):
    """numba itself looks at the file of the outer function alone."""
    outer = """
from inner import STEP, inner
from treadle.planner.search.compiled import compiled

@compiled
def outer(value):
    return inner(value) + STEP
"""
    inner = """
from treadle.planner.search.compiled import compiled
STEP = {step}

@compiled
def inner(value):
    return value * {factor}
"""
    (tmp_path / "outer.py").write_text(outer)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from outer import outer; print(outer(5), hits(outer))"
    code = f"hits = lambda loop: sum(loop.stats.cache_hits.values()); {code}"
    reported = []
    for factor, step in ((10, 1), (10, 1), (100, 2)):
        text = inner.format(factor=factor, step=step)
        if not reported or (tmp_path / "inner.py").read_text() != text:
            (tmp_path / "inner.py").write_text(text)
        run = [sys.executable, "-B", "-c", code, str(tmp_path)]
        reported.append(subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert reported == ["51 0\n", "51 1\n", "502 0\n"]


@pytest.mark.parametrize(
    "modules",
    [
        "treadle.planner.documents.plan, treadle.planner.passes.swap.check, treadle.cli.main",
        "treadle.planner.passes.swap.extract",
    ],
)
def test_documents_checks_and_the_command_line_start_without_numba(modules):
    code = f"import {modules}, sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
