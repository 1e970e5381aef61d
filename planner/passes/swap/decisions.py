"""What the swap pass decides: an order, a division of memory, and every copy with what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from treadle.planner.documents.scalars import Count, Decisions, Positive, Record
from treadle.planner.documents.trace import OpRun
from treadle.planner.passes.swap.problem import SwapProblem

Allocator = Literal["pool", "offset", "bytes"]


class PoolClass(Record, frozen=True, kw_only=True):
    """`count` adjacent objects of `object_bytes` each from `address` on."""

    object_bytes: Positive
    count: Positive
    address: Count


class Resident(Record, frozen=True, kw_only=True):
    """A tensor and the address of its first byte (0 with allocator `bytes`)."""

    tensor: Count
    at: Count = 0


class SwapNode(Record, frozen=True, kw_only=True):
    """A step of the plan on its stream: `compute`, `in` or `out`; a `drop` is on none and takes no time.

    `item` is the operator of a compute node, the tensor of any other. `serves` is the place in `order` of the operator
    that needs it, its priority on its stream. `after` are earlier nodes that end before it starts. `at` are addresses:
    of each output of a compute node, of the tensor of an `in` node. An `early` copy out runs while operators still read
    the tensor; a later `drop` frees its place.
    """

    kind: Literal["compute", "in", "out", "drop"]
    item: Count
    serves: Count
    after: tuple[Count, ...] = ()
    at: tuple[Count, ...] = ()
    early: bool = False


class SwapDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="swap"):
    """`nodes` are in an order in which one thread could run them. Times are in ns.

    `initial` are the persistent tensors on the device when an iteration starts, `final` the same tensors when it ends;
    where addresses differ, objects of a class swap roles between iterations.
    """

    problem: SwapProblem
    allocator: Allocator
    order: tuple[Count, ...]
    """Operators in the order in which they run."""
    pool: tuple[PoolClass, ...] = ()
    class_of: tuple[Count, ...] = ()
    """Class of each distinct tensor size, ascending, from 1; with allocator `pool`."""
    initial: tuple[Resident, ...] = ()
    final: tuple[Resident, ...] = ()
    nodes: tuple[SwapNode, ...]
    runs: tuple[OpRun, ...] = ()
    """Where ops write in place or are recomputed: every run that `problem` covers, in the trace's order
    (treadle.planner.graph.unrolling)."""
    time_ns: Count
    """Simulated time of one iteration."""
    idle_ns: Count
    """Time that the compute stream is idle."""
    in_bytes: Count
    out_bytes: Count
    peak_bytes: Count
    """Peak bytes of tensors on the device in the simulation, of whole objects with allocator `pool`."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for every index out of range."""
        for path, found, expected in self.problem.problems():
            yield path.replace("$", "$.decisions.problem", 1), found, expected
        tensors, ops = len(self.problem.tensors), len(self.problem.ops)
        for place, op in enumerate(self.order):
            if op >= ops:
                yield f"$.decisions.order[{place}]", str(op), f"an operator, below {ops}"
        for field in ("initial", "final"):
            for place, resident in enumerate(getattr(self, field)):
                if resident.tensor >= tensors:
                    yield f"$.decisions.{field}[{place}].tensor", str(resident.tensor), f"a tensor, below {tensors}"
        for place, node in enumerate(self.nodes):
            if node.early and node.kind != "out":
                yield f"$.decisions.nodes[{place}].early", f"true for {node.kind}", "copies out only"
            most = ops if node.kind == "compute" else tensors
            if node.item >= most:
                yield f"$.decisions.nodes[{place}].item", str(node.item), f"below {most}"
            for at, before in enumerate(node.after):
                if before >= place:
                    yield f"$.decisions.nodes[{place}].after[{at}]", str(before), f"an earlier node, below {place}"
