"""check and simulate from the command line, on swap problems and swap plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap.cases import figure_4_1
from tests.planner.passes.swap.plans import decide
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.hardware import CopyEngine, Device, Hardware, Host
from treadle.planner.documents.plan import Certificate, InputRef, Plan, Prediction, Provenance
from treadle.planner.documents.trace import Costs, Op, OpRun, Tensor, Trace
from treadle.planner.graph.unrolling import unrolled
from treadle.planner.passes.swap.bound import SENTENCES
from treadle.planner.passes.swap.extract import machine_of, problem_from_trace
from treadle.planner.passes.swap.layout import least_pool
from treadle.planner.passes.swap.problem import SwapProblem

PROBLEM = figure_4_1(6)


def planned(problem: SwapProblem, inputs: dict[str, InputRef]) -> Plan:
    """A plan in the problem's order and the smallest pool."""
    decisions = decide(problem, range(len(problem.ops)), least_pool(problem))
    gap = (decisions.time_ns - problem.ideal_ns) / decisions.time_ns
    return Plan(
        version=1,
        inputs=inputs,
        decisions=decisions,
        prediction=Prediction(time_us=decisions.time_ns / 1000, peak_bytes=decisions.peak_bytes),
        certificate=Certificate(
            verdict="accepted",
            checker="treadle.planner.passes.swap.check",
            objective=decisions.time_ns,
            lower_bound=problem.ideal_ns,
            unit="ns",
            argument=SENTENCES["compute"],
            scope="any order",
            gap=gap,
            optimal=gap == 0,
        ),
        provenance=Provenance(tool="treadle", method="by hand"),
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    store.save(PROBLEM, "problem.json")
    made_from = {"problem": InputRef(file="problem.json", digest=store.digest(PROBLEM))}
    store.save(planned(PROBLEM, made_from), "plan.json")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    found = capsys.readouterr()
    return found.out + found.err


def edited(**fields: Any) -> Plan:
    """The plan with other fields in its parts: `certificate={...}`."""
    plan = store.load("plan.json", Plan)
    return replace(plan, **{part: replace(getattr(plan, part), **values) for part, values in fields.items()})


def test_a_problem_is_described_with_its_least_memory(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "problem.json"]) == 0
    assert "swap problem of 6 operators and 10 tensors; least memory 5 B of 6 B" in said(capsys)


def test_a_plan_is_accepted_alone_and_with_its_problem(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "plan.json"]) == 0
    assert "accepted (swap plan of 6 operators" in said(capsys)
    assert run(["check", "--fresh", "plan.json"]) == 0
    assert "inputs problem checked" in said(capsys)


def test_what_a_search_proved_is_a_claim(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    time = store.load("plan.json", Plan).certificate.objective
    plan = edited(certificate={"lower_bound": time, "gap": 0.0, "optimal": True, "argument": SENTENCES["exact"]})
    store.save(plan, "plan.json")
    assert run(["check", "plan.json"]) == 0
    assert "it claims to be optimal" in said(capsys)


def test_a_plan_of_another_problem_is_stale(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ops = (replace(PROBLEM.ops[0], time_ns=2), *PROBLEM.ops[1:])
    store.save(replace(PROBLEM, ops=ops), "problem.json")
    assert run(["check", "--fresh", "plan.json"]) == 1
    assert "stale: problem problem.json is not the one the plan was made from" in said(capsys)
    other = store.load("problem.json", type(PROBLEM))
    plan = replace(
        store.load("plan.json", Plan),
        inputs={"problem": InputRef(file="problem.json", digest=store.digest(other))},
    )
    store.save(plan, "plan.json")
    assert run(["check", "--fresh", "plan.json"]) == 1
    assert "$.decisions.problem.ops: not what the inputs say now; plan again" in said(capsys)


def test_memory_host_and_reserve_are_the_plans_own(here: Path) -> None:
    machine = replace(PROBLEM.machine, memory_bytes=99, host_bytes=1000)
    other = replace(PROBLEM, machine=machine)
    store.save(other, "problem.json")
    plan = store.load("plan.json", Plan)
    store.save(
        replace(plan, inputs={"problem": InputRef(file="problem.json", digest=store.digest(other))}), "plan.json"
    )
    assert run(["check", "--fresh", "plan.json"]) == 0


def unsafe(plan: Plan) -> Plan:
    """Without the first edge to an `in` node that has one."""
    nodes = list(plan.decisions.nodes)  # type: ignore[union-attr]
    at = next(at for at, node in enumerate(nodes) if node.kind == "in" and node.after)
    nodes[at] = replace(nodes[at], after=())
    return replace(plan, decisions=replace(plan.decisions, nodes=tuple(nodes)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: unsafe(plan), "and does not wait for that"),
        (lambda plan: edited(decisions={"time_ns": 1}), "time_ns: 1, the plan makes it"),
        (lambda plan: edited(prediction={"peak_bytes": 1}), "prediction: peak of 1 bytes, the plan's is"),
        (lambda plan: edited(prediction={"time_us": 1.0}), "prediction: time 1 us, the plan takes"),
        (lambda plan: edited(certificate={"objective": 1.0}), "certificate: objective 1 ns, the plan takes"),
        (
            lambda plan: edited(
                certificate={"lower_bound": plan.certificate.objective, "gap": 0.0, "optimal": True},
            ),
            "the problem proves only",
        ),
    ],
    ids=["edge", "time", "peak", "predicted", "objective", "bound"],
)
def test_a_damaged_plan_is_rejected(here: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str) -> None:
    store.save(change(store.load("plan.json", Plan)), "plan.json")
    assert run(["check", "plan.json"]) == 1
    assert words in said(capsys)


def test_simulate_tells_streams_idle_time_and_copies(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decisions: Any = store.load("plan.json", Plan).decisions
    assert run(["simulate", "plan.json", "--json", "--perfetto", "trace.json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["time_us"] == facts["planned_us"] == decisions.time_ns / 1000
    assert facts["busy_us"]["compute"] == PROBLEM.ideal_ns / 1000
    assert facts["idle_us"] == decisions.idle_ns / 1000
    assert (facts["in_bytes"], facts["out_bytes"]) == (decisions.in_bytes, decisions.out_bytes)
    assert facts["peak_bytes"] == decisions.peak_bytes
    tracks = {event["args"]["name"] for event in json.loads(Path("trace.json").read_text())["traceEvents"]
              if event["name"] == "thread_name"}  # fmt: skip
    assert {"compute", "in", "out"} <= tracks
    assert run(["simulate", "plan.json"]) == 0
    text = said(capsys)
    for word in ("compute idle", "copied", "peak", "busy"):
        assert word in text


TRACE = Trace(
    version=1, name="net", mode="train", source="hand", costs=Costs(model="measured"),
    tensors=(
        Tensor(id="x", role="input", bytes=4), Tensor(id="w", role="parameter", bytes=4),
        Tensor(id="h", role="activation", bytes=4), Tensor(id="y", role="output", bytes=4),
    ),
    ops=(
        Op(id="f", target="t.f", phase="forward", inputs=("x", "w"), outputs=("h",), time_ns=9),
        Op(id="g", target="t.g", phase="forward", inputs=("h",), outputs=("y",), time_ns=9),
        Op(id="u", target="t.u", phase="optimizer", inputs=("w", "h"), mutates=("w",), time_ns=9),
    ),
    outputs=("y",),
)  # fmt: skip
BOX = Hardware(
    version=1, name="box", nodes=1, devices=(Device(model="A", kind="gpu", count=1, memory_bytes=64),),
    host=Host(memory_bytes=640),
    copy_engines=(
        CopyEngine(direction="host-to-device", bandwidth=1e9),
        CopyEngine(direction="device-to-host", bandwidth=1e9),
    ),
)  # fmt: skip


def made_from(hardware: Hardware = BOX) -> dict[str, InputRef]:
    """Trace and profile as files here."""
    store.save(TRACE, "t.json")
    store.save(hardware, "h.json")
    return {
        "trace": InputRef(file="t.json", digest=store.digest(TRACE)),
        "hardware": InputRef(file="h.json", digest=store.digest(hardware)),
    }


def test_a_plan_from_a_trace_is_compared_with_trace_and_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = problem_from_trace(TRACE, machine_of(BOX, memory_bytes=2048))
    store.save(planned(problem, made_from()), "plan.json")
    assert run(["check", "--fresh", "plan.json"]) == 0
    assert "inputs hardware, trace checked" in said(capsys)
    slower = replace(BOX, copy_engines=tuple(replace(engine, bandwidth=5e8) for engine in BOX.copy_engines))
    store.save(replace(edited(), inputs=made_from(slower)), "plan.json")
    assert run(["check", "--hardware", "h.json", "--trace", "t.json", "plan.json"]) == 1
    assert "$.decisions.problem.machine: not what the inputs say now; plan again" in said(capsys)


def test_a_plan_that_runs_an_op_again_is_compared_with_the_unrolled_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tuple(OpRun(op=name) for name in ("f", "g", "f", "u"))
    problem = problem_from_trace(unrolled(TRACE, runs), machine_of(BOX, memory_bytes=2048))
    assert [op.id for op in problem.ops] == ["f", "g", "f#2", "u"]
    plan = planned(problem, made_from())
    plan = replace(plan, decisions=replace(plan.decisions, runs=runs))
    store.save(plan, "plan.json")
    assert run(["check", "--fresh", "plan.json"]) == 0
    assert "it claims a gap" in said(capsys)  # of whatever else could be recomputed
    other = (*runs[:2], OpRun(op="f", implementation="fast"), runs[3])
    store.save(replace(plan, decisions=replace(plan.decisions, runs=other)), "plan.json")
    assert run(["check", "plan.json"]) == 0
    assert run(["check", "--fresh", "plan.json"]) == 2
    assert "runs op 'f' by 'fast', which the trace lacks" in said(capsys)
