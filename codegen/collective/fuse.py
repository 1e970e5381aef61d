"""Fused steps: a rank that sends on what it receives does both at once, in one threadblock.

Which receive connection shares a threadblock with which send connection of its rank and channel is an assignment
problem: as many pairs of a receive and a send of the same chunks as possible, and only where the joint threadblock is
not much longer than its longer half. The pairs are contracted in the graph of program order, data, messages and FIFO
room, and the graph is sorted; a pair on a circle is taken apart again. So the sorted order is one in which the program
can run on FIFOs of SLOTS messages, and cutting it into threadblocks cannot make it hang.

A reducing pair stores its sum only if a later step reads it (rrs instead of rrcs).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from treadle.codegen.collective.depend import hazards
from treadle.codegen.collective.placement import Operand
from treadle.codegen.collective.unplaced import UnplacedStep, chunks
from treadle.planner.errors import InputError

SLOTS = 2
"""Messages that a connection of every protocol holds at least (Simple: 2, LL and LL128: 8)."""

LONGEST = 1.5
"""A joint threadblock may be this many times as long as the longer of the two that it replaces."""

SLACK = 0.01
"""Part of the schedule's time by which fusing may delay a message: what it saves, reading and writing a chunk once
less, is not in the schedule."""

MAX_CIRCLES = 32
"""Pairs that are taken apart before the next choice of pairs is tried."""

End = tuple[int, int, int]
"""(rank, channel, peer): the sending or the receiving end of a connection."""


class TooLong(Exception):
    """Messages of several chunks on `links` (src, dst) wait for themselves; sent one by one their chunks may not."""

    def __init__(self, links: frozenset[tuple[int, int]]) -> None:
        super().__init__(links)
        self.links = links


@dataclass(frozen=True)
class Fused:
    """`steps` in an order in which they can run; `joined` says for the receiving ends which send peer shares their
    threadblock."""

    steps: list[UnplacedStep]
    joined: dict[End, int] = field(default_factory=dict)

    @cached_property
    def hazards(self) -> list[list[int]]:
        """Those of `steps`, as `depend.hazards` gives them."""
        return hazards(self.steps)

    def peers(self, step: UnplacedStep) -> tuple[int, int]:
        """The ranks that the step's threadblock receives from and sends to, -1 for none."""
        if step.recv is not None:
            return step.recv, self.joined.get((step.rank, step.channel, step.recv), -1)
        if step.send is None:
            return -1, -1
        return self.receivers.get((step.rank, step.channel, step.send), -1), step.send

    @cached_property
    def receivers(self) -> dict[End, int]:
        """For the sending ends that share a threadblock with a receiving end the receive peer."""
        return {(rank, channel, send): recv for (rank, channel, recv), send in self.joined.items()}


def fuse(
    made: Callable[[], Sequence[UnplacedStep]],
    outputs: Sequence[Collection[Operand]],
    *,
    pairs: bool = True,
    merge: bool = False,
) -> Fused:
    """Sort the steps that `made` makes, join threadblocks and fuse steps. `outputs` are the chunks of each rank that
    count after the call; without `pairs` nothing is fused.

    First every pair is tried, then those with no other message of their ends between, then none: the first that
    delays nothing beyond SLACK is taken. With `merge` every receiving end shares a threadblock with some sending end
    while there are any, so that a rank has as few threadblocks as its peers allow, whatever the time. Ends of messages
    that fill a FIFO on their own stay alone: that they are sent and received at the same time keeps them going.

    Raises TooLong where such a message can never be received.
    """
    for choice in (_pairs, _neighbours) if pairs else ():
        steps = made()
        before = hazards(steps)
        fused = _fuse(steps, before, choice(steps, before), outputs, merge)
        if fused is not None and (merge or _delay(fused) <= SLACK * max((d.time for d in steps), default=0)):
            return fused
    steps = made()
    plain = _fuse(steps, hazards(steps), [], outputs, merge)
    assert plain is not None
    return plain


def _fuse(
    steps: Sequence[UnplacedStep],
    before: Sequence[Sequence[int]],
    found: Sequence[tuple[int, int]],
    outputs: Sequence[Collection[Operand]],
    merge: bool,
) -> Fused | None:
    """None where too many pairs block one another."""
    joined = _joined(steps, found, merge)
    chosen = {receive: send for receive, send in found if joined.get(_receiving(steps[receive])) == steps[send].send}
    ordered = _sorted(steps, before, chosen)
    return None if ordered is None else Fused(_without_dead_stores(ordered, outputs), joined)


def _delay(fused: Fused) -> int:
    """The most by which a step or the departure of a message is later than scheduled, in ns. A step is done at its
    scheduled time, or as soon after it as its threadblock, the steps before it and its message allow."""
    done: list[int] = []
    left: dict[int, int] = {}
    free: dict[tuple[int, int, int, int], int] = {}
    delay = 0
    for step, others in zip(fused.steps, fused.hazards, strict=True):
        block = (step.rank, step.channel, *fused.peers(step))
        time = max([step.time, free.get(block, 0), *(done[other] for other in others)])
        if step.message is not None:
            time = max(time, left[id(step.message)] + step.time - step.message.leaves)
        done.append(time)
        free[block] = time
        left[id(step)] = max(time, step.leaves)
        delay = max(delay, time - (step.leaves if step.send is not None else step.time))
    return delay


def _receiving(step: UnplacedStep) -> End:
    assert step.recv is not None
    return step.rank, step.channel, step.recv


def _pairs(steps: Sequence[UnplacedStep], before: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(receive, send) of one rank and channel where the send passes on exactly what the receive has stored."""
    found = []
    for place, step in enumerate(steps):
        if step.type == "s" and before[place]:
            other = steps[before[place][-1]]
            fits = len(before[place]) == 1 and other.recv is not None and other.channel == step.channel
            if fits and (other.writes, other.size) == (step.reads, step.size):
                found.append((before[place][0], place))
    return found


def _neighbours(steps: Sequence[UnplacedStep], before: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The pairs between which nothing else is received from the one peer or sent to the other."""
    pairs = {send: receive for receive, send in _pairs(steps, before)}
    received: dict[End, int] = {}
    sent: dict[End, int] = {}
    found = []
    for place, step in enumerate(steps):
        if step.recv is not None:
            received[step.rank, step.channel, step.recv] = place
        if step.send is not None:
            end = step.rank, step.channel, step.send
            if place in pairs and received[_receiving(steps[pairs[place]])] == pairs[place] > sent.get(end, -1):
                found.append((pairs[place], place))
            sent[end] = place
    return found


def _joined(steps: Sequence[UnplacedStep], pairs: Sequence[tuple[int, int]], merge: bool) -> dict[End, int]:
    """Assign send peers to receiving ends: most fused pairs, then least waiting between receive and send."""
    receives: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    sends: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    long = {(step.rank, step.send) for step in steps if step.send is not None and step.size > SLOTS}
    for step in steps:
        if step.recv is not None and (step.recv, step.rank) not in long:
            receives[step.rank, step.channel][step.recv] += 1
        if step.send is not None and (step.rank, step.send) not in long:
            sends[step.rank, step.channel][step.send] += 1
    passed: dict[tuple[int, int], dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for receive, send in pairs:
        first, second = steps[receive], steps[send]
        assert first.recv is not None
        assert second.send is not None
        passed[first.rank, first.channel][first.recv, second.send].append(send - receive)
    from scipy.optimize import linear_sum_assignment  # slow to import

    most = len(steps) * len(steps)
    joined: dict[End, int] = {}
    for where, incoming in receives.items():
        outgoing = sends.get(where, {})
        sources, targets = sorted(incoming), sorted(outgoing)
        worth = np.zeros((len(sources), len(targets)))
        for i, source in enumerate(sources):
            for j, target in enumerate(targets):
                delays = passed[where].get((source, target), [])
                longer = max(incoming[source], outgoing[target])
                joint = incoming[source] + outgoing[target] - len(delays)
                if merge or joint <= LONGEST * longer:
                    worth[i, j] = len(delays) - sum(delays) / most
        rows, columns = linear_sum_assignment(worth, maximize=True)
        for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
            if merge or worth[i, j] > 0:
                joined[*where, sources[i]] = targets[j]
    return joined


def _sorted(
    steps: Sequence[UnplacedStep], before: Sequence[Sequence[int]], chosen: dict[int, int]
) -> list[UnplacedStep] | None:
    """The steps, chosen pairs fused, in an order in which they can run on FIFOs of SLOTS messages.

    Among the steps that may come next the first of the given order is taken. If there is none, a pair on a circle of
    waits is taken apart; a circle without a pair needs FIFOs deeper than SLOTS, and one wait for room is dropped. None
    after MAX_CIRCLES pairs.
    """
    apart = 0
    after, room = _graph(steps, before)
    missing = [0] * len(steps)
    for followers in after:
        for follower in followers:
            missing[follower] += 1
    lead = {send: receive for receive, send in chosen.items()}
    inner = {receive: after[receive].count(send) for receive, send in chosen.items()}
    for receive, send in chosen.items():
        missing[send] -= inner[receive]
    done, left = [False] * len(steps), len(steps)

    def ready(place: int) -> bool:
        return missing[place] == 0 and (place not in chosen or missing[chosen[place]] == 0)

    heap = [place for place in range(len(steps)) if place not in lead and ready(place)]
    result: list[tuple[int, ...]] = []
    while True:
        while heap:
            place = heapq.heappop(heap)
            members = (place, chosen[place]) if place in chosen else (place,)
            result.append(members)
            left -= len(members)
            for member in members:
                done[member] = True
            for member in members:
                for follower in after[member]:
                    if done[follower]:
                        continue
                    missing[follower] -= 1
                    unit = lead.get(follower, follower)
                    if ready(unit):
                        heapq.heappush(heap, unit)
        if not left:
            return _fused(steps, result)
        circle = _circle(after, done, lead)
        pair = max((place for place in circle if place in chosen), default=None)
        if pair is not None:
            apart += 1
            if apart > MAX_CIRCLES:
                return None
            send = chosen.pop(pair)
            missing[send] += inner[pair]
            del lead[send]
            freed = [pair, send]
        else:
            long = {(step.recv, step.rank) for step in map(steps.__getitem__, circle) if step.size > SLOTS}
            if links := frozenset((src, dst) for src, dst in long if src is not None):
                raise TooLong(links)
            first = next((place for place in sorted(circle) if room.get(place) in circle), None)
            if first is None:
                raise InputError("messages of one link arrive in another order than they leave in")
            missing[first] -= 1
            after[room[first]].remove(first)
            freed = [first]
        for place in freed:
            if ready(lead.get(place, place)):
                heapq.heappush(heap, lead.get(place, place))


def _graph(steps: Sequence[UnplacedStep], before: Sequence[Sequence[int]]) -> tuple[list[list[int]], dict[int, int]]:
    """Followers of each step, and for each send that needs room in its FIFO the receive that makes it.

    Runtimes cut a step of many chunks into one message per chunk where chunks are large, so each chunk takes a slot.
    What follows a send of more than SLOTS follows its receive: it ends only while that goes on.
    """
    after: list[list[int]] = [[] for _ in steps]
    number = {id(step): place for place, step in enumerate(steps)}
    receiver = {number[id(step.message)]: place for place, step in enumerate(steps) if step.message is not None}
    for place, places in enumerate(before):
        for other in places:
            long = steps[other].type == "s" and steps[other].size > SLOTS
            after[receiver[other] if long else other].append(place)
    connections: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for place, step in enumerate(steps):
        if step.send is not None:
            connections[step.rank, step.send, step.channel].append(place)
    room: dict[int, int] = {}
    for sends in connections.values():
        receives = [receiver[send] for send in sends]
        first, held = 0, 0
        for k, send in enumerate(sends):
            size = steps[send].size
            after[send].append(receives[k])
            if k + 1 < len(sends):
                after[receives[k] if size > SLOTS else send].append(sends[k + 1])
                after[receives[k]].append(receives[k + 1])
            held += size
            while held > SLOTS and first < k:
                held -= steps[sends[first]].size
                first += 1
            if first and size <= SLOTS:
                after[receives[first - 1]].append(send)
                room[send] = receives[first - 1]
    return after, room


def _circle(after: Sequence[Sequence[int]], done: Sequence[bool], lead: dict[int, int]) -> set[int]:
    """Steps on one circle of waits among those that are not done; of a pair only the receive."""
    waited: dict[int, int] = {}
    for place, followers in enumerate(after):
        if not done[place]:
            unit = lead.get(place, place)
            for follower in followers:
                if not done[follower] and (other := lead.get(follower, follower)) != unit:
                    waited.setdefault(other, unit)
    path: dict[int, int] = {}
    at = min(place for place, finished in enumerate(done) if not finished)
    at = lead.get(at, at)
    while at not in path:
        path[at] = len(path)
        at = waited[at]
    return {place for place, step in path.items() if step >= path[at]}


def _fused(steps: Sequence[UnplacedStep], units: Sequence[tuple[int, ...]]) -> list[UnplacedStep]:
    """One step per unit; messages point to the step that now sends them."""
    result: list[UnplacedStep] = []
    now: dict[int, UnplacedStep] = {}
    for members in units:
        step = steps[members[0]]
        if len(members) == 2:
            send = steps[members[1]]
            step.type, step.send = "rcs" if step.type == "r" else "rrcs", send.send
            step.leaves = send.leaves
            now[id(send)] = step
        result.append(step)
    for step in result:
        if step.message is not None:
            step.message = now.get(id(step.message), step.message)
    return result


def _without_dead_stores(steps: list[UnplacedStep], outputs: Sequence[Collection[Operand]]) -> list[UnplacedStep]:
    """Turn rrcs into rrs where nothing reads the stored sum: going backwards, a chunk is live from a read of it, or
    from the end where it is output, until the write before."""
    live = [set(places) for places in outputs]
    for step in reversed(steps):
        here = live[step.rank]
        writes = chunks(step.writes, step.size)
        if step.type == "rrcs" and not here.intersection(writes):
            step.type, step.writes = "rrs", None
        here.difference_update(writes if step.writes is not None else ())
        here.update(chunks(step.reads, step.size))
    return steps
