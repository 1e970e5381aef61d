"""The checker of aggregation plans: plans broken on purpose, figures by hand, and agreement with the planner."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.aggregation.aggregation_plans import (
    ACROSS_NS,
    INSIDE_NS,
    RACKS,
    Groups,
    decisions_on,
    figured,
    problem_on,
)
from treadle.planner.machine.masters import shared_out
from treadle.planner.passes.aggregation.check import check
from treadle.planner.passes.aggregation.check_times import counted
from treadle.planner.passes.aggregation.decisions import (
    AggregationDecisions,
    AggregationRival,
    ChunkMasters,
    Embedding,
)

MIB = 1 << 20
RIGHT = decisions_on(problem_on(RACKS, connections=2), RACKS, 4)
FLAT = decisions_on(problem_on(RACKS), ((0, 1, 2, 3),), 4, RACKS)
EVEN = decisions_on(problem_on(((0, 1, 2, 3),)), ((0, 1, 2, 3),), 4)
POINTS = Embedding(points=((0.0,),) * 4, alpha=2.0, loss=0.0)


def with_chunk(place: int, **fields: Any) -> Callable[[AggregationDecisions], AggregationDecisions]:
    def edit(decisions: AggregationDecisions) -> AggregationDecisions:
        chunks = list(decisions.chunks)
        chunks[place] = replace(chunks[place], **fields)
        return replace(decisions, chunks=tuple(chunks))

    return edit


def with_fields(**fields: Any) -> Callable[[AggregationDecisions], AggregationDecisions]:
    return lambda decisions: replace(decisions, **fields)


def with_rival(place: int, **fields: Any) -> Callable[[AggregationDecisions], AggregationDecisions]:
    def edit(decisions: AggregationDecisions) -> AggregationDecisions:
        rivals = list(decisions.rivals)
        rivals[place] = replace(rivals[place], **fields)
        return replace(decisions, rivals=tuple(rivals))

    return edit


def with_groups(*groups: tuple[int, ...]) -> Callable[[AggregationDecisions], AggregationDecisions]:
    return with_fields(groups=groups, near=groups)


def with_problem(**fields: Any) -> Callable[[AggregationDecisions], AggregationDecisions]:
    return lambda decisions: replace(decisions, problem=replace(decisions.problem, **fields))


BROKEN: dict[str, tuple[AggregationDecisions, Callable[[AggregationDecisions], AggregationDecisions], str]] = {
    "host in two groups": (RIGHT, with_groups((0, 1), (1, 2, 3)), "host 1 2 times, expected every host once"),
    "host in no group": (RIGHT, with_groups((0, 1), (2,)), "host 3 0 times, expected every host once"),
    "host that is not there": (RIGHT, with_groups((0, 1), (2, 3, 4)), "host 4, expected hosts below 4"),
    "group without hosts": (RIGHT, with_groups((0, 1), (2, 3), ()), "groups[2]: found no host"),
    "hosts out of order": (RIGHT, with_groups((1, 0), (2, 3)), "hosts in ascending order"),
    "groups out of order": (RIGHT, with_groups((2, 3), (0, 1)), "them in the order of their first"),
    "near groups without a host": (FLAT, with_fields(near=((0, 1), (2,))), "near: found host 3 0 times"),
    "one level in two groups": (RIGHT, with_fields(levels=1), "one group of all hosts for one level"),
    "two levels of other groups": (RIGHT, with_fields(near=((0, 1, 2), (3,))), "the same ones for two levels"),
    "two levels of one group": (FLAT, with_fields(levels=2, near=((0, 1, 2, 3),)), "several groups for two levels"),
    "master of another group": (RIGHT, with_chunk(0, local=(2, 2), top=2), "local[0]: found host 2, expected a host"),
    "master missing": (RIGHT, with_chunk(1, local=(0,), top=0), "1 masters, expected one for each of 2 groups"),
    "master too many": (RIGHT, with_chunk(1, local=(0, 2, 3)), "3 masters, expected one for each of 2 groups"),
    "global master that is no local one": (RIGHT, with_chunk(2, top=0), "one of the local masters [1, 3]"),
    "bytes missing": (RIGHT, with_chunk(3, bytes=1), "as many as are summed"),
    "bytes too many": (RIGHT, with_problem(size_bytes=MIB - 1), "1048576 bytes, expected 1048575"),
    "chunks of unequal bytes": (RIGHT, with_chunk(1, bytes=MIB // 4 + 1), "as of the first chunk"),
    "no chunk": (RIGHT, with_fields(chunks=()), "none, expected at least one"),
    "connection that is not there": (RIGHT, with_chunk(0, connection=2), "connection: found 2, expected one below 2"),
    "another master": (EVEN, with_chunk(0, local=(1,), top=1), "time_ns: found"),
    "fewer bytes in all": (RIGHT, with_fields(total_bytes=RIGHT.total_bytes - 1), "total_bytes: found"),
    "fewer bytes across": (RIGHT, with_fields(across_bytes=RIGHT.across_bytes - 1), "across_bytes: found"),
    "shorter time": (RIGHT, with_fields(time_ns=RIGHT.time_ns - 1), "time_ns: found"),
    "slower ring": (RIGHT, with_rival(0, time_ns=2**40), "rivals[0].time_ns: found"),
    "flat form with fewer bytes": (RIGHT, with_rival(1, across_bytes=0), "rivals[1].across_bytes: found 0"),
    "even masters with another time": (FLAT, with_rival(2, time_ns=1), "rivals[2].time_ns: found 1"),
    "rival left out": (RIGHT, with_fields(rivals=RIGHT.rivals[:2]), "expected ring, flat, two-level"),
    "rival too many": (
        RIGHT,
        with_fields(rivals=(*RIGHT.rivals, AggregationRival(name="tree", time_ns=1, across_bytes=1))),
        "two-level, tree, expected ring, flat, two-level",
    ),
    "point missing": (RIGHT, with_fields(embedding=replace(POINTS, points=((0.0,),) * 3)), "a point for each of 4"),
    "height missing": (RIGHT, with_fields(embedding=replace(POINTS, heights=(0.0,))), "or one for each of 4 hosts"),
    "points of two dimensions": (
        RIGHT,
        with_fields(embedding=replace(POINTS, points=((0.0,), (0.0,), (0.0,), (0.0, 1.0)))),
        "points of one",
    ),
    "costs that are not symmetric": (
        RIGHT,
        with_problem(latency_ns=((0, 1, 1, 1), (2, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0))),
        "latency_ns[0][1]: found 1",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plan_is_refused_with_its_place(name: str) -> None:
    decisions, edit, words = BROKEN[name]
    assert check(decisions) == []
    findings = check(edit(decisions))
    assert any(words in finding for finding in findings), findings
    assert all(finding.startswith("$.decisions") for finding in findings)


def test_two_levels_by_hand() -> None:
    """Each host is the local master of half of its group's chunks, and the global one of a quarter."""
    right = counted(RIGHT)
    assert right.total_bytes == 2 * 3 * MIB
    assert right.across_bytes == 2 * MIB
    # Half of the buffer as a member, half to the member, a half of it across, from each host.
    nic = (MIB // 2 + MIB // 2 + MIB // 2) * INSIDE_NS // MIB
    uplink = MIB * (ACROSS_NS // 2) // MIB
    fill = MIB // 4 * INSIDE_NS * 4 // MIB
    assert right.time_ns == 2 * (20_000 + 50_000) + max(nic, uplink) + fill


def test_one_level_by_hand() -> None:
    """A quarter of the buffer for each host: it sends three quarters, and its own quarter to three."""
    found = counted(FLAT)
    assert found.total_bytes == 6 * MIB
    assert found.across_bytes == 4 * MIB
    uplink = 2 * MIB * (ACROSS_NS // 2) // MIB
    assert found.time_ns == 2 * 50_000 + uplink + MIB // 4 * INSIDE_NS * 2 // MIB


def test_the_ring_by_hand() -> None:
    ring = RIGHT.rivals[0]
    sent = 2 * 3 * MIB // 4
    assert ring.across_bytes == 2 * sent
    assert ring.time_ns == 6 * 50_000 + sent * (ACROSS_NS // 2) // MIB


def test_one_host_has_nothing_to_send() -> None:
    alone = decisions_on(problem_on(((0,),)), ((0,),), 1)
    assert check(alone) == []
    assert (alone.total_bytes, alone.time_ns) == (0, 0)


def test_even_masters_of_rivals_are_those_that_the_planner_shares_out() -> None:
    rng = random.Random(1)
    for _ in range(100):
        problem, near = random_problem(rng)
        count = rng.randint(1, min(problem.size_bytes, 12))
        each = -(-problem.size_bytes // count)
        pieces = [min(each, problem.size_bytes - done) for done in range(0, problem.size_bytes, each)]
        for groups in {near, (tuple(range(len(problem.hosts))),)}:
            made = shared_out(groups, len(pieces))
            plan = figured(
                AggregationDecisions(
                    problem=problem,
                    levels=2 if len(groups) > 1 else 1,
                    groups=groups,
                    near=near,
                    chunks=tuple(
                        ChunkMasters(size, chosen.local, chosen.top) for size, chosen in zip(pieces, made, strict=True)
                    ),
                    total_bytes=0,
                    across_bytes=0,
                    time_ns=0,
                )
            )
            assert check(plan) == []
            name = "two-level" if len(groups) > 1 else "flat"
            rival = next(each for each in plan.rivals if each.name == name)
            assert (rival.time_ns, rival.across_bytes) == (plan.time_ns, plan.across_bytes)


def random_problem(rng: random.Random) -> tuple[Any, Groups]:
    """A few hosts with random costs, and random groups of them."""
    hosts = rng.randint(2, 9)
    count = rng.randint(1, min(hosts, 4))
    home = [*range(count), *(rng.randrange(count) for _ in range(hosts - count))]
    rng.shuffle(home)
    near = tuple(sorted(tuple(i for i in range(hosts) if home[i] == group) for group in range(count)))
    pairs = {(i, j): (rng.randint(0, 10**5), rng.randint(1, 10**7)) for i in range(hosts) for j in range(i)}

    def matrix(which: int) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(0 if i == j else pairs[max(i, j), min(i, j)][which] for j in range(hosts)) for i in range(hosts)
        )

    problem = problem_on((tuple(range(hosts)),), size_bytes=rng.randint(1, 5000))
    return replace(problem, latency_ns=matrix(0), ns_per_MiB=matrix(1)), near
