"""The independent checker of rounds: that no rank waits forever, and that every chunk ends as the collective says.

It takes what each rank does and nothing else; which message meets which, it finds as the library does: the first send
from one rank to another that has not met one meets the first such receive. Groups run as soon as they can: a rank
stands at one group until all of its messages have met messages of groups at which their other ranks stand. Whether that
ends does not depend on speeds, for what can meet stays so until it has met.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from treadle.codegen.collective.check import MAX_NAMED, shortened
from treadle.codegen.collective.program import BUFFER_NAMES, CollectiveProgram
from treadle.codegen.collective.rounds import LocalWork, RankRounds, StagedRange
from treadle.codegen.collective.symbolic import UNSPECIFIED, ExpectedOutputs, SymbolicExecution, Value, wrong_results
from treadle.planner.documents.hardware import MAX_RANKS

Pair = tuple[int, int]
"""Sender and receiver."""
NAMES: dict[str, str] = {str(buffer): name for buffer, name in BUFFER_NAMES.items()} | {"t": "staging"}
MOST_TERMS = MAX_RANKS + 1
"""Beyond one contribution of each rank no sum is right."""


def check_rounds(
    program: CollectiveProgram, ranks: Sequence[RankRounds], *, inplace: bool, expected: ExpectedOutputs | None = None
) -> list[str]:
    """What is wrong with the rounds of `program`, one sentence each; empty when they end with the right values. In the
    places of a program called in place, `expected` as for `check`."""
    findings = [*_bounds(program, ranks), *_overlaps(ranks)]
    if findings:
        return shortened(findings)
    run = _Run(program, ranks, inplace)
    findings = run.go()
    return findings or shortened([*run.noted, *wrong_results(program, run.values, MAX_NAMED, expected)])


def _bounds(program: CollectiveProgram, ranks: Sequence[RankRounds]) -> Iterator[str]:
    for rank, own in enumerate(ranks):
        sizes = program.ranks[rank]
        have = {"i": sizes.input_chunks, "o": sizes.output_chunks, "s": sizes.scratch_chunks, "t": own.staging}
        if not program.outofplace or program.inplace:  # a buffer may be declared as the other one alone
            have["i"] = have["o"] = max(have["i"], have["o"], program.chunks_per_loop)
        for number, each in enumerate(own.rounds):
            for peer, place in (*each.sends, *each.receives):
                if not 0 <= peer < len(ranks) or peer == rank:
                    yield f"gpu {rank} round {number}: a message with gpu {peer}, expected another of {len(ranks)}"
                yield from _inside(rank, number, place, have)
            for work in each.local:
                yield from _inside(rank, number, work.target, have)
                yield from _inside(rank, number, work.source, have)


def _inside(rank: int, number: int, place: StagedRange, have: dict[str, int]) -> Iterator[str]:
    if place[1] < 0 or place[2] < 1 or place[1] + place[2] > have[place[0]]:
        yield f"gpu {rank} round {number}: {_name(place)}, the buffer has {have[place[0]]} chunks"


def _overlaps(ranks: Sequence[RankRounds]) -> Iterator[str]:
    """What is written and, at the same time, read or written: in a wave of local work, or in a group."""
    for rank, own in enumerate(ranks):
        for number, each in enumerate(own.rounds):
            waves = [work.wave for work in each.local]
            if waves != sorted(waves):
                yield f"gpu {rank} round {number}: waves of local work out of order"
            for wave in sorted(set(waves)):
                works = [work for work in each.local if work.wave == wave]
                yield from _conflicts(
                    f"gpu {rank} round {number} wave {wave}", [w.target for w in works], [w.source for w in works]
                )
            sent = [place for _, place in each.sends]
            yield from _conflicts(f"gpu {rank} round {number}", [place for _, place in each.receives], sent)


def _conflicts(where: str, writes: Sequence[StagedRange], reads: Sequence[StagedRange]) -> Iterator[str]:
    written: set[tuple[str, int]] = set()
    for place in writes:
        chunks = {(place[0], place[1] + k) for k in range(place[2])}
        if written & chunks:
            yield f"{where}: {_name(place)} is written twice at once"
        written |= chunks
    for place in reads:
        if any((place[0], place[1] + k) in written for k in range(place[2])):
            yield f"{where}: {_name(place)} is read while it is written"


class _Run:
    """All ranks at their groups, and what every chunk holds."""

    def __init__(self, program: CollectiveProgram, ranks: Sequence[RankRounds], inplace: bool) -> None:
        self.ranks = ranks
        self.guarded = not inplace and program.collective not in UNSPECIFIED
        """Whether the input must stay as it is."""
        self.values = SymbolicExecution(program, inplace)
        self.staging: dict[tuple[int, int], Value] = {}
        self.noted: list[str] = []
        self.at = [0] * len(ranks)
        self.unmet = [0] * len(ranks)
        """Messages of the group at which a rank stands that have not met theirs."""
        self.sent: dict[Pair, deque[list[Value]]] = defaultdict(deque)
        self.wanted: dict[Pair, deque[StagedRange]] = defaultdict(deque)
        self.arrived: dict[int, list[tuple[StagedRange, list[Value]]]] = defaultdict(list)
        """What is written when the group of a rank ends."""

    def go(self) -> list[str]:
        """Run until nothing meets; returns why that is not the end."""
        ready = deque(rank for rank, own in enumerate(self.ranks) if own.rounds)
        while ready:
            rank = ready.popleft()
            each = self.ranks[rank].rounds[self.at[rank]]
            for work in each.local:
                self._work(rank, work)
            self.unmet[rank] = len(each.sends) + len(each.receives)
            pairs: dict[Pair, None] = {}
            for peer, place in each.sends:
                self.sent[rank, peer].append(self._read(rank, place))
                pairs[rank, peer] = None
            for peer, place in each.receives:
                self.wanted[peer, rank].append(place)
                pairs[peer, rank] = None
            here = {rank: None}
            for pair in pairs:
                met = self._meet(*pair)
                if met is None:
                    return self.noted
                here |= dict.fromkeys(pair if met else ())
            for one in here:
                if not self.unmet[one]:
                    ready += self._ended(one)
        stuck = [rank for rank, own in enumerate(self.ranks) if self.at[rank] < len(own.rounds)]
        return [f"gpu {rank} round {self.at[rank]}: deadlock: {self._obstacle(rank)}" for rank in stuck]

    def _ended(self, rank: int) -> list[int]:
        """The group of a rank has ended; the rank again unless it was the last."""
        for place, values in self.arrived.pop(rank, ()):
            self._write(rank, place, values)
        self.at[rank] += 1
        return [rank] if self.at[rank] < len(self.ranks[rank].rounds) else []

    def _meet(self, src: int, dst: int) -> int | None:
        """How many messages from one rank to another met; None (and a finding) where their sizes differ."""
        count = 0
        sent, wanted = self.sent[src, dst], self.wanted[src, dst]
        while sent and wanted:
            values, place = sent.popleft(), wanted.popleft()
            if len(values) != place[2]:
                self.noted.append(
                    f"gpu {dst} round {self.at[dst]}: receives {place[2]} chunks from gpu {src}, which sends "
                    f"{len(values)} in its round {self.at[src]}"
                )
                return None
            self.arrived[dst].append((place, values))
            self.unmet[src] -= 1
            self.unmet[dst] -= 1
            count += 1
        return count

    def _obstacle(self, rank: int) -> str:
        each = self.ranks[rank].rounds[self.at[rank]]
        waits = [f"its send to gpu {peer}" for peer, _ in each.sends if self.sent[rank, peer]]
        waits += [f"its receive from gpu {peer}" for peer, _ in each.receives if self.wanted[peer, rank]]
        return f"{' and '.join(dict.fromkeys(waits))} {'meet' if len(waits) > 1 else 'meets'} nothing"

    def _work(self, rank: int, work: LocalWork) -> None:
        values = self._read(rank, work.source)
        if work.adds:
            before = self._read(rank, work.target)
            values = [tuple(sorted((*a, *b))) for a, b in zip(before, values, strict=True)]
        self._write(rank, work.target, values)

    def _read(self, rank: int, place: StagedRange) -> list[Value]:
        found = []
        for index in range(place[1], place[1] + place[2]):
            if place[0] == "t":
                value = self.staging.get((rank, index))
            else:
                value = self.values.values.get(self.values.address(rank, place[0], index))
            if value is None:
                self.noted.append(f"gpu {rank} round {self.at[rank]}: reads {_chunk(place[0], index)}, never written")
            found.append(value or ())
        return found

    def _write(self, rank: int, place: StagedRange, values: Sequence[Value]) -> None:
        for index, value in enumerate(values, place[1]):
            if place[0] == "t":
                self.staging[rank, index] = value
                continue
            if place[0] == "i" and self.guarded:
                spot = f"gpu {rank} round {self.at[rank]}"
                self.noted.append(f"{spot}: overwrites {_chunk('i', index)}, which an out-of-place call must keep")
            self.values.values[self.values.address(rank, place[0], index)] = value[:MOST_TERMS]


def _name(place: StagedRange) -> str:
    last = place[1] + place[2] - 1
    return _chunk(place[0], place[1]) if place[2] == 1 else f"{NAMES[place[0]]} chunks {place[1]} to {last}"


def _chunk(buffer: str, index: int) -> str:
    return f"{NAMES[buffer]} chunk {index}"
