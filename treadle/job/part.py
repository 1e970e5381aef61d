"""The part of a pass in a job: plans, changes to the training step, lines of the report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar, NamedTuple

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
    from treadle.job.kept import CostCache
    from treadle.job.train import TrainingTask
    from treadle.planner.solver import Progress


class JobInputs(NamedTuple):
    """Inputs of a job's plans; `others` are the documents that parts want, by role. Files are called `<role>.json`."""

    trace: Trace
    hardware: Hardware
    others: Inputs
    limit_s: float | None
    """Time limit of the whole job; the clock of each plan has its share."""
    unplanned: StepTimes | None = None
    """The step without plans, as it was measured here; None where costs are modelled."""
    kept_bytes: int = 0
    """What the plans made so far keep between steps."""
    predictions: tuple[PartPrediction, ...] = ()
    """Those of the parts whose plans are made: parts that keep tensors first, then in the order of the passes."""
    measure_top: int = 0
    """How many of its best predicted choices a plan measures on processes of this machine; 0: predictions decide."""


class JobPlan(NamedTuple):
    """One plan of a job, not made yet. `name` is that of its file and folder, `title` is printed when it begins."""

    name: str
    title: str
    plan: Callable[[Clock | None, Callable[[Progress], None]], Plan]
    """Takes the clock and what is called with each state of the search. Raises InfeasibleError or LimitError without a
    plan."""


class WantedDocument(NamedTuple):
    """A document that the job file names: a file next to it, or one that ships with the tool; without a name one that
    the part records."""

    name: str | None
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
    kept: list[Callable[[], list[Tensor]]] = field(default_factory=list)
    """Called for the tensors that live between steps, in addition to those of the model."""
    exact: bool = False
    """Whether nothing may be lost where plans lose a part of the gradients, so that numbers can be compared."""


class StepTimes(NamedTuple):
    """Seconds of the parts of a step, which run one after the other."""

    compute_s: float
    """Forward and backward pass, until the last rank is ready for the exchange."""
    exchange_s: float
    """The exchange of gradients, with packing them into messages and unpacking them."""
    optimizer_s: float

    @property
    def step_s(self) -> float:
        return sum(self)


class StepClock(NamedTuple):
    """When a rank passed the ends of a step's parts, by the clock that all processes of a machine share."""

    started: float
    ready: float
    exchanged: float
    updated: float

    @property
    def times(self) -> StepTimes:
        return StepTimes(self.ready - self.started, self.exchanged - self.ready, self.updated - self.exchanged)


class MeasuredRank(NamedTuple):
    """One rank of a training: the timed steps, and the highest peak of live tensors over the compared ones."""

    steps: tuple[StepClock, ...]
    cpu_s: float
    """CPU time of the forward and backward pass, the median over the steps."""
    peak_bytes: int = 0

    @property
    def times(self) -> StepTimes:
        return _medians(self.steps)


class MeasuredTraining(NamedTuple):
    """One training by rank."""

    ranks: tuple[MeasuredRank, ...]

    @property
    def peak_bytes(self) -> int:
        return max(rank.peak_bytes for rank in self.ranks)

    @property
    def step(self) -> StepTimes:
        """Medians over the steps; a part ends when the last rank has ended it."""
        steps = zip(*(rank.steps for rank in self.ranks), strict=True)
        return _medians(StepClock(*map(max, zip(*step, strict=True))) for step in steps)

    def undisturbed_s(self, cores: int) -> float:
        """Seconds of the forward and backward pass on as many cores with nothing else to do."""
        return max(*(rank.cpu_s for rank in self.ranks), sum(rank.cpu_s for rank in self.ranks) / cores)


def _medians(steps: Iterable[StepClock]) -> StepTimes:
    return StepTimes(*map(median, zip(*(step.times for step in steps), strict=True)))


class Unplanned(NamedTuple):
    """What a part does to a step besides its plans; costs are measured on it before there are plans."""

    apply: Callable[[RankStep], None]
    """Pickled and sent to the ranks, as what `training` returns."""
    compute_ns: int | None = None
    """Time of the forward and backward pass as it runs then, by the costs of its calls; None where the part leaves
    both as they are."""


class TrainingComparison(NamedTuple):
    """The same training under plain DistributedDataParallel and under the plans."""

    plain: MeasuredTraining
    planned: MeasuredTraining


class PredictedRow(NamedTuple):
    """One quantity, as the plans predict it and as it was measured."""

    label: str
    predicted: float
    measured: float
    unit: str = "ms"


class PartPrediction(NamedTuple):
    """Predictions of one part's plans."""

    compute_ms: float | None = None
    """Time of the forward and backward pass, where the part plans it."""
    exchange_ms: float | None = None
    """Time of its messages, where the part plans the exchange of gradients."""
    compute_bytes: int | None = None
    """Peak of live tensors of the forward and backward pass, where the part plans it."""
    exchange_bytes: int = 0
    """The most that its messages take at once, in addition to what lives after the backward pass."""
    kept_bytes: int = 0
    """What it keeps between steps, part of `exchange_bytes`."""


class PartReport(NamedTuple):
    """The lines of one part in the job's report."""

    cards: tuple[Card, ...] = ()
    failures: tuple[str, ...] = ()
    """Promises that the training did not keep, or without one, that it will not."""
    unchecked: str = ""
    """A clause on what the checker of its plans relies on."""
    details: tuple[Card, ...] = ()
    """Cards that come after those of every job."""


class JobPart(ABC):
    """The part of one pass in a job, made from the job file before anything long begins."""

    keeps: ClassVar[bool] = False
    """Whether its plans keep tensors between steps: they are made first, and those of other parts leave the bytes."""

    def wants(self, hardware: Hardware) -> Mapping[str, WantedDocument]:
        """Documents that the job file names for this part, or that ship for `hardware`, by role."""
        return {}

    def recorded(self, task: TrainingTask, hardware: Hardware, say: Callable[[str], None]) -> Inputs:
        """The documents of `wants` without a name, by role, as steps of the job's ranks show them."""
        return {}

    def with_measured(
        self, trace: Trace, hardware: Hardware, others: Inputs, say: Callable[[str], None], cache: CostCache
    ) -> tuple[Hardware, Inputs]:
        """The hardware and the documents of `wants` with what the part's plans cost on processes of this machine, where
        it exchanges something between them."""
        return hardware, others

    @abstractmethod
    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        """The plans, in the order in which they are made."""

    def unplanned(self, trace: Trace) -> Unplanned | None:
        """The step with all of this part but what its plans decide: everything is kept, nothing is sent."""
        return None

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None] | None:
        """A function that changes a rank's step so that it trains under the plans. It is pickled and sent to the ranks.

        Documents and plans are `<role>.json` and `<name>.plan.json` in `out`, artefacts lie in `<name>/`."""
        return None

    def prediction(self, plans: Mapping[str, Plan]) -> PartPrediction:
        """Predictions of the part's plans, by name."""
        return PartPrediction()

    def loses(self, plans: Mapping[str, Plan]) -> str:
        """What in its plans loses a part of the gradients, in a few words; nothing where numbers are those of plain
        training but for rounding."""
        return ""

    def report(self, plans: Mapping[str, Plan], peak: int | None, measured: TrainingComparison | None) -> PartReport:
        """The part's plans, by name, next to a training, if there was one, else next to the predicted `peak` of live
        tensors over all parts, in bytes, which is None where no part plans it."""
        return PartReport()
