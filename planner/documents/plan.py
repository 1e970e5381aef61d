"""The plan: what one pass decided, what it predicts, and why it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal

from msgspec import Struct, convert

from treadle.planner.documents.explain import misfit
from treadle.planner.documents.scalars import Amount, Count, Decisions, Digest, Document, Name, Positive, Record
from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import InputError, spelled

VERSION = 1

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # a default is not in typing before Python 3.13

    D = TypeVar("D", bound=Decisions, covariant=True, default=Decisions)
else:
    from typing import TypeVar

    D = TypeVar("D", bound=Decisions, covariant=True)

Scope = Literal[
    "any order", "this order", "forward order", "forward order, reads left", "no recomputation",
    "any order, this allocator, no early write-back", "this order, this allocator, no early write-back",
    "all pieces", "these pieces",
]  # fmt: skip


class InputRef(Record, frozen=True, kw_only=True):
    """A document the plan was made from: its file name and the digest of its canonical form."""

    file: Name
    digest: Digest

    def __post_init__(self) -> None:
        if spelled(self.file) != self.file:
            raise InputError(
                "found a file name that is not UTF-8, which no plan can record; rename it", where=self.file
            )


class Prediction(Record, frozen=True, kw_only=True):
    time_us: Amount
    peak_bytes: Count | None = None


class Certificate(Record, frozen=True, kw_only=True):
    """`gap` is (objective - lower_bound) / objective; `optimal` only where that is proved zero."""

    verdict: Literal["accepted"]
    checker: Name
    objective: Amount
    lower_bound: Amount
    unit: Name
    argument: Name
    """Why nothing can be below `lower_bound`, in one sentence."""
    terms_ns: dict[Name, Count] = {}
    """Times in ns that add up to `lower_bound`, by what takes them, where the argument is such a sum."""
    scope: Scope | None = None
    """Which plans the bound covers. Memory and swap: by the order of operators and what they recompute; an exact search
    of swap plans covers those of one allocator that copy a tensor out only when nothing on the device reads it any
    more. Collective: on the sketch's links, plans that cut the buffer in any pieces, or those with this plan's."""
    gap: Amount
    optimal: bool
    unsimulated: str | None = None
    """Collective: why the plan predicts the time of its schedule and not that of its program."""


class Generation(Record, frozen=True, kw_only=True):
    """What one generation of a genetic search left behind: simulated times of those that have a plan."""

    number: Count
    best_ns: Count
    """Best time of all generations so far."""
    mean_ns: Count
    worst_ns: Count


Shots = Literal["one-shot", "two-shot"]
"""How a collective is done over symmetric memory."""


class TransportChoice(Struct, frozen=True):
    """What the programs of a collective plan were simulated with, in us, by protocol and instances."""

    chosen: str | None = None
    simulated_us: dict[str, Amount] = {}
    by_size: str | None = None
    """Why protocol and instances were not simulated."""
    runtime: str | None = None
    """What runs a plan that is no program of messages."""
    program_us: Amount | None = None
    """The simulated time of the plan's program, or that over symmetric memory, which is what the plan predicts."""
    symmetric: Shots | None = None
    """Set where a runtime over symmetric memory is to carry the plan, for that takes less time than its program."""
    symmetric_us: dict[str, Amount] = {}
    """What it takes, by how it is done."""


class KnownOptions(Struct, frozen=True):
    """The entries of `Provenance.options` that the tool reads; the rest is information."""

    gap: Amount | None = None
    reserve_bytes: Count = 0
    chosen: str | None = None
    candidates_ns: dict[str, Amount] = {}
    candidates_us: dict[str, Amount] = {}
    skipped: dict[str, str] = {}
    not_followed: tuple[str, ...] = ()
    transport: TransportChoice | None = None


class Provenance(Record, frozen=True, kw_only=True):
    """How it was made. A fired wall-clock limit or an interrupt is recorded: such a plan may differ between runs."""

    tool: Name
    """Name and version of the program that made it."""
    method: Name
    """Which method found it."""
    parts: tuple[Name, ...] = ()
    """All methods that took part in the search, in order."""
    options: dict[str, Any] = {}
    solver_status: Name | None = None
    search_log: tuple[Generation, ...] = ()
    """One entry per generation of a genetic search; the first is the initial population."""
    tuned: tuple[Tuned, ...] = ()
    """What was ranked by a model and then measured, and what the measurement chose."""
    limit_fired: bool = False
    interrupted: bool = False

    @property
    def known(self) -> KnownOptions:
        """The entries of `options` that the tool reads, typed. `Plan.problems` found them readable."""
        return convert(self.options, KnownOptions)


class Plan(Document, Generic[D], frozen=True, kw_only=True, tag_field="kind", tag="plan"):
    """`Plan[MemoryDecisions]` is a plan of the memory pass, `Plan` one of any pass."""

    version: Positive
    inputs: dict[str, InputRef] = {}
    decisions: D
    prediction: Prediction
    certificate: Certificate
    provenance: Provenance

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for everything out of range inside the decisions and the known options."""
        if bad := misfit(self.provenance.options, KnownOptions):
            yield bad[0].replace("$", "$.provenance.options", 1), *bad[1:]
        for place, tuned in enumerate(self.provenance.tuned):
            for path, found, expected in tuned.problems():
                yield path.replace("$", f"$.provenance.tuned[{place}]", 1), found, expected
        yield from self.decisions.problems()
