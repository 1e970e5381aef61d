"""A CheckpointTransport for torchft whose states lie in memory of treadle's: authenticated, with a sum for each piece.

torchft's own HTTPTransport serves the training's tensors to whoever asks, and loads what it gets as a pickle.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from treadle.checkpoint.layout import LocalShard, Packer, unpack
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.checkpoint.frames import crc32c
from treadle.runtime.checkpoint.holder import Holder
from treadle.runtime.checkpoint.local import LocalAgent
from treadle.runtime.checkpoint.memory import StateMemory, StateOf
from treadle.runtime.sockets import host_and_port
from treadle.runtime.wire.greeting import Greeting, call

CALLER = "treadle.checkpoint.torchft"
JOB = "torchft"
EPOCH = 1
OWN = StateOf(0, 0)
RETRY_SECONDS = 0.02
log = logging.getLogger("treadle.checkpoint")


class HeldTransport:
    """What a torchft Manager takes as `checkpoint_transport`.

    Listens at `address`, where the replicas reach this host, for those that know `key`, 32 secret bytes of the job. A
    state takes up to `state_bytes`; twice as much is held here, so that a step is served while the next one arrives.
    `state_dict` returns a state as it is here: with it tensors that are sharded arrive as DTensor with the mesh of this
    rank. Raises LimitError without that memory, InputError where it cannot listen, MissingBackendError without g++.
    """

    def __init__(
        self, state_bytes: int, key: bytes, address: str, *, state_dict: Callable[[], Any] | None = None
    ) -> None:
        self._key, self._address, self._state_dict = key, address, state_dict
        self._state_bytes = state_bytes
        self._holder = Holder((0,), 1, state_bytes, namespace=JOB, nonce=key, addresses=(address,), say=log.warning)
        try:
            self._holder.announce(EPOCH, {})
            self._agent = LocalAgent(self._holder.local, 0, namespace=JOB, nonce=key)
        except BaseException:
            self._holder.close()
            raise
        self._packer = Packer()

    def metadata(self) -> str:
        """Where others find this rank's states: HOST:PORT."""
        return f"{self._address}:{self._holder.ports[self._address]}"

    def send_checkpoint(self, dst_ranks: Sequence[int], step: int, state_dict: Any, timeout: timedelta) -> None:
        """Copy the state of `step` into the memory, from which any rank takes it. Returns when it is there whole.
        Raises InputError for a state that is too large or has values that are not plain."""
        packed = self._packer.pack(step, state_dict)
        if packed.bytes > self._state_bytes:
            raise InputError(
                f"found a state of {packed.bytes} bytes, expected at most {self._state_bytes}", where=CALLER
            )
        half, version, offset = self._agent.begin(OWN.machine, step + 1, packed.bytes), step + 1, 0
        for part in packed.parts:
            torch.from_numpy(half[offset : offset + part.numel()]).copy_(part)
            self._agent.placed(OWN.machine, version, offset, part.numel())
            offset += part.numel()
        self._agent.commit(OWN.machine, version, packed.bytes, crc32c(half))

    def disallow_checkpoint(self) -> None:
        """Nothing to wait for: what is sent is a copy, so the state may change as soon as it is taken."""

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """The state of `step` from the rank with this metadata, each piece verified there and here. Raises TimeoutError
        with the last reason where it is not there in time, InputError for other metadata."""
        address, name, seconds = host_and_port(metadata, CALLER), f"rank {src_rank}", timeout.total_seconds()
        until = time.monotonic() + seconds
        with closing(StateMemory([OWN], self._state_bytes, halves=1)) as memory:
            while True:
                try:
                    stream, _ = call(address, Greeting("rank", 0, JOB, session=EPOCH), self._key)
                    memory.fetch(stream, OWN, step + 1, max(until - time.monotonic(), RETRY_SECONDS), name)
                    break
                except (CheckFailed, OSError) as error:
                    if time.monotonic() + RETRY_SECONDS > until:
                        raise TimeoutError(f"step {step} of {name} timed out after {seconds:g} s: {error}") from error
                time.sleep(RETRY_SECONDS)
            data = memory.view(OWN, step + 1)
        return self._in_place(unpack(torch.from_numpy(data))[1])

    def shutdown(self, wait: bool = True) -> None:
        """Stop to serve, and give the memory back."""
        self._agent.close()
        self._holder.close()

    def _in_place(self, tree: Any) -> Any:
        """`tree` with a DTensor for each shard."""
        values, spec = tree_flatten(tree, is_leaf=lambda value: isinstance(value, LocalShard))
        if not any(isinstance(value, LocalShard) for value in values):
            return tree
        if self._state_dict is None:
            raise InputError(
                "found sharded tensors in a state, expected `state_dict` with those of this rank", where=CALLER
            )
        here, own_spec = tree_flatten(self._state_dict())
        if own_spec != spec:
            raise InputError("found a state with other entries than this rank's", where=CALLER)
        return tree_unflatten([_sharded(*pair) for pair in zip(values, here, strict=True)], spec)


def _sharded(value: Any, here: Any) -> Any:
    if not isinstance(value, LocalShard):
        return value
    if not isinstance(here, DTensor):
        raise InputError("found a sharded tensor in a state for one that is not", where=CALLER)
    return DTensor(value.tensor, here._spec, requires_grad=False)
