"""One participant of a scheme: its rounds, executed over what it holds of each part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from treadle.planner.passes.sparse.rounds import Rounds, SparseHop, exchange
from treadle.planner.passes.sparse.schemes import Scheme
from treadle.runtime.sparse.division import Division, Ranges
from treadle.runtime.sparse.entries import Entries
from treadle.runtime.sparse.mail import Exchange, Mail, Scope, joined
from treadle.runtime.sparse.tally import ExchangeTally
from treadle.runtime.sparse.wires import Payload, WireFormat, wire

Parts = dict[int, Entries]
"""Entries of parts, by part."""


class OwnRound(NamedTuple):
    """The hops of one participant in a round, by the rank of the other side."""

    sent: dict[int, list[SparseHop]]
    received: dict[int, list[SparseHop]]


class Held(NamedTuple):
    """What a participant holds of one part from some workers, and its payload if it was packed or came as one."""

    entries: Entries
    payload: Payload | None = None


class Participant:
    """Participant `place` of those that are `ranks` of the job, by `scheme`."""

    def __init__(
        self,
        scheme: Scheme,
        ranks: Sequence[int],
        place: int,
        division: Division,
        width: int,
        scope: Scope,
        device: torch.device,
        block: int | None = None,
    ) -> None:
        self.scheme, self.ranks, self.place, self.division, self.scope = scheme, ranks, place, division, scope
        rounds = exchange(scheme, len(ranks))
        self.parts = rounds.parts
        self.push_rounds, self.pull_rounds = (self._mine(each) for each in (rounds.push, rounds.pull))
        self.push_wire = wire(scheme.push, division, width, device, block)
        self.pull_wire = wire(scheme.pull or "coo", division, width, device, block)

    def _mine(self, rounds: Rounds) -> list[OwnRound]:
        found = []
        for hops in rounds:
            mine = OwnRound({}, {})
            for hop in hops:
                if hop.src == self.place:
                    mine.sent.setdefault(self.ranks[hop.dst], []).append(hop)
                elif hop.dst == self.place:
                    mine.received.setdefault(self.ranks[hop.src], []).append(hop)
            found.append(mine)
        return found

    def contribution(self, values: Tensor) -> Parts:
        """The parts of a dense gradient [units, width]."""
        if self.scheme.push == "dense":
            assert isinstance(self.division, Ranges)
            return dict(enumerate(self.division.slices(values)))
        return dict(enumerate(self.division.of_dense(values)))

    def push(self, own: Parts, tally: ExchangeTally) -> Exchange[Parts]:
        """Contribute; returns the sums of the parts that this participant adds up."""
        mine = frozenset((self.place,))
        held = {part: {mine: Held(entries)} for part, entries in own.items()}
        for number, each in enumerate(self.push_rounds):
            outgoing = {
                rank: [self._payload(held[hop.part], frozenset(hop.workers), hop.part) for hop in hops]
                for rank, hops in each.sent.items()
            }
            arrived = yield from self._round(self.push_wire, each, outgoing, "push", number, tally)
            for hop, item in arrived:
                self._take(held[hop.part], hop, item)
        return {part: self._sum(part, held[part]) for part in self._owned()}

    def pull(self, sums: Parts, tally: ExchangeTally) -> Exchange[Parts]:
        """Hand sums out; returns those of all parts."""
        packed: dict[int, Payload] = {}
        for number, each in enumerate(self.pull_rounds):
            for hop in (hop for hops in each.sent.values() for hop in hops):
                if hop.part not in packed:
                    packed[hop.part] = self.pull_wire.pack(hop.part, sums[hop.part])
            outgoing = {rank: [packed[hop.part] for hop in hops] for rank, hops in each.sent.items()}
            arrived = yield from self._round(self.pull_wire, each, outgoing, "pull", number, tally)
            for hop, item in arrived:
                sums[hop.part] = item.entries
                assert item.payload is not None
                packed[hop.part] = item.payload
        return sums

    def _owned(self) -> list[int]:
        """The parts that this participant has the sum of after the push."""
        if self.scheme.partition == "parallel":
            return [self.place] if self.place < self.parts else []
        # A hierarchy hands the sum to participants beyond a power of two in the pull.
        core = 1 << (len(self.ranks).bit_length() - 1)
        return [0] if self.scheme.communication != "hierarchy" or self.place < core else []

    def _payload(self, held: dict[frozenset[int], Held], workers: frozenset[int], part: int) -> Payload:
        found = held[workers]
        if found.payload is None:
            found = held[workers] = found._replace(payload=self.push_wire.pack(part, found.entries))
            assert found.payload is not None
        return found.payload

    def _take(self, held: dict[frozenset[int], Held], hop: SparseHop, item: Held) -> None:
        """Keep a contribution apart, or add it to the largest sum that has none of its workers."""
        workers = frozenset(hop.workers)
        if self.scheme.aggregation == "one-shot":
            held[workers] = item
            return
        others = max((each for each in held if not each & workers), key=len)
        pair = (item.entries, held[others].entries)
        total = self.division.add(hop.part, pair if hop.src < self.place else pair[::-1])
        held[workers | others] = Held(total)
        for each in [each for each in held if len(each) > 1 and each != workers | others]:
            del held[each]

    def _sum(self, part: int, held: dict[frozenset[int], Held]) -> Entries:
        """All contributions to a part, those of one-shot schemes added up in the order of workers."""
        if whole := held.get(frozenset(range(len(self.ranks)))):
            return whole.entries
        return self.division.add(part, [held[workers].entries for workers in sorted(held, key=min)])

    def _round(
        self,
        form: WireFormat,
        each: OwnRound,
        outgoing: dict[int, list[Payload]],
        stage: str,
        number: int,
        tally: ExchangeTally,
    ) -> Exchange[list[tuple[SparseHop, Held]]]:
        """Send payloads and return those that arrive, by their hops: heads first, whose sizes are known, then what they
        announce. Ranks without a message take these two steps too, so that all take the same ones."""
        sizes = {rank: [form.head_words(hop.part) for hop in hops] for rank, hops in each.received.items()}
        heads = Mail(
            self.scope,
            _some({rank: joined([payload.head for payload in some]) for rank, some in outgoing.items()}),
            {rank: total for rank, words in sizes.items() if (total := sum(words))},
        )
        got = yield heads
        empty = torch.empty(0, dtype=torch.int32, device=form.device)
        split_heads = {rank: got.get(rank, empty).split(sizes[rank]) for rank in each.received}
        opened = {
            rank: [form.open(hop.part, head) for hop, head in zip(hops, split_heads[rank], strict=True)]
            for rank, hops in each.received.items()
        }
        bodies = Mail(
            self.scope,
            _some({rank: joined([payload.body for payload in some]) for rank, some in outgoing.items()}),
            {rank: total for rank, some in opened.items() if (total := sum(found.words for found in some))},
        )
        came = yield bodies
        tally.count(stage, number, [heads, bodies])
        arrived = []
        for rank, hops in each.received.items():
            words = came.get(rank, empty).split([found.words for found in opened[rank]])
            for hop, head, found, body in zip(hops, split_heads[rank], opened[rank], words, strict=True):
                arrived.append((hop, Held(form.entries(found, body), Payload(head, body))))
        return arrived


def _some(messages: dict[int, Tensor]) -> dict[int, Tensor]:
    """Messages that have any words."""
    return {rank: words for rank, words in messages.items() if words.numel()}
