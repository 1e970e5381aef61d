"""One group of gradients on one rank: its steps, executed over tensors.

A rank holds values, or a payload: bytes of payloads of a shard each, as axes with the outermost first. An axis is a
division of the values by a scope, or pieces of the same values from several ranks. The state follows
`treadle.planner.passes.compression.payload`, so bytes are those of the plan; a tensor whose elements the ranks do not
divide is filled up with zeros, level by level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from treadle.planner.documents.compression_costs import Routine, Scope
from treadle.planner.passes.compression.payload import DIVIDING, FIRST, moved_bytes

SCOPES: tuple[Scope, ...] = ("flat", "intra", "inter")
"""In the order in which they divide a tensor."""
SECOND = ("allgather", "broadcast")
Call = Callable[[Routine, Scope, Tensor, Tensor | None], Tensor | None]
"""Runs a collective on the ranks of a scope, as `routines.run` does on those of a group."""


class Coder(Protocol):
    """A compressor with the residuals of one group. Vectors are contiguous; payloads are bytes."""

    def wire_bytes(self, elements: int) -> int: ...

    def encode(self, point: str, values: Tensor, payload: Tensor, *, shared: bool) -> None:
        """`point` names the place whose residual is added. `shared`: other ranks encode the same values there."""

    def decode_add(self, point: str, payloads: Tensor, out: Tensor) -> None:
        """Add what each of the payloads of `out.numel()` elements holds, which were encoded at `point`."""

    def sum(self, point: str, payload: Tensor, elements: int, allreduce: Callable[[Tensor], object]) -> None:
        """Replace `payload` by that of the sum over ranks; `allreduce` sums a vector of floats over them, in place."""


@dataclass(frozen=True)
class Grid:
    """Where a rank is among `machines` nodes of `devices` ranks each, which are numbered node by node."""

    rank: int
    machines: int
    devices: int

    def ranks(self, scope: Scope) -> int:
        return {"flat": self.machines * self.devices, "intra": self.devices, "inter": self.machines}[scope]

    def place(self, scope: Scope) -> int:
        """Its number within the scope."""
        return {"flat": self.rank, "intra": self.rank % self.devices, "inter": self.rank // self.devices}[scope]


class Axis(NamedTuple):
    """One axis of a payload: what `scope` divides, or pieces of the same values."""

    scope: Scope | None
    ranks: int


@dataclass
class GroupRun:
    """The steps of a group. `start` begins an iteration with gradients, which are changed if the first step is a
    collective; `step` executes the next step; after the last one `values` is the sum over all ranks. `sent_bytes` has
    what this rank sent in each step.

    Buffers are kept between iterations.
    """

    steps: Sequence[str]
    elements: int
    grid: Grid
    call: Call
    coders: Mapping[str, Coder] = field(default_factory=dict)
    """By the place of a step, `device` or `host`."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    buffers: dict[object, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start(None)

    @property
    def flat(self) -> Tensor:
        """A buffer for the gradients of the group."""
        return self._take("flat", self.elements)

    def start(self, values: Tensor | None) -> None:
        self.held = self.elements
        self.shard = self.wire = 0
        self.encoder = 0
        """The step that made the payload."""
        self.values = values
        self.payload: Tensor | None = None
        self.packed = self.merged = False
        """`merged`: ranks of several nodes hold the same sums."""
        self.axes: list[Axis] = []
        self.opened: dict[Scope, tuple[str, int]] = {}
        """By the first step of a pair, with the elements before it."""
        self.rooted: set[Scope] = set()
        """Scopes of which only the root has anything."""
        self.sent_bytes = [0] * len(self.steps)

    def step(self, number: int) -> None:
        """Execute step `number`, which is the next one; collectives are called by the ranks that take part."""
        word, _, where = self.steps[number].partition("@")
        takes_part = all(scope == where or self.grid.place(scope) == 0 for scope in self.rooted)
        if word == "compress":
            self._compress(number, self.coders[where], takes_part)
        elif word == "decompress":
            self._decompress(number, self.coders[where], takes_part)
        else:
            self._collective(number, cast(Routine, word), cast(Scope, where), takes_part)

    def _compress(self, number: int, coder: Coder, takes_part: bool) -> None:
        self.encoder = number
        self.axes = [Axis(scope, self.grid.ranks(scope)) for scope in dividing(self.steps[number + 1 :])]
        counts = [axis.ranks for axis in self.axes]
        self.shard = -(-self.held // prod(counts))
        self.wire, self.packed = coder.wire_bytes(self.shard), True
        if takes_part:
            assert self.values is not None
            source, self.payload = self.values, self._payload(number)
            for part, (start, length) in enumerate(spans(self.held, counts)):
                values = source[start : start + length]
                if length < self.shard:
                    values = self._take((number, part), self.shard).zero_()
                    values[:length] = source[start : start + length]
                into = self.payload[part * self.wire : (part + 1) * self.wire]
                coder.encode(f"{number}.{part}", values, into, shared=self.merged)
        self.values = None

    def _decompress(self, number: int, coder: Coder, takes_part: bool) -> None:
        if takes_part:
            parts = [place for scope in SCOPES for place, axis in enumerate(self.axes) if axis.scope == scope]
            pieces = [place for place, axis in enumerate(self.axes) if axis.scope is None]
            counts = [self.axes[place].ranks for place in parts]
            payloads = self._moved([*parts, *pieces]).view(prod(counts), -1)
            out = self._take((number, "values"), self.held).zero_()
            for part, (point, (start, length)) in enumerate(zip(self._points(), spans(self.held, counts), strict=True)):
                if length == self.shard:
                    coder.decode_add(point, payloads[part], out[start : start + length])
                elif length:
                    filled = self._take((number, part), self.shard).zero_()
                    coder.decode_add(point, payloads[part], filled)
                    out[start : start + length] = filled[:length]
            self.values = out
        self.payload, self.packed, self.axes = None, False, []

    def _points(self) -> list[str]:
        """Where each part of the payload was encoded."""
        numbers, divided = [0], dividing(self.steps[self.encoder + 1 :])
        for scope in SCOPES:
            ranks, here = self.grid.ranks(scope), self.grid.place(scope)
            parts = range(ranks) if Axis(scope, ranks) in self.axes else range(here, here + 1)
            if scope in divided:
                numbers = [number * ranks + each for number in numbers for each in parts]
            elif Axis(scope, ranks) in self.axes:
                numbers = [number for number in numbers for _ in parts]
        return [f"{self.encoder}.{number}" for number in numbers]

    def _collective(self, number: int, word: Routine, scope: Scope, takes_part: bool) -> None:
        ranks, second = self.grid.ranks(scope), word in SECOND and scope in self.opened
        if takes_part:
            self._send(number, word, scope)
        axes = self.axes
        if word in FIRST:
            self.opened[scope] = (word, self.held)
            axes = [Axis(None, ranks), *(axis for axis in axes if axis.scope != scope)]
            if word in DIVIDING:
                self.held = -(-self.held // ranks)
            else:
                self.rooted.add(scope)
        elif second:
            first, before = self.opened.pop(scope)
            if first in DIVIDING:
                self.held, axes = before, [Axis(scope, ranks), *axes]
            else:
                self.rooted.discard(scope)
        elif word == "allgather":
            axes = [Axis(None, ranks), *axes]
        self.axes = axes if self.packed else []
        if not self.packed and self.values is not None:
            self.values = self.values[: self.held]
        self.merged = self.merged or (scope == "inter" and word not in FIRST)

    def _send(self, number: int, word: Routine, scope: Scope) -> None:
        """Bring what this rank holds to a collective, and keep what it gets."""
        ranks = self.grid.ranks(scope)
        held = self._brought(number, word, scope)
        self.sent_bytes[number] = sent_bytes(word, ranks, self.grid.place(scope), held.nbytes)
        if word == "allreduce" and self.packed:
            coder, point = next(iter(self.coders.values())), f"{self.encoder}.0"
            coder.sum(point, held, self.shard, lambda vector: self.call("allreduce", scope, vector, vector))
            return
        elements = held.numel()
        if word in ("allgather", "gather"):
            elements *= ranks
        elif word == "reduce-scatter":
            elements //= ranks
        in_place = word in ("allreduce", "planned", "reduce", "broadcast")
        gets = word not in ("reduce", "gather") or self.grid.place(scope) == 0
        out = held if in_place else self._take((number, "received"), elements, held.dtype) if gets else None
        self.call(word, scope, held, out)
        if self.packed:
            self.payload = out if gets else None
        else:
            self.values = out if gets else None

    def _brought(self, number: int, word: Routine, scope: Scope) -> Tensor:
        """What this rank brings to a collective; room for what it gets where only the root has anything."""
        if self.packed:
            if self.payload is None:
                return self._payload(number)
            if word != "alltoall":
                return self.payload
            first = next(place for place, axis in enumerate(self.axes) if axis.scope == scope)
            return self._moved([first, *(place for place in range(len(self.axes)) if place != first)])
        if self.values is None:
            return self._take((number, "values"), self.held)
        missing = -self.held % self.grid.ranks(scope) if word == "reduce-scatter" else 0
        if not missing:
            return self.values
        filled = self._take((number, "filled"), self.held + missing)
        filled[: self.held] = self.values
        filled[self.held :] = 0
        return filled

    def _payload(self, number: int) -> Tensor:
        return self._take((number, "payload"), self.wire * prod(axis.ranks for axis in self.axes), torch.uint8)

    def _moved(self, order: Sequence[int]) -> Tensor:
        """The payload with its axes in another order."""
        assert self.payload is not None
        found = self.payload.view([*(axis.ranks for axis in self.axes), self.wire])
        return found.permute([*order, len(order)]).reshape(-1)

    def _take(self, key: object, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The buffer of that name, made at its first use."""
        found = self.buffers.get(key)
        if found is None:
            found = self.buffers[key] = torch.empty(elements, dtype=dtype, device=self.device)
        return found


def dividing(steps: Sequence[str]) -> list[Scope]:
    """The scopes that divide a payload before it is decompressed, in order."""
    found: list[Scope] = []
    for step in steps:
        word, _, where = step.partition("@")
        if word == "decompress":
            break
        if word in DIVIDING:
            found.append(cast(Scope, where))
    return found


def spans(elements: int, counts: Sequence[int]) -> list[tuple[int, int]]:
    """(start, length) of each part of `elements`, which are divided into the first of `counts`, each part into the next
    and so on. Lengths are below the shard where the counts do not divide, and may be 0."""
    found, whole = [(0, elements)], elements
    for count in counts:
        whole = -(-whole // count)
        found = [
            (start + part * whole, min(whole, max(0, length - part * whole)))
            for start, length in found
            for part in range(count)
        ]
    return found


def sent_bytes(word: Routine, ranks: int, place: int, held: int) -> int:
    """Bytes that a rank sends in a collective to which it brings `held` bytes."""
    match word:
        case "broadcast":
            return held if ranks > 1 and place == 0 else 0
        case "reduce" | "gather":
            return held if place else 0
        case _:
            return int(moved_bytes(word, ranks, held))
