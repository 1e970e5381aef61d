"""The swap problem as data: the operators and storages of one iteration, and the machine (SwapAdvisor, section 2).

Tensors here are storages: views have no bytes of their own and no operator. A tensor of role `parameter` or `state`
lives across iterations, one of role `input` is on the host when an iteration starts and nothing writes it, all others
are made by an operator. Indices count from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record

VERSION = 1

Role = Literal["parameter", "state", "input", "activation", "gradient"]
PERSISTENT = ("parameter", "state")
ON_HOST = ("parameter", "state", "input")
"""Roles of tensors that have a copy on the host, or a place for one, before the iteration starts."""


class SwapTensor(Record, frozen=True, kw_only=True):
    """One storage. `kept` ones may not be discarded before the iteration ends: persistent tensors, and what the step
    hands to its caller (wherever it is at the end, on the device or copied to the host)."""

    id: Name
    bytes: Count
    role: Role
    kept: bool = False


class SwapOp(Record, frozen=True, kw_only=True):
    """One operator. It reads `inputs`, overwrites `writes` (some of its inputs) and makes `outputs`."""

    id: Name
    inputs: tuple[Count, ...] = ()
    outputs: tuple[Count, ...] = ()
    writes: tuple[Count, ...] = ()
    after: tuple[Count, ...] = ()
    """Operators it waits for besides the makers of its inputs: a reader of a written tensor waits for its last writer,
    a writer for all uses since."""
    time_ns: Count = 0
    scratch_bytes: Count = 0


class SwapMachine(Record, frozen=True, kw_only=True):
    """Bandwidths are bytes per second while the other direction is idle. While both are busy each runs at
    `together[0] / together[1]` of that: (5, 6) for 12 GB/s of one direction and 20 GB/s of both. This is at least 1/2,
    since both directions together carry no less than one."""

    memory_bytes: Count
    host_bytes: Count | None = None
    """The most that may be pinned on the host; absent for no limit."""
    in_bandwidth: Positive
    """Host to device."""
    out_bandwidth: Positive
    """Device to host."""
    together: tuple[Positive, Positive] = (1, 1)
    copy_ns: Count = 0
    """Fixed cost of one copy, part of its work."""

    def in_ns(self, count: int) -> int:
        """Nanoseconds to copy `count` bytes to the device while the other direction is idle, rounded up; 0 for no
        bytes."""
        return self.copy_ns + -(-count * 10**9 // self.in_bandwidth) if count else 0

    def out_ns(self, count: int) -> int:
        """Nanoseconds to copy `count` bytes to the host while the other direction is idle, rounded up; 0 for no
        bytes."""
        return self.copy_ns + -(-count * 10**9 // self.out_bandwidth) if count else 0


class SwapProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="swap-problem"):
    """`ops` are in an order that can run: that of the trace. `reserve_bytes` are left out of the machine's memory:
    context of the framework and whatever else is not planned. Objects of a pool begin and end at multiples of
    `granularity` bytes, a fact of the allocator."""

    version: Positive
    machine: SwapMachine
    reserve_bytes: Count = 0
    granularity: Positive = 1
    tensors: tuple[SwapTensor, ...]
    ops: tuple[SwapOp, ...]

    @property
    def scratch_bytes(self) -> int:
        """Most scratch of any operator."""
        return max((op.scratch_bytes for op in self.ops), default=0)

    @property
    def arena_bytes(self) -> int:
        """Bytes for tensors: the memory without reserve and largest scratch; may be negative."""
        return self.machine.memory_bytes - self.reserve_bytes - self.scratch_bytes

    def working_set(self, op: int) -> int:
        """Bytes of the tensors that an operator reads and makes."""
        return sum(self.tensors[tensor].bytes for tensor in (*self.ops[op].inputs, *self.ops[op].outputs))

    def object_bytes(self, tensor: int) -> int:
        """Bytes of the smallest object that holds the tensor; none for a tensor of no bytes."""
        return -(-self.tensors[tensor].bytes // self.granularity) * self.granularity

    @property
    def object_sizes(self) -> tuple[int, ...]:
        """Distinct sizes of such objects above zero, ascending (TS, in SwapAdvisor the sizes of tensors)."""
        return tuple(sorted({self.object_bytes(tensor) for tensor in range(len(self.tensors))} - {0}))

    @property
    def ideal_ns(self) -> int:
        """The time of all operators; with unlimited memory nothing is copied."""
        return sum(op.time_ns for op in self.ops)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for every broken cross reference."""
        if self.version > VERSION:
            yield "$.version", str(self.version), f"at most {VERSION}; a newer treadle wrote it"
        if not self.ops:
            yield "$.ops", "no operator", "at least one"
        slow, whole = self.machine.together
        if not whole <= 2 * slow <= 2 * whole or whole > 1000:
            yield "$.machine.together", f"{slow}/{whole}", "a fraction from 1/2 to 1 with a denominator of at most 1000"
        yield from _repeated("tensors", [tensor.id for tensor in self.tensors])
        yield from _repeated("ops", [op.id for op in self.ops])
        made: dict[int, int] = {}
        for at, op in enumerate(self.ops):
            path = f"$.ops[{at}]"
            for field in ("inputs", "outputs", "writes"):
                for place, tensor in enumerate(getattr(op, field)):
                    if tensor >= len(self.tensors):
                        yield f"{path}.{field}[{place}]", str(tensor), f"a tensor, below {len(self.tensors)}"
                        return
            for place, before in enumerate(op.after):
                if before >= at:
                    yield f"{path}.after[{place}]", str(before), f"an earlier operator, below {at}"
            for place, tensor in enumerate(op.inputs):
                if tensor in op.inputs[:place]:
                    yield f"{path}.inputs[{place}]", f"{tensor} again", "each tensor once"
                elif self.tensors[tensor].role not in ON_HOST and tensor not in made:
                    yield f"{path}.inputs[{place}]", f"{tensor}, which nothing has made yet", "a tensor made before"
            for place, tensor in enumerate(op.writes):
                if tensor not in op.inputs:
                    yield f"{path}.writes[{place}]", str(tensor), "one of the inputs"
                elif self.tensors[tensor].role == "input":
                    yield f"{path}.writes[{place}]", f"the input {tensor}", "no input of the step"
            for place, tensor in enumerate(op.outputs):
                if tensor in made:
                    yield f"{path}.outputs[{place}]", f"{tensor}, made by operator {made[tensor]}", "a new tensor"
                elif self.tensors[tensor].role in ON_HOST:
                    role = self.tensors[tensor].role
                    yield f"{path}.outputs[{place}]", f"{tensor} of role {role}", "an activation or gradient"
                made[tensor] = at
        yield from self._unordered()
        for at, tensor in enumerate(self.tensors):
            if tensor.role in PERSISTENT and not tensor.kept:
                yield f"$.tensors[{at}].kept", "false", f"true for a {tensor.role}"

    def _unordered(self) -> Iterator[tuple[str, str, str]]:
        """Operators that use a tensor before or after a write of it without a dependency."""
        written = {tensor for op in self.ops for tensor in op.writes}
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        for at, op in enumerate(self.ops):
            for tensor in op.inputs:
                if tensor not in written:
                    continue
                before = [writer[tensor]] if tensor in writer else []
                if tensor in op.writes:
                    before += readers.get(tensor, ())
                    writer[tensor], readers[tensor] = at, []
                else:
                    readers.setdefault(tensor, []).append(at)
                for other in before:
                    if other not in op.after:
                        name, user = self.tensors[tensor].id, self.ops[other].id
                        expected = f"{other}: {user} and {op.id} use {name}, and one of them writes it"
                        yield f"$.ops[{at}].after", f"no {other}", expected


def _repeated(field: str, ids: list[str]) -> Iterator[tuple[str, str, str]]:
    seen: set[str] = set()
    for at, name in enumerate(ids):
        if name in seen:
            yield f"$.{field}[{at}].id", f"second {name!r}", "ids that occur once"
        seen.add(name)
