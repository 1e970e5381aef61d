"""A plan as the lifetimes of its tensors: single decisions are changed, and only the stages concerned are priced again.

A plan is, for each forward node, the list of its lifetimes: each starts in the stage in which the node runs and ends
with the last stage that reads the result; in between the result is kept. Two moves change a plan:

* join two lifetimes: keep the result from one to the next instead of recomputing it. Whatever was run or kept only for
  that recomputation is removed as well.
* cut a lifetime before one of its reads: recompute the node there, and what it reads where that is not live.

Stage t = 0 is the forward pass, stage t >= 1 ends with backward node t - 1. A run overwrites its input wherever that is
not read later, so in-place runs follow from the lifetimes. Bytes are those of
`treadle.planner.passes.memory.simulate`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.planner.passes.memory.formulation.useful import unrepeatable
from treadle.planner.passes.memory.lower import RecomputeSchedule, prune
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import RunForward


class Lifetime(NamedTuple):
    """The node runs in stage `start` with `impl`; stages up to `end` read the result."""

    start: int
    end: int
    impl: int


class Lifetimes:
    """A plan under change. `peak[t]` and `time_ns` are exact after `commit` and `rollback`.

    `work` counts changed lifetimes and priced runs; it is the same for equal inputs on any machine.
    """

    def __init__(self, problem: MemoryProblem, schedule: RecomputeSchedule) -> None:
        fwd, stages = problem.fwd, len(schedule.runs)
        self.problem = problem
        self.work = 0
        self.size = [node.out_bytes for node in fwd]
        self.inputs = [tuple(sorted(set(node.inputs))) for node in fwd]
        self.readers: list[list[int]] = [[] for _ in fwd]
        self.made_with: list[list[int]] = [[] for _ in fwd]
        for i, node in enumerate(fwd):
            for j in self.inputs[i]:
                self.readers[j].append(i)
            if node.creator is not None:
                self.made_with[node.creator].append(i)
        self.last_reader = np.array(
            [max([i, *(j for j in self.readers[i] if fwd[j].kind == "op")]) for i in range(len(fwd))]
        )
        self.intermediates = [i for i, node in enumerate(fwd) if node.kind == "intermediate"]
        self.overwriter = {node.inplace_of: i for i, node in enumerate(fwd) if node.inplace_of is not None}
        self.fixed = unrepeatable(problem)
        self.fastest = [[node.fastest(again) for again in (False, True)] for node in fwd]
        self.way = list(schedule.backward)
        self.direct: list[set[int]] = [set() for _ in fwd]
        for t in range(1, stages):
            for i in problem.bwd[t - 1].impls[self.way[t - 1]].needs:
                self.direct[i].add(t)
        self.lives: list[tuple[Lifetime, ...]] = [()] * len(fwd)
        self.runs: list[dict[int, Lifetime]] = [{} for _ in range(stages)]
        self.entering = np.zeros(stages, np.int64)
        self.peak = np.zeros(stages, np.int64)
        self.saved = [0] * stages
        self._time = sum(back.impls[way].time_ns for back, way in zip(problem.bwd, self.way, strict=True))
        self._sizes = np.array(self.size, np.int64)
        self._first_end = np.full(len(fwd), -1)
        self._first_workspace = np.zeros(len(fwd), np.int64)
        self._touched: set[int] = set(range(stages))
        self._before: dict[int, tuple[Lifetime, ...]] = {}
        self._way_before: dict[int, int] = {}
        for i, lives in enumerate(_lives(problem, schedule)):
            self._set(i, lives)
        self.commit()

    @property
    def time_ns(self) -> int:
        return self._time - sum(self.saved)

    def schedule(self) -> RecomputeSchedule:
        """The same plan, pruned."""
        kept: list[set[int]] = [set() for _ in self.runs]
        for i, lives in enumerate(self.lives):
            for life in lives:
                for t in range(life.start, life.end):
                    kept[t].add(i)
        runs = tuple(
            tuple(RunForward(i, life.impl, self._overwrites(i, t)) for i, life in sorted(ran.items()))
            for t, ran in enumerate(self.runs)
        )
        return prune(self.problem, RecomputeSchedule(runs, tuple(map(frozenset, kept)), tuple(self.way)))

    # Moves: each leaves a complete plan, to be kept by `commit` or undone by `rollback`.

    def join(self, i: int, place: int) -> bool:
        """Keep the result of i up to lifetime `place` from the one before, or from the forward pass."""
        lives = self.lives[i]
        second = lives[place]
        if any(life.start == second.start for m in self.made_with[i] for life in self.lives[m]):
            return False
        first = lives[place - 1] if place else Lifetime(0, 0, self.fastest[i][0])
        joined = Lifetime(first.start, second.end, first.impl)
        self._set(i, (*lives[: max(0, place - 1)], joined, *lives[place + 1 :]))
        self._shrink(*self._feeds(i))
        return second.start > 0

    def cut(self, i: int, place: int, stage: int) -> bool:
        """End lifetime `place` of node i with its last read before `stage`, and recompute the node there."""
        life = self.lives[i][place]
        if i in self.fixed or not life.start < stage <= life.end:
            return False
        self._split(i, place, stage)
        return self._ensure(*self._before_run(i, stage))

    def use(self, i: int, place: int, impl: int) -> bool:
        """Run lifetime `place` of node i with `impl`."""
        lives = list(self.lives[i])
        lives[place] = lives[place]._replace(impl=impl)
        self._set(i, tuple(lives))
        return True

    def use_backward(self, k: int, impl: int) -> bool:
        """Run backward node k with implementation `impl`; what it reads is kept for it, or else recomputed."""
        impls, stage = self.problem.bwd[k].impls, k + 1
        self._way_before.setdefault(k, self.way[k])
        before, after = set(impls[self.way[k]].needs), set(impls[impl].needs)
        self._time += impls[impl].time_ns - impls[self.way[k]].time_ns
        self.way[k] = impl
        self._touched.add(stage)
        for i in after - before:
            self.direct[i].add(stage)
        for i in before - after:
            self.direct[i].discard(stage)
        if not self._ensure(*((i, stage) for i in sorted(after - before))):
            return False
        self._shrink(*sorted(before - after))
        return True

    def commit(self) -> None:
        self._price()
        self._before.clear()
        self._way_before.clear()

    def rollback(self) -> None:
        for i, lives in self._before.items():
            self._set(i, lives, journal=False)
        for k, way in self._way_before.items():
            impls, stage = self.problem.bwd[k].impls, k + 1
            for i in impls[self.way[k]].needs:
                self.direct[i].discard(stage)
            for i in impls[way].needs:
                self.direct[i].add(stage)
            self._time += impls[way].time_ns - impls[self.way[k]].time_ns
            self.way[k] = way
            self._touched.add(stage)
        self.commit()

    def snapshot(self) -> tuple[list[tuple[Lifetime, ...]], list[int]]:
        """The current plan, for `restore`."""
        return list(self.lives), list(self.way)

    def restore(self, snapshot: tuple[list[tuple[Lifetime, ...]], list[int]]) -> None:
        """Return to an earlier plan."""
        lives, choices = snapshot
        for i, found in enumerate(lives):
            if found is not self.lives[i]:
                self._before[i] = found
        self._way_before = {k: way for k, way in enumerate(choices) if way != self.way[k]}
        self.rollback()

    def over(self, room: int) -> int:
        """Bytes by which all stages together exceed `room`."""
        self._price()
        return int(np.maximum(self.peak - room, 0).sum())

    def reads(self, i: int) -> list[int]:
        """Stages that read the result of node i, in order."""
        return sorted(self._reads(i))

    def worst(self) -> int:
        """Peak of the plan in bytes, without the base."""
        self._price()
        return int(self.peak.max())

    # Consequences of a change.

    def _reads(self, i: int) -> set[int]:
        """Stages that read the result of i; stage 0 if a node that reads it runs there."""
        reads = set(self.direct[i])
        for j in (*self.readers[i], *self.made_with[i]):
            reads.update(life.start for life in self.lives[j])
        return reads

    def _shrink(self, *nodes: int) -> None:
        """End each lifetime of the nodes with its last read; remove unread runs, and what only they read."""
        todo = list(nodes)
        while todo:
            i = todo.pop()
            reads, old = self._reads(i), self.lives[i]
            lives = []
            for life, after in zip(old, (*old[1:], None), strict=True):
                # A run in the stage in which a lifetime ends does not read it.
                limit = life.end - 1 if after is not None and after.start == life.end > life.start else life.end
                end = max((t for t in reads if life.start <= t <= limit), default=None)
                if end is None and life.start == 0 and self.problem.fwd[i].kind == "op":
                    end = 0
                if end is not None:
                    lives.append(life._replace(end=end))
            if tuple(lives) != old:
                self._set(i, tuple(lives))
            if len(lives) < len(old):
                todo += self._feeds(i)

    def _feeds(self, i: int) -> tuple[int, ...]:
        """Nodes that have to be live, or to run, for a run of i."""
        creator = self.problem.fwd[i].creator
        return self.inputs[i] if creator is None else (*self.inputs[i], creator)

    def _ensure(self, *wanted: tuple[int, int]) -> bool:
        """Run each (node, stage) unless its result is kept there; False where a node cannot run."""
        todo = list(wanted)
        while todo:
            i, stage = todo.pop()
            lives = self.lives[i]
            place = sum(life.start <= stage for life in lives)
            if place and lives[place - 1].end >= stage:
                continue
            if i in self.fixed and place:
                self._set(i, (*lives[: place - 1], lives[place - 1]._replace(end=stage), *lives[place:]))
            elif not lives and self.problem.fwd[i].kind == "intermediate":
                self._set(i, (Lifetime(0, stage, self.fastest[i][0]),))
            elif i in self.fixed:
                return False
            else:
                self._set(i, (*lives[:place], Lifetime(stage, stage, self.fastest[i][1]), *lives[place:]))
                todo += self._before_run(i, stage)
        return True

    def _before_run(self, i: int, stage: int) -> list[tuple[int, int]]:
        """What a run of i in `stage` needs; the creator of an intermediate has to run in that stage."""
        wanted = [(j, stage) for j in self.inputs[i]]
        creator = self.problem.fwd[i].creator
        if creator is not None and stage:
            for place, life in enumerate(self.lives[creator]):
                if life.start < stage <= life.end:
                    self._split(creator, place, stage)
                    return wanted + self._before_run(creator, stage)
        return wanted

    def _split(self, i: int, place: int, stage: int) -> None:
        """Recompute node i in `stage`, within its lifetime `place`, which then ends with its last read before."""
        lives, life = self.lives[i], self.lives[i][place]
        end = max((t for t in self._reads(i) if life.start <= t < stage), default=None)
        if end is None and life.start == 0 and self.problem.fwd[i].kind == "op":
            end = 0
        before = () if end is None else (Lifetime(life.start, end, life.impl),)
        self._set(i, (*lives[:place], *before, Lifetime(stage, life.end, self.fastest[i][1]), *lives[place + 1 :]))
        if not before:
            self._shrink(*self._feeds(i))

    def _set(self, i: int, lives: tuple[Lifetime, ...], journal: bool = True) -> None:
        old = self.lives[i]
        self.work += 1
        if journal:
            self._before.setdefault(i, old)
        self.lives[i] = lives
        size, node = self.size[i], self.problem.fwd[i]
        for sign, changed in ((-1, [x for x in old if x not in lives]), (1, [x for x in lives if x not in old])):
            for life in changed:
                start, end = life.start, life.end
                if sign > 0:
                    self.runs[start][i] = life
                else:
                    self.runs[start].pop(i, None)
                self._touched.add(start)
                self._touched.add(end)
                if end > start:
                    self.entering[start + 1 : end + 1] += sign * size
                    self.peak[start + 1 : end] += sign * size
                self._time += sign * node.impls[life.impl].time(start > 0)
        if (old and old[0].start == 0) or (lives and lives[0].start == 0):
            first = lives[0] if lives and lives[0].start == 0 else None
            self._first_end[i] = -1 if first is None else first.end
            self._first_workspace[i] = 0 if first is None else node.impls[first.impl].workspace(False)
            self._touched.add(0)

    # Bytes.

    def _end(self, i: int, stage: int) -> int:
        """End of the lifetime of i that `stage` reads."""
        return max(life.end for life in self.lives[i] if life.start <= stage)

    def _overwrites(self, i: int, stage: int) -> bool:
        """Whether a run of i in `stage` overwrites the input that it may overwrite."""
        j = self.problem.fwd[i].inplace_of
        return j is not None and stage not in self.direct[j] and self._end(j, stage) == stage

    def _price(self) -> None:
        for t in self._touched:
            self.work += 1 + len(self.runs[t]) if t else 1
            self.peak[t], self.saved[t] = self._stage(t) if t else self._forward()
        self._touched.clear()

    def _forward(self) -> tuple[int, int]:
        count, saved = len(self.size), 0
        last = self.last_reader.copy()
        for m in self.intermediates:
            if self._first_end[m] >= 0:
                for j in self.inputs[m]:
                    last[j] = max(last[j], m)
        for j, i in self.overwriter.items():
            if self._first_end[j] == 0 and self._first_end[i] >= 0:
                last[j] = i - 1
                saved += self.problem.fwd[i].inplace_saves_ns
        runs = self._first_end >= 0
        ends = np.where(self._first_end > 0, count, last + 1)
        change = np.zeros(count + 1, np.int64)
        sizes = np.where(runs, self._sizes, 0)
        change[:count] += sizes
        np.subtract.at(change, ends, sizes)
        return int((change.cumsum()[:count] + self._first_workspace).max()), saved

    def _stage(self, t: int) -> tuple[int, int]:
        fwd, back, size = self.problem.fwd, self.problem.bwd[t - 1], self.size
        impl = back.impls[self.way[t - 1]]
        live = int(self.entering[t])
        peak, saved = live, 0
        ran = self.runs[t]
        if ran:
            order = sorted(ran)
            last = {j: i for i in order for j in self.inputs[i]}
            last.update(dict.fromkeys(impl.needs, len(size)))
            dies: dict[int, int] = {}
            for j, i in last.items():
                if i < len(size) and self._end(j, t) == t:
                    dies[i] = dies.get(i, 0) + size[j]
            for i in order:
                node, life = fwd[i], ran[i]
                if any(other.start < t <= other.end for other in self.lives[i]):
                    live -= size[i]
                live += size[i]
                if node.inplace_of is not None and self._overwrites(i, t):
                    live -= size[node.inplace_of]
                    dies[i] -= size[node.inplace_of]
                    saved += node.inplace_saves_ns
                peak = max(peak, live + node.impls[life.impl].workspace(True))
                live -= dies.get(i, 0)
                if life.end == t and i not in last:
                    live -= size[i]
        made = 0 if impl.grad_inplace else back.out_grad_bytes
        return max(peak, live + made + impl.workspace_bytes) + back.live_grad_bytes, saved


def _lives(problem: MemoryProblem, schedule: RecomputeSchedule) -> list[tuple[Lifetime, ...]]:
    """Lifetimes of every node in a pruned schedule."""
    lives: list[list[Lifetime]] = [[] for _ in problem.fwd]
    for t, (runs, kept) in enumerate(zip(schedule.runs, schedule.kept, strict=True)):
        for run in runs:
            lives[run.node].append(Lifetime(t, t, run.impl))
        for i in kept:
            lives[i][-1] = lives[i][-1]._replace(end=t + 1)
    return [tuple(found) for found in lives]
