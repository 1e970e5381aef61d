"""The bound against the price of every schedule that transformations lead to, on random machines and sizes."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.fusion.schedules import EVERYTHING, optimizer, overlap_choices, program
from tests.planner.machine.machines import random_machine, shipped
from treadle.planner.machine.collectives import Tuning
from treadle.planner.passes.fusion.bound import gathered_bytes, live, lower_bound, needs, sentence
from treadle.planner.passes.fusion.enumerate import enumerate_schedules
from treadle.planner.passes.fusion.price import price
from treadle.planner.passes.fusion.program import Bindings, Program

TUNINGS = (Tuning(), Tuning(algorithms=("ring",)), Tuning(protocols=("LL",), channels=(1,)))
NAMES = ("sgd", "attention", "pipeline", "moe", "rmsnorm", "ag_matmul", "matmul_rs", "adam", "lamb")


def random_bindings(random: Random, program: Program, ranks: int, groups: int) -> Bindings:
    """Extents that nothing divides, so small that slices are empty or so large that nothing but bytes counts."""
    names = sorted({name for value in program.inputs for extent in value.type.shape for name in extent.names})
    most = 6 if len(names) == 1 else 3
    return Bindings({name: int(10 ** random.uniform(0, most)) for name in names}, ranks, groups)


def schedules(name):
    if name in ("adam", "lamb"):
        return list(optimizer(name).values())
    found = enumerate_schedules(program(name), EVERYTHING, limit=25).schedules
    return [made for each in found for _, made in overlap_choices(each.program)]


@pytest.mark.parametrize("name", NAMES)
def test_no_schedule_is_cheaper(name):
    given, made, random = program(name), schedules(name), Random(name)
    groups = 2 if name == "pipeline" else 1
    near = 0.0
    for _ in range(20):
        machine = random_machine(random)
        if machine.ranks < groups:
            continue
        bindings = random_bindings(random, given, random.randint(1, machine.ranks // groups), groups)
        tuning = random.choice(TUNINGS)
        bound = lower_bound(given, bindings, machine, tuning)
        assert bound.time_ns == int(needs(given, bindings, machine, tuning).total_us * 1000)
        for schedule in random.sample(made, min(5, len(made))):
            priced = price(schedule, bindings, machine, tuning).total_us
            assert bound.time_ns <= priced * 1000 * (1 + 1e-9), (bindings, machine, sentence(bound))
            near = max(near, bound.time_ns / 1000 / priced)
    assert near > 0.8, "a bound that is near somewhere"


def test_parts_of_adam():
    """f16 gradients are summed and f16 parameters gathered; each rank has 26 bytes of 1/n of N to read and write."""
    n, size = 16, 2**24
    given, machine = program("adam"), shipped("dgx2")
    bindings = Bindings({"N": size}, n)
    parts = needs(given, bindings, machine).parts
    assert gathered_bytes(given, live(given), bindings) == 2 * size
    assert parts["links inside a node"] == pytest.approx(2 * 15 / 16 * 2 * size / machine.node_rate)
    traffic = 2 * size + 12 * size / n + 12 * size / n + 2 * size
    assert parts["memory"] == pytest.approx(traffic / machine.memory_rate)
    assert "links inside a node alone" in sentence(lower_bound(given, bindings, machine))


def test_what_is_gathered_is_the_least_of_what_could_be():
    """Nothing where every rank keeps its part."""
    bindings = Bindings({"T": 2, "H": 8, "F": 6}, 2)
    assert gathered_bytes(program("matmul_rs"), live(program("matmul_rs")), bindings) == 0
    whole = program("ag_matmul")
    assert gathered_bytes(whole, live(whole), bindings) == 2 * 2 * 8, (
        "each rank multiplies all rows with columns of its own"
    )
