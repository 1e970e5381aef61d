"""When each piece travels along its tree, so that a busiest port never waits: list scheduling by matchings.

At every event the messages that could leave (their data is there, their link is free) compete for ports: an out-port
serves one of its links, an in-port one of its. They form a bipartite graph of out-ports and in-ports; a matching of
greatest weight leaves, where a port weighs as much as the work it still has before it, and a message as much as
the path it still has ahead (or the work that waits for it), so that slow links farther on are fed in time. With all
messages available that is the schedule of Koenig's edge colouring, in which the ports with most work are busy in every
round (open shop with equal operations). On one link the message with the longest path ahead goes first, then the
earlier piece.

With `sums` the copies of one piece leave a rank one after the other, so that the schedule can be run backwards as a
reduction, in which contributions to one chunk at one rank take turns.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from treadle.planner.passes.collective.fabric import Fabric
from treadle.planner.passes.collective.packing import Tree

Rule = Literal["path", "work", "turn"]
"""Which message of a link goes first: that with the longest path ahead, that for which most work waits, or the earliest
piece and then the longest path."""


class Step(NamedTuple):
    """Piece `piece` of tree number `tree` leaves `src` for `dst` at `send` (ns); with `reduce` it is added up there.

    All rotations of it leave at the same time.
    """

    send: int
    tree: int
    piece: int
    src: int
    dst: int
    reduce: bool = False


class _Job(NamedTuple):
    tree: int
    piece: int
    src: int
    dst: int
    link: int
    ahead: int
    """ns that follow, by the rule."""


def periodic(
    fabric: Fabric, trees: Sequence[Tree], pieces: int, *, rule: Rule, pipelined: bool, sums: bool
) -> list[Step]:
    """All messages that carry `pieces` pieces along each tree, by send time. Deterministic."""
    return _Run(fabric, trees, pieces, rule, pipelined, sums).steps()


class _Run:
    """The state of one simulation; resources are links, then ports."""

    def __init__(
        self, fabric: Fabric, trees: Sequence[Tree], pieces: int, rule: Rule, pipelined: bool, sums: bool
    ) -> None:
        links = len(fabric.beta)
        self.fabric, self.rule, self.sums, self.farthest = fabric, rule, sums, 1
        self.lat = [a + b for a, b in zip(fabric.alpha, fabric.beta, strict=True)]
        self.busy = list(fabric.beta) if pipelined else self.lat
        self.uses = [(i, *(links + p for p in ports)) for i, ports in enumerate(fabric.ports)]
        self.holds = [
            (busy, *(fabric.held(p, busy) for p in ports)) for busy, ports in zip(self.busy, fabric.ports, strict=True)
        ]
        self.sides = [self._sides(i) for i in range(links)]
        self.free = [0] * (links + len(fabric.sending))
        self.left = [0] * len(self.free)
        self.after: dict[tuple[int, int, int], list[_Job]] = defaultdict(list)
        self.waiting: dict[int, list[tuple[int, int, int, _Job]]] = defaultdict(list)
        self.turn: dict[tuple[int, int, int], int] = {}
        self.events: list[int] = [0]
        self.arriving: dict[int, list[_Job]] = defaultdict(list)
        self.released: dict[int, list[_Job]] = defaultdict(list)
        for number, tree in enumerate(trees):
            ahead = self._ahead(tree)
            self.farthest = max(self.farthest, *ahead.values())
            for v in tree.order[1:]:
                u = tree.parent[v]
                link = int(fabric.orbit[u, v])
                for resource, hold in zip(self.uses[link], self.holds[link], strict=True):
                    self.left[resource] += hold * pieces
                for piece in range(pieces):
                    job = _Job(number, piece, u, v, link, ahead[v])
                    if u == tree.root:
                        self._ready(job)
                    else:
                        self.after[number, piece, u].append(job)

    def _sides(self, link: int) -> tuple[int, int]:
        """The resources that stand for its sender and its receiver in matchings: ports where it has them."""
        first = len(self.fabric.beta)
        out = next((first + p for p in self.fabric.ports[link] if self.fabric.sending[p]), link)
        into = next((first + p for p in self.fabric.ports[link] if not self.fabric.sending[p]), link)
        return out, into

    def _ahead(self, tree: Tree) -> dict[int, int]:
        longest = dict.fromkeys(tree.order, 0)
        below = dict.fromkeys(tree.order, 0)
        for v in reversed(tree.order[1:]):
            u = tree.parent[v]
            link = int(self.fabric.orbit[u, v])
            longest[v] += self.lat[link]
            longest[u] = max(longest[u], longest[v])
            below[u] += below[v] + self.busy[link]
        return below if self.rule == "work" else longest

    def _at_a_slot(self, job: _Job, now: int) -> None:
        """Messages of a port start at multiples of what they occupy it, so that those of all ports stay in step."""
        busy = self.busy[job.link]
        late = -now % busy if len(self.uses[job.link]) > 1 else 0
        if not late:
            self._ready(job)
            return
        self.released[now + late].append(job)
        heapq.heappush(self.events, now + late)

    def _ready(self, job: _Job) -> None:
        first, then = (job.piece, -job.ahead) if self.rule == "turn" else (-job.ahead, job.piece)
        heapq.heappush(self.waiting[job.link], (first, then, job.tree, job))

    def steps(self) -> list[Step]:
        found: list[Step] = []
        while self.events:
            now = heapq.heappop(self.events)
            while self.events and self.events[0] == now:
                heapq.heappop(self.events)
            for job in self.arriving.pop(now, ()):
                for following in self.after.pop((job.tree, job.piece, job.dst), ()):
                    self._at_a_slot(following, now)
            for job in self.released.pop(now, ()):
                self._ready(job)
            started = True
            while started:
                started = False
                for link in self._chosen(now):
                    started |= self._start(link, now, found)
        return found

    def _chosen(self, now: int) -> list[int]:
        """The links to serve now: those that compete with no other, and a heaviest matching of the others."""
        able = [
            link
            for link, heap in sorted(self.waiting.items())
            if heap and all(self.free[r] <= now for r in self.uses[link]) and self._next(link, now) is not None
        ]
        rivals: dict[int, int] = defaultdict(int)
        for link in able:
            for side in set(self.sides[link]):
                rivals[side] += 1
        alone = [link for link in able if all(rivals[side] == 1 for side in self.sides[link])]
        contested = [link for link in able if any(rivals[side] > 1 for side in self.sides[link])]
        return alone + self._matched(contested)

    def _matched(self, links: list[int]) -> list[int]:
        if len(links) < 2:
            return links
        from scipy.optimize import linear_sum_assignment

        outs = {side: i for i, side in enumerate(sorted({self.sides[link][0] for link in links}))}
        ins = {side: i for i, side in enumerate(sorted({self.sides[link][1] for link in links}))}
        most = max(self.left)
        weight = np.zeros((len(outs), len(ins)))
        at: dict[tuple[int, int], int] = {}
        for link in links:
            out, into = self.sides[link]
            spot = outs[out], ins[into]
            first = self.waiting[link][0][3]
            value = (self.left[out] + self.left[into]) / most + first.ahead / self.farthest + 1e-3 - 1e-6 * first.piece
            if value > weight[spot]:
                weight[spot] = value
                at[spot] = link
        rows, columns = linear_sum_assignment(weight, maximize=True)
        pairs = sorted(zip(rows.tolist(), columns.tolist(), strict=True), key=lambda spot: -weight[spot])
        return [at[spot] for spot in pairs if spot in at]

    def _next(self, link: int, now: int) -> int | None:
        """Where in its heap the first message is that may leave now; None where all wait for their turn."""
        heap = self.waiting[link]
        if not self.sums or self._in_turn(heap[0][3], now):
            return 0
        best = None
        for place, entry in enumerate(heap):
            if self._in_turn(entry[3], now) and (best is None or entry < heap[best]):
                best = place
        return best

    def _in_turn(self, job: _Job, now: int) -> bool:
        return self.turn.get((job.tree, job.piece, job.src), 0) <= now

    def _start(self, link: int, now: int, found: list[Step]) -> bool:
        if any(self.free[r] > now for r in self.uses[link]) or not self.waiting[link]:
            return False
        place = self._next(link, now)
        if place is None:
            return False
        heap = self.waiting[link]
        if place:
            job = heap[place][3]
            heap[place] = heap[-1]
            heap.pop()
            heapq.heapify(heap)
        else:
            job = heapq.heappop(heap)[3]
        busy, done = self.busy[link], now + self.lat[link]
        for resource, hold in zip(self.uses[link], self.holds[link], strict=True):
            self.free[resource] = now + hold
            self.left[resource] -= hold
            if hold != busy:
                heapq.heappush(self.events, now + hold)
        if self.sums:
            self.turn[job.tree, job.piece, job.src] = done
        self.arriving[done].append(job)
        heapq.heappush(self.events, done)
        if busy != self.lat[link]:
            heapq.heappush(self.events, now + busy)
        found.append(Step(now, job.tree, job.piece, job.src, job.dst))
        return True


def ends(fabric: Fabric, steps: Sequence[Step]) -> int:
    """When the last of `steps` arrives, ns."""
    return max((s.send + _lat(fabric, _link(fabric, s)) for s in steps), default=0)


def backwards(fabric: Fabric, steps: Sequence[Step]) -> list[Step]:
    """The same steps as a reduction: in reverse, from children to parents. Times are those of the mirror image."""
    end = ends(fabric, steps)
    turned = [Step(end - s.send - _lat(fabric, _link(fabric, s)), s.tree, s.piece, s.dst, s.src, True) for s in steps]
    return sorted(turned)


def in_turn(fabric: Fabric, steps: Sequence[Step], *, pipelined: bool, inverted: bool) -> list[Step]:
    """Earliest times for steps in causal order, every link, port and sum serving them in the order given.

    `inverted` says that links are those of the reversed steps, as `fabric` has them for reductions.
    """
    links = len(fabric.beta)
    free: dict[object, int] = defaultdict(int)
    held: dict[tuple[int, int, int], int] = defaultdict(int)
    found = []
    for s in steps:
        link = int(fabric.orbit[s.dst, s.src]) if inverted else int(fabric.orbit[s.src, s.dst])
        lat = _lat(fabric, link)
        busy = fabric.beta[link] if pipelined else lat
        resources = {link: busy, **{links + p: fabric.held(p, busy) for p in fabric.ports[link]}}
        sums = ("sum", s.tree, s.piece, s.dst)
        start = max(held[s.tree, s.piece, s.src], *(free[r] for r in resources), free[sums] if s.reduce else 0)
        for resource, hold in resources.items():
            free[resource] = start + hold
        if s.reduce:
            free[sums] = start + lat
        at = (s.tree, s.piece, s.dst)
        held[at] = max(held[at], start + lat)
        found.append(s._replace(send=start))
    return found


def _link(fabric: Fabric, step: Step) -> int:
    return int(fabric.orbit[step.src, step.dst])


def _lat(fabric: Fabric, link: int) -> int:
    return fabric.alpha[link] + fabric.beta[link]
