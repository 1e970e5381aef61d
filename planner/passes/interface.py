"""What a pass is to everything outside its room: one record, by which plans are checked, bounded and described.

A room is `planner/passes/<name>/`; its `room.py` has one subclass of `Pass` as `PASS` and imports what costs time only
inside of methods. `treadle.planner.passes` lists the rooms, and is the only list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from treadle.planner.documents.difference import Change, differences
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import Decisions, Document

if TYPE_CHECKING:
    from treadle.planner.search.clock import Clock

D = TypeVar("D", bound=Decisions)
Inputs = Mapping[str, Document]
"""Documents that a plan was made from, by role; a trace has costs where the machine is known."""


class PlanFunction(Protocol):
    """`plan_<pass>` in `planning.py`: the only entry to a pass.

    problem: everything that the plan has to satisfy. options: a frozen dataclass of the room. clock: limit and Ctrl-C
    of the command; else a limit in the options begins now. inputs: the documents that the plan names as its inputs.
    on_progress: called while a search runs, times in ns. on_plan: called with each better checked plan while a search
    runs, or once with the plan that is returned.

    Raises InputError for a problem that is not sound, InfeasibleError where there is provably no plan, LimitError when
    the limits ended the search without one, CheckFailed for a plan that fails its check, which is a bug.
    """

    def __call__(
        self,
        problem: Any,
        *,
        options: Any = ...,
        clock: Clock | None = None,
        inputs: Mapping[str, InputRef] | None = None,
        on_progress: Callable[[Any], None] | None = None,
        on_plan: Callable[[Plan[Any]], None] | None = None,
    ) -> Plan[Any]: ...


class Figures(NamedTuple):
    """What decisions come to: the predicted time, and the peak of bytes where the pass plans memory."""

    time_ns: int
    peak_bytes: int | None = None


class Rebound(NamedTuple):
    """The lower bound of a plan derived again, in ns, None where the inputs found do not suffice; and findings, where
    the certificate claims more than it."""

    findings: list[str]
    bound_ns: int | None


class Pass(ABC, Generic[D]):
    """One pass. `roles` are the documents that a plan may be made from, by the name under which it records them."""

    name: ClassVar[str]
    system: ClassVar[str]
    """The system that the pass completes, as its paper calls it."""
    decisions: type[D]
    roles: ClassVar[Mapping[str, type[Document]]]
    needs_costs: ClassVar[bool] = False
    """Its traces have costs; those without any are priced on the hardware."""
    required: ClassVar[tuple[str, ...]] = ()
    """Roles without which a plan cannot be compared with today's inputs."""
    job: ClassVar[Any] = None
    """The record that a job file has under the name of the pass, `| None` where it may be absent; None without a part
    in jobs."""
    documents: ClassVar[tuple[type[Document], ...]] = ()
    """Kinds of documents that the pass adds."""

    @abstractmethod
    def check(self, decisions: D) -> list[str]:
        """Findings of the independent checker, from the decisions only; it has no code that makes decisions."""

    def inconsistent(self, decisions: D) -> list[str]:
        """Where decisions that `check` accepts state other things than the planner's own code makes of them."""
        return []

    def findings(self, decisions: D) -> list[str]:
        """All that is wrong with the decisions themselves."""
        return self.check(decisions) or self.inconsistent(decisions)

    @abstractmethod
    def figures(self, decisions: D) -> Figures:
        """What the decisions come to."""

    @abstractmethod
    def describe(self, decisions: D) -> str:
        """A few words, such as `swap plan of 12 operators`."""

    @abstractmethod
    def check_inputs(self, plan: Plan[D], found: Inputs) -> list[str]:
        """What is wrong with a plan in the light of those of its inputs that were found."""

    def differences(self, before: D, after: D) -> list[Change]:
        """How other decisions differ, in words of the pass; the caller adds what no word of the pass covers."""
        return differences(before, after)

    def today(self, plan: Plan[D], found: Inputs) -> D | None:
        """The decisions of the plan with the figures that `found`, the inputs of today, give them; None where those do
        not suffice. Raises InputError where the decisions do not fit the inputs any more."""
        return None

    def times_us(self, plan: Plan[D]) -> tuple[float, ...]:
        """The times in us that a plan may predict, the one that it should first."""
        return (self.figures(plan.decisions).time_ns / 1000,)

    def check_certificate(self, plan: Plan[D]) -> Iterator[str]:
        """What is wrong with certificate and provenance beyond what is asked of every plan."""
        return iter(())

    def least_ns(self, decisions: D) -> int:
        """A lower bound in ns that the decisions prove without any search."""
        return 0

    def rebound(self, plan: Plan[D], found: Inputs) -> Rebound:
        """The bound derived again from the inputs found, or from the plan where that is enough."""
        return Rebound([], None)

    def optimal(self, plan: Plan[D]) -> str:
        """What a plan without a gap may be called."""
        return "optimal"

    def nodes(self, decisions: D, hardware: Hardware) -> int | None:
        """The number of nodes that a plan is for, where it may be other than the profile's."""
        return None


AnyPass = Pass[Any]


def problem_changes(solved: Document, now: Document, fields: Iterable[str]) -> list[str]:
    """Which `fields` of the problem that a plan solved are not what its inputs say now."""
    wrong = [name for name in fields if getattr(now, name) != getattr(solved, name)]
    return [f"$.decisions.problem.{name}: not what the inputs say now; plan again" for name in wrong]
