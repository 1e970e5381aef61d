"""The exchange of sparse gradients under a plan: sums over all ranks, in the form in which gradients are given."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, distributed

from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.runtime.agreement import agreed, agreed_on
from treadle.runtime.scope_groups import ScopeGroups, scope_groups
from treadle.runtime.sparse.gradient import GradientExchange
from treadle.runtime.sparse.mail import GroupTransport, carried, in_lockstep, together
from treadle.runtime.sparse.tally import ExchangeTally, Growth
from treadle.runtime.watch import watch_of

log = logging.getLogger("treadle.sparse")
CPU = torch.device("cpu")


class SparseExchange:
    """Exchanges the gradients of a plan on one rank of a job, whose ranks all make one together.

    `last` has what the last exchange of each gradient did, by name; `growths` every growth of hash memory; `sent` bytes
    of all exchanges. Raises InputError, on all ranks alike, for a plan that is not for these ranks or differs between
    them.
    """

    def __init__(
        self, decisions: SparseDecisions, groups: ScopeGroups | None = None, device: torch.device = CPU
    ) -> None:
        agreed_on(lambda: _check_world(decisions), decisions)
        groups = groups or scope_groups(decisions.problem.devices)
        rank = distributed.get_rank()
        self.transport = GroupTransport({"intra": groups.intra, "inter": groups.inter}, device)
        self.gradients = agreed(lambda: gradients_of(decisions, rank, device))
        self.watch = watch_of(distributed.group.WORLD, lambda lost: None)
        self.seen: set[str] = set()
        self.last: dict[str, ExchangeTally] = {}
        self.growths: list[Growth] = []
        self.sent = 0

    def exchange(self, name: str, gradient: Tensor) -> Tensor:
        """The sum of gradient `name` over all ranks, as `exchange_together` finds it."""
        return self.exchange_together({name: gradient})[name]

    def exchange_together(self, gradients: Mapping[str, Tensor], *, in_place: bool = False) -> dict[str, Tensor]:
        """The sums of gradients over all ranks, which call it together with the same names in the same order: dense, or
        coalesced COO tensors, as they are given. They may share memory with the gradients; `in_place`, dense ones
        that are contiguous always do. What they send to one rank at a time is one message.

        Raises InputError for a gradient that is not as the plan has it: at its first exchange on all ranks alike.
        CheckFailed names a rank that ended.
        """

        def checked() -> dict[str, GradientExchange]:
            return {name: _checked(self.gradients, name, gradient) for name, gradient in gradients.items()}

        found = checked() if self.seen.issuperset(gradients) else agreed(checked)
        self.seen.update(gradients)
        tallies = {name: ExchangeTally(name, each.scheme.name) for name, each in found.items()}
        steps = {name: each.steps(gradients[name], tallies[name], in_place=in_place) for name, each in found.items()}
        with self.watch.named():
            totals = carried(together(steps), self.transport)
        for tally in tallies.values():
            self._record(tally)
        return totals

    def _record(self, tally: ExchangeTally) -> None:
        name = tally.gradient
        self.last[name] = tally
        self.sent += tally.sent()
        if tally.growth is not None:
            if all(growth.gradient != name for growth in self.growths):
                log.warning(grown(tally.growth))
            self.growths.append(tally.growth)

    def close(self) -> None:
        """End: other ranks do not take the end of this one for a failure."""
        self.watch.close()


def exchange_all(
    exchanges: Sequence[Mapping[str, GradientExchange]], name: str, gradients: Sequence[Tensor]
) -> tuple[list[Tensor], list[ExchangeTally]]:
    """The sums that the ranks of one process find, and what each did, in the order of ranks. `exchanges` are the
    `gradients_of` each rank."""
    found = [_checked(each, name, gradient) for each, gradient in zip(exchanges, gradients, strict=True)]
    tallies = [ExchangeTally(name, each.scheme.name) for each in found]
    steps = [each.steps(given, tally) for each, given, tally in zip(found, gradients, tallies, strict=True)]
    return in_lockstep(steps), tallies


def gradients_of(decisions: SparseDecisions, rank: int, device: torch.device = CPU) -> dict[str, GradientExchange]:
    """The exchanges of all gradients of a plan on one rank, by name. Raises InputError for a scheme without what it
    needs."""
    return {
        plan.name: GradientExchange(decisions, number, rank, device) for number, plan in enumerate(decisions.gradients)
    }


def grown(growth: Growth) -> str:
    """One line about the first growth of a gradient's hash memory."""
    return (
        f"{growth.gradient}: {growth.nonzero} of {growth.units} units are not zero in exchange {growth.exchange}, more "
        f"than the memory for parts holds: grown from {growth.before} to {growth.after} words, nothing is lost; plan "
        "again if it happens often"
    )


def _checked(gradients: Mapping[str, GradientExchange], name: str, gradient: Tensor) -> GradientExchange:
    if name not in gradients:
        raise InputError(f"found gradient {name!r}, expected one of {', '.join(gradients)}")
    gradients[name].check(gradient)
    return gradients[name]


def _check_world(decisions: SparseDecisions) -> None:
    """Raises InputError for another number of ranks than the plan's."""
    problem, world = decisions.problem, distributed.get_world_size()
    if problem.ranks != world:
        expected = f"{problem.ranks}: the plan is for {problem.machines} nodes of {problem.devices} ranks"
        raise InputError(f"found {world} ranks, expected {expected}")
