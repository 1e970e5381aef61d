"""The independent checker: derived schedules pass, and every kind of corruption is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from planner.fusion.check import check
from planner.fusion.decisions import FusionDecisions, StageChoice
from planner.fusion.layouts import Local, Replicated, Sliced
from planner.fusion.parsing import parse
from planner.fusion.program import Kernel, Overlap, Program
from planner.fusion.stages import stages
from planner.fusion.text import show
from planner.fusion.transforms.fusing import fuse
from planner.fusion.transforms.overlapping import overlap
from planner.fusion.transforms.reorder import reorder
from planner.fusion.transforms.slicing import as_slice, dead
from planner.fusion.transforms.split import split

EXAMPLES = Path(__file__).parents[3] / "examples" / "fusion"
EXTENTS = {"B": 2, "S": 4, "H": 8, "N": 64, "T": 6, "F": 8}


def program(name: str) -> Program:
    return parse((EXAMPLES / f"{name}.py").read_text(), name)


def decided(original: Program, schedule: Program | str, **changes: object) -> FusionDecisions:
    text = schedule if isinstance(schedule, str) else show(schedule)
    launches = stages(parse(text, "schedule")) if isinstance(schedule, str) else stages(schedule)
    followers = set() if isinstance(schedule, str) else {x for each in schedule.overlaps for x in each.members[1:]}
    choices = tuple(
        StageChoice(
            name=each.name,
            kind=each.kind,
            members=each.named,
            time_ns=10,
            start_ns=10 * place,
            end_ns=10 * place + 10,
            overlaps=each.name in followers,
        )
        for place, each in enumerate(launches)
    )
    dims = {name: extent for name, extent in EXTENTS.items() if f'"{name}"' in text}
    facts: dict[str, object] = {
        "program": show(original), "schedule": text, "extents": dims, "ranks": 4, "nodes": 1, "stages": choices,
        "time_ns": 10 * len(choices), "volume": 1.0, "traffic": 1.0, "state": 1.0, "considered": 1,
    }  # fmt: skip
    return FusionDecisions(**{**facts, **changes})  # type: ignore[arg-type]


def fused_adam() -> tuple[Program, Program]:
    original = program("adam_f32")
    gathered = split(original, "sum_", "ARSplitRSAG")
    scattered, whole = gathered.made
    computed = [each.name for each in stages(gathered.program) if each.kind == "pointwise"]
    moved = reorder(gathered.program, whole, computed)
    made = moved.program
    for state in ("m", "v"):
        made = dead(as_slice(made, state).program, moved.gathers[f"{state}_"]).program
    members = [scattered, *(each.name for each in stages(made) if each.kind == "pointwise"), moved.gathers["p_"]]
    return original, fuse(made, members, "AllReduceFuse", "far").program


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "attention", "pipeline", "rmsnorm", "moe", "ag_matmul"])
def test_a_program_is_a_schedule_of_itself(name: str) -> None:
    groups = {"groups": 2} if name == "pipeline" else {}
    assert check(decided(program(name), program(name), **groups)) == []


def test_a_fused_optimizer_step_with_sliced_state_passes() -> None:
    original, schedule = fused_adam()
    assert check(decided(original, schedule)) == []


def test_an_overlap_passes() -> None:
    original = program("attention")
    schedule = overlap(original, ["layer", "sum_"], "ol").program
    assert check(decided(original, schedule)) == []


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
    original, schedule = fused_adam()
    findings = check(decided(original, replace(schedule, outputs=("m_",) if "m_" in schedule.by_name else ("far",))))
    assert findings


ATTENTION = program("attention")
FUSED, ALONE = ("d", "out"), ("out",)
CORRUPT = {
    "another kernel too": (Kernel("k", "ComputationFuse", FUSED), Kernel("l", "ComputationFuse", ALONE)),
    "ComputationFuse with AllReduce": (Kernel("k", "ComputationFuse", ("sum_", "d")),),
    "expected ReduceScatter and AllGather": (Kernel("k", "AllReduceFuse", ("sum_", "d")),),
    "launch of its own": (Kernel("k", "ComputationFuse", ("layer",)),),
}


def told(schedule: Program | str) -> FusionDecisions:
    """A sound plan for the attention tail, with this schedule put in its place."""
    text = schedule if isinstance(schedule, str) else show(schedule)
    return changed(decided(ATTENTION, ATTENTION), schedule=text)


@pytest.mark.parametrize("words", CORRUPT)
def test_a_corrupt_kernel_is_found(words: str) -> None:
    findings = check(told(replace(ATTENTION, kernels=CORRUPT[words])))
    assert any(words in each for each in findings), findings


def test_an_overlap_against_the_data_is_found() -> None:
    findings = check(told(replace(ATTENTION, overlaps=(Overlap("o", ("sum_", "layer")),))))
    assert any("does not read what" in each for each in findings), findings


def test_a_cycle_of_launches_is_found() -> None:
    cut = split(ATTENTION, "sum_", "ARSplitRSAG")
    far = replace(cut.program, kernels=(Kernel("k", "ReduceScatterFuse", (cut.made[0], "out")),))
    findings = check(told(far))
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
    assert len(check(told("p = 3"))) == 1


def test_layouts_differ_in_the_fused_schedule() -> None:
    _, schedule = fused_adam()
    layouts = {each.name: each.type.layout for each in schedule.inputs}
    assert isinstance(layouts["m"], Sliced)
    assert isinstance(layouts["p"], Replicated)
