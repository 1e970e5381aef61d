"""One gradient on one rank: from what the framework hands over to its sum over all ranks, in the same form.

Ranks of a node first divide their gradients into even ranges, one for each, and add them up in the order of ranks: rows
with their indices for COO gradients, all values for dense ones. Participants exchange the sum of a range with those of
the same local index; at the end the ranks of a node hand their ranges out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treadle.kernels.sparse import coalesce, write
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decisions import GradientPlan, SparseDecisions
from treadle.planner.passes.sparse.problem import SparseGradient
from treadle.planner.passes.sparse.rounds import exchange
from treadle.planner.passes.sparse.schemes import BY_NAME, DENSE
from treadle.runtime.sparse.division import Division, Hashed, Ranges
from treadle.runtime.sparse.entries import Entries
from treadle.runtime.sparse.mail import Exchange
from treadle.runtime.sparse.participant import Participant, Parts
from treadle.runtime.sparse.tally import ExchangeTally, Growth

WITHIN = "sparse-ps"
"""How the ranks of a node exchange COO gradients: even ranges, with indices."""


class GradientExchange:
    """The exchanges of the gradient that `plan` plans, on rank `rank`."""

    def __init__(self, decisions: SparseDecisions, number: int, rank: int, device: torch.device) -> None:
        problem, self.plan = decisions.problem, decisions.gradients[number]
        self.gradient = gradient = problem.gradients[number]
        self.scheme, self.device = BY_NAME[self.plan.scheme], device
        node, local = divmod(rank, problem.devices)
        self.intra: Participant | None = None
        self.start, self.units = 0, gradient.units
        if problem.devices > 1:
            ranges = Ranges(gradient.units, problem.devices)
            within = DENSE if gradient.form == "dense" else BY_NAME[WITHIN]
            ranks = [node * problem.devices + each for each in range(problem.devices)]
            self.intra = Participant(within, ranks, local, ranges, gradient.width, "intra", device)
            self.start, self.units, self.local = ranges.starts[local], ranges.sizes[local], local
        division = _division(decisions, self.plan, gradient, self.units, device)
        block = gradient.blocks.size if gradient.blocks else None
        ranks = [each * problem.devices + local for each in range(problem.machines)]
        self.inter = Participant(self.scheme, ranks, node, division, gradient.width, "inter", device, block)
        self.exchanges = 0

    def check(self, given: Tensor) -> None:
        """Raises InputError for a gradient of another form, shape or type than the plan's."""
        name, (form, units, width) = self.gradient.name, (self.gradient.form, self.gradient.units, self.gradient.width)
        if (found := "coo" if given.layout == torch.sparse_coo else "dense") != form:
            raise InputError(f"found a {found} gradient of {name!r}, expected a {form} one as in the plan")
        if given.dtype != torch.float32:
            found = str(given.dtype).removeprefix("torch.")
            raise InputError(f"found {found} gradients of {name!r}, expected float32 ones")
        if given.numel() != units * width:
            raise InputError(f"found {given.numel()} elements of {name!r}, expected {units * width} as in the plan")
        if form == "coo" and (given.sparse_dim() != 1 or given.shape[0] != units):
            found = f"{given.sparse_dim()} sparse dimensions of shape {tuple(given.shape[: given.sparse_dim()])}"
            raise InputError(f"found {found} of {name!r}, expected one of {units} as in the plan")

    def steps(self, given: Tensor, tally: ExchangeTally, *, in_place: bool = False) -> Exchange[Tensor]:
        """The sum of a gradient that `check` accepts over all ranks; `in_place`: a dense one in its own memory, where
        new memory would cost more than the sum."""
        own = self._own(given)
        if self.intra is None:
            into = own if in_place and isinstance(own, Tensor) else None
            total = yield from self._between(own, tally, into)
            result = self._given_form(total, given)
        else:
            sums = yield from self.intra.push(self._parts(self.intra, own), tally)
            mine = sums[self.local]
            shard: Tensor | Entries = mine.values if mine.indices is None else mine
            if isinstance(shard, Entries):
                shard = Entries(shard.units - self.start, shard.values)
            total = yield from self._between(shard, tally)
            if isinstance(total, Entries):
                sums = {self.local: Entries(total.units + self.start, total.values)}
            else:
                sums = {self.local: Entries(None, total)}
            sums = yield from self.intra.pull(sums, tally)
            result = self._given_form(_in_order(sums), given)
        self.exchanges += 1
        return result

    def _own(self, given: Tensor) -> Tensor | Entries:
        """A dense gradient as [units, width], a COO one as entries without repetitions."""
        width = self.gradient.width
        if self.gradient.form == "dense":
            return given.detach().contiguous().view(-1, width)
        indices, values = given._indices()[0], given._values().view(-1, width)
        if given.is_coalesced():
            return Entries(indices.int(), values.contiguous())
        return Entries(*coalesce(indices, values.contiguous(), self.gradient.units), ascending=False)

    def _parts(self, participant: Participant, own: Tensor | Entries) -> Parts:
        if isinstance(own, Tensor):
            return participant.contribution(own)
        if participant.scheme.push == "dense":
            return participant.contribution(self._dense(own, sum(participant.division.sizes)))
        return dict(enumerate(participant.division.of_entries(own)))

    def _between(
        self, own: Tensor | Entries, tally: ExchangeTally, into: Tensor | None = None
    ) -> Exchange[Tensor | Entries]:
        """The sum over participants of what this one brings: dense where it is, `into` that memory if any, else entries
        in ascending order."""
        memory = self.inter.division.memory if isinstance(self.inter.division, Hashed) else None
        words, retries = (0, 0) if memory is None else (memory.words, memory.retries)
        parts = self._parts(self.inter, own)
        tally.units = self.units
        if self.scheme.push != "dense":
            tally.nonzero = sum(len(each.units) for each in parts.values())
        if memory is not None and memory.retries > retries:
            found = tally.nonzero or 0
            tally.growth = Growth(
                self.plan.name, self.exchanges, found, self.units, words, memory.words, memory.retries - retries
            )
        sums = yield from self.inter.push(parts, tally)
        sums = yield from self.inter.pull(sums, tally)
        return self._merged(sums, isinstance(own, Tensor), into)

    def _merged(self, sums: Parts, dense: bool, into: Tensor | None) -> Tensor | Entries:
        """The sums of all parts as one."""
        if not dense and isinstance(self.inter.division, Hashed):
            return self.inter.division.in_order(list(sums.values()))
        whole = _in_order(sums, into)
        if isinstance(whole, Tensor):
            return whole if dense else _nonzero(Entries(torch.arange(len(whole), dtype=torch.int32), whole))
        if dense:
            return self._dense(whole, self.units, into)
        if self.scheme.push == "blocks":
            whole = _nonzero(whole)
        return whole

    def _dense(self, entries: Entries, units: int, into: Tensor | None = None) -> Tensor:
        out = entries.values.new_empty(units, self.gradient.width) if into is None else into
        write(entries.units, entries.values, out)
        return out

    def _given_form(self, total: Tensor | Entries, given: Tensor) -> Tensor:
        if isinstance(total, Tensor):
            return total.view(given.shape)
        values = total.values.view(-1, *given.shape[1:])
        indices = total.units.long().view(1, -1)
        return torch.sparse_coo_tensor(indices, values, given.shape, is_coalesced=True, check_invariants=False)


def _in_order(sums: Parts, into: Tensor | None = None) -> Tensor | Entries:
    """Parts one after the other: as one dense gradient where they are dense, `into` that memory if any."""
    parts = [sums[part] for part in sorted(sums)]
    if len(parts) == 1:
        return parts[0].values if parts[0].indices is None else parts[0]
    if parts[0].indices is None:
        return torch.cat([each.values for each in parts], out=into)
    values = torch.cat([each.values for each in parts])
    return Entries(torch.cat([each.units for each in parts]), values)


def _nonzero(entries: Entries) -> Entries:
    """Without the units that are zero: formats that send them with others bring back units that no one contributed."""
    found = torch.nonzero(entries.values.any(1)).view(-1)
    return Entries(entries.units[found], entries.values[found])


def _division(
    decisions: SparseDecisions, plan: GradientPlan, gradient: SparseGradient, units: int, device: torch.device
) -> Division:
    """How the scheme of a gradient divides the `units` units of a shard."""
    scheme, n = BY_NAME[plan.scheme], decisions.problem.machines
    parts = exchange(scheme, n).parts
    if scheme.balance != "balanced":
        return Ranges(units, parts)
    if plan.memory is None:
        raise InputError(f"found no hash memory of {plan.name!r}, expected that of scheme {scheme.name}")
    return Hashed(units, parts, plan.memory, decisions.seeds, device)
