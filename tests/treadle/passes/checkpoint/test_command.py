"""`treadle plan checkpoint`: from traces, profiles and sizes, what it prints and writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.checkpoint.checkpoint_plans import PROBLEM
from tests.planner.passes.checkpoint.steps import step
from tests.planner.samples import SELECTION
from treadle.capture.formats import profiled_steps
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.hardware import CopyEngine, Device, Hardware, Network
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.checkpoint.events import happens
from treadle.planner.passes.checkpoint.spans import unsteady

PLAN = ["plan", "checkpoint", "--hardware", "hosts-2x2", "-o", "plan.json"]


TWO_V100 = Hardware(
    version=1, name="two V100", nodes=2, devices=(Device(model="V100", kind="gpu", count=1),),
    copy_engines=(CopyEngine(direction="device-to-host", bandwidth=1.2e10),),
    network=Network(kind="ethernet", alpha_us=30.0, beta_us_per_MB=83.886),
)  # fmt: skip


def event(name: str, category: str, ts: float, dur: float, thread: int = 1, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": thread, "ts": ts, "dur": dur, **more}


def profiled(file: Path, allreduce_us: float = 200.0) -> None:
    """Two steps of 1 ms on CPUs: forward, backward with a message of Gloo's thread, optimizer."""
    events = []
    for number, begin in ((4, 0.0), (5, 1000.0)):
        events += [
            event(f"ProfilerStep#{number}", "user_annotation", begin, 1000),
            event("aten::mm", "cpu_op", begin, 300),
            event("autograd::engine::evaluate_function: MmBackward0", "cpu_op", begin + 300, 300),
            event("aten::mm", "cpu_op", begin + 310, 280),
            event("c10d::allreduce_", "cpu_op", begin + 600, 5),
            event("gloo:all_reduce", "user_annotation", begin + 610, allreduce_us, thread=2),
            event("Optimizer.step#SGD.step", "user_annotation", begin + 900, 90),
            event("aten::add_", "cpu_op", begin + 905, 80),
        ]
    file.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def test_a_problem_by_hand_is_planned_described_and_checked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(replace(PROBLEM, host_bytes=100), here / "problem.json")
    command = ["plan", "checkpoint", "--problem", "problem.json", "-o", "plan.json"]
    assert run(command) == 0
    printed = capsys.readouterr().out
    assert "48 B of a machine, two versions of 2 states of 1 device; it has 100 B" in printed
    assert "every iteration; whole after 100 ns" in printed
    assert "2 machines" in printed
    assert "60.00%  6 of 10" in printed
    assert run(["check", "plan.json"]) == 0
    capsys.readouterr()
    assert run([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["pieces"], facts["idle_ns"], facts["filled_ns"]) == (5, 46, 17)


def test_too_little_host_memory_ends_with_three_and_says_how_much(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*PLAN, "--states", "1MiB", "--memory", "7MiB"]) == 3
    assert "need 8 MiB of each machine, which has 7 MiB; 1 copy would fit" in capsys.readouterr().err
    assert not (here / "plan.json").exists()
    assert run([*PLAN, "--states", "1MiB", "--memory", "8MiB", "-q"]) == 0


def test_states_alone_say_what_is_not_known(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--states", "1MiB", "--storage", "1MB"]) == 0
    told = capsys.readouterr()
    assert "the links are taken to be idle" in told.err
    assert "the shortest one that hides a checkpoint" in told.err
    assert "the profile does not state the memory of a host" in told.err
    assert "on storage, back to back" in told.out
    assert run([*PLAN, "--states", "1MiB", "--iteration", "2"]) == 0
    told = capsys.readouterr()
    assert "the shortest one" not in told.err
    assert store.load(here / "plan.json", Plan).decisions.problem.iteration_ns == 2 * 10**9


def test_other_copies_and_other_storage_are_compared(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paper = ["--states", "9.4GB", "--iteration", "62", "--hardware", "ndv4", "--nodes", "4", "-o", "plan.json"]
    assert run(["plan", "checkpoint", *paper, "--json", "--what-if", "copies=1..5", "--memory", "500GiB"]) == 0
    told = capsys.readouterr()
    answers = json.loads(told.out)["what_if"]
    assert [(each["copies"], each["host_bytes"]) for each in answers] == [
        (copies, 2 * copies * 8 * 9_400_000_000) for copies in (1, 2, 3)
    ]
    assert [each["survival"][1]["kept"] for each in answers] == [0, 4, 6]
    assert "no plan with copies=4: ndv4: 4 copies of every state" in told.err
    assert "no plan with copies=5: " in told.err
    assert run(["plan", "checkpoint", *paper, "--json", "--what-if", "storage=1GB..4GB"]) == 0
    answers = json.loads(capsys.readouterr().out)["what_if"]
    takes = [each["waste"][1]["checkpoint_ns"] for each in answers]
    assert takes == [300_800_000_000 // times for times in (1, 2, 4)]
    assert run(["plan", "checkpoint", *paper, "--what-if", "machines=3"]) == 2
    assert "found 'machines', expected copies=1..4 or storage=1GB..16GB" in capsys.readouterr().err


def test_profiles_of_two_machines_show_their_idle_spans(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiled(here / "rank0.json")
    profiled(here / "rank1.json", allreduce_us=230.0)
    assert [len(step.ops) for step in profiled_steps("rank0.json")] == [5, 5]
    assert run([*PLAN, "--trace", "rank0.json", "--trace", "rank1.json", "--states", "100KB"]) == 0
    problem = store.load(here / "plan.json", Plan).decisions.problem
    assert [(span.after, span.length_ns) for span in problem.spans] == [("begin", 610_000), ("allreduce 0", 65_000)]
    assert problem.iteration_ns == 985_000
    assert "idle for 675 us in 2 spans, busy for 190.001 us with 1 piece" in capsys.readouterr().out


def test_real_profile_of_two_gpus(here: Path, data_dir: Path) -> None:
    """Three steps of ResNet-50: two broadcasts of buffers, five allreduces of gradients."""
    store.save(TWO_V100, here / "v100.json")
    trace = str(data_dir / "traces" / "resnet-ddp2-rank0.kineto.json.gz")
    command = ["plan", "checkpoint", "--trace", trace, "--states", "307MB", "--hardware", "v100.json"]
    assert run([*command, "-o", "plan.json"]) == 0
    decisions = store.load(here / "plan.json", Plan).decisions
    problem = decisions.problem
    assert [message.name.split()[0] for message in problem.messages] == ["broadcast"] * 2 + ["allreduce"] * 5
    assert sum(span.length_ns for span in problem.spans) > 0.85 * problem.iteration_ns
    assert unsteady(problem.spans, 900_000) == 2
    assert decisions.overflow_ns == 0
    assert happens(decisions).makespan <= 1.001 * problem.iteration_ns


def test_a_profile_says_nothing_of_states(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiled(here / "rank0.json")
    assert run([*PLAN, "--trace", "rank0.json"]) == 2
    assert "found no weights in it, expected --states" in capsys.readouterr().err


def test_a_step_of_one_process_exchanges_its_gradients(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(step(4096, 2**20), here / "step.json")
    assert run([*PLAN, "--trace", "step.json"]) == 0
    assert "as DistributedDataParallel would" in capsys.readouterr().err
    problem = store.load(here / "plan.json", Plan).decisions.problem
    assert problem.state_bytes == 2 * (4096 + 2**20)
    assert [message.name for message in problem.messages] == ["allreduce 0"]
    store.save(step(4096, optimizer=False), here / "step.json")
    assert run([*PLAN, "--trace", "step.json"]) == 0
    assert "capture with --optimizer, or name --states" in capsys.readouterr().err


def test_planned_collectives_exchange_the_gradients(here: Path) -> None:
    """2 us at 1024 bytes, 4.5 us at 5000, so that both gradients with their 4384 bytes take 4.113 us."""
    entry = replace(SELECTION.entries[0], max_bytes=5000)
    selection = replace(SELECTION, collective="allreduce", ranks=4, nodes=2, entries=(entry,))
    store.save(selection, here / "selection.json")
    store.save(step(4096, 288), here / "step.json")
    assert run([*PLAN, "--trace", "step.json", "--collectives", "selection.json"]) == 0
    (message,) = store.load(here / "plan.json", Plan).decisions.problem.messages
    assert message.end_ns - message.start_ns == 4113
    assert run(["check", "plan.json"]) == 0


def test_sizes_beyond_documents_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--states", "1024P", "--buffer", "1024P"]) == 2
    assert "state_bytes: found 1152921504606846976, expected less" in capsys.readouterr().err
    assert run([*PLAN, "--states", "1MiB", "--fill", "0%", "-q"]) == 0
    assert run(["check", "plan.json"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--states", "1"], "need --hardware"),
        (["--hardware", "hosts-2x2"], "give --trace, --states or --problem"),
        (["--problem", "p.json", "--states", "1"], "goes without options for them"),
        (["--hardware", "hosts-2x2", "--trace", "t.json", "--iteration", "1"], "goes without --trace"),
        (["--hardware", "hosts-2x2", "--states", "1", "--collectives", "c.json"], "belongs to --trace"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_options_that_do_not_go_together(
    options: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "checkpoint", *options, "-o", "plan.json"]) == 2
    assert message in capsys.readouterr().err
