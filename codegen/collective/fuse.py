"""Fused steps: a rank that sends on what it receives does both at once, in one threadblock.

Which receive connection shares a threadblock with which send connection of its rank and channel is an assignment
problem: as many pairs of a receive and a send of the same chunks as possible, and only where the joint threadblock is
not much longer than its longer half. The pairs are contracted in the graph of program order, data, messages and FIFO
room, and the graph is sorted; a pair on a circle is taken apart again. So the sorted order is one in which the program
can run on FIFOs of SLOTS messages, and cutting it into threadblocks cannot make it hang.

A reducing pair stores its sum only where somebody reads it later (rrs instead of rrcs).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from treadle.codegen.collective.depend import hazards
from treadle.codegen.collective.draft import Draft, chunks
from treadle.codegen.collective.placement import Operand
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
    """`drafts` in an order in which they can run; `joined` says for the receiving ends which send peer shares their
    threadblock."""

    drafts: list[Draft]
    joined: dict[End, int] = field(default_factory=dict)

    @cached_property
    def hazards(self) -> list[list[int]]:
        """Those of `drafts`, as `depend.hazards` gives them."""
        return hazards(self.drafts)

    def peers(self, draft: Draft) -> tuple[int, int]:
        """Whom the draft's threadblock receives from and sends to, -1 for nobody."""
        if draft.recv is not None:
            return draft.recv, self.joined.get((draft.rank, draft.channel, draft.recv), -1)
        if draft.send is None:
            return -1, -1
        return self.receivers.get((draft.rank, draft.channel, draft.send), -1), draft.send

    @cached_property
    def receivers(self) -> dict[End, int]:
        """For the sending ends that share a threadblock with a receiving end the receive peer."""
        return {(rank, channel, send): recv for (rank, channel, recv), send in self.joined.items()}


def fuse(
    made: Callable[[], Sequence[Draft]],
    outputs: Sequence[Collection[Operand]],
    *,
    pairs: bool = True,
    merge: bool = False,
) -> Fused:
    """Sort the drafts that `made` makes, join threadblocks and fuse steps. `outputs` are the chunks of each rank that
    count after the call; without `pairs` nothing is fused.

    First every pair is tried, then those with no other message of their ends between, then none: the first that
    delays nothing beyond SLACK is taken. With `merge` every receiving end shares a threadblock with some sending end
    while there are any, so that a rank has as few threadblocks as its peers allow, whatever the time. Ends of messages
    that fill a FIFO on their own stay alone: that they are sent and received at the same time keeps them going.

    Raises TooLong where such a message can never be received.
    """
    for choice in (_pairs, _neighbours) if pairs else ():
        drafts = made()
        before = hazards(drafts)
        fused = _fuse(drafts, before, choice(drafts, before), outputs, merge)
        if fused is not None and (merge or _delay(fused) <= SLACK * max((d.time for d in drafts), default=0)):
            return fused
    drafts = made()
    plain = _fuse(drafts, hazards(drafts), [], outputs, merge)
    assert plain is not None
    return plain


def _fuse(
    drafts: Sequence[Draft],
    before: Sequence[Sequence[int]],
    found: Sequence[tuple[int, int]],
    outputs: Sequence[Collection[Operand]],
    merge: bool,
) -> Fused | None:
    """None where too many pairs stand in each other's way."""
    joined = _joined(drafts, found, merge)
    chosen = {receive: send for receive, send in found if joined.get(_receiving(drafts[receive])) == drafts[send].send}
    ordered = _sorted(drafts, before, chosen)
    return None if ordered is None else Fused(_without_dead_stores(ordered, outputs), joined)


def _delay(fused: Fused) -> int:
    """How much later than scheduled any step is done or any message leaves, in ns, if each step is done when the
    schedule says, or as soon after as its threadblock, the steps that it must follow and its message let it."""
    done: list[int] = []
    left: dict[int, int] = {}
    free: dict[tuple[int, int, int, int], int] = {}
    delay = 0
    for draft, others in zip(fused.drafts, fused.hazards, strict=True):
        block = (draft.rank, draft.channel, *fused.peers(draft))
        time = max([draft.time, free.get(block, 0), *(done[other] for other in others)])
        if draft.message is not None:
            time = max(time, left[id(draft.message)] + draft.time - draft.message.leaves)
        done.append(time)
        free[block] = time
        left[id(draft)] = max(time, draft.leaves)
        delay = max(delay, time - (draft.leaves if draft.send is not None else draft.time))
    return delay


def _receiving(draft: Draft) -> End:
    assert draft.recv is not None
    return draft.rank, draft.channel, draft.recv


def _pairs(drafts: Sequence[Draft], before: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(receive, send) of one rank and channel where the send passes on exactly what the receive has stored."""
    found = []
    for place, draft in enumerate(drafts):
        if draft.type == "s" and before[place]:
            other = drafts[before[place][-1]]
            fits = len(before[place]) == 1 and other.recv is not None and other.channel == draft.channel
            if fits and (other.writes, other.size) == (draft.reads, draft.size):
                found.append((before[place][0], place))
    return found


def _neighbours(drafts: Sequence[Draft], before: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The pairs between which nothing else is received from the one peer or sent to the other."""
    pairs = {send: receive for receive, send in _pairs(drafts, before)}
    received: dict[End, int] = {}
    sent: dict[End, int] = {}
    found = []
    for place, draft in enumerate(drafts):
        if draft.recv is not None:
            received[draft.rank, draft.channel, draft.recv] = place
        if draft.send is not None:
            end = draft.rank, draft.channel, draft.send
            if place in pairs and received[_receiving(drafts[pairs[place]])] == pairs[place] > sent.get(end, -1):
                found.append((pairs[place], place))
            sent[end] = place
    return found


def _joined(drafts: Sequence[Draft], pairs: Sequence[tuple[int, int]], merge: bool) -> dict[End, int]:
    """Assign send peers to receiving ends: most fused pairs, then least waiting between receive and send."""
    receives: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    sends: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    long = {(draft.rank, draft.send) for draft in drafts if draft.send is not None and draft.size > SLOTS}
    for draft in drafts:
        if draft.recv is not None and (draft.recv, draft.rank) not in long:
            receives[draft.rank, draft.channel][draft.recv] += 1
        if draft.send is not None and (draft.rank, draft.send) not in long:
            sends[draft.rank, draft.channel][draft.send] += 1
    passed: dict[tuple[int, int], dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for receive, send in pairs:
        first, second = drafts[receive], drafts[send]
        assert first.recv is not None
        assert second.send is not None
        passed[first.rank, first.channel][first.recv, second.send].append(send - receive)
    from scipy.optimize import linear_sum_assignment  # slow to import

    most = len(drafts) * len(drafts)
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


def _sorted(drafts: Sequence[Draft], before: Sequence[Sequence[int]], chosen: dict[int, int]) -> list[Draft] | None:
    """The drafts, chosen pairs fused, in an order in which they can run on FIFOs of SLOTS messages.

    Among the drafts that may come next the first of the given order. Where nothing can come next, a pair on a circle
    of waits is taken apart; where there is none on it, FIFOs deeper than SLOTS are needed and one wait for room goes.
    None after MAX_CIRCLES pairs.
    """
    apart = 0
    after, room = _graph(drafts, before)
    missing = [0] * len(drafts)
    for followers in after:
        for follower in followers:
            missing[follower] += 1
    lead = {send: receive for receive, send in chosen.items()}
    inner = {receive: after[receive].count(send) for receive, send in chosen.items()}
    for receive, send in chosen.items():
        missing[send] -= inner[receive]
    done, left = [False] * len(drafts), len(drafts)

    def ready(place: int) -> bool:
        return missing[place] == 0 and (place not in chosen or missing[chosen[place]] == 0)

    heap = [place for place in range(len(drafts)) if place not in lead and ready(place)]
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
            return _fused(drafts, result)
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
            long = {(draft.recv, draft.rank) for draft in map(drafts.__getitem__, circle) if draft.size > SLOTS}
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


def _graph(drafts: Sequence[Draft], before: Sequence[Sequence[int]]) -> tuple[list[list[int]], dict[int, int]]:
    """Followers of each draft, and for each send that needs room in its FIFO the receive that makes it.

    Runtimes cut a step of many chunks into one message per chunk where chunks are large, so each chunk takes a slot.
    What follows a send of more than SLOTS follows its receive: it ends only while that goes on.
    """
    after: list[list[int]] = [[] for _ in drafts]
    number = {id(draft): place for place, draft in enumerate(drafts)}
    receiver = {number[id(draft.message)]: place for place, draft in enumerate(drafts) if draft.message is not None}
    for place, places in enumerate(before):
        for other in places:
            long = drafts[other].type == "s" and drafts[other].size > SLOTS
            after[receiver[other] if long else other].append(place)
    connections: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for place, draft in enumerate(drafts):
        if draft.send is not None:
            connections[draft.rank, draft.send, draft.channel].append(place)
    room: dict[int, int] = {}
    for sends in connections.values():
        receives = [receiver[send] for send in sends]
        first, held = 0, 0
        for k, send in enumerate(sends):
            size = drafts[send].size
            after[send].append(receives[k])
            if k + 1 < len(sends):
                after[receives[k] if size > SLOTS else send].append(sends[k + 1])
                after[receives[k]].append(receives[k + 1])
            held += size
            while held > SLOTS and first < k:
                held -= drafts[sends[first]].size
                first += 1
            if first and size <= SLOTS:
                after[receives[first - 1]].append(send)
                room[send] = receives[first - 1]
    return after, room


def _circle(after: Sequence[Sequence[int]], done: Sequence[bool], lead: dict[int, int]) -> set[int]:
    """Drafts on one circle of waits among those that are not done; of a pair only the receive."""
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


def _fused(drafts: Sequence[Draft], units: Sequence[tuple[int, ...]]) -> list[Draft]:
    """One draft per unit; messages point to the draft that now sends them."""
    result: list[Draft] = []
    now: dict[int, Draft] = {}
    for members in units:
        draft = drafts[members[0]]
        if len(members) == 2:
            send = drafts[members[1]]
            draft.type, draft.send = "rcs" if draft.type == "r" else "rrcs", send.send
            draft.leaves = send.leaves
            now[id(send)] = draft
        result.append(draft)
    for draft in result:
        if draft.message is not None:
            draft.message = now.get(id(draft.message), draft.message)
    return result


def _without_dead_stores(drafts: list[Draft], outputs: Sequence[Collection[Operand]]) -> list[Draft]:
    """Turn rrcs into rrs where nothing reads the stored sum: going backwards, a chunk is live from a read of it, or
    from the end where it is output, until the write before."""
    live = [set(places) for places in outputs]
    for draft in reversed(drafts):
        here = live[draft.rank]
        writes = chunks(draft.writes, draft.size)
        if draft.type == "rrcs" and not here.intersection(writes):
            draft.type, draft.writes = "rrs", None
        here.difference_update(writes if draft.writes is not None else ())
        here.update(chunks(draft.reads, draft.size))
    return drafts
