"""Timetables: an alltoall on machines where paths must share links well."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.planner.passes.collective.build import MB, MESH, machine, ring
from tests.planner.plans import collective_plan
from treadle.planner.documents.hardware import Hardware
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.insertion import timetable
from treadle.planner.passes.collective.problem import build_problem
from treadle.planner.passes.collective.translations import Translations, translations


def torus(side: int) -> Hardware:
    steps = ((1, 0), (-1, 0), (0, 1), (0, -1))
    return machine(
        side * side,
        sorted(
            {
                (x * side + y, (x + dx) % side * side + (y + dy) % side)
                for x in range(side)
                for y in range(side)
                for dx, dy in steps
            }
        ),
        0.7,
        46,
    )


def irregular() -> Hardware:
    """A DGX-1 without the links 0 -> 3, 3 -> 0 and 1 -> 5; double links have half the beta."""
    single = "01 02 12 13 45 46 56 57 26 37".split()  # noqa: SIM905
    double = "03 04 12 15 23 56 47 67".split()  # noqa: SIM905
    costs = {tuple(map(int, pair)): 46.0 for pair in single} | {tuple(map(int, pair)): 23.0 for pair in double}
    links = {(a, b, 0.7, cost) for (x, y), cost in costs.items() for a, b in ((x, y), (y, x))}
    return machine(8, sorted(link for link in links if link[:2] not in {(0, 3), (3, 0), (1, 5)}))


def test_an_alltoall_on_a_torus_takes_no_more_than_its_links_carry():
    """108 hops over 36 links of 5.812 us: three rounds for whole parts, which no schedule of them can beat."""
    plan = collective_plan("alltoall", torus(3), MESH, size_bytes=MB, method="greedy")
    assert check(plan.decisions) == []
    assert plan.decisions.makespan_ns <= 17_436


def test_an_alltoall_on_irregular_links_is_close_to_its_bound():
    plan = collective_plan("alltoall", irregular(), MESH, size_bytes=64 * MB, method="greedy")
    assert check(plan.decisions) == []
    assert plan.certificate.scope == "all pieces"
    assert plan.certificate.gap < 0.01


@given(st.sampled_from(["alltoall", "gather", "scatter"]), st.integers(1, 3), st.booleans())
def test_a_timetable_serves_every_target_once_and_keeps_its_times(collective, pieces, grouped):
    problem = build_problem(collective, ring(5), MESH, MB, chunkup=pieces, restricted=False)
    group = translations(problem) if grouped else Translations(5)
    home = group.representative
    chunks = [entry for entry in enumerate(problem.chunks) if home[entry[1].owner] == entry[1].owner]
    found = timetable(problem.topology.routing, group, chunks, 4)
    assert found is not None
    for number, chunk in chunks:
        held = set(chunk.sources)
        for hop in found.hops:
            if hop.chunk == number:
                assert hop.src in held
                assert hop.dst not in held
                held.add(hop.dst)
        assert set(chunk.targets) <= held
    assert found == timetable(problem.topology.routing, group, chunks, 4)
    assert timetable(problem.topology.routing, group, chunks, 0) is None


def test_unreachable_targets_leave_no_timetable():
    problem = build_problem("alltoall", ring(3), MESH, MB, restricted=False)
    apart = build_problem("alltoall", ring(3), MESH, MB, restricted=False).topology.routing
    links = {edge: link for edge, link in apart.links.items() if edge[1] != 2}
    alone = type(apart)(links=links, ports=())
    assert timetable(alone, Translations(3), list(enumerate(problem.chunks)), 2) is None
