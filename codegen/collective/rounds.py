"""A program as rounds of grouped sends and receives, for libraries that hold no message between two ranks.

NCCL's point-to-point calls meet: a send ends when its receive has run. The calls of one stream run one after the other,
those of a group together. So every message gets a round, the same at both of its ends: a rank does the local work of a
round, then all its sends and receives of that round as one group. No rank waits for a message of a later round, so the
rounds end one after the other whatever the ranks' speeds, without deadlock. `check_rounds` proves that again for each
program, from what the ranks do alone.

A message goes in the first round in which its chunks are ready. Where the receiver still needs its place, as in an
exchange in place, and for summands, it arrives in a staging buffer, and local work takes it from there before the next
group: a copy on the device costs less than another round.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from treadle.codegen.collective.actions import Action, Chunk, Range, TaggedMessage, actions, sequence_of
from treadle.codegen.collective.program import Buffer, CollectiveProgram

StagedBuffer = Buffer | Literal["t"]
"""`t` is the staging buffer."""
StagedRange = tuple[StagedBuffer, int, int]
"""(buffer, first chunk, number of chunks)."""


class LocalWork(NamedTuple):
    """`target` becomes `source`, or with `adds` what the reduction makes of both. Work of one `wave` touches nothing
    that other work of it writes, so one kernel may do all of it."""

    target: StagedRange
    source: StagedRange
    adds: bool
    wave: int


class Transmission(NamedTuple):
    """The chunks at `place`, to or from `peer`."""

    peer: int
    place: StagedRange


class Round(NamedTuple):
    """Local work, wave after wave, then a group; sends from one rank to another meet receives in the order of both."""

    local: tuple[LocalWork, ...]
    sends: tuple[Transmission, ...]
    receives: tuple[Transmission, ...]


@dataclass(frozen=True, slots=True)
class RankRounds:
    """What one rank does; `staging` is the size of its staging buffer in chunks."""

    rounds: tuple[Round, ...]
    staging: int


def rounds_of(program: CollectiveProgram, *, inplace: bool) -> tuple[RankRounds, ...]:
    """The rounds of every rank. Raises CheckFailed when the program never ends."""
    planner = _Planner(program, inplace)
    for number, action in enumerate(planner.actions):
        planner.place(number, action)
    return planner.made()


def most_of(ranks: Sequence[RankRounds]) -> tuple[int, int]:
    """The rounds, and the messages sent, of the rank with the most of each."""
    messages = (sum(len(each.sends) for each in own.rounds) for own in ranks)
    return max((len(own.rounds) for own in ranks), default=0), max(messages, default=0)


@dataclass(frozen=True, slots=True)
class _Message:
    """Two places, of which those in staging are ("t", its number among the staged ones of the rank, chunks)."""

    src: int
    dst: int
    source: StagedRange
    target: StagedRange


@dataclass(slots=True)
class _Rank:
    """When chunks were written and read last: 2 * round in local work, 2 * round + 1 in the group of a round."""

    written: dict[Chunk, int] = field(default_factory=dict)
    read: dict[Chunk, int] = field(default_factory=dict)
    local: dict[int, list[tuple[StagedRange, StagedRange, bool]]] = field(default_factory=lambda: defaultdict(list))
    """By round: target, source, whether it adds."""
    staged: list[list[int]] = field(default_factory=list)
    """By staged message: when it comes, when it is used last, its chunks."""
    order: list[tuple[int, StagedRange]] = field(default_factory=list)
    """By staged message: the rank and the place that it comes from."""

    def ready(self, place: StagedRange) -> int:
        """When it was written last, -1 for never."""
        return max(self.written.get(chunk, -1) for chunk in chunks_of(place))

    def free(self, place: StagedRange) -> int:
        """When it was written or read last."""
        return max(max(self.written.get(chunk, -1), self.read.get(chunk, -1)) for chunk in chunks_of(place))

    def work(self, time: int, target: StagedRange, source: StagedRange, *, adds: bool) -> None:
        """Note local work."""
        self.local[time // 2].append((target, source, adds))
        self.reads(source, time)
        if target[0] == "t":
            self.reads(target, time)
        else:
            for chunk in chunks_of(target):
                self.written[chunk] = time

    def reads(self, place: StagedRange, time: int) -> None:
        if place[0] == "t":
            self.staged[place[1]][1] = max(time, self.staged[place[1]][1])
            return
        for chunk in chunks_of(place):
            self.read[chunk] = max(time, self.read.get(chunk, -1))


class _Planner:
    """Takes the actions of all ranks in an order in which they can run, and gives each a time."""

    def __init__(self, program: CollectiveProgram, inplace: bool) -> None:
        self.ranks = [_Rank() for _ in program.ranks]
        self.actions = list(actions(program, sequence_of(program), inplace=inplace))
        self.receiver: dict[TaggedMessage, int] = {}
        self.touching: dict[tuple[int, Chunk], list[int]] = defaultdict(list)
        """The actions that touch a chunk of a rank, in order."""
        for number, action in enumerate(self.actions):
            if action.receives is not None:
                self.receiver[action.receives] = number
            touched = action.reads if action.writes is None else (*action.reads, action.writes)
            for chunk in {chunk for place in touched for chunk in chunks_of(place)}:
                self.touching[action.place.rank, chunk].append(number)
        self.arriving: dict[TaggedMessage, tuple[int, StagedRange]] = {}
        """When messages that have been sent arrive, and where."""
        self.messages: dict[int, list[_Message]] = defaultdict(list)

    def place(self, number: int, action: Action) -> None:
        rank, sums = self.ranks[action.place.rank], action.step.type in ("rrc", "rrs", "rrcs", "re")
        result: StagedRange | None = action.writes
        if action.receives is not None:
            came, at = self.arriving.pop(action.receives)
            if action.writes is None:  # a sum that only passes through is made in staging
                result = at
                rank.work(_even(max(came, rank.ready(action.reads[0]))), at, action.reads[0], adds=True)
            elif at[0] == "t":
                self._take_out(rank, came, at, action.reads if sums else (), action.writes)
        elif action.writes is not None:
            time = _even(max(rank.ready(action.reads[0]), rank.free(action.writes)))
            rank.work(time, action.writes, action.reads[0], adds=sums)
        else:
            result = action.reads[0]
        if action.sends is not None:
            assert result is not None
            self._send(number, action.sends, result)

    def _take_out(self, rank: _Rank, came: int, at: StagedRange, reads: tuple[Range, ...], target: Range) -> None:
        """A message out of staging into its place, or added to what the receiver `reads`."""
        others = [place for place in reads if place != target]
        time = _even(max(came, rank.free(target), *map(rank.ready, others)))
        for place in others:
            rank.work(time, target, place, adds=False)
        rank.work(time, target, at, adds=bool(reads))

    def _send(self, number: int, message: TaggedMessage, source: StagedRange) -> None:
        """Choose the round of a message, and where it arrives."""
        sender, receiver = self.ranks[message.src], self.ranks[message.dst]
        earliest = sender.staged[source[1]][1] if source[0] == "t" else sender.ready(source)
        target = self._direct(number, message)
        time = (earliest + 1) | 1
        place: StagedRange
        if target is not None and receiver.free(target) < time:
            place = target
            for chunk in chunks_of(target):
                receiver.written[chunk] = time
        else:
            place = ("t", len(receiver.staged), message.count)
            receiver.staged.append([time, time, message.count])
            receiver.order.append((message.src, source))
        sender.reads(source, time)
        self.arriving[message] = time, place
        self.messages[time // 2].append(_Message(message.src, message.dst, source, place))

    def _direct(self, number: int, message: TaggedMessage) -> Range | None:
        """Where a message, which action `number` sends, may arrive at once: its place at the receiver, unless that
        rank touches it until it takes the message, or adds the message up."""
        end = self.receiver[message]
        taking = self.actions[end]
        if taking.writes is None or taking.step.type in ("rrc", "rrcs"):
            return None
        for chunk in chunks_of(taking.writes):
            touching = self.touching[message.dst, chunk]
            if touching[bisect_left(touching, number)] < end:
                return None
        return taking.writes

    def made(self) -> tuple[RankRounds, ...]:
        packed = [_packed(rank.staged, rank.order) for rank in self.ranks]

        def final(rank: int, place: StagedRange) -> StagedRange:
            return ("t", packed[rank][0][place[1]], place[2]) if place[0] == "t" else place

        groups: dict[int, dict[int, tuple[list[Transmission], list[Transmission]]]]
        groups = defaultdict(lambda: defaultdict(lambda: ([], [])))
        for number, sent in self.messages.items():
            placed = [_Message(m.src, m.dst, final(m.src, m.source), final(m.dst, m.target)) for m in sent]
            for message in _joined(placed):
                groups[message.src][number][0].append(Transmission(message.dst, message.source))
                groups[message.dst][number][1].append(Transmission(message.src, message.target))
        made = []
        for index, rank in enumerate(self.ranks):
            rounds = []
            for number in sorted({*rank.local, *groups[index]}):
                work = [(final(index, to), final(index, of), adds) for to, of, adds in rank.local.get(number, ())]
                sends, receives = groups[index][number]
                rounds.append(Round(_waves(work), tuple(sends), tuple(receives)))
            made.append(RankRounds(tuple(rounds), packed[index][1]))
        return tuple(made)


def _even(time: int) -> int:
    """The first time of local work that is not before `time`."""
    return time + time % 2


def chunks_of(place: StagedRange) -> Iterator[tuple[Any, int]]:
    """Every chunk of a range."""
    return ((place[0], place[1] + k) for k in range(place[2]))


def _joined(messages: Sequence[_Message]) -> Iterator[_Message]:
    """The messages of a round, with one in place of two of the same ranks whose chunks follow each other at both ends.
    Both ends order them alike."""
    last: _Message | None = None
    for next_ in sorted(messages, key=lambda m: (m.src, m.dst, m.source, m.target)):
        if last is not None and (last.src, last.dst) == (next_.src, next_.dst):
            source, target = _with(last.source, next_.source), _with(last.target, next_.target)
            if source is not None and target is not None:
                last = _Message(last.src, last.dst, source, target)
                continue
        if last is not None:
            yield last
        last = next_
    if last is not None:
        yield last


def _with(one: StagedRange, other: StagedRange) -> StagedRange | None:
    """Both ranges as one, None unless `other` begins where `one` ends."""
    follows = one[0] == other[0] and one[1] + one[2] == other[1]
    return (one[0], one[1], one[2] + other[2]) if follows else None


def _packed(staged: Sequence[Sequence[int]], order: Sequence[tuple[int, StagedRange]]) -> tuple[list[int], int]:
    """The first chunk of each staged message, and the size of the buffer: those in use at one time do not overlap.
    What comes at one time lies in `order`, so that messages can be joined."""
    places, size = [0] * len(staged), 0
    live: list[tuple[int, int, int]] = []
    for number in sorted(range(len(staged)), key=lambda number: (staged[number][0], order[number])):
        first, last, count = staged[number]
        live = [entry for entry in live if entry[2] >= first]
        at = 0
        for start, end, _ in sorted(live):
            if start - at >= count:
                break
            at = max(at, end)
        places[number], size = at, max(size, at + count)
        live.append((at, at + count, last))
    return places, size


def _waves(local: Sequence[tuple[StagedRange, StagedRange, bool]]) -> tuple[LocalWork, ...]:
    """Local work of a round, which must have the results of its order, in as few waves as that allows."""
    written: dict[object, int] = defaultdict(int)
    read: dict[object, int] = defaultdict(int)
    waves: dict[int, list[LocalWork]] = defaultdict(list)
    for target, source, adds in local:
        wave = max(max(written[chunk], read[chunk]) for chunk in chunks_of(target))
        wave = max(wave, *(written[chunk] for chunk in chunks_of(source)))
        for chunk in chunks_of(target):
            written[chunk] = wave + 1
        for chunk in chunks_of(source):
            read[chunk] = max(wave + 1, read[chunk])
        waves[wave].append(LocalWork(target, source, adds, wave))
    return tuple(work for wave in sorted(waves) for work in _joined_work(waves[wave]))


def _joined_work(works: Sequence[LocalWork]) -> Iterator[LocalWork]:
    last: LocalWork | None = None
    for work in sorted(works, key=lambda work: (work.adds, work.target)):
        if last is not None and last.adds == work.adds:
            target, source = _with(last.target, work.target), _with(last.source, work.source)
            if target is not None and source is not None:
                last = last._replace(target=target, source=source)
                continue
        if last is not None:
            yield last
        last = work
    if last is not None:
        yield last
