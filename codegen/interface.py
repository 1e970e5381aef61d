"""The code generation targets of one pass as records, and the timeline of its plans.

Each pass has `codegen/<name>/room.py` with one subclass of `Targets` as `ROOM`; slow imports stand inside its methods.
`treadle.planner.passes` lists the names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import Decisions
from treadle.planner.documents.trace import Trace
from treadle.planner.timeline.allocations import Allocations
from treadle.planner.timeline.simulator import Resource, Schedule, Task

if TYPE_CHECKING:
    from treadle.planner.passes.collective.algorithm import CollectiveDecisions

D = TypeVar("D", bound=Decisions)
STREAM, MEMORY = "stream", "memory"


@dataclass(frozen=True)
class Target:
    """A form that plans take. `over_budget` is the reason why it may need more memory than the plan's budget, `not_run`
    the reason why `treadle run` does not execute it."""

    name: str
    over_budget: str = ""
    not_run: str = ""
    runtimes: bool = False
    """It is written for one of several public runtimes."""
    carries: bool = False
    """Plans of collectives may go into it."""


@dataclass(frozen=True)
class GenerationRequest:
    """The inputs of one generation. `trace` is that of the plan, `runtime` a public runtime by name, `collectives` are
    plans by file name; errors call the plan `plan_file`."""

    target: Target
    plan_file: str
    trace: Trace | None = None
    runtime: Any = None
    collectives: Mapping[str, Plan] = field(default_factory=dict)


class Made(NamedTuple):
    """Texts by relative path, the facts of their manifest, and MODULE:FUNCTION of the model that they run."""

    files: dict[str, str]
    facts: dict[str, Any]
    entry: str | None = None


class Timeline(NamedTuple):
    """Times in ns."""

    tasks: tuple[Task, ...]
    resources: tuple[Resource, ...]
    schedule: Schedule

    def busy_ns(self) -> dict[str, int]:
        """How long each resource works for one task at a time, by name."""
        ran = zip(self.tasks, self.schedule.start, self.schedule.end, strict=True)
        busy = {resource.name: 0 for resource in self.resources if not resource.shared}
        for task, start, end in ran:
            held = dict(task.held)
            for name in task.resources:
                busy[name] += min(end - start, held.get(name, end - start))
        return busy


class Targets(ABC, Generic[D]):
    """The targets of one pass. The first of `targets` is the default; `selection_targets` are for selections of plans.
    With `needs_trace` a plan becomes code only with the trace it was made from; with `carries_inputs` the inputs of a
    plan are copied with its code."""

    targets: ClassVar[tuple[Target, ...]]
    selection_targets: ClassVar[tuple[Target, ...]] = ()
    needs_trace: ClassVar[bool] = False
    carries_inputs: ClassVar[bool] = False

    @abstractmethod
    def generate(self, plan: Plan[D], request: GenerationRequest) -> Made:
        """Raises InputError for what the target cannot hold, CheckFailed where what comes out would be wrong."""

    @abstractmethod
    def timeline(self, plan: Plan[D]) -> Timeline:
        """The predicted timeline of a plan as tasks, resources and schedule, for printing and for Perfetto."""

    def collective(self, plan: Plan[D]) -> Plan[CollectiveDecisions] | None:
        """A plan that is a collective as one of that pass, which all runtimes of collectives take; None for others."""
        return None

    def allocations(self, plan: Plan[D]) -> Allocations | None:
        """What a plan allocates and frees, for PyTorch's memory page; None for a pass that plans no memory."""
        return None


AnyTargets = Targets[Any]
