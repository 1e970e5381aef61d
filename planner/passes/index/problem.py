"""A problem of choosing an index: a workload, what the evaluator predicts of each configuration, and what was measured.

Times are ns of all operations of the trace subset together, on one core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.scalars import Count, Document, Name, Positive, PositiveAmount, Record, many
from treadle.planner.passes.index.configurations import FragmentedLog, IndexConfiguration, name_of_leaves

VERSION = 1
Share = Annotated[float, Meta(ge=0, le=1)]
Family = Literal[
    "books", "osm", "fb", "uniform", "normal", "lognormal", "sequence", "bursts", "steps", "zipf", "exponential",
]  # fmt: skip
Finding = tuple[str, str, str]
"""(path, found, expected)"""
MOST_NS = 1 << 53
"""104 days; every whole number up to it is exact as a floating-point number, as records of measurements have them."""
MOST_DRAWN = 1 << 29
"""Keys, and operations, of a drawn workload."""
PAIR_BYTES = 16
"""A key and its payload."""


class WorkloadFiles(Record, frozen=True, kw_only=True, tag_field="from", tag="files"):
    """Bulk-loaded keys and a trace of operations, by the digest of their bytes."""

    keys: InputRef
    operations: InputRef


class DrawnWorkload(Record, frozen=True, kw_only=True, tag_field="from", tag="family"):
    """Keys of a synthetic family, and operations in a random order: inserts of keys that are not there yet, lookups of
    keys that are."""

    family: Family
    bulk: Count
    operations: Positive
    insert_share: Share
    skew: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Lookups fall on the keys as in Zipf's law with this exponent; 0 for all alike."""
    seed: Count = 0

    @property
    def inserts(self) -> int:
        """Inserts of the whole trace."""
        return round(self.operations * self.insert_share)

    def problems(self, path: str) -> Iterator[Finding]:
        """What the types alone do not exclude; `path` is where it is."""
        for name, most in (("insert_share", 1), ("skew", 2)):
            if not 0 <= getattr(self, name) <= most:
                yield f"{path}.{name}", f"{getattr(self, name)}", f"a number from 0 to {most}"
                return
        if not self.bulk and not self.inserts:
            yield f"{path}.bulk", "no key, and none is inserted", "at least one, since operations look keys up"
        for name, count in (("operations", self.operations), ("bulk", self.bulk + self.inserts)):
            if count > MOST_DRAWN:
                with_inserts = " keys with those inserted" if name == "bulk" else ""
                yield f"{path}.{name}", f"{count}{with_inserts}", f"at most {MOST_DRAWN}"


class IndexMeasurement(Record, frozen=True, kw_only=True):
    """One configuration on the real index."""

    load_ns: Count
    windows_ns: tuple[Positive, ...]
    """The trace subset in equal parts, the median run of several."""
    bytes: Positive
    """All of the index after the trace."""

    @property
    def time_ns(self) -> int:
        """The trace subset."""
        return sum(self.windows_ns)


class IndexCandidate(Record, frozen=True, kw_only=True):
    configuration: IndexConfiguration
    predicted_ns: PositiveAmount
    measured: IndexMeasurement | None = None
    failed: Name | None = None
    """Why it was tried and does not run here."""

    @property
    def name(self) -> str:
        return name_of_leaves(self.configuration)

    @property
    def tried(self) -> bool:
        return self.measured is not None or self.failed is not None


class IndexProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="index-problem"):
    """The `top` candidates that are predicted to be best, of those that run here, were measured; none where it is 0.
    The earlier of equal ones wins."""

    version: Positive
    name: Name
    workload: WorkloadFiles | DrawnWorkload
    bulk: Count
    """Keys that are loaded first."""
    lookups: Count
    inserts: Count
    deletes: Count = 0
    scans: Count = 0
    """Operations of the trace subset."""
    whole: Positive
    """Operations of the whole trace."""
    keys_at_end: Count
    """Keys that are there after the trace subset."""
    machine: Name
    """Where it was measured, or what the evaluator learned from."""
    model: Name
    """The evaluator."""
    candidates: tuple[IndexCandidate, ...]
    top: Count
    cut_short: bool = False
    """A time limit ended the measuring before all of `top` were measured."""
    loop_ns: Count = 0
    """What reading the trace subset takes without an index; 0 where it is not known."""
    max_memory_ratio: PositiveAmount | None = None
    """Most bytes of the index for each byte of its keys and payloads."""

    @property
    def operations(self) -> int:
        """Operations of the trace subset."""
        return self.lookups + self.inserts + self.deletes + self.scans

    @property
    def insert_share(self) -> float:
        """Inserts of all operations of the trace subset, which the cost model of gapped arrays expects."""
        return self.inserts / self.operations

    def problems(self) -> Iterator[Finding]:
        yield from _count_problems(self)
        if isinstance(self.workload, DrawnWorkload):
            unsound = [*self.workload.problems("$.workload")]
            yield from unsound or _drawn_problems(self, self.workload)
        wrong = [*_candidate_problems(self)]
        yield from wrong or _measured_problems(self)
        yield from _ratio_problems(self)


def _count_problems(problem: IndexProblem) -> Iterator[Finding]:
    """Numbers of operations and keys that contradict each other."""
    operations = problem.operations
    if not operations:
        yield "$.lookups", "no operation at all", "at least one operation"
    if operations > problem.whole:
        yield "$.whole", f"{problem.whole}", f"at least the {operations} operations of the subset"
    least, most = max(0, problem.bulk - problem.deletes), problem.bulk + problem.inserts
    if not least <= problem.keys_at_end <= most:
        yield "$.keys_at_end", f"{problem.keys_at_end}", f"{least} to {most}, by loaded, inserted and deleted keys"


def _drawn_problems(problem: IndexProblem, draw: DrawnWorkload) -> Iterator[Finding]:
    """Where counts are not those of a drawn workload: every insert adds a key, and nothing else happens but lookups."""
    expected = {"bulk": draw.bulk, "whole": draw.operations, "deletes": 0, "scans": 0}
    expected["keys_at_end"] = problem.bulk + problem.inserts
    for name, right in expected.items():
        if (found := getattr(problem, name)) != right:
            yield f"$.{name}", f"{found}", f"{right}, as the workload is drawn"
    for name, most in (("inserts", draw.inserts), ("lookups", draw.operations - draw.inserts)):
        if (found := getattr(problem, name)) > most:
            yield f"$.{name}", f"{found}", f"at most {most}, as the workload is drawn"


def _candidate_problems(problem: IndexProblem) -> Iterator[Finding]:
    """Candidates that are none, or that are given twice."""
    if not problem.candidates:
        yield "$.candidates", "none", "at least one"
    seen: set[str] = set()
    for place, each in enumerate(problem.candidates):
        path, name = f"$.candidates[{place}]", each.name
        if name in seen:
            yield path, f"second {name}", "configurations that occur once"
        seen.add(name)
        yield from _configuration_problems(f"{path}.configuration", each.configuration)
        if not 0 < each.predicted_ns <= MOST_NS:
            yield f"{path}.predicted_ns", f"{each.predicted_ns}", f"a number above 0, of at most {MOST_NS}"


def _configuration_problems(path: str, of: IndexConfiguration) -> Iterator[Finding]:
    if isinstance(of, FragmentedLog):
        if of.new_fragments > of.most_fragments:
            yield f"{path}.new_fragments", f"{of.new_fragments}", f"at most the {of.most_fragments} of a leaf"
    else:
        for name in ("most_search", "most_shifts"):
            if not 0 < getattr(of, name) < math.inf:
                yield f"{path}.{name}", f"{getattr(of, name)}", "a number above 0"


def _measured_problems(problem: IndexProblem) -> Iterator[Finding]:
    """Measurements of other candidates than the best predicted, and such as no run makes."""
    candidates = problem.candidates
    order = sorted(range(len(candidates)), key=lambda place: candidates[place].predicted_ns)
    tried = [place for place in order if candidates[place].tried]
    measured = [place for place in tried if candidates[place].measured is not None]
    for rank, (place, found) in enumerate(zip(order, tried, strict=False)):
        if place != found:
            text = f"one of number {order.index(found) + 1} by prediction, none of number {rank + 1}"
            yield f"$.candidates[{found}].measured", text, "none, since the best predicted are measured"
            break
    wanted = min(problem.top, len(candidates) - len(tried) + len(measured))
    if problem.cut_short and not 1 <= len(measured) < wanted:
        yield "$.cut_short", f"true with {len(measured)} of {wanted} measured", "false"
    elif not problem.cut_short and len(measured) != wanted:
        yield "$.candidates", many(len(measured), "measurement"), f"{wanted}, with `top` {problem.top}"
    elif len(measured) == problem.top and measured[-1:] != tried[-1:]:
        yield f"$.candidates[{tried[-1]}].failed", "one that was tried", f"none after {problem.top} were measured"
    if problem.loop_ns and not measured:
        yield "$.loop_ns", f"{problem.loop_ns}", "0, since nothing was measured"
    windows: int | None = None
    for place, each in enumerate(candidates):
        path, run = f"$.candidates[{place}]", each.measured
        if run is not None:
            windows = len(run.windows_ns) if windows is None else windows
            yield from _run_problems(f"{path}.measured", run, windows, problem.operations)
        if run is not None and each.failed is not None:
            yield f"{path}.failed", "a reason", "none, since it was measured"


def _run_problems(path: str, measured: IndexMeasurement, windows: int, operations: int) -> Iterator[Finding]:
    """Where one measurement has not `windows` parts of the trace subset, or cannot be summed up."""
    found = len(measured.windows_ns)
    if not 1 <= found <= operations:
        yield f"{path}.windows_ns", many(found, "window"), f"1 to {operations}, since each has an operation"
    elif found != windows:
        yield f"{path}.windows_ns", many(found, "window"), f"{windows}, as of the first measured one"
    for name, total in (("load_ns", measured.load_ns), ("windows_ns", measured.time_ns)):
        if total > MOST_NS:
            yield f"{path}.{name}", f"{total} ns", f"at most {MOST_NS}"


def _ratio_problems(problem: IndexProblem) -> Iterator[Finding]:
    ratio = problem.max_memory_ratio
    if ratio is None:
        return
    if not 0 < ratio < math.inf:
        yield "$.max_memory_ratio", f"{ratio}", "a number above 0"
    elif not problem.top:
        yield "$.max_memory_ratio", f"{ratio:g} with nothing measured", "a `top` of at least 1, which measures bytes"
    elif not problem.keys_at_end:
        yield "$.max_memory_ratio", f"{ratio:g} for no key at the end", "keys at the end"
