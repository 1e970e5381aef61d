"""The checker accepts what the planner's own timeline says of any option, and refuses each kind of corruption."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.planner.passes.compression.plans import random_groups, random_problem
from treadle.planner.passes.compression.check import check
from treadle.planner.passes.compression.decided import decided, plain_groups
from treadle.planner.passes.compression.decisions import CompressionDecisions, CompressionRival, GradientGroup, Sent
from treadle.planner.passes.compression.problem import Gradient

Decisions = CompressionDecisions
HIERARCHICAL = (
    "reduce-scatter@intra",
    "compress@device",
    "alltoall@inter",
    "decompress@device",
    "compress@host",
    "allgather@inter",
    "decompress@host",
    "allgather@intra",
)


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_any_options_are_accepted_as_the_planner_prices_them(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        problem = random_problem(rng)
        decisions = decided(problem, random_groups(rng, problem))
        assert check(decisions) == []


def good() -> Decisions:
    """Three groups: six steps over both places, an allreduce of halves, and raw."""
    problem = replace(
        random_problem(random.Random(1), gradients=6),
        machines=2,
        devices=2,
        gradients=tuple(Gradient(name=f"g{at}", elements=900 + at, backward_ns=50) for at in range(6)),
        planned=None,
        compressions=2,
        group_bytes=8000,
        host_workers=1,
        routines=(),
    )
    return decided(
        problem,
        (
            GradientGroup(first=0, last=1, compressor="dgc:0.01", steps=HIERARCHICAL),
            GradientGroup(
                first=2, last=3, compressor="fp16", steps=("compress@device", "allreduce@flat", "decompress@device")
            ),
            GradientGroup(
                first=4,
                last=4,
                compressor="efsignsgd",
                steps=("compress@device", "allgather@flat", "decompress@device"),
            ),
            GradientGroup(first=5, last=5, steps=("reduce@flat", "broadcast@flat")),
        ),
        {"uncompressed": plain_groups(problem)},
    )


def regrouped(plan: Decisions, groups: tuple[GradientGroup, ...]) -> Decisions:
    """The plan with other groups, and an order that names no step beyond theirs."""
    sent = (each for each in plan.order if each.group < len(groups) and each.step < len(groups[each.group].steps))
    return replace(plan, groups=groups, order=tuple(sent))


def group(number: int, **changes: object) -> Callable[[Decisions], Decisions]:
    """The plan with another group of that number."""

    def changed(plan: Decisions) -> Decisions:
        groups = [*plan.groups]
        groups[number] = replace(groups[number], **changes)
        return regrouped(plan, tuple(groups))

    return changed


def steps(number: int, *row: str) -> Callable[[Decisions], Decisions]:
    return group(number, steps=row)


def with_step(place: int, step: str) -> Callable[[Decisions], Decisions]:
    """The first group with another step."""
    return steps(0, *HIERARCHICAL[:place], step, *HIERARCHICAL[place + 1 :])


def without_step(place: int) -> Callable[[Decisions], Decisions]:
    return steps(0, *HIERARCHICAL[:place], *HIERARCHICAL[place + 1 :])


def field(**changes: object) -> Callable[[Decisions], Decisions]:
    return lambda plan: replace(plan, **changes)


def order(change: Callable[[list[Sent]], list[Sent]]) -> Callable[[Decisions], Decisions]:
    return lambda plan: replace(plan, order=tuple(change([*plan.order])))


def limit(**changes: object) -> Callable[[Decisions], Decisions]:
    return lambda plan: replace(plan, problem=replace(plan.problem, **changes))


def swapped(sent: list[Sent]) -> list[Sent]:
    """The first two collectives of different groups that follow one another, swapped."""
    at = next(at for at in range(1, len(sent)) if sent[at].group != sent[at - 1].group)
    return [*sent[: at - 1], sent[at], sent[at - 1], *sent[at + 1 :]]


def inverted(sent: list[Sent]) -> list[Sent]:
    """The collectives of the first group the other one round."""
    mine = iter([each for each in reversed(sent) if each.group == 0])
    return [next(mine) if each.group == 0 else each for each in sent]


def rivals(*made: Callable[[tuple[CompressionRival, ...]], CompressionRival]) -> Callable[[Decisions], Decisions]:
    """The plan with rivals made of those that it has."""
    return lambda plan: replace(plan, rivals=tuple(make(plan.rivals) for make in made))


def first_of(rival: CompressionRival, **changes: object) -> CompressionRival:
    """The rival with another first group."""
    return replace(rival, groups=(replace(rival.groups[0], **changes), *rival.groups[1:]))


CORRUPTIONS: dict[str, tuple[Callable[[Decisions], Decisions], str]] = {
    "a gradient in no group": (group(1, first=3), "groups[1].first: found gradient 3 (g3), expected 2, the next one"),
    "a gradient in two groups": (group(1, first=1), "groups[1].first: found gradient 1 (g1), expected 2, the next one"),
    "groups in another order": (
        lambda plan: regrouped(plan, plan.groups[1::-1] + plan.groups[2:]),
        "groups[0].first: found gradient 2 (g2), expected 0",
    ),
    "gradients at the end without a group": (
        lambda plan: regrouped(plan, plan.groups[:3]),
        "groups: found the last one at gradient 4, expected all 6 gradients",
    ),
    "a group beyond the last gradient": (
        group(3, last=6),
        "groups[3]: found gradients 5 to 6, expected a range below 6",
    ),
    "a compressor that the problem lacks": (
        group(0, compressor="onebit"),
        "groups[0].compressor: found 'onebit', expected one of the problem: dgc:0.01, efsignsgd, fp16, powersgd:2",
    ),
    "a compressor at a place where it was not measured": (
        steps(2, "compress@host", "allgather@flat", "decompress@device"),
        "groups[2].steps[0]: found compress@host, expected efsignsgd on the device",
    ),
    "a compressor that nothing uses": (
        group(3, compressor="fp16"),
        "groups[3].compressor: found 'fp16', expected none, since no step compresses",
    ),
    "compression without a compressor": (
        group(2, compressor=None),
        "groups[2].steps[0]: found compress@device, expected no compression",
    ),
    "no place of a step": (with_step(1, "compress"), "groups[0].steps[1]: found compress, expected compress or"),
    "an unknown step": (
        with_step(2, "scatter@inter"),
        "groups[0].steps[2]: found scatter@inter, expected allgather@inter or",
    ),
    "an allreduce of payloads that cannot be added up": (
        steps(2, "compress@device", "allreduce@flat", "decompress@device"),
        "groups[2].steps[1]: found allreduce@flat, expected allgather@flat or alltoall@flat or gather@flat",
    ),
    "a planned allreduce that the problem does not have": (
        steps(3, "planned@flat"),
        "groups[3].steps[0]: found planned@flat, expected compress or allreduce@flat or",
    ),
    "a raw routine on payloads": (
        with_step(2, "reduce-scatter@inter"),
        "groups[0].steps[2]: found reduce-scatter@inter, expected",
    ),
    "a second step of another pair": (
        steps(3, "reduce@flat", "allgather@flat"),
        "groups[3].steps[1]: found allgather@flat, expected compress or broadcast@flat",
    ),
    "payloads compressed once more": (
        with_step(3, "compress@device"),
        "groups[0].steps[3]: found compress@device, expected decompress or allgather@inter",
    ),
    "payloads at the end": (
        lambda plan: group(2, steps=plan.groups[2].steps[:-1])(plan),
        "groups[2].steps[2]: found no further step, expected decompress",
    ),
    "nodes that never exchange": (
        steps(3, "reduce-scatter@intra", "allgather@intra"),
        "groups[3].steps[1]: found allgather@intra, expected",
    ),
    "a sum that stays within nodes": (without_step(7), "groups[0].steps[7]: found no further step, expected"),
    "steps after the last one": (
        steps(3, "reduce@flat", "broadcast@flat", "allreduce@flat"),
        "groups[3].steps[2]: found allreduce@flat, expected no further step",
    ),
    "no steps": (steps(3), "groups[3].steps[0]: found no further step, expected compress or allreduce@flat"),
    "a larger group than allowed": (
        limit(group_bytes=7000),
        "groups[0]: found 7204 bytes in a group of several gradients, expected at most 7000",
    ),
    "more encodings than allowed": (
        limit(compressions=1),
        "groups[0].steps: found 2 encodings of a gradient, expected at most 1",
    ),
    "a collective that is missing in the order": (
        order(lambda sent: sent[:-1]),
        "order: found no step",
    ),
    "a collective that is sent twice": (order(lambda sent: [*sent, sent[0]]), "again, expected each collective once"),
    "an order with a step that is none": (
        order(lambda sent: [*sent, Sent(group=0, step=1)]),
        "found step 1 of group 0, which is compress@device, expected a collective",
    ),
    "an order beyond the steps": (
        order(lambda sent: [*sent, Sent(group=3, step=2)]),
        "found step 2 of group 3, expected a step of a group",
    ),
    "an order in which a step waits for a later one": (order(inverted), "first: ranks would deadlock"),
    "another order of collectives": (order(swapped), ", which starts first"),
    "another time": (field(time_ns=17), "time_ns: found 17, expected"),
    "another time without compression": (field(uncompressed_ns=17), "uncompressed_ns: found 17, expected"),
    "other bytes": (field(sent_bytes=17), "sent_bytes: found 17, expected"),
    "another time of a rival": (
        lambda plan: replace(plan, rivals=(replace(plan.rivals[0], time_ns=17),)),
        "rivals[0].time_ns: found 17, expected",
    ),
    "a rival that leaves gradients out": (
        lambda plan: replace(plan, rivals=(replace(plan.rivals[0], groups=plan.rivals[0].groups[:4]),)),
        "rivals[0].groups: found the last one at gradient 3, expected all 6 gradients",
    ),
    "a rival of no known name": (
        rivals(lambda plan: replace(plan[0], name="theirs")),
        "rivals[0].name: found 'theirs', expected one of 'uncompressed', 'espresso, published', 'espresso', ",
    ),
    "a rival twice": (rivals(lambda plan: plan[0], lambda plan: plan[0]), "found 'uncompressed' again, expected each"),
    "no rival without compression": (
        rivals(lambda plan: replace(plan[0], name="espresso")),
        "rivals: found none called 'uncompressed', expected the one that the speed-up is stated against",
    ),
    "a rival that is not as it is": (
        rivals(lambda plan: first_of(plan[0], steps=("allreduce@flat",))),
        "rivals[0].groups[0]: found allreduce@flat, expected reduce-scatter@intra, allreduce@inter, allgather@intra",
    ),
    "a rival of an algorithm that joins no gradients": (
        lambda plan: replace(
            plan, rivals=(*plan.rivals, CompressionRival(name="espresso", groups=plan.groups, time_ns=plan.time_ns))
        ),
        "rivals[1].groups[0]: found gradients 0 to 1, expected one gradient in a group of espresso",
    ),
    "a rival of its paper with another compressor": (
        rivals(
            lambda plan: plan[0],
            lambda plan: replace(
                first_of(plan[0], compressor="fp16", steps=("compress@device", "allgather@flat", "decompress@device")),
                name="espresso, published, dgc:0.01",
            ),
        ),
        "rivals[1].groups[0].compressor: found fp16, expected none or dgc:0.01 in espresso, published, dgc:0.01",
    ),
    "times of a slower link": (
        lambda plan: limit(inter=replace(plan.problem.inter, beta_us_per_MB=999_999))(plan),  # type: ignore[type-var]
        "time_ns: found",
    ),
    "times of another compressor": (group(1, compressor="powersgd:2"), "groups[1].steps[0]: found compress@device"),
    "a problem without a link": (limit(inter=None), "problem.inter: found nothing, expected the link between 2 nodes"),
}


def test_the_plan_that_is_corrupted_is_good() -> None:
    assert check(good()) == []


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_plan_is_refused(name: str) -> None:
    change, message = CORRUPTIONS[name]
    findings = check(change(good()))
    assert any(line.startswith("$.decisions.") and message in line for line in findings), findings
