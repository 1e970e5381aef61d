"""Compressors of a plan's groups, with what they keep from one iteration to the next."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from treadle.kernels.compression import Codec, Feedback, PowerSGD, codec
from treadle.kernels.compression.codec import IDENTITY
from treadle.kernels.compression.feedback import seed_of
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import compressor, keeps_residual
from treadle.runtime.compression.group_run import Coder

log = logging.getLogger("treadle.compress")
VERSION = 1
SPREAD = 2654435761
"""Keeps iterations of neighbouring seeds apart (Knuth, The Art of Computer Programming, section 6.4)."""
Key = tuple[str, int]
"""A group: a name for people, and a number that depends on all its gradients."""


class Coders(ABC):
    """Makes the coders of all groups and holds their state; `iterations`, which the caller counts, is part of it."""

    iterations: int = 0

    @abstractmethod
    def coder(self, compressor: str, names: Sequence[str], device: str) -> Coder:
        """For the group of gradients of these names, with tensors on `device`, cpu or cuda."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    @abstractmethod
    def norms(self) -> dict[str, float]:
        """Norms of residuals by compression point."""


class KernelCoders(Coders):
    """Coders by treadle's kernels. `seed` is the same on all ranks; `momentum` and `clip_norm` are those of `dgc`."""

    def __init__(
        self, rank: int, ranks: int, seed: int = 0, *, momentum: float = 0.0, clip_norm: float | None = None
    ) -> None:
        self.ranks, self.seed = ranks, seed
        self.own = Feedback(rank=rank, ranks=ranks, momentum=momentum, clip_norm=clip_norm)
        self.shared = Feedback()
        """For points where several ranks encode the same values: they draw the same random numbers."""
        self.groups: dict[Key, str] = {}

    def coder(self, compressor: str, names: Sequence[str], device: str) -> Coder:
        key = (names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}", crc32("\n".join(names).encode()))
        self.groups[key] = compressor
        kind = PowerCoder if compressor.partition(":")[0] == "powersgd" else KernelCoder
        return kind(self, compressor, key, device)

    def step(self) -> int:
        """The number of this iteration for random numbers."""
        return (self.iterations + self.seed * SPREAD) % 2**32

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "ranks": self.ranks,
            "iterations": self.iterations,
            "own": self.own.state_dict(),
            "shared": self.shared.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises InputError for a state of another version."""
        if state.get("version") != VERSION:
            raise InputError(f"found a state of version {state.get('version')}, expected {VERSION}")
        self.iterations = state["iterations"]
        saved = {key[:2] for each in ("own", "shared") for key in state[each]["kept"]}
        fits = self.ranks == state["ranks"]
        for feedback, each in ((self.own, state["own"]), (self.shared, state["shared"])):
            kept = {key: value for key, value in each["kept"].items() if fits and key[:2] in self.groups}
            feedback.load_state_dict({**each, "kept": kept})
        expected = {key for key, name in self.groups.items() if keeps_residual(name)}
        dropped, fresh = saved - (expected if fits else set()), expected - (saved if fits else set())
        if dropped or fresh:
            lost, new = many(len(dropped), "group"), many(len(fresh), "group")
            log.warning("the plan differs from that of the state: residuals of %s dropped, of %s start at 0", lost, new)

    def kept(self) -> list[Tensor]:
        """All tensors that are kept from one iteration to the next."""
        states = (each.state_dict()["kept"].values() for each in (self.own, self.shared))
        return [tensor for state in states for tensors in state for tensor in tensors.values()]

    def norms(self) -> dict[str, float]:
        found = {**self.own.norms(), **self.shared.norms()}
        return {f"{key[0]}, step {key[2]}": norm for key, norm in found.items()}  # type: ignore[index]


class IdentityCoders(KernelCoders):
    """The identity in place of every compressor: what is exchanged is exact, and as long as it was."""

    def coder(self, compressor: str, names: Sequence[str], device: str) -> Coder:
        return super().coder(IDENTITY, names, device)


class KernelCoder:
    """A codec for one group on one kind of device."""

    def __init__(self, state: KernelCoders, name: str, key: Key, device: str) -> None:
        self.state, self.compressor, self.key, self.device = state, name, key, device
        self.codecs: dict[int, Codec] = {}

    def codec(self, elements: int) -> Codec:
        if elements not in self.codecs:
            self.codecs[elements] = codec(self.compressor, elements, device=self.device)
        return self.codecs[elements]

    def wire_bytes(self, elements: int) -> int:
        return self.codec(elements).wire_bytes

    def encode(self, point: str, values: Tensor, payload: Tensor, *, shared: bool) -> None:
        feedback = self.state.shared if shared else self.state.own
        feedback.encode((*self.key, point), self.codec(values.numel()), values, payload, self.state.step())

    def decode_add(self, point: str, payloads: Tensor, out: Tensor) -> None:
        self.codec(out.numel()).decode_add(payloads, out, seed_of((*self.key, point), self.state.step()))

    def sum(self, point: str, payload: Tensor, elements: int, allreduce: Callable[[Tensor], object]) -> None:
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.compressor, torch.float32)
        allreduce(payload.view(dtype))


class PowerCoder:
    """PowerSGD for one group. Its payload holds both factors; the second one is made from the sum of the first."""

    def __init__(self, state: KernelCoders, name: str, key: Key, device: str) -> None:
        self.state, self.compressor, self.key, self.device = state, name, key, device
        self.points: dict[tuple[str, int], PowerSGD] = {}

    def power(self, point: str, elements: int) -> PowerSGD:
        found = self.points.get((point, elements))
        if found is None:
            seed = seed_of((*self.key, point), self.state.seed)
            found = PowerSGD(self.compressor, elements, device=self.device, seed=seed)
            self.points[point, elements] = found
        return found

    def wire_bytes(self, elements: int) -> int:
        return compressor(self.compressor).wire_bytes(elements)

    def encode(self, point: str, values: Tensor, payload: Tensor, *, shared: bool) -> None:
        feedback = self.state.shared if shared else self.state.own
        left = feedback.first((*self.key, point), self.power(point, values.numel()), values)
        payload.view(torch.float32)[: left.numel()] = left.view(-1)

    def decode_add(self, point: str, payloads: Tensor, out: Tensor) -> None:
        power = self.power(point, out.numel())
        factors = payloads.view(torch.float32)
        power.decode_add(factors[-power.factor.numel() :].view(power.factor.shape), out)

    def sum(self, point: str, payload: Tensor, elements: int, allreduce: Callable[[Tensor], object]) -> None:
        power, factors = self.power(point, elements), payload.view(torch.float32)
        columns = power.factor.numel()
        left, right = factors[:-columns], factors[-columns:]
        allreduce(left)
        right.copy_(power.second(left.view(-1, power.rank)).view(-1))
        allreduce(right)


class OnHost:
    """A coder of the CPU for tensors of a GPU, whose copies wait for what the current stream did before."""

    def __init__(self, coder: Coder) -> None:
        self.coder = coder

    def wire_bytes(self, elements: int) -> int:
        return self.coder.wire_bytes(elements)

    def encode(self, point: str, values: Tensor, payload: Tensor, *, shared: bool) -> None:
        encoded = torch.empty(payload.numel(), dtype=torch.uint8)
        self.coder.encode(point, values.cpu(), encoded, shared=shared)
        payload.copy_(encoded)

    def decode_add(self, point: str, payloads: Tensor, out: Tensor) -> None:
        decoded = out.cpu()
        self.coder.decode_add(point, payloads.cpu(), decoded)
        out.copy_(decoded)

    def sum(self, point: str, payload: Tensor, elements: int, allreduce: Callable[[Tensor], object]) -> None:
        self.coder.sum(point, payload, elements, allreduce)
