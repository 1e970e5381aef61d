"""Random programs, run by processes that have only TCP between them, give what the program's interpreter says."""

from __future__ import annotations

import random
from multiprocessing.connection import Connection

import pytest
import torch

from tests.codegen.collective.algorithms import random_algorithm
from tests.treadle.runtime.collective.wire.jobs import FOUR_HOSTS, TWO_HOSTS, answers, start
from treadle.codegen.collective.lower import lower
from treadle.runtime.collective.compare_native import random_inputs, reference
from treadle.runtime.collective.messages import on_wire
from treadle.runtime.collective.wire.native import RankWire

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
REDUCING = ("allreduce", "reducescatter", "reduce")


def run_seeds(wire: RankWire, pipe: Connection, seeds: range) -> None:
    torch.set_num_threads(1)
    wrong = []
    for seed in seeds:
        dice = random.Random(seed)
        collective = COLLECTIVES[seed % len(COLLECTIVES)]
        decisions = random_algorithm(collective, 4, dice.randint(1, 3), dice.randint(1, 2), seed=seed)
        inplace = dice.random() < 0.5 and collective != "alltoall"
        program = lower(decisions, inplace=inplace, fuse=dice.random() < 0.7)
        dtype = dice.choice((torch.int32, torch.int64, torch.float64, torch.bfloat16))
        op = dice.choice(("sum", "min", "max")) if collective in REDUCING else "sum"
        inputs = random_inputs(program, dice.choice((1, 3, 16, 1000, 40_000)), dtype, seed)
        expected, allowed = reference(program, inputs, op)
        executor = on_wire(program, wire, inplace=inplace)
        found, wanted = executor(inputs[wire.rank].clone(), op=op), expected[wire.rank]
        if wanted is not None and (found.double() - wanted.double().view(found.shape)).abs().max() > allowed:
            wrong.append((seed, collective, op, str(dtype)))
    pipe.send(wrong)
    pipe.recv()


def check(addresses: tuple[str, ...], seeds: range, seconds: float) -> None:
    processes, pipes = start(addresses, lambda wire, pipe: run_seeds(wire, pipe, seeds))
    assert answers(pipes, seconds) == [[]] * len(addresses)
    for pipe in pipes:
        pipe.send("end")
    for process in processes:
        process.join(10)


def test_random_programs_over_tcp_and_memory() -> None:
    check(TWO_HOSTS, range(60), 120)


@pytest.mark.slow
def test_a_thousand_random_programs_over_tcp() -> None:
    check(FOUR_HOSTS, range(1000), 600)
