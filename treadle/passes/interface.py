"""What a pass does on this machine: one record, the counterpart of the planner's.

A room is `treadle/passes/<name>/`: `command.py` is its `treadle plan <name>`, `room.py` has one subclass of `Room` as
`ROOM`. `treadle.planner.passes` lists the names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from treadle.codegen.interface import Timeline
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import Decisions
from treadle.planner.errors import InputError
from treadle.planner.passes.interface import Inputs

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section

D = TypeVar("D", bound=Decisions)
DEFAULT_SIZES = "0,1,1000,65537,1000003"
"""Element counts with which a collective runs."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `treadle run`, as they were given."""

    backend: str
    world: int | None
    sizes: str | None
    dtypes: str | None
    ops: str
    repeats: int
    timeout: float | None
    steps: int
    as_json: bool

    def require_world(self, allowed: tuple[int | None, ...], why: str) -> None:
        """Raises InputError for `--world` with another number."""
        if self.world not in allowed:
            expected = "none" if allowed == (None,) else str(allowed[-1])
            raise InputError(f"found {self.world}, expected {expected}: {why}", where="--world")


class SectionContext(NamedTuple):
    """What a section of the report may show next to its plan: the machine, and measured peaks in bytes by label."""

    hardware: Hardware | None
    measured: Mapping[str, int]


class Simulated(NamedTuple):
    """A plan's timeline in words: what stands behind the file's name, facts for programs, lines for people."""

    headline: str
    facts: dict[str, Any]
    lines: tuple[str, ...] = ()


class Room(ABC, Generic[D]):
    """What the commands do with plans of one pass."""

    def check_prediction(self, plan: Plan[D], found: Inputs) -> list[str]:
        """What is wrong with a prediction that was made by code outside the planner, in the light of the inputs."""
        return []

    def job_part(self, job: Job, where: str) -> JobPart | None:
        """What the pass contributes to `job`, which lies at `where`. Raises InputError for what is wrong with its
        part."""
        return None

    @abstractmethod
    def section(self, name: str, plan: Plan[D], context: SectionContext) -> Section:
        """The section of the report on one plan."""

    def cards(self, plan: Plan[D], context: SectionContext) -> tuple[Card, ...]:
        """The headline facts of one plan, by default those of its certificate."""
        from treadle.report.cards import certificate_cards

        return certificate_cards(plan)

    def together(self, plans: Mapping[str, Plan[D]]) -> list[Section]:
        """Sections on several plans of the pass, by name, in addition to those on each."""
        return []

    def simulated(self, plan: Plan[D], timeline: Timeline) -> Simulated:
        """What `treadle simulate` prints of a plan: times, and how busy each resource is."""
        time_us, planned_us = timeline.schedule.makespan / 1000, plan.prediction.time_us
        headline = f"{time_us:,.3f} us simulated, {planned_us:,.3f} us planned"
        return Simulated(headline, {"time_us": time_us}, busy_lines(timeline))

    @abstractmethod
    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        """Execute the artefacts in `folder`, compare them with what PyTorch does, and print the comparison.

        Raises InputError for options that do not go with them, CheckFailed where a promise was broken.
        """


def busy_lines(timeline: Timeline) -> tuple[str, ...]:
    """A line for each resource, the busiest first."""
    makespan = timeline.schedule.makespan
    ranked = sorted(timeline.busy_ns().items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        f"{name:<24} busy {time / 1000:,.3f} us ({time / makespan if makespan else 0.0:.0%})" for name, time in ranked
    )


AnyRoom = Room[Any]
