"""What compression points keep from step to step: what payloads lost, and the momentum of Deep Gradient Compression."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from treadle.kernels.compression.codec import Codec, NativeCodec
from treadle.kernels.compression.divergence import Divergence, most_of
from treadle.kernels.compression.powersgd import PowerSGD
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import Compressor, compressor

VERSION = 1

log = logging.getLogger("treadle.compression")


@dataclass
class _Kept:
    """The tensors of one key."""

    residual: Tensor
    momentum: Tensor | None = None
    factor: Tensor | None = None


class Feedback:
    """The residuals of the compression points of one rank.

    A key names a compression point and what is compressed there, such as (names of the parameters, number of the
    step); with keys of strings and numbers `torch.load` reads a state with `weights_only`. `dgc` keeps more (Lin et
    al., Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training): with `momentum` a
    residual adds up velocities, and elements that are sent lose theirs, so that the optimizer is to have no momentum of
    its own; with `clip_norm` a gradient of a larger norm than clip_norm / sqrt(ranks) is scaled to that. Different keys
    may be encoded at the same time. A group whose residual diverges is logged once.
    """

    def __init__(self, *, rank: int = 0, ranks: int = 1, momentum: float = 0.0, clip_norm: float | None = None) -> None:
        self._rank, self._ranks, self._momentum, self._clip = rank, ranks, momentum, clip_norm
        self._kept: dict[Hashable, _Kept] = {}
        self._watches: dict[Hashable, Divergence] = {}
        self._warned: set[Hashable] = set()

    def encode(self, key: Hashable, codec: Codec, values: Tensor, payload: Tensor, step: int) -> None:
        """`payload` of `values` and what is kept of `key`; decode it with `seed_of(key, step)`. Raises what
        `Codec.encode` raises."""
        if not isinstance(codec, NativeCodec):
            codec.encode(values, payload)
            return
        algorithm = codec.compressor.algorithm
        seed = seed_of(key, step, 0 if algorithm.summable else self._rank)
        if not algorithm.feedback:
            codec.encode(values, payload, None, seed)
            return
        kept = self._of(key, values)
        if algorithm.name == "dgc" and (self._momentum or self._clip):
            self._encode_dgc(kept, codec, values, payload, seed)
        else:
            codec.encode(values, payload, kept.residual, seed)
        self._watch(key, values, kept.residual, codec.compressor)

    def first(self, key: Hashable, powersgd: PowerSGD, values: Tensor) -> Tensor:
        """The left factor of `values` (`PowerSGD.first`), with the state of `key`, which `state_dict` then saves."""
        kept = self._kept.get(key)
        if kept is None or kept.residual.data_ptr() != powersgd.residual.data_ptr():
            if kept is not None and kept.factor is not None and self._fits(key, kept, values):
                powersgd.residual.copy_(kept.residual)
                powersgd.factor.copy_(kept.factor)
            kept = self._kept[key] = _Kept(powersgd.residual, factor=powersgd.factor)
        self._watch(key, values, kept.residual, compressor(powersgd.name))
        return powersgd.first(values)

    def norms(self) -> dict[Hashable, float]:
        """The norm of every residual. Waits for GPUs."""
        return {key: float(torch.linalg.vector_norm(kept.residual)) for key, kept in self._kept.items()}

    def state_dict(self) -> dict[str, Any]:
        """All that is kept, by key; the tensors themselves and no copies."""
        return {
            "version": VERSION,
            "kept": {
                key: {each.name: tensor for each in fields(kept) if (tensor := getattr(kept, each.name)) is not None}
                for key, kept in self._kept.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies of what `state_dict` gave, in place of all that is kept. Raises InputError for another version."""
        if state.get("version") != VERSION:
            raise InputError(f"found a state of version {state.get('version')}, expected {VERSION}")
        self._kept = {
            key: _Kept(**{name: tensor.detach().clone() for name, tensor in tensors.items()})
            for key, tensors in state["kept"].items()
        }
        self._watches.clear()
        self._warned.clear()

    def _of(self, key: Hashable, values: Tensor) -> _Kept:
        kept = self._kept.get(key)
        if kept is None or not self._fits(key, kept, values):
            kept = self._kept[key] = _Kept(torch.zeros_like(values))
        elif kept.residual.device != values.device:
            kept.residual = kept.residual.to(values.device)
            kept.momentum = None if kept.momentum is None else kept.momentum.to(values.device)
        return kept

    def _fits(self, key: Hashable, kept: _Kept, values: Tensor) -> bool:
        if kept.residual.numel() == values.numel():
            return True
        log.warning(
            "%s: what was kept of %s elements is dropped, there are %s now", key, kept.residual.numel(), values.numel()
        )
        return False

    def _encode_dgc(self, kept: _Kept, codec: NativeCodec, values: Tensor, payload: Tensor, seed: int) -> None:
        if self._clip:
            limit = self._clip / self._ranks**0.5
            values = values * (limit / torch.linalg.vector_norm(values)).clamp(max=1)
        if not self._momentum:
            codec.encode(values, payload, kept.residual, seed)
            return
        if kept.momentum is None:
            kept.momentum = torch.zeros_like(values)
        velocity = kept.momentum.mul_(self._momentum).add_(values)
        codec.encode(velocity, payload, kept.residual, seed)
        codec.clear(payload, velocity, seed)
        velocity.nan_to_num_(0, 0, 0)

    def _watch(self, key: Hashable, values: Tensor, residual: Tensor, found: Compressor) -> None:
        name = group_of(key)
        if name in self._warned:
            return
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = Divergence(most_of(found, self._momentum))
        if norms := watch.encoded(values, residual):
            self._warned.add(name)
            log.warning(
                "%s: the residual of %s diverges: its norm is %.3g, that of the gradient %.3g; lower the learning rate "
                "or its momentum, or take a compressor that sends more",
                *(name, found.name, norms[1], norms[0]),
            )


def group_of(key: Hashable) -> Hashable:
    """The group of a key: what comes first in it, for people."""
    return key[0] if isinstance(key, tuple) else key


def seed_of(key: Hashable, step: int, rank: int = 0) -> int:
    """The seed of an encoding, the same in every process."""
    return step << 32 ^ crc32(repr((key, rank)).encode())
