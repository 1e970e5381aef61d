"""The checker's own reading of the launches that a plan states: what each holds, how it runs, and that times fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from treadle.planner.passes.fusion.check_launches import COLLECTIVES, LIBRARY, SUMS, launches, waits
from treadle.planner.passes.fusion.decisions import FusionDecisions, StageChoice
from treadle.planner.passes.fusion.program import Node, Program

MOVING = COLLECTIVES | {"Send"}
ALONE = MOVING | LIBRARY | {"Permute"}
"""Operations whose name is the kind of a launch that holds only them."""
ALGORITHMS = ("ring", "all-pairs", "hierarchical", "tree")
MOST_CHANNELS = 32
"""Channels of one collective."""


def check_stages(decisions: FusionDecisions, schedule: Program) -> Iterator[str]:
    """The stages must be the launches of the schedule, and their times must make up the whole."""
    launch = launches(schedule)
    expected = set(launch.values())
    names = [stage.name for stage in decisions.stages]
    if set(names) != expected or len(names) != len(expected):
        yield f"stages: {', '.join(sorted(names))}, the schedule launches {', '.join(sorted(expected))}"
        return
    for before, after in sorted(set(waits(schedule, launch))):
        if names.index(before) > names.index(after):
            yield f"stages: {after} comes before {before}, for which it waits"
    yield from _times(decisions, schedule)
    policies = {kernel.name: kernel.policy for kernel in schedule.kernels}
    for stage in decisions.stages:
        nodes = [node for node in schedule.nodes if launch.get(node.name) == stage.name]
        kind = _kind(nodes, policies.get(stage.name, "ComputationFuse"))
        members = tuple(node.name for node in nodes if not node.anonymous) or (stage.name,)
        if (stage.kind, stage.members) != (kind, members):
            said, has = (f"{name} of {', '.join(of)}" for name, of in ((stage.kind, stage.members), (kind, members)))
            yield f"stages: {stage.name}, {said}, the schedule has {stage.name}, {has}"
        yield from _runs(stage, any(node.op in MOVING for node in nodes))
        yield from _made(decisions, stage, kind)


def _kind(nodes: Sequence[Node], policy: str) -> str:
    """What a launch of these operations is called."""
    if policy != "ComputationFuse":
        return f"fused {policy.removesuffix('Fuse').lower()}"
    if len(nodes) == 1 and nodes[0].op in ALONE:
        return {"Conv2d": "convolution"}.get(nodes[0].op, nodes[0].op.lower())
    sums = [node for node in nodes if node.op in SUMS]
    if not sums:
        return "pointwise"
    return "rows" if all(node.attribute("dim") == len(node.type.shape) - 1 for node in sums) else "reduction"


def _times(decisions: FusionDecisions, schedule: Program) -> Iterator[str]:
    """Stages follow each other unless they overlap, and without an overlap last as long as they take."""
    followers = {name for overlap in schedule.overlaps for name in overlap.members[1:]}
    if not followers.issuperset(stage.name for stage in decisions.stages if stage.overlaps):
        yield "stages: those that overlap are not those of the schedule"
    end = 0
    for stage in decisions.stages:
        if not stage.overlaps and stage.start_ns != end:
            yield f"stages: {stage.name} starts at {stage.start_ns} ns, the stages before it end at {end} ns"
        if stage.end_ns - stage.start_ns < stage.time_ns:
            yield f"stages: {stage.name} takes {stage.time_ns} ns, and has from {stage.start_ns} to {stage.end_ns} ns"
        end = max(end, stage.end_ns)
    if decisions.time_ns != end:
        yield f"time: {decisions.time_ns} ns, its stages end at {end} ns"
    for before, after in pairwise(decisions.stages):
        if after.overlaps and not before.start_ns <= after.start_ns <= before.end_ns <= after.end_ns:
            first, second = (f"from {each.start_ns} to {each.end_ns} ns" for each in (before, after))
            yield f"stages: {after.name} runs {second}, {before.name}, which it overlaps, {first}"
    followed = {before.name for before, after in pairwise(decisions.stages) if after.overlaps}
    for stage in decisions.stages:
        has = stage.end_ns - stage.start_ns
        if not stage.overlaps and stage.name not in followed and abs(has - stage.time_ns) > 1:
            yield f"stages: {stage.name} takes {stage.time_ns} ns on its own, and has {has} ns without an overlap"


def _runs(stage: StageChoice, moves: bool) -> Iterator[str]:
    choice = (stage.algorithm, stage.protocol, stage.channels)
    if not moves and choice != (None, None, None):
        yield f"stages: {stage.name} has an algorithm, protocol or channels, and moves nothing between ranks"
    if moves and None in choice:
        yield f"stages: {stage.name} has no algorithm, protocol or channels, and moves data between ranks"
    if stage.algorithm is not None and stage.algorithm not in ALGORITHMS:
        yield f"stages: {stage.name} runs on {stage.algorithm!r}, expected one of {', '.join(ALGORITHMS)}"
    if stage.channels is not None and stage.channels > MOST_CHANNELS:
        yield f"stages: {stage.name} has {stage.channels} channels, expected at most {MOST_CHANNELS}"


def _made(decisions: FusionDecisions, stage: StageChoice, kind: str) -> Iterator[str]:
    """Library calls are products that overlap with nothing and take less time than our kernel."""
    if stage.own_ns is None:
        return
    if not decisions.library or kind not in ("matmul", "convolution"):
        yield f"stages: {stage.name} is a call of a library, expected one for a product, in a plan that may have them"
    followed = any(before.name == stage.name and after.overlaps for before, after in pairwise(decisions.stages))
    if stage.overlaps or followed:
        yield f"stages: {stage.name} is a call of a library and overlaps, which only our own kernels do"
    if stage.own_ns <= stage.time_ns:
        yield f"stages: {stage.name} is a library call of {stage.time_ns} ns, our own kernel takes {stage.own_ns} ns"
