"""What the checker claims about all orders, tried on random ones: programs it accepts end alike whatever the order."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.collective import xml_simulation
from tests.codegen.collective.algorithms import random_algorithm
from tests.codegen.collective.mutations import with_step
from tests.codegen.collective.test_check import ring_program
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective import order
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import RECEIVING, SENDING, CollectiveProgram, Connection, Place
from treadle.codegen.collective.symbolic import SymbolicExecution

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall")


def random_run(program: CollectiveProgram, depth: int, rng: random.Random) -> tuple[list[Place], set[Place]]:
    """A sequence in which every step was possible when its turn came, drawn step by step, and what is left over."""
    done: dict[tuple[int, int], int] = defaultdict(int)
    filled: dict[Connection, int] = defaultdict(int)
    keys = [(rank, index) for rank, ranked in enumerate(program.ranks) for index in range(len(ranked.threadblocks))]
    sequence: list[Place] = []

    def possible(key: tuple[int, int]) -> bool:
        block = program.ranks[key[0]].threadblocks[key[1]]
        if done[key] == len(block.steps):
            return False
        step = block.steps[done[key]]
        into, out = order.fifos_of(key[0], block)
        if step.depends is not None and done[key[0], step.depends[0]] <= step.depends[1]:
            return False
        if step.type in RECEIVING and filled[into] == 0:
            return False
        return step.type not in SENDING or filled[out] < depth

    while enabled := [key for key in keys if possible(key)]:
        key = rng.choice(enabled)
        block = program.ranks[key[0]].threadblocks[key[1]]
        step = block.steps[done[key]]
        into, out = order.fifos_of(key[0], block)
        if step.type in RECEIVING:
            filled[into] -= 1
        if step.type in SENDING:
            filled[out] += 1
        sequence.append(Place(*key, done[key]))
        done[key] += 1
    left = {Place(*key, done[key]) for key in keys if done[key] < len(program.ranks[key[0]].threadblocks[key[1]].steps)}
    return sequence, left


def outputs(program: CollectiveProgram, sequence: list[Place], inplace: bool) -> dict[object, object]:
    """What lies where at the end, scratch left out."""
    replay = SymbolicExecution(program, inplace)
    for place in sequence:
        block = program.ranks[place.rank].threadblocks[place.threadblock]
        replay.execute(place, block.steps[place.step], *order.fifos_of(place.rank, block))
    return {address: value for address, value in replay.values.items() if address[1] != "s"}


def loosened(program: CollectiveProgram, rng: random.Random) -> CollectiveProgram:
    """Some waits left out: sometimes the program still is right, sometimes it races."""
    places = [place for place, _, step in program.steps() if step.depends is not None and step.type != "nop"]
    for place in rng.sample(places, min(len(places), rng.randint(0, 3))):
        position = place.step
        steps = program.ranks[place.rank].threadblocks[place.threadblock].steps
        if position and steps[position - 1].type == "nop":
            continue  # the public runtimes want a wait at the end of a chain of nops
        program = with_step(program, *place, depends=None)
    return program


@given(
    collective=st.sampled_from(COLLECTIVES),
    inplace=st.booleans(),
    seed=st.integers(0, 10**6),
    ranks=st.integers(2, 4),
)
def test_accepted_programs_end_alike_in_every_order(collective: str, inplace: bool, seed: int, ranks: int) -> None:
    rng = random.Random(seed)
    made = lower(random_algorithm(collective, ranks, 2, 1, seed), inplace=inplace and collective != "alltoall")
    program = loosened(made, rng)
    if check_program.check(program):
        return
    expected = outputs(program, list(order.run(program, 2).sequence), program.inplace)
    for _ in range(4):
        sequence, left = random_run(program, 2, rng)
        assert not left
        assert outputs(program, sequence, program.inplace) == expected


@pytest.mark.parametrize(
    "program",
    [
        ring_program(4),
        xml_simulation.ring_allreduce(4, 2, 2, "Simple"),
        xml_simulation.ring_allgather(5, 1, 1, "LL"),
        xml_simulation.all_pairs_allreduce(3, 2, "LL"),
    ],
    ids=lambda program: program.name,
)
def test_programs_that_rest_on_the_order_of_messages(program: CollectiveProgram) -> None:
    """In a ring it is messages that have come around, not waits, which keep reads before writes."""
    assert check_program.check(program) == []
    expected = outputs(program, list(order.run(program, 2).sequence), program.inplace)
    for seed in range(20):
        sequence, left = random_run(program, 2 + seed % 3, random.Random(seed))
        assert not left
        assert outputs(program, sequence, program.inplace) == expected


def test_a_race_that_is_found_shows_in_some_order() -> None:
    """The wait before the second send of a ring left out: one order sends the partial sum, another what was there."""
    program = with_step(ring_program(3), 0, 1, 1, depends=None)
    assert any("data race" in finding for finding in check_program.check(program))
    rng = random.Random(1)
    ends = {repr(sorted(outputs(program, random_run(program, 2, rng)[0], False).items())) for _ in range(40)}
    assert len(ends) > 1


@given(seed=st.integers(0, 10**6), depth=st.integers(1, 3), collective=st.sampled_from(COLLECTIVES))
def test_what_gets_stuck_does_not_depend_on_the_order(seed: int, depth: int, collective: str) -> None:
    """Confluence, on which the search for deadlocks rests: with swapped steps many of these programs do get stuck."""
    rng = random.Random(seed)
    program = lower(random_algorithm(collective, 3, 2, 1, seed))
    blocks = [(r, b) for r, ranked in enumerate(program.ranks) for b, block in enumerate(ranked.threadblocks)]
    rank, index = rng.choice(blocks)
    block = program.ranks[rank].threadblocks[index]
    steps = [replace(step, depends=None) for step in block.steps]
    rng.shuffle(steps)
    changed = replace(block, steps=tuple(steps))
    threadblocks = tuple(changed if n == index else other for n, other in enumerate(program.ranks[rank].threadblocks))
    ranked = replace(program.ranks[rank], threadblocks=threadblocks)
    program = replace(program, ranks=tuple(ranked if n == rank else other for n, other in enumerate(program.ranks)))
    stuck = set(order.run(program, depth).stuck)
    for _ in range(3):
        sequence, left = random_run(program, depth, rng)
        assert left == stuck
        assert sorted(sequence) == sorted(order.run(program, depth).sequence)
