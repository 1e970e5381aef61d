"""A small training in stages, as the process sees it that launches its ranks: it plans for what they measured, gives
them memory and then agents, kills a machine, and has all go on."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, Variant
from treadle.runtime.checkpoint.started import StartedAgents, memory_here
from treadle.runtime.launch import launch
from treadle.runtime.private_files import write_private

if TYPE_CHECKING:
    from treadle.runtime.checkpoint.small_training import AttachedRun, MeasuredRuns, PlainRun

SAID = {
    "detect": re.compile(r"silent for ([\d.]+) (s);"),
    "agree": re.compile(r"are whole, ([\d.]+) (s) after it began"),
    "fetch": re.compile(r"is fetched from machine \d+ in ([\d.]+) ([num]?s)"),
}
"""Phases of a recovery in the lines of agents."""
UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


class PlannedHere(NamedTuple):
    """Plans of the small model; agents are `attached` under one of them."""

    variants: Mapping[Variant, Plan[CheckpointDecisions]]
    refused: Mapping[Variant, str]
    attached: Plan[CheckpointDecisions]


class LostMachine(NamedTuple):
    """What followed when a machine was killed in the iteration `step`. `phases`, in ns, None for what no one has said:
    `detect` until the root saw it, `agree` from then until all are whole, of which `fetch` brings the states to the
    new agent; `restart` from the loss until new ranks have their states, `step` their first iteration."""

    machine: int
    step: int
    resumed: int
    source: str
    holder: str
    phases: dict[str, int | None]
    losses: list[float]


class StagedRun:
    """A context. `planned` plans for the runs without checkpoints of all ranks; `given` are the bytes of a state and
    the number of iterations."""

    planned: PlannedHere

    def __init__(
        self,
        problem: CheckpointProblem,
        planned: Callable[[Sequence[PlainRun]], PlannedHere],
        place: Path,
        given: tuple[int, int],
    ) -> None:
        self.problem, self._plan, self._place, self.given = problem, planned, place, given
        self.ranks, self.machine = problem.machines * problem.devices, problem.machines - 1
        self._running = ExitStack()
        self._agents: StartedAgents | None = None
        self._plain: dict[int, PlainRun] = {}
        self._measured: dict[int, MeasuredRuns] = {}
        self._processes: dict[int, int] = {}
        self._losses: dict[int, float] = {}
        self._killed: tuple[int, int] | None = None

    @property
    def measured(self) -> list[MeasuredRuns]:
        """What each rank found."""
        return [self._measured[rank] for rank in range(self.ranks)]

    def train(self, timeout: float | None) -> None:
        """Measure, then train with agents until a machine, agent and ranks, is killed in the middle; another agent
        starts in its place at once. A single machine loses only its ranks. Raises what `launch` raises."""
        from treadle.runtime.checkpoint.small_training import train_in_stages

        files = self._place / "variants.json", self._place / "agents.json"
        try:
            launch(
                self.ranks, train_in_stages, (*self.given, self.problem.devices, *files), timeout, on_message=self._hear
            )
        except CheckFailed:  # which names the rank that was killed
            if self._killed is None:
                raise
        if self._killed is None:
            raise CheckFailed("the training ended before a machine could be killed")

    def train_again(self, timeout: float | None) -> LostMachine:
        """All ranks start again, and train to the end from where the checkpoints are."""
        from treadle.runtime.checkpoint.small_training import train_attached

        assert self._agents is not None
        assert self._killed is not None
        step, killed_ns = self._killed
        attached: dict[int, int] = {}
        first: dict[int, int] = {}

        def heard(message: tuple[str, int, Any]) -> None:
            kind, rank, found = message
            if kind == "attached":
                attached[rank] = found[1]
            else:
                first.setdefault(rank, found[2])

        given = (*self.given, self.problem.devices, self._with_agents)
        runs: list[AttachedRun] = launch(self.ranks, train_attached, given, timeout, on_message=heard)
        resumed = runs[self.machine * self.problem.devices].resumed
        phases = {name: _said(words, self._agents.said()) for name, words in SAID.items()}
        phases["restart"] = max(attached.values()) - killed_ns
        phases["step"] = max(first.values()) - max(attached.values())
        losses = [*(self._losses[each] for each in range(resumed.step)), *runs[0].losses]
        return LostMachine(self.machine, step, resumed.step, resumed.source, resumed.holder, phases, losses)

    def _hear(self, message: tuple[str, int, Any]) -> None:
        kind, rank, found = message
        match kind:
            case "plain":
                self._plain[rank] = found
                if len(self._plain) == self.ranks:
                    self._give_variants()
            case "measured":
                self._measured[rank] = found
                if len(self._measured) == self.ranks:
                    self._give_agents()
            case "attached":
                self._processes[rank] = found[0]
            case "step":
                step, loss, _ = found
                if rank == 0:
                    self._losses[step] = loss
                if step >= self.given[1] // 2 and len(self._processes) == self.ranks and self._killed is None:
                    self._kill(step)

    def _give_variants(self) -> None:
        from treadle.runtime.checkpoint.small_training import GivenVariants

        self.planned = self._plan([self._plain[rank] for rank in range(self.ranks)])
        access = self._running.enter_context(memory_here(self.planned.attached.decisions, self._place))
        variants = [each.decisions for each in self.planned.variants.values()]
        write_private(self._place / "variants.json", msgspec.json.encode(GivenVariants(variants, access)))

    def _give_agents(self) -> None:
        self._running.close()  # the memory that variants were measured with
        file = self._place / "run.plan"
        store.save(self.planned.attached, file)
        self._agents = self._running.enter_context(StartedAgents(file, self.problem.machines, self._place))
        write_private(self._place / "agents.json", msgspec.json.encode(self._with_agents))

    @property
    def _with_agents(self) -> Any:
        from treadle.runtime.checkpoint.small_training import GivenAgents

        assert self._agents is not None
        access = [str(self._agents.access(machine)) for machine in range(self.problem.machines)]
        return GivenAgents(str(self._agents.plan), access)

    def _kill(self, step: int) -> None:
        assert self._agents is not None
        self._killed = step, time.monotonic_ns()
        alone = self.problem.machines == 1
        if not alone:
            self._agents.kill(self.machine)
        for rank, process in self._processes.items():
            if rank // self.problem.devices == self.machine:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        if not alone:
            self._agents.start(self.machine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


def _said(words: re.Pattern[str], text: str) -> int | None:
    """The time in the last line that has it."""
    found = words.findall(text)
    return round(float(found[-1][0]) * UNITS[found[-1][1]]) if found else None
