"""When a running job gets other masters (PLink, "Autotune"): each step takes a time and counts, and decides.

A sudden change of the time starts with Quicktune, whose plan Finetune improves step by step while the job runs: twice
as many masters each time that the same host is to blame again. The best of the plans that were tried stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.aggregation.retune import HostTraffic, finetune, most_blamed, quicktune

TRIGGER, MOST_STEPS = 0.2, 12


class Tried(NamedTuple):
    """A plan and how long an iteration took with it."""

    iteration_s: float
    decisions: AggregationDecisions


@dataclass(frozen=True)
class MastersTuner:
    """What is known between steps. `decisions` are in use. `usual_s` is the time of an iteration before a change, None
    until it is measured. `best` is set while a change is being answered, `steps` counts Finetune's steps since."""

    decisions: AggregationDecisions
    usual_s: float | None = None
    best: Tried | None = None
    steps: int = 0
    blamed: int | None = None
    moves: int = 1
    outgrown: bool = False
    """The best masters leave iterations slower than before by more than TRIGGER: it takes new costs and groups, and a
    new tuner of the plan made from these."""

    def step(self, iteration_s: float, measured: HostTraffic) -> tuple[MastersTuner, AggregationDecisions | None]:
        """The tuner after some iterations, of `iteration_s` by the median, with `self.decisions`; and the decisions to
        use from now on, None for no others."""
        if self.best is None:
            return self._watch(iteration_s, measured)
        return self._improve(
            iteration_s,
            measured,
            min(self.best, Tried(iteration_s, self.decisions), key=lambda tried: tried.iteration_s),
        )

    def _watch(self, iteration_s: float, measured: HostTraffic) -> tuple[MastersTuner, AggregationDecisions | None]:
        if self.usual_s is None:
            return replace(self, usual_s=iteration_s), None
        if abs(iteration_s / self.usual_s - 1) <= TRIGGER:
            return self, None
        best = Tried(iteration_s, self.decisions)
        tuned = quicktune(self.decisions, measured.rates)
        if tuned.chunks == self.decisions.chunks:
            return self._improve(iteration_s, measured, best)
        return replace(self, decisions=tuned, best=best, steps=0, blamed=None, moves=1, outgrown=False), tuned

    def _improve(
        self, iteration_s: float, measured: HostTraffic, best: Tried
    ) -> tuple[MastersTuner, AggregationDecisions | None]:
        if iteration_s > best.iteration_s * (1 + TRIGGER) or self.steps == MOST_STEPS:
            return self._settle(best)
        worst = most_blamed(measured)
        moves = self.moves * 2 if worst is not None and worst == self.blamed else 1
        tuned, blamed = finetune(self.decisions, measured, moves)
        if blamed is None:
            return self._settle(best)
        return replace(self, decisions=tuned, best=best, steps=self.steps + 1, blamed=blamed, moves=moves), tuned

    def _settle(self, best: Tried) -> tuple[MastersTuner, AggregationDecisions | None]:
        """The best plan stays, and its time is the usual one from now on."""
        outgrown = self.usual_s is not None and best.iteration_s > self.usual_s * (1 + TRIGGER)
        changed = best.decisions.chunks != self.decisions.chunks
        return MastersTuner(best.decisions, best.iteration_s, outgrown=outgrown), best.decisions if changed else None
