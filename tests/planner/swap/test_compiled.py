"""Compilation where the source is in no file that a cache could stand beside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner.swap.compiled import COMPILES, compiled

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not COMPILES, reason="numba is not installed")
def test_a_function_without_a_folder_for_its_cache_is_compiled_all_the_same():
    scope: dict[str, object] = {}
    exec("def double(value):\n    return 2 * value", scope)
    double = compiled(scope["double"])
    assert double(21) == 42
    assert double.nopython_signatures


@pytest.mark.parametrize("modules", ["planner.plan, planner.swap.check, treadle.cli.main", "planner.swap.extract"])
def test_documents_checks_and_the_command_line_start_without_numba(modules):
    code = f"import {modules}, sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
