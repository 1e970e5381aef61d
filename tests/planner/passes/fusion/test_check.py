"""The independent checker: derived schedules pass, and every kind of corruption is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from treadle.planner.passes.fusion.check import check
from treadle.planner.passes.fusion.counts import counts
from treadle.planner.passes.fusion.decisions import (
    AS_WRITTEN,
    COMPUTATION_FUSED,
    FusionDecisions,
    Rival,
    StageChoice,
    TransformCall,
)
from treadle.planner.passes.fusion.layouts import Local, Replicated, Sliced
from treadle.planner.passes.fusion.notation import notation
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings, Kernel, Overlap, Program
from treadle.planner.passes.fusion.prune import pointwise_first
from treadle.planner.passes.fusion.stages import moves_data, stages
from treadle.planner.passes.fusion.text import show
from treadle.planner.passes.fusion.transforms.split import split

EXAMPLES = Path(__file__).parents[4] / "examples" / "fusion"
RING: Mapping[str, object] = {"algorithm": "ring", "protocol": "LL", "channels": 2}
EXTENTS = {"B": 2, "S": 4, "H": 8, "N": 64, "T": 6, "F": 8}


def program(name: str) -> Program:
    return parse((EXAMPLES / f"{name}.py").read_text(), name)


def decided(
    original: Program, schedule: Program | str, calls: tuple[TransformCall, ...] = (), **changes: object
) -> FusionDecisions:
    text = schedule if isinstance(schedule, str) else show(schedule)
    made = parse(text, "schedule") if isinstance(schedule, str) else schedule
    followers = {x for each in made.overlaps for x in each.members[1:]}
    choices = tuple(
        StageChoice(
            name=each.name,
            kind=each.kind,
            members=each.named,
            time_ns=10,
            start_ns=10 * place,
            end_ns=10 * place + 10,
            overlaps=each.name in followers,
            **(RING if any(map(moves_data, each.nodes)) else {}),
        )
        for place, each in enumerate(stages(made))
    )
    dims = {name: EXTENTS[name] for value in original.inputs for extent in value.type.shape for name in extent.names}
    groups = 2 if original.name == "pipeline" else 1
    counted, bindings = counts(made), Bindings(dims, 4, groups)
    peers = {AS_WRITTEN: original, COMPUTATION_FUSED: pointwise_first(original)[0]}
    facts: dict[str, object] = {
        "program": show(original), "schedule": text, "extents": dims, "ranks": 4, "groups": groups, "nodes": 1,
        "transforms": calls, "stages": choices, "time_ns": 10 * len(choices), "considered": 1,
        "volume": float(counted.volume.value(bindings)), "traffic": float(counted.traffic.value(bindings)),
        "volume_between_groups": float(counted.between.value(bindings)),
        "state": float(counted.state.value(bindings)),
        "rivals": tuple(Rival(name=x + notation(y), time_ns=10**6, schedule=show(y)) for x, y in peers.items()),
    }  # fmt: skip
    return FusionDecisions(**{**facts, **changes})  # type: ignore[arg-type]


def adam_fused() -> ScheduleBuilder:
    made = ScheduleBuilder(program("adam_f32"))
    scattered, whole = made.split("sum_", "ARSplitRSAG")
    _, gathers = made.reorder(whole, [each.name for each in stages(made.program) if each.kind == "pointwise"])
    for state in ("m", "v"):
        made.as_slice(state)
        made.dead(gathers[f"{state}_"])
    computed = [each.name for each in stages(made.program) if each.kind == "pointwise"]
    made.fuse([scattered, *computed, gathers["p_"]], "AllReduceFuse", "far")
    return made


def fused_adam() -> tuple[Program, Program]:
    made = adam_fused()
    return made.start, made.program


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "attention", "pipeline", "rmsnorm", "moe", "ag_matmul"])
def test_a_program_is_a_schedule_of_itself(name: str) -> None:
    assert check(decided(program(name), program(name))) == []


def test_a_fused_optimizer_step_with_sliced_state_passes() -> None:
    made = adam_fused()
    assert check(decided(made.start, made.program, made.calls)) == []


def test_an_overlap_passes() -> None:
    made = ScheduleBuilder(program("attention"))
    made.overlap(["layer", "sum_"], "ol")
    assert check(decided(made.start, made.program, made.calls)) == []


def test_a_changed_number_is_found() -> None:
    original, schedule = fused_adam()
    text = show(schedule).replace("1 - b2", "1 - b1", 1)
    assert text != show(schedule)
    assert "is not the program's" in check(decided(original, text))[0]


def test_a_forgotten_collective_is_found() -> None:
    original = program("sgd")
    text = show(original).replace("Replicated", "Local")
    assert text != show(original)
    findings = check(decided(original, text.replace('AllReduce("+", g)', "g * 1")))
    assert findings


def test_state_that_the_caller_needs_whole_must_not_be_sliced() -> None:
    original = program("attention")
    sliced = tuple(
        replace(each, type=replace(each.type, layout=Local())) if each.name == "r" else each for each in original.inputs
    )
    findings = check(decided(original, replace(original, inputs=sliced)))
    assert any("input r lives elsewhere" in each for each in findings)


def test_other_outputs_are_found() -> None:
    made = adam_fused()
    schedule = show(replace(made.program, outputs=("m_s",)))
    assert "output m_s is not" in check(changed(decided(made.start, made.program, made.calls), schedule=schedule))[0]


ATTENTION = program("attention")
FUSED, ALONE = ("d", "out"), ("out",)
CORRUPT = {
    "another kernel too": (Kernel("k", "ComputationFuse", FUSED), Kernel("l", "ComputationFuse", ALONE)),
    "ComputationFuse with AllReduce": (Kernel("k", "ComputationFuse", ("sum_", "d")),),
    "expected ReduceScatter and AllGather": (Kernel("k", "AllReduceFuse", ("sum_", "d")),),
    "launch of its own": (Kernel("k", "ComputationFuse", ("layer",)),),
}


def with_schedule(schedule: Program | str) -> FusionDecisions:
    """A sound plan for the attention tail, with this schedule put in its place."""
    text = schedule if isinstance(schedule, str) else show(schedule)
    return changed(decided(ATTENTION, ATTENTION), schedule=text)


@pytest.mark.parametrize("words", CORRUPT)
def test_a_corrupt_kernel_is_found(words: str) -> None:
    findings = check(with_schedule(replace(ATTENTION, kernels=CORRUPT[words])))
    assert any(words in each for each in findings), findings


def test_an_overlap_against_the_data_is_found() -> None:
    findings = check(with_schedule(replace(ATTENTION, overlaps=(Overlap("o", ("sum_", "layer")),))))
    assert any("does not read what" in each for each in findings), findings


def test_a_cycle_of_launches_is_found() -> None:
    cut = split(ATTENTION, "sum_", "ARSplitRSAG")
    far = replace(cut.program, kernels=(Kernel("k", "ReduceScatterFuse", (cut.made[0], "out")),))
    findings = check(with_schedule(far))
    assert any("wait for one another" in each or "layouts" in each for each in findings), findings


def test_times_must_make_up_the_whole() -> None:
    original = program("sgd")
    sound = decided(original, original)
    first, *others = sound.stages
    longer, later = changed(first, time_ns=11), changed(others[0], start_ns=12, end_ns=22)
    assert "end at 20 ns" in check(changed(sound, time_ns=11))[0]
    assert "takes 11 ns" in check(changed(sound, stages=(longer, *others)))[0]
    assert "starts at 12 ns" in check(changed(sound, stages=(first, later), time_ns=22))[0]


def test_a_stage_that_is_not_launched_is_found() -> None:
    original = program("sgd")
    sound = decided(original, original)
    assert "the schedule launches" in check(decided(original, original, stages=sound.stages[1:]))[0]


def test_text_that_is_no_program_is_one_finding() -> None:
    assert len(check(with_schedule("p = 3"))) == 1


def test_layouts_differ_in_the_fused_schedule() -> None:
    _, schedule = fused_adam()
    layouts = {each.name: each.type.layout for each in schedule.inputs}
    assert isinstance(layouts["m"], Sliced)
    assert isinstance(layouts["p"], Replicated)
