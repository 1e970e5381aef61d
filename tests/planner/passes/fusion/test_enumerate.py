"""The search finds every schedule of the hand-worked fixtures and nothing else, by legal transformations alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from benchmarks.fusion.schedules import EVERYTHING, overlap_choices
from tests.planner.passes.fusion.by_hand import adam, attention, by_hand, pipeline, sgd
from treadle.planner.passes.fusion.candidates import AllowedTransforms
from treadle.planner.passes.fusion.canonical import canonical_hash
from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.enumerate import Enumeration, enumerate_schedules
from treadle.planner.passes.fusion.notation import notation
from treadle.planner.passes.fusion.overlaps import chains
from treadle.planner.passes.fusion.program import Node, Program
from treadle.planner.passes.fusion.prune import pointwise_first
from treadle.planner.passes.fusion.refusal import InvalidTransform
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.transform_calls import apply, replay

FIXTURES: dict[str, tuple[Program, AllowedTransforms, int, int]] = {
    "sgd": (sgd("ar"), AllowedTransforms(), 4, 11),
    "sgd extended": (sgd("ar"), AllowedTransforms(one_sided_fuse=True), 6, 15),
    "attention": (attention("ar+"), AllowedTransforms(), 4, 22),
    "attention apart": (attention("ar"), AllowedTransforms(computation_fuse=True), 10, 84),
    "adam": (adam("ar"), AllowedTransforms(as_slice=True), 7, 43),
    "pipeline": (pipeline("ar c p"), AllowedTransforms(slice_intro=True, send_fuse=True), 11, 60),
    "pipeline without slices": (pipeline("ar c p"), AllowedTransforms(send_fuse=True), 8, 40),
}
"""Program, allowed, schedules, and cuts of the schedules as chains: 2^(k-1) for k stages."""


def chain_cuts(program: Program) -> int:
    """Number of cuts of the k stages, as one chain, into contiguous groups, whether or not they can stream."""
    return 2 ** (len(stages(program)) - 1)


@pytest.fixture(scope="module")
def found() -> dict[str, Enumeration]:
    return {name: enumerate_schedules(program, allowed) for name, (program, allowed, _, _) in FIXTURES.items()}


@pytest.mark.parametrize("fixture", FIXTURES)
def test_the_numbers_of_schedules_and_of_their_cuts(fixture: str, found: dict[str, Enumeration]) -> None:
    _, _, schedules, cuts = FIXTURES[fixture]
    enumeration = found[fixture]
    assert enumeration.complete
    assert len(enumeration.schedules) == len({of.hash for of in enumeration.schedules}) == schedules
    assert sum(chain_cuts(of.program) for of in enumeration.schedules) == cuts


@pytest.mark.parametrize("fixture", FIXTURES)
def test_they_are_those_that_one_writes_by_hand(fixture: str, found: dict[str, Enumeration]) -> None:
    written = {
        canonical_hash(program): name for name, program in by_hand(fixture.removesuffix(" without slices")).items()
    }
    if fixture == "pipeline without slices":
        written = {key: name for key, name in written.items() if not (name.startswith("ar") and "ag" in name)}
    assert {of.hash for of in found[fixture].schedules} == set(written)


@pytest.mark.parametrize("fixture", FIXTURES)
def test_every_edge_is_a_replayed_transformation(fixture: str, found: dict[str, Enumeration]) -> None:
    enumeration = found[fixture]
    for schedule in enumeration.schedules:
        assert canonical_hash(replay(FIXTURES[fixture][0], schedule.calls)) == schedule.hash
    for edge in enumeration.edges:
        made = replay(enumeration.schedules[edge.source].program, edge.calls)
        assert canonical_hash(made) == enumeration.schedules[edge.target].hash
    for refusal in enumeration.refusals:
        start = replay(enumeration.schedules[refusal.source].program, refusal.calls[:-1])
        with pytest.raises(InvalidTransform) as error:
            apply(start, refusal.calls[-1])
        assert (error.value.code, error.value.witness) == (refusal.error.code, refusal.error.witness)


def subsets(names: list[str], least: int) -> Iterator[list[str]]:
    for size in range(least, len(names) + 1):
        yield from (list(chosen) for chosen in combinations(names, size))


def call(transform: str, **arguments: object) -> TransformCall:
    return TransformCall(transform=transform, arguments=arguments)


def tries(program: Program, allowed: AllowedTransforms) -> Iterator[list[TransformCall]]:
    """Every transformation with every argument, sensible or not. Collective kernels inside others are no new ones."""
    launched, nodes = [stage.name for stage in stages(program)], program.nodes
    policies = ["AllReduceFuse"]
    policies += ["ReduceScatterFuse", "AllGatherFuse"] if allowed.one_sided_fuse else []
    policies += ["SendFuse"] if allowed.send_fuse else []
    policies += ["ComputationFuse"] if allowed.computation_fuse else []
    for node in nodes:
        yield [call("split", ar=node.name, policy="ARSplitRSAG")]
    for node in nodes:
        if node.op in ("AllGather", "AllReduce", "Send"):
            yield from ([call("reorder", gather=node.name, region=region)] for region in subsets(launched, 1))
    collective = {stage.name for stage in stages(program) if stage.kind.startswith("fused ")}
    for members in subsets([name for name in launched if name not in collective], 2):
        yield from ([call("fuse", members=members, policy=policy)] for policy in policies)
    if allowed.as_slice:
        for value in program.inputs:
            for node in nodes:
                yield [call("as_slice", t=value.name), call("dead", ag=node.name)]
    if allowed.slice_intro:
        for node in nodes:
            if node.op == "AllReduce":
                intro = call("slice_intro", x=node.name)
                try:
                    _, gather = apply(program, intro).made
                except InvalidTransform:
                    continue
                yield from ([intro, call("reorder", gather=gather, region=region)] for region in subsets(launched, 1))


def normal(program: Program) -> Program:
    """Slice(AllGather(t)) is t."""
    values = program.by_name
    same = {
        node.name: str(source.inputs[0])
        for node in program.nodes
        if node.op == "Slice"
        and isinstance(source := values[str(node.inputs[0])], Node)
        and source.op == "AllGather"
        and values[str(source.inputs[0])].type.layout == node.type.layout
    }
    nodes = [
        replace(node, inputs=tuple(same.get(x, x) if isinstance(x, str) else x for x in node.inputs))
        for node in program.nodes
        if node.name not in same
    ]
    read = {x for node in nodes for x in node.inputs} | set(program.outputs)
    dropped = {str(program.by_name[name].inputs[0]) for name in same}
    return replace(program, nodes=tuple(node for node in nodes if node.name in read or node.name not in dropped))


@pytest.mark.parametrize("fixture", FIXTURES)
def test_brute_force_over_all_arguments_finds_no_other(fixture: str, found: dict[str, Enumeration]) -> None:
    start, allowed, schedules, _ = FIXTURES[fixture]
    reached, waiting, refused = {canonical_hash(start)}, [start], 0
    while waiting:
        program = waiting.pop()
        for calls in tries(program, allowed):
            try:
                made = normal(replay(program, calls))
            except InvalidTransform:
                refused += 1
                continue
            if canonical_hash(made) not in reached:
                reached.add(canonical_hash(made))
                waiting.append(made)
    assert reached == {of.hash for of in found[fixture].schedules}
    assert len(reached) == schedules
    assert refused > 10 * schedules


def test_refused_edges_tell_what_the_fixtures_say_must_be_refused(found: dict[str, Enumeration]) -> None:
    refusals = found["adam"].refusals
    names = [notation(of.program) for of in found["adam"].schedules]
    reported = {(names[of.source], of.calls[-1].transform, of.error.code, of.error.witness) for of in refusals}
    assert ("AR; C", "as_slice", "output", "p_") in reported
    assert any(name == "AR; C" and code == "read-whole" for name, _, code, _ in reported)
    assert any("AG(m)" in name and code == "gathers" for name, _, code, _ in reported)


def test_overlaps_of_chains_are_all_legal_and_those_of_several_gathers_are_not(found: dict[str, Enumeration]) -> None:
    for fixture in ("sgd extended", "attention apart", "pipeline"):
        for of in found[fixture].schedules:
            assert len(list(overlap_choices(of.program))) == chain_cuts(of.program)
    several = next(of for of in found["adam"].schedules if "AG(m); AG(v)" in notation(of.program))
    refused = {chain: error.code for chain, error in chains(several.program).refused}
    assert len(list(overlap_choices(several.program))) == 8
    assert refused == {}


def test_overlapped_programs_are_those_that_the_chains_say(found: dict[str, Enumeration]) -> None:
    of = found["attention"].schedules[-1]
    assert notation(of.program) == "MM; fuse(RS-C-AG)"
    ((_, apart), (chosen, together)) = overlap_choices(of.program)
    assert notation(apart) == "MM; fuse(RS-C-AG)"
    assert notation(together) == "ol(MM, fuse(RS-C-AG))"
    assert [overlap.members for overlap in together.overlaps] == list(chosen)


def test_a_limit_leaves_the_enumeration_incomplete() -> None:
    program, allowed, _, _ = FIXTURES["adam"]
    for limits, least in (({"limit": 3}, 3), ({"depth": 1}, 2), ({"depth": 2}, 3)):
        enumeration = enumerate_schedules(program, allowed, **limits)
        assert not enumeration.complete
        assert len(enumeration.schedules) == least


def test_regions_that_are_left_out_leave_the_enumeration_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    program, options = attention("ar"), AllowedTransforms(one_sided_fuse=True)
    whole = enumerate_schedules(program, options)
    monkeypatch.setattr("treadle.planner.passes.fusion.candidates.MOST_REGIONS", 0)
    cut = enumerate_schedules(program, options)
    assert (whole.complete, cut.complete) == (True, False)
    assert len(cut.schedules) < len(whole.schedules)
    assert "MM; fuse(RS-C1-C2-AG)" in {notation(of.program) for of in cut.schedules}, "the set of all is tried"


def test_the_order_is_fixed_and_breadth_first(found: dict[str, Enumeration]) -> None:
    for fixture, (program, allowed, _, _) in FIXTURES.items():
        again = enumerate_schedules(program, allowed)
        assert again.schedules == found[fixture].schedules
        assert again.edges == found[fixture].edges
        depths = [of.depth for of in again.schedules]
        assert depths == sorted(depths)


def test_inverse_moves_add_no_schedules_and_roots_do() -> None:
    program, allowed, schedules, _ = FIXTURES["attention"]
    assert len(enumerate_schedules(program, replace(allowed, merge=True)).schedules) == schedules
    rooted = enumerate_schedules(program, replace(allowed, split_reduce_broadcast=True))
    names = {notation(of.program) for of in rooted.schedules}
    assert {"MM; Red; BC; C", "MM; Red; C'; BC"} <= names
    everything = {notation(of.program) for of in enumerate_schedules(program, EVERYTHING).schedules}
    assert names < everything
    assert {"MM; fuse(Red-C); BC", "MM; Red; fuse(C-BC)"} <= everything


def test_a_lone_slice_intro_is_kept_on_request_alone() -> None:
    program, allowed, _, _ = FIXTURES["pipeline"]
    more = enumerate_schedules(program, replace(allowed, lone_slice_intro=True))
    assert {notation(of.program) for of in more.schedules} > {"AR; AG; C; P2P"}
    assert len(more.schedules) > 11


def test_computation_is_fused_before_the_search_as_far_as_it_goes() -> None:
    start, calls = pointwise_first(attention("ar"))
    assert [(of.transform, of.arguments) for of in calls] == [
        ("fuse", {"members": ["d", "out"], "policy": "ComputationFuse"})
    ]
    assert canonical_hash(start) == canonical_hash(attention("ar+"))
    assert pointwise_first(attention("ar"), largest=2) == (attention("ar"), ())
    assert pointwise_first(sgd("ar")) == (sgd("ar"), ())
