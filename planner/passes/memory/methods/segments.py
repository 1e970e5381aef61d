"""Cutting a memory problem into segments: stretches of forward nodes between places where few bytes cross.

Residual blocks, transformer layers and inception modules are such stretches. A backward node belongs to the last
segment of which it, or a backward node after it, reads something; so the backward pass walks the segments from the
last to the first, and what a segment needs is its own or crosses into it.

`sub_problem` is a segment in isolation, with a limit on the bytes kept from its forward pass to its backward pass. What
crosses into it is live and belongs to the segment that made it; in return, what later segments may read of its own
outputs is kept at least until they end. Its backward pass starts with an additional node for that, the gate, which
reads these outputs; the gradient bytes at the gate leave room only for the kept bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import msgspec
from msgspec.structs import replace

from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem

NEARBY = 8
"""Forward nodes around a narrow place among which it is the narrowest."""


@dataclass(frozen=True)
class Segment:
    """Forward nodes `fwd` and backward nodes `bwd` (list indices) of `problem`.

    inputs: the nodes before `fwd` that it reads. wanted: those in `fwd` that a backward pass of later segments may
    read. carried: bytes that pass by, or start here, only for the forward pass of later segments.
    """

    problem: MemoryProblem
    fwd: range
    bwd: range
    inputs: tuple[int, ...]
    wanted: tuple[int, ...]
    carried: int

    @property
    def ground(self) -> int:
        """Gradient bytes that are live throughout its backward pass."""
        return min((self.problem.bwd[k].live_grad_bytes for k in self.bwd), default=0)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of the whole problem that each forward node of the sub-problem stands for."""
        return (*self.inputs, *self.fwd)

    def stage(self, t: int) -> int:
        """The stage of the whole problem for stage t of the sub-problem; the gate's is that of its last stage before
        the backward pass of the segment."""
        return 0 if t == 0 else self.bwd.start + t - 1

    @cached_property
    def signature(self) -> bytes:
        """Equal for segments that have the same options."""
        return msgspec.json.encode(self.sub_problem(0, 0))

    @property
    def wanted_bytes(self) -> int:
        return sum(self.problem.fwd[i].out_bytes for i in self.wanted)

    def sub_problem(self, keep: int, room: int) -> MemoryProblem:
        """The segment in isolation: `keep` bytes kept from forward to backward, `room` bytes at any time, at most."""
        place = {i: at for at, i in enumerate(self.nodes)}
        given = ForwardNode(op="given", out_bytes=0, impls=(Forward(),), recomputable=False)
        own = []
        for i in self.fwd:
            node = self.problem.fwd[i]
            within = node.inplace_of is not None and node.inplace_of in self.fwd
            own.append(
                replace(
                    node,
                    inputs=tuple(place[j] for j in node.inputs),
                    creator=None if node.creator is None else place[node.creator],
                    inplace_of=place[node.inplace_of] if within and node.inplace_of is not None else None,
                    inplace_saves_ns=node.inplace_saves_ns if within else 0,
                    ops=(),
                )
            )
        gate = BackwardNode(
            op="gate",
            out_grad_bytes=0,
            live_grad_bytes=max(0, room - keep),
            impls=(Backward(needs=tuple(place[i] for i in self.wanted)),),
        )
        bwd = [gate]
        for k in self.bwd:
            back = self.problem.bwd[k]
            impls = tuple(replace(impl, needs=tuple(place[i] for i in impl.needs)) for impl in back.impls)
            bwd.append(replace(back, live_grad_bytes=back.live_grad_bytes - self.ground, impls=impls, ops=()))
        return MemoryProblem(
            version=self.problem.version,
            budget_bytes=room,
            base={},
            fwd=(*(given for _ in self.inputs), *own),
            bwd=tuple(bwd),
        )


@dataclass(frozen=True)
class Cut:
    """A problem cut into segments; `fwd` and `bwd` are those of each, `last` and `wanted` the last forward node that
    reads each node in the forward pass, and for a backward pass (-1: none outside its own segment needs it)."""

    problem: MemoryProblem
    fwd: tuple[range, ...]
    bwd: tuple[range, ...]
    last: tuple[int, ...]
    wanted: tuple[int, ...]

    @staticmethod
    def of(problem: MemoryProblem, starts: list[int]) -> Cut:
        """The segments that start at these forward nodes."""
        size = len(problem.fwd)
        ranges = [range(start, end) for start, end in zip(starts, [*starts[1:], size], strict=True)]
        segment_of = [at for at, found in enumerate(ranges) for _ in found]
        last, wanted = list(range(size)), [-1] * size
        owner, latest = [0] * len(problem.bwd), 0
        for k in reversed(range(len(problem.bwd))):
            needs = {i for impl in problem.bwd[k].impls for i in impl.needs}
            owner[k] = latest = max([latest, *(segment_of[i] for i in needs)])
            for i in needs:
                wanted[i] = max(wanted[i], ranges[latest].start)
        for i in range(size):
            for j in problem.fwd[i].inputs:
                last[j] = i
        for i in reversed(range(size)):
            if wanted[i] >= 0:
                for j in problem.fwd[i].inputs:
                    wanted[j] = max(wanted[j], i)
        firsts = [sum(of > at for of in owner) for at in range(len(ranges))]
        backward = tuple(range(first, first + owner.count(at)) for at, first in enumerate(firsts))
        return Cut(problem, tuple(ranges), backward, tuple(last), tuple(wanted))

    def segment(self, first: int, end: int) -> Segment:
        """Segments first .. end - 1 taken as one; nothing between them has to be kept."""
        problem = self.problem
        fwd = range(self.fwd[first].start, self.fwd[end - 1].stop)
        bwd = range(self.bwd[end - 1].start, self.bwd[first].stop)
        reads = {j for i in fwd for j in problem.fwd[i].inputs}
        reads.update(i for k in bwd for impl in problem.bwd[k].impls for i in impl.needs)
        carried = 0
        for j in range(fwd.stop):
            beyond = fwd.start if j < fwd.start else fwd.stop
            if self.last[j] >= beyond > self.wanted[j]:
                carried += problem.fwd[j].out_bytes
        return Segment(
            problem=problem,
            fwd=fwd,
            bwd=bwd,
            inputs=tuple(sorted(i for i in reads if i < fwd.start)),
            wanted=tuple(i for i in fwd if self.wanted[i] >= fwd.stop),
            carried=carried,
        )


def narrow_places(problem: MemoryProblem) -> list[int]:
    """The first forward node of each segment: 0, and where no more bytes cross than anywhere nearby.

    Of equal neighbouring places the last one counts; an intermediate belongs to the segment of its creator.
    """
    size = len(problem.fwd)
    last = {j: i for i, node in enumerate(problem.fwd) for j in node.inputs}
    change = [0] * (size + 2)
    for j, i in last.items():
        change[j + 1] += problem.fwd[j].out_bytes
        change[i + 1] -= problem.fwd[j].out_bytes
    crossing = list(itertools.accumulate(change))
    starts = [0]
    for i in range(1, size):
        near = crossing[max(1, i - NEARBY) : min(size, i + NEARBY + 1)]
        if problem.fwd[i].kind != "op" or crossing[i] > min(near):
            continue
        follows = i + 1 < size and crossing[i + 1] == crossing[i] and problem.fwd[i + 1].kind == "op"
        if not follows or i - starts[-1] >= 2 * NEARBY:
            starts.append(i)
    return starts
