"""The hook of a plan for sparse gradients: its text, its form, and what else is refused."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.conftest import GOLDEN, Golden
from treadle.codegen import emit
from treadle.codegen.python_form import require_form
from treadle.codegen.targets import generate, targets_of
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.planning import plan_sparse
from treadle.planner.passes.sparse.problem import SparseProblem


def planned(name: str = "recommender") -> Plan[SparseDecisions]:
    problem = store.load(GOLDEN / "inputs" / "sparse-problem.yaml", SparseProblem)
    return plan_sparse(replace(problem, name=name))


@pytest.mark.golden
def test_the_hook_is_a_module_of_few_lines(golden: Golden) -> None:
    made = generate(planned(), "plan.json")
    assert sorted(made.files) == ["hook.py", "plan.json"]
    golden("torch/sparse.hook.py", made.files["hook.py"])


def test_a_folder_is_written_and_read_again(tmp_path: Path) -> None:
    plan = planned()
    emit.write(generate(plan, "plan.json"), tmp_path)
    manifest, texts = emit.read(tmp_path)
    assert manifest.target == "ddp-hook"
    assert manifest.facts["planned_ns"] == plan.decisions.time_ns
    assert format_time(plan.decisions.dense_ns) in texts["hook.py"]


def test_a_hostile_name_stays_a_text() -> None:
    name = 'x""" \n' + "import os\nos.system('x')\n"
    text = generate(planned(name), "plan.json").files["hook.py"]
    assert name in (ast.get_docstring(ast.parse(text), clean=False) or "")
    require_form("ddp-hook", text, "hook.py")


def test_the_timeline_ends_at_the_planned_time() -> None:
    plan = planned()
    assert targets_of(plan).timeline(plan).schedule.makespan == plan.decisions.time_ns
