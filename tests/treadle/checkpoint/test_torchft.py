"""States for torchft's replicas: round trips by our memory, and torchft's own test of transports where it is there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from tests.conftest import ROOT
from treadle.checkpoint.torchft import HeldTransport
from treadle.planner.errors import InputError

KEY = bytes(range(32))
SOON, LATER = timedelta(seconds=20), timedelta(milliseconds=10)
BYTES = 1 << 16


@pytest.fixture
def two() -> Iterator[tuple[HeldTransport, HeldTransport]]:
    """Sender and receiver."""
    made = [HeldTransport(BYTES, KEY, "127.0.0.1") for _ in range(2)]
    yield made[0], made[1]
    for each in made:
        each.shutdown()


def state_of(step: int) -> dict[str, Any]:
    return {
        "user": {"weight": torch.arange(1000.0) * step, "narrow": torch.ones(3, 5, dtype=torch.bfloat16), "none": None},
        "torchft": {"step": step, "batches_committed": 2 * step},
    }


def same(found: dict[str, Any], step: int) -> bool:
    expected = state_of(step)
    user, wanted = found["user"], expected["user"]
    tensors = all(torch.equal(user[name], wanted[name]) for name in ("weight", "narrow"))
    return tensors and user["none"] is None and found["torchft"] == expected["torchft"]


def test_a_replica_gets_the_state_as_it_was_when_it_was_sent(two: tuple[HeldTransport, HeldTransport]) -> None:
    source, other = two
    for step in (0, 3, 4):
        state = state_of(step)
        source.send_checkpoint([1], step, state, SOON)
        source.disallow_checkpoint()
        state["user"]["weight"].fill_(-1.0)
        assert same(other.recv_checkpoint(0, source.metadata(), step, SOON), step)
    assert same(other.recv_checkpoint(0, source.metadata(), 3, SOON), 3)


def test_a_step_that_is_not_there_times_out(two: tuple[HeldTransport, HeldTransport]) -> None:
    source, other = two
    source.send_checkpoint([1], 1, state_of(1), SOON)
    with pytest.raises(TimeoutError, match=r"^step 7 of rank 0 timed out after 0\.01 s: "):
        other.recv_checkpoint(0, source.metadata(), 7, LATER)


def test_who_does_not_know_the_key_gets_nothing(two: tuple[HeldTransport, HeldTransport]) -> None:
    source, _ = two
    source.send_checkpoint([1], 1, state_of(1), SOON)
    foreign = HeldTransport(BYTES, bytes(32), "127.0.0.1")
    with pytest.raises(TimeoutError, match="timed out"):
        foreign.recv_checkpoint(0, source.metadata(), 1, LATER)
    foreign.shutdown()


def test_a_flipped_bit_is_not_loaded(two: tuple[HeldTransport, HeldTransport]) -> None:
    source, other = two
    source.send_checkpoint([1], 1, state_of(1), SOON)
    source._holder.memory.view(source._holder.memory.states[0], 2)[-1] ^= 1
    with pytest.raises(TimeoutError, match="timed out"):
        other.recv_checkpoint(0, source.metadata(), 1, LATER)


def test_what_cannot_be_sent_or_read_is_refused(two: tuple[HeldTransport, HeldTransport]) -> None:
    source, other = two
    with pytest.raises(InputError, match="expected at most 65536"):
        source.send_checkpoint([1], 1, {"w": torch.zeros(BYTES)}, SOON)
    for metadata in ("", "localhost", "http://host:1/checkpoint/", ":1"):
        with pytest.raises(InputError, match="expected HOST:PORT"):
            other.recv_checkpoint(0, metadata, 1, LATER)


def test_sharded_tensors_arrive_with_the_mesh_of_the_receiver() -> None:
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    try:
        mesh = init_device_mesh("cpu", (1,))
        state = {"weight": DTensor.from_local(torch.arange(6.0), mesh, [Replicate()]), "step": 2}
        own = {"weight": DTensor.from_local(torch.zeros(6), mesh, [Replicate()]), "step": 0}
        source = HeldTransport(BYTES, KEY, "127.0.0.1", state_dict=lambda: own)
        source.send_checkpoint([1], 2, state, SOON)
        found = source.recv_checkpoint(0, source.metadata(), 2, SOON)
        assert isinstance(found["weight"], DTensor)
        assert found["weight"].placements == (Replicate(),)
        assert torch.equal(found["weight"].to_local(), torch.arange(6.0))
        assert found["step"] == 2
        source._state_dict = None
        with pytest.raises(InputError, match="expected `state_dict`"):
            source.recv_checkpoint(0, source.metadata(), 2, SOON)
        source.shutdown()
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
def test_torchft_tests_the_transport_of_a_plan() -> None:
    """Its test of transports: three ranks, two of which recover, then one, then a step that nobody has."""
    pytest.importorskip("torchft", reason="torchft is not installed")
    from unittest import TestCase

    from torchft.checkpointing import CheckpointTransport
    from torchft.checkpointing.transport_test import make_state_dict, run_multi_recovery_test

    from tests.codegen.checkpoint.held import decided, plan_of
    from treadle.codegen.checkpoint.torchft import torchft

    made: dict[str, Any] = {}
    exec(torchft(plan_of(decided(state_bytes=BYTES))).files["transport.py"], made)

    def transport(rank: int, world: int) -> Any:
        cpu = torch.device("cpu")
        return made["transport"](KEY, "127.0.0.1", state_dict=lambda: make_state_dict(cpu))

    run_multi_recovery_test(TestCase(), transport, torch.device("cpu"))
    assert issubclass(HeldTransport, CheckpointTransport)


@pytest.mark.slow
def test_a_replica_that_joins_a_training_of_torchft_takes_its_state_from_our_memory() -> None:
    pytest.importorskip("torchft", reason="torchft is not installed")
    worker = Path(__file__).with_name("torchft_worker.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, worker], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert "taken 0 1, same True" in done.stdout, done.stderr[-2000:]
