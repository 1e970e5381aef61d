"""A rank that ends in the middle of a call ends all others, which say who it was and which step waited for it."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from multiprocessing.connection import Connection

import pytest
import torch

from tests.codegen.collective.algorithms import ring_allreduce
from tests.treadle.runtime.collective.wire.jobs import FOUR_HOSTS, ONE_HOST, TWO_HOSTS, answers, start
from treadle.codegen.collective.actions import script_of
from treadle.codegen.collective.lower import lower
from treadle.planner.errors import CheckFailed
from treadle.runtime import sockets
from treadle.runtime.collective.messages import Executor, OnWire, on_wire
from treadle.runtime.collective.wire import groups
from treadle.runtime.collective.wire.native import RankWire

PROGRAM = lower(ring_allreduce(4), inplace=True)
PAIR = lower(ring_allreduce(2), inplace=True)
LONGEST = 5.0
LATE_SECONDS = 6.0


def calls_without_end(wire: RankWire, pipe: Connection) -> None:
    torch.set_num_threads(1)
    script = script_of(PROGRAM, wire.rank, inplace=True)
    streams = [0 if action.sends is None else action.sends.tag for action in script]
    carrier = OnWire(wire, script, len(PROGRAM.ranks), "ring", streams)
    executor = Executor(PROGRAM, wire.rank, carrier, inplace=True)
    tensor = torch.ones(300_001)
    pipe.send("ready")
    try:
        while True:
            executor(tensor, op="max")
    except (CheckFailed, KeyboardInterrupt) as error:
        pipe.send((str(error), time.monotonic()))


def end_one(addresses: tuple[str, ...], how: signal.Signals, seed: int, streams: int = 1) -> None:
    dice = random.Random(seed)
    victim, pause = dice.randrange(len(addresses)), dice.uniform(0, 0.2)
    processes, pipes = start(addresses, calls_without_end, streams)
    assert answers(pipes, 30) == ["ready"] * len(addresses)
    time.sleep(pause)
    ended = time.monotonic()
    number = processes[victim].pid
    assert number is not None
    os.kill(number, how)
    others = [pipe for rank, pipe in enumerate(pipes) if rank != victim]
    for answer in answers(others, LONGEST):
        assert answer is not None, "a rank still waits"
        text, when = answer
        assert f"rank {victim} " in text.split(": ", 1)[1], text
        assert "step" in text
        assert when - ended < LONGEST
    for process in processes:
        process.join(LONGEST)
        assert process.exitcode is not None


@pytest.mark.slow
@pytest.mark.parametrize("addresses", [ONE_HOST, TWO_HOSTS, FOUR_HOSTS], ids=["one host", "two hosts", "four hosts"])
@pytest.mark.parametrize("seed", range(20))
def test_a_killed_rank_is_named_by_all_others(addresses: tuple[str, ...], seed: int) -> None:
    end_one(addresses, signal.SIGKILL, seed)


@pytest.mark.parametrize("addresses", [ONE_HOST, TWO_HOSTS], ids=["one host", "two hosts"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_rank_is_named_by_all_others(addresses: tuple[str, ...], how: signal.Signals) -> None:
    end_one(addresses, how, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_is_killed_ends_all_of_its_streams(seed: int) -> None:
    end_one(TWO_HOSTS, signal.SIGKILL, seed, streams=3)


def late(wire: RankWire, pipe: Connection) -> None:
    """The second rank is at something else for longer than it takes to see that a host is gone."""
    executor = on_wire(PAIR, wire, inplace=True)
    tensor = torch.ones(1 << 24)
    executor(tensor)
    time.sleep(LATE_SECONDS * wire.rank)
    try:
        executor(tensor)
        pipe.send(float(tensor.sum()))
    except CheckFailed as error:
        pipe.send(str(error))


@pytest.mark.slow
def test_a_rank_that_is_late_is_not_lost() -> None:
    """More than a socket holds is sent to it meanwhile, and it takes nothing."""
    processes, pipes = start(("127.0.0.1", "127.0.0.2"), late)
    assert answers(pipes, 5 * LATE_SECONDS) == [4.0 * (1 << 24)] * 2
    for process in processes:
        process.join(LONGEST)
        assert process.exitcode == 0


def test_a_process_that_a_rank_has_forked_does_not_keep_it_alive() -> None:
    """As a worker of a DataLoader does that lives on for some seconds."""
    one, other = socket.socketpair()
    wire = RankWire(0, [None, one], sharing=False)
    known = (object(), wire)
    groups._wires.append(known)
    sockets._connected.add(one)
    child = os.fork()
    if child == 0:
        time.sleep(LONGEST)
        os._exit(0)
    groups._wires.remove(known)
    wire.close()
    other.settimeout(LONGEST / 2)
    assert other.recv(1) == b""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    other.close()
