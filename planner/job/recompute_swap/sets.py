"""Recompute sets: values that are evicted over a gap between two reads and recomputed at its end.

A program is a sequence of runs of a trace's ops. What a run makes are values: (tensor, place of the run). A set names
values that ops of the forward pass make. Each is evicted over its longest gap between two reads, which in training is
nearly always the one from the forward pass to the backward pass. Before the read that ends the gap it is
recomputed, as are those of its inputs that are not live then: members not yet restored, and values after their last
read. So consecutive members are restored together, each once, and a recomputation starts from live values: kept or
swapped ones, parameters and inputs. What cannot run again (random ops, writes in place, communication) is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from treadle.planner.documents.trace import Call, Implementation, Op, OpRun, Trace
from treadle.planner.graph.index import Graph
from treadle.planner.graph.unrolling import OWN, call_named, draws


class RunValue(NamedTuple):
    """What the run at place `at` made of a tensor."""

    at: int
    tensor: str


class OpSequence:
    """`runs` of `trace` (no views), prepared for many sets."""

    def __init__(self, trace: Trace, runs: Sequence[OpRun]) -> None:
        self.trace, self.runs = trace, tuple(runs)
        self.graph = graph = Graph(trace)
        self.ops = [graph.ops[run.op] for run in runs]
        self.calls = [call_named(op, run.implementation, trace.name) for op, run in zip(self.ops, runs, strict=True)]
        self.ready_ns = [0, *accumulate(call.time_ns or 0 for call in self.calls)]
        """When each run would start if nothing had to wait."""
        self.made_at: dict[str, list[int]] = {}
        self.uses: dict[RunValue, list[int]] = {}
        self.reads: list[tuple[str, ...]] = []
        self.counts: list[int] = []
        """How often each run's op has run by then, itself included."""
        ran: Counter[str] = Counter()
        for at, call in enumerate(self.calls):
            roots = tuple(dict.fromkeys(graph.roots(call)))
            self.reads.append(roots)
            ran[self.ops[at].id] += 1
            self.counts.append(ran[self.ops[at].id])
            for root in roots:
                if root in self.made_at:
                    self.uses[RunValue(self.made_at[root][-1], root)].append(at)
            for tensor in call.outputs:
                if tensor is not None:
                    self.made_at.setdefault(tensor, []).append(at)
                    self.uses[RunValue(at, tensor)] = []
        handed = (*trace.outputs, *(value for _, value in trace.updates))
        self.handed = {root for tensor in handed for root in graph.root(tensor)}
        self.gaps = {value: gap for value in self.uses if (gap := self._gap(value)) is not None}
        """The places at which the longest gap of each value begins and ends that may be a member of a set."""

    @property
    def time_ns(self) -> int:
        return self.ready_ns[-1]

    def latest(self, tensor: str, at: int) -> RunValue | None:
        """The value that the run at place `at` would read of a tensor; None for what is there from the start."""
        places = self.made_at.get(tensor)
        return RunValue(places[bisect_left(places, at) - 1], tensor) if places and places[0] < at else None

    def bytes_of(self, value: RunValue) -> int:
        """Bytes of the whole storage."""
        return self.graph.storage_bytes(self.graph.owner[value.tensor])

    def with_set(self, members: Collection[RunValue]) -> tuple[OpRun, ...]:
        """The runs with all `members` recomputed; values without a gap are ignored."""
        return tuple(self._runs(frozenset(members) & self.gaps.keys()))

    def price_ns(self, value: RunValue) -> int:
        """The time that recomputing only this value adds, ns."""
        _, end = self.gaps[value]
        again = self._restored(end, frozenset([value]), {})
        return sum(call_named(self.graph.ops[run.op], run.implementation, "").time_ns or 0 for run in again)

    def instance(self, value: RunValue) -> str:
        """The id in the unrolled trace of the storage that holds it."""
        count = self.counts[value.at]
        owner = self.graph.owner[value.tensor]
        return owner if count == 1 else f"{owner}#{count}"

    @property
    def repeated(self) -> list[int]:
        """Places of runs of ops that have run before."""
        return [at for at, count in enumerate(self.counts) if count > 1]

    def _again(self, value: RunValue) -> Call | None:
        """The call that recomputes a value, if any."""
        op, call = self.ops[value.at], self.calls[value.at]
        if op.phase != "forward" or draws(op, call) or op.mutates or op.comm is not None:
            return None
        repeats = (call for call in op.implementations if call.again and call.overwrites is None)
        for repeat in repeats:
            if value.tensor in repeat.outputs and (repeat.time_ns or 0) <= (op.time_ns or 0):
                return repeat
        found = op if isinstance(call, Implementation) and call.overwrites is not None else call
        return found if value.tensor in found.outputs else None

    def _gap(self, value: RunValue) -> tuple[int, int] | None:
        if value.tensor in self.handed or self._again(value) is None:
            return None
        gaps = [
            (self.ready_ns[after] - self.ready_ns[before + 1], -before, -after)
            for before, after in pairwise([value.at, *self.uses[value]])
            if after > before + 1
        ]
        _, begin, end = max(gaps, default=(0, 0, 0))
        return (-begin, -end) if gaps else None

    def _runs(self, members: frozenset[RunValue]) -> Iterator[OpRun]:
        ends = {self.gaps[value][1] for value in members}
        back: dict[RunValue, int] = {}
        for at, run in enumerate(self.runs):
            if at in ends:
                yield from self._restored(at, members, back)
            yield run

    def _restored(self, at: int, members: frozenset[RunValue], back: dict[RunValue, int]) -> Iterator[OpRun]:
        """Runs that restore the members that the run at `at` reads; `back`: up to which place a value is live again."""

        def there(value: RunValue) -> bool:
            if back.get(value, -1) >= at:
                return True
            if value in members and at > self.gaps[value][0]:
                return False
            return value.tensor in self.handed or max(self.uses[value], default=value.at) >= at

        read = [value for tensor in self.reads[at] if (value := self.latest(tensor, at)) in members]
        todo = [(value, False) for value in reversed(read)]
        while todo:
            value, ready = todo.pop()
            call = self._again(value) if value is not None and not there(value) else None
            if call is None:
                continue
            if not ready:
                todo.append((value, True))
                inputs = (self.latest(root, at) for root in self.graph.roots(call))
                todo += [(source, False) for source in inputs if source is not None]
                continue
            yield OpRun(op=self.runs[value.at].op, implementation=OWN if isinstance(call, Op) else call.name)
            for tensor in call.outputs:
                if tensor is not None and (made := self.latest(tensor, at)) is not None:
                    back[made] = max([at, *self.uses[made]]) if made in members else at
