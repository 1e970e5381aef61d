"""The module that attaches a model to the servers of a plan: its text, its form, and hostile names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.conftest import GOLDEN, Golden
from treadle.codegen import emit
from treadle.codegen.python_form import require_form
from treadle.codegen.targets import generate
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.planning import plan_server
from treadle.planner.passes.server.problem import ServerProblem


def planned(**changes: str) -> Plan[ServerDecisions]:
    problem = store.load(GOLDEN / "inputs" / "server-problem.yaml", ServerProblem)
    return plan_server(replace(problem, **changes))


@pytest.mark.golden
def test_the_hook_is_a_module_of_few_lines(golden: Golden) -> None:
    made = generate(planned(), "plan.json")
    assert sorted(made.files) == ["hook.py", "plan.json"]
    golden("torch/server.hook.py", made.files["hook.py"])


def test_a_folder_is_written_and_read_again(tmp_path: Path) -> None:
    plan = planned()
    emit.write(generate(plan, "plan.json"), tmp_path)
    manifest, texts = emit.read(tmp_path)
    assert manifest.target == "ddp-hook"
    facts = {"planned_ns", "servers", "workers"}
    assert {name: manifest.facts[name] for name in facts} == {
        "planned_ns": plan.decisions.time_ns,
        "servers": plan.decisions.problem.servers,
        "workers": plan.decisions.problem.workers,
    }
    require_form("ddp-hook", texts["hook.py"], "hook.py")


def test_a_hostile_name_stays_a_text() -> None:
    name = 'x""" \n' + "import os\nos.system('x')\n"
    text = generate(planned(name=name), "plan.json").files["hook.py"]
    assert name in (ast.get_docstring(ast.parse(text), clean=False) or "")
    require_form("ddp-hook", text, "hook.py")
    with pytest.raises(InputError, match=r"hook\.py:\d+: found `import os`"):
        require_form("ddp-hook", text + "\nimport os\nos.system('x')\n", "hook.py")
