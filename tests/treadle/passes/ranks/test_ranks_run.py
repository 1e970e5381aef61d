"""`treadle run` of an order of hosts: three orders measured on processes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.treadle.cli.test_json_output import KEYS
from treadle.cli.main import run
from treadle.codegen import emit
from treadle.codegen.targets import generate
from treadle.passes.ranks.programs import library_of
from treadle.passes.ranks.run import lines_of
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.planning import plan_ranks
from treadle.planner.passes.ranks.problem import PlanHop, RankedHost, RanksProblem
from treadle.runtime.ranks.orders import GlooLibrary


def planned(algorithm: str, hosts: int = 2, slots: int = 1, **fields: object) -> Plan[RanksDecisions]:
    latency = tuple(tuple(1000 * abs(a - b) for b in range(hosts)) for a in range(hosts))
    named = tuple(RankedHost(name=f"host{number}", slots=slots) for number in range(hosts))
    return plan_ranks(
        RanksProblem(version=1, hosts=named, latency_ns=latency, algorithm=algorithm, size_bytes=4000, **fields)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "hosts", "slots", "library"), [("ring", 2, 2, "gloo"), ("double-tree", 3, 1, "treadle")]
)
def test_every_order_adds_up_right(
    algorithm: str, hosts: int, slots: int, library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emit.write(generate(planned(algorithm, hosts, slots), "plan.json"), tmp_path)
    assert run(["run", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("schema") == "treadle.run-ranks/1"
    assert found.keys() == KEYS["run-ranks"][0]
    assert (found["world"], found["library"], found["on_hosts"]) == (hosts * slots, library, False)
    assert found["findings"] == []
    assert list(found["orders"]) == ["original", "planned", "worst"]
    for each in found["orders"].values():
        assert each["measured_ns"] > 0
        assert sorted(each["order"]) == [f"host{number}" for number in range(hosts)]


def test_other_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    emit.write(generate(planned("ring"), "plan.json"), tmp_path)
    assert run(["run", str(tmp_path), "--backend", "cuda"]) == 2
    assert "--backend: found cuda, expected gloo" in capsys.readouterr().err
    assert run(["run", str(tmp_path), "--world", "3"]) == 2
    assert "--world: found 3, expected 2: the plan has that many ranks" in capsys.readouterr().err
    (tmp_path / "hostfile").write_text("elsewhere slots=1\n")
    assert run(["run", str(tmp_path)]) == 2
    assert "found a text other than the one that was generated" in capsys.readouterr().err


def test_rings_are_gloos_own(tmp_path: Path) -> None:
    for algorithm in ("ring", "nccl-ring"):
        assert isinstance(library_of(planned(algorithm), tmp_path / "plan.json"), GlooLibrary)


def test_the_plan_that_hosts_were_ordered_for_has_to_be_there(tmp_path: Path) -> None:
    plan = planned("plan", hops=(PlanHop(0, 1, 4000),))
    with pytest.raises(InputError, match="found no collective plan among the inputs"):
        library_of(plan, tmp_path / "plan.json")
    named = replace(plan, inputs={"plan": InputRef(file="allreduce.json", digest="sha256:" + 64 * "0")})
    with pytest.raises(InputError, match=r"found no plan 'allreduce.json' next to the plan"):
        library_of(named, tmp_path / "plan.json")


def test_times_are_printed_with_their_predictions() -> None:
    def of(predicted: int, measured: int) -> dict[str, object]:
        return {"predicted_ns": predicted, "measured_ns": measured}

    orders = {"original": of(200, 300), "planned": of(100, 100), "worst": of(400, 600)}
    result = {"algorithm": "ring", "library": "gloo", "size_bytes": 1024, "world": 4, "calls": 20, "orders": orders}
    lines = list(lines_of({**result, "on_hosts": True}))
    assert lines[2] == "  planned   100 ns predicted, 100 ns measured, 3.00x of the original's speed"
    assert lines[4].endswith(
        "original 1.50x of its prediction, planned 1.00x of its prediction, worst 1.50x of its prediction"
    )
    assert "differ by chance" in list(lines_of({**result, "on_hosts": False}))[-1]
