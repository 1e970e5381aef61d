"""The part of a pass in a job: plans, changes to the training step, lines of the report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import Document
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.interface import Inputs
from treadle.planner.search.clock import Clock
from treadle.report.page import Card

if TYPE_CHECKING:
    from torch import Tensor, nn

    from treadle.capture.load import ModelStep
    from treadle.planner.solver import Progress


class JobInputs(NamedTuple):
    """Inputs of a job's plans; `others` are the documents that parts want, by role. Files are called `<role>.json`."""

    trace: Trace
    hardware: Hardware
    others: Inputs
    limit_s: float | None
    """Time limit of the whole job; the clock of each plan has its share."""


class JobPlan(NamedTuple):
    """One plan of a job, not made yet. `name` is that of its file and folder, `title` is printed when it begins."""

    name: str
    title: str
    plan: Callable[[Clock | None, Callable[[Progress], None]], Plan]
    """Takes the clock and what is called with each state of the search. Raises InfeasibleError or LimitError without a
    plan."""


class WantedDocument(NamedTuple):
    """A document that the job file names: a file next to it, or one that ships with the tool."""

    name: str
    kind: type[Document]


@dataclass
class RankStep:
    """The training step of one rank, which the parts change before training begins."""

    rank: int
    world: int
    model: nn.Module
    loss_of: Callable[[ModelStep], Tensor]
    exchanges: list[Callable[[], None]] = field(default_factory=list)
    """Called in this order after the backward pass; together they average the gradients over the ranks."""


class MeasuredTraining(NamedTuple):
    """One training, over all its steps and ranks: highest peak of live tensors, medians of seconds."""

    peak_bytes: int
    compute_s: float
    exchange_s: float


class TrainingComparison(NamedTuple):
    """The same training under plain DistributedDataParallel and under the plans."""

    plain: MeasuredTraining
    planned: MeasuredTraining


class PredictedRow(NamedTuple):
    """One quantity with its unit, as the plans predict it and as it was measured."""

    label: str
    predicted: float
    measured: float


class PartReport(NamedTuple):
    """The lines of one part in the job's report."""

    cards: tuple[Card, ...] = ()
    failures: tuple[str, ...] = ()
    """Promises that the training did not keep."""
    rows: tuple[PredictedRow, ...] = ()
    step_ms: float = 0.0
    """The part's share of the predicted time of a step."""
    note: str = ""
    """A sentence on the rows."""
    unchecked: str = ""
    """A clause on what the checker of its plans relies on."""


class JobPart(ABC):
    """The part of one pass in a job, made from the job file before anything long begins."""

    def wants(self) -> Mapping[str, WantedDocument]:
        """Documents that the job file names for this part, by role."""
        return {}

    @abstractmethod
    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        """The plans, in the order in which they are made."""

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None] | None:
        """A function that changes a rank's step so that it trains under the plans. It is pickled and sent to the ranks.

        Documents and plans are `<role>.json` and `<name>.plan.json` in `out`, artefacts lie in `<name>/`."""
        return None

    def report(self, plans: Mapping[str, Plan], measured: TrainingComparison | None) -> PartReport:
        """Predictions of the part's plans, by name, compared with a training, if there was one."""
        return PartReport()
