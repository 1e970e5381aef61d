"""The hook of a compression plan: its text, its form, and the timeline of the plan."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.codegen.compression.compression_plans import plan_with, small_decisions
from tests.conftest import Golden
from treadle.codegen import emit
from treadle.codegen.python_form import require_form
from treadle.codegen.targets import generate, targets_of
from treadle.planner.documents.scalars import format_time
from treadle.planner.errors import InputError


@pytest.mark.golden
def test_the_hook_is_a_module_of_few_lines(golden: Golden) -> None:
    made = generate(plan_with(small_decisions()), "plan.json")
    assert sorted(made.files) == ["hook.py", "plan.json"]
    golden("torch/compression.hook.py", made.files["hook.py"])


def test_a_folder_is_written_and_read_again(tmp_path: Path) -> None:
    plan = plan_with(small_decisions())
    emit.write(generate(plan, "plan.json"), tmp_path)
    manifest, texts = emit.read(tmp_path)
    assert manifest.target == "ddp-hook"
    assert manifest.facts["planned_ns"] == plan.decisions.time_ns
    assert format_time(plan.decisions.uncompressed_ns) in texts["hook.py"]


def test_a_hostile_name_stays_a_text() -> None:
    name = 'x""" \n' + "import os\nos.system('x')\n"
    text = generate(plan_with(small_decisions(name)), "plan.json").files["hook.py"]
    assert name in (ast.get_docstring(ast.parse(text), clean=False) or "")
    assert "os" not in [
        alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names
    ]
    require_form("ddp-hook", text, "hook.py")


def test_a_changed_module_is_refused() -> None:
    text = generate(plan_with(small_decisions()), "plan.json").files["hook.py"]
    for changed in (
        f"{text}\nimport os\n",
        text.replace('plan.json"', 'other.json"'),
        text.replace("**options)", "exec)"),
        text.replace("import compress", "import sparse"),
    ):
        with pytest.raises(InputError, match="expected nothing but what treadle generates for ddp-hook"):
            require_form("ddp-hook", changed, "hook.py")


def test_the_timeline_ends_at_the_planned_time() -> None:
    plan = plan_with(small_decisions())
    timeline = targets_of(plan).timeline(plan)
    assert timeline.schedule.makespan == plan.decisions.time_ns
    assert timeline.busy_ns()["device"] > plan.decisions.problem.forward_ns + plan.decisions.problem.backward_ns
