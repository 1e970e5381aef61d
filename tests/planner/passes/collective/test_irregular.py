"""Gather, scatter, alltoallv, sendrecv and custom: hand-worked times, the exact model, checked plans and programs."""

from __future__ import annotations

import random

import pytest

from tests.oracles.exact_collective import exact_time_of_parts
from tests.planner.passes.collective.build import MB, MESH, line, relay, relay_sketch, ring
from tests.planner.passes.collective.test_oracles import random_machine
from tests.planner.plans import collective_plan
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.planner.documents.pattern import Part, Pattern
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.check import check


def custom(*chunks: tuple[tuple[int, ...], tuple[int, ...]]) -> Pattern:
    return Pattern(version=1, name="custom", unit="1MiB", chunks=tuple(Part(*chunk) for chunk in chunks))


def plan(pattern: Pattern, hardware, sketch=MESH, method="milp"):
    return collective_plan(pattern.collective, hardware, sketch, pattern=pattern, method=method)


@pytest.mark.parametrize(
    ("hardware", "pattern", "rounds"),
    [
        # both directions of the middle links carry one part each, the ends two hops away take a second round
        (line(3), Pattern(version=1, name="p", unit="1MiB", pairs=((0, 2), (2, 0))), 2),
        (ring(4), Pattern(version=1, name="p", unit="1MiB", pairs=tuple((i, (i + 1) % 4) for i in range(4))), 1),
        # three parts over one link
        (line(2), Pattern(version=1, name="v", unit="1MiB", counts=((0, 3), (1, 2))), 3),
        # rank 3 is next to 2, which already has it; with rank 0 alone as source it would take two rounds
        (line(4), custom(((0, 2), (1, 3))), 1),
        (line(4), custom(((0,), (1, 3))), 3),
        # what is held already need not move
        (line(2), custom(((0, 1), (0, 1))), 0),
    ],
)
def test_hand_worked(hardware, pattern, rounds):
    found = plan(pattern, hardware)
    assert found.decisions.makespan_ns == 9000 * rounds
    assert check(found.decisions) == []


@pytest.mark.parametrize(("collective", "root", "rounds"), [("gather", 0, 3), ("gather", 1, 2), ("scatter", 0, 3)])
def test_gather_and_scatter_on_a_line(collective, root, rounds):
    size = MB if collective == "gather" else 4 * MB
    found = collective_plan(collective, line(4), MESH, size_bytes=size, root=root)
    assert found.decisions.makespan_ns == 9000 * rounds
    assert found.certificate.optimal


def random_pattern(seed: int, ranks: int) -> Pattern:
    rng = random.Random(seed)
    if seed % 3 == 0:
        rows = [[rng.choice((0, 0, 1, 2)) for _ in range(ranks)] for _ in range(ranks)]
        rows[0][1] = 1
        return Pattern(version=1, name="v", unit="1MiB", counts=tuple(map(tuple, rows)))

    def some(least: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(ranks), rng.randint(least, ranks - 1)))

    return custom(*((some(1), some(1)) for _ in range(3)))


@pytest.mark.parametrize("seed", range(8))
def test_the_exact_model_bounds_plans_and_the_exact_method_meets_it(seed):
    hardware = random_machine(seed)
    ranks = hardware.devices_per_node
    pattern = random_pattern(seed, ranks)
    demands = pattern.demands
    found, exact = plan(pattern, hardware), plan(pattern, hardware, method="exact")
    links = {(link.src, link.dst): (link.alpha_ns, link.beta_ns) for link in found.decisions.links}
    best = exact_time_of_parts([set(d.sources) for d in demands], [set(d.targets) for d in demands], ranks, links)
    assert found.certificate.lower_bound <= best <= found.decisions.makespan_ns <= 2 * best
    assert exact.decisions.makespan_ns == best


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_programs_give_what_the_plan_promises_and_nothing_else(seed, instances):
    hardware = random_machine(seed)
    pattern = random_pattern(seed, hardware.devices_per_node)
    decisions = collective_plan(pattern.collective, hardware, MESH, pattern=pattern, instances=instances).decisions
    expected = expected_outputs(decisions)
    program = xml.parse(xml.emit(lower(decisions)), "x.xml")
    assert check_program.check(program, expected=expected) == []
    (place, value), *_ = expected.items()
    wrong = {**expected, place: tuple((rank, chunk + 1) for rank, chunk in value)}
    assert any("ends as" in finding for finding in check_program.check(program, expected=wrong))


def test_relays_carry_parts_out_of_every_home_node():
    pattern = Pattern(version=1, name="p", unit="1MiB", pairs=((0, 3), (2, 1), (0, 2)))
    found = plan(pattern, relay(2, 4, 10), relay_sketch(batching=False))
    crossing = {(move.src, move.dst) for move in found.decisions.transfers if move.src // 2 != move.dst // 2}
    assert crossing == {(1, 2), (3, 0)}
    replicas = plan(custom(((0, 2), (1, 3))), relay(2, 4, 10), relay_sketch(batching=False))
    assert all(move.src // 2 == move.dst // 2 for move in replicas.decisions.transfers)


def test_what_does_not_fit_is_refused_in_one_line():
    counts = Pattern(version=1, name="v", counts=((0, 1), (0, 0)))
    with pytest.raises(InputError, match=r"v: \$.counts: found 2 rows for 3 ranks"):
        collective_plan("alltoallv", line(3), MESH, pattern=counts, size_bytes=MB)
    with pytest.raises(InputError, match="found a pattern for alltoallv, expected one for sendrecv"):
        collective_plan("sendrecv", line(2), MESH, pattern=counts, size_bytes=MB)
    with pytest.raises(InputError, match="alltoallv takes a pattern"):
        collective_plan("alltoallv", line(2), MESH, size_bytes=MB)
    with pytest.raises(InputError, match="expected 1048576: the unit"):
        collective_plan("custom", line(2), MESH, pattern=custom(((0,), (1,))), size_bytes=5)
    with pytest.raises(InputError, match=r"\$.chunks: found rank 7, expected one below 2"):
        plan(custom(((0,), (7,))), line(2))


@pytest.mark.parametrize(
    ("collective", "more", "rccl", "msccl"),
    [
        ("gather", {"size_bytes": MB}, "gather", "custom"),
        ("sendrecv", {"pattern": Pattern(version=1, name="p", unit="1MiB", pairs=((0, 1),))}, "custom", "custom"),
        (
            "alltoallv",
            {"pattern": Pattern(version=1, name="v", unit="1MiB", counts=((0, 1), (2, 0)))},
            "alltoallv",
            "custom",
        ),
    ],
)
def test_xml_names_what_the_dialect_knows(collective, more, rccl, msccl):
    program = lower(collective_plan(collective, line(2), MESH, **more).decisions)
    for dialect, word in (("rccl", rccl), ("executor", rccl), ("msccl", msccl)):
        assert f'coll="{word}"' in xml.emit(program, dialect)


@pytest.mark.parametrize("method", ["auto", "two-level", "greedy", "all-pairs", "exact"])
def test_what_a_rank_holds_already_is_not_sent_to_it(method):
    """Sources in both nodes, and sources that are targets as well."""
    parts = (((2,), (0, 1, 2, 3)), ((2, 3), (1,)), ((0, 3), (0, 1, 2, 3)), ((1, 0), (0, 1)))
    found = collective_plan("custom", relay(2, 4, 10), MESH, pattern=custom(*parts), method=method)
    assert check(found.decisions) == []
