"""Size sweeps: a few algorithms with switch-over sizes in place of one plan for one size.

Every method is run at a few anchor sizes. Each algorithm found is timed again at every size, and as few ranges as
possible are chosen such that at each size the chosen one takes at most `tolerance` longer than the best (a shortest
path over sizes; among equals the least sum of ratios). Between two sizes the switch is where the next one gets ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

from treadle.planner.documents.collective import Protocol
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.quantities import Spread, parse_bytes, parse_values
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.selection import VERSION, Entry, Selection
from treadle.planner.documents.store import digest
from treadle.planner.passes.collective import auto
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.decisions import decisions_of, instances_for, protocol_for
from treadle.planner.passes.collective.draft import Request
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.planning import METHODS, plan_of, synthesize
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.retime import Algorithm, algorithm_of, resized
from treadle.planner.passes.collective.universal import universal_bound

TOLERANCE = 0.05
MAX_SIZES = 64
ANCHORS = 6
CONTENDERS = 2.0
"""Algorithms slower than this at their own anchor, relative to the best there, are not followed."""
SWITCH_STEPS = 5
"""Halvings of the interval in which a switch-over size is searched."""


@dataclass(frozen=True)
class Guide:
    """What is asked for sizes from `from_bytes` on (the request's own size is not read), and the references that plans
    record."""

    from_bytes: int
    request: Request
    inputs: dict[str, InputRef]


@dataclass(frozen=True)
class Candidate:
    """An algorithm, what made it, and its ns at every size."""

    guide: Guide
    name: str
    method: str
    status: str
    algorithm: Algorithm
    times: tuple[int, ...]

    def at(self, size_bytes: int) -> Problem:
        return resized(self.algorithm, self.guide.request, size_bytes)

    def time_ns(self, size_bytes: int) -> int:
        return self.algorithm.time_ns(self.at(size_bytes))


class Setting(NamedTuple):
    """Protocol and instances of a range of bytes; `simulated_us` as in Entry."""

    min_bytes: int
    max_bytes: int
    protocol: Protocol
    instances: int
    simulated_us: dict[str, tuple[float | None, float | None]]


Settings = Callable[[CollectiveDecisions, int, int], list[Setting]]
"""Protocol and instances of a plan from one size to another; nothing where the rules by size shall hold."""


def parse_sizes(text: str, where: str = "--sizes") -> tuple[int, ...]:
    """Bytes of `1KiB..1GiB` (times two from the first to the last) or of a list such as `4K,1M,64M`, ascending.

    Raises InputError for anything else.
    """
    return parse_values(text, partial(parse_bytes, least=1, where=where), Spread.by_factor(2, MAX_SIZES), where=where)


def sweep(
    guides: Sequence[Guide],
    sizes: Sequence[int],
    effort: Effort,
    *,
    method: str = "auto",
    instances: int | None = None,
    protocol: Protocol | Literal["auto"] | None = None,
    tolerance: float = TOLERANCE,
    settings: Settings = lambda decisions, low, high: [],
    on_step: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Plan[CollectiveDecisions]], Selection]:
    """(plans by file name, the selection over `sizes`). `guides` are the same request for ascending classes of sizes,
    each with a sketch of its own; what any of them leads to is considered at every size.

    Raises what the methods raise where none finds a plan, CheckFailed should a plan be wrong.
    """
    found = _candidates(guides, sizes, method, effort, on_step)
    runs = segments([candidate.times for candidate in found], tolerance)
    chosen = sorted({index for index, _, _ in runs}, key=lambda c: next(a for i, a, _ in runs if i == c))
    files = {index: f"{number}-{found[index].name}.plan.json" for number, index in enumerate(chosen)}
    plans: dict[int, Plan[CollectiveDecisions]] = {}
    for index in chosen:
        spans = [(first, last) for i, first, last in runs if i == index]
        first, last = max(spans, key=lambda span: span[1] - span[0])
        at = _plan_at(found[index], sizes[(first + last) // 2], effort, instances, protocol)
        plans[index] = at
    ranges = _ranges(found, runs, sizes)
    entries: list[Entry] = []
    for index, low, high in ranges:
        candidate = found[index]
        reference = InputRef(file=files[index], digest=digest(plans[index]))
        on_step(f"{format_bytes(low)}: protocol and instances")
        decisions = plans[index].decisions
        used = settings(decisions, low, high) or _settings(candidate, low, high, instances, protocol)
        for setting in used:
            ends = [_ends(candidate, size) for size in (setting.min_bytes, setting.max_bytes)]
            entries.append(
                Entry(
                    min_bytes=setting.min_bytes,
                    max_bytes=setting.max_bytes,
                    plan=reference,
                    method=candidate.name,
                    protocol=setting.protocol,
                    instances=setting.instances,
                    predicted_us=(ends[0][0], ends[1][0]),
                    bound_us=(ends[0][1], ends[1][1]),
                    simulated_us=setting.simulated_us,
                )
            )
    request, inputs = guides[0].request, guides[0].inputs
    selection = Selection(
        version=VERSION,
        collective=request.collective,
        ranks=found[0].algorithm.problem.ranks,
        nodes=request.hardware.all_nodes,
        tolerance=tolerance,
        sizes=tuple(sizes),
        inputs={role: ref for role, ref in inputs.items() if all(guide.inputs[role] == ref for guide in guides)},
        entries=tuple(entries),
    )
    return {files[index]: plan for index, plan in plans.items()}, selection


def anchors(sizes: Sequence[int]) -> list[int]:
    """At most ANCHORS of `sizes`, evenly spread, the first and the last among them."""
    count = min(ANCHORS, len(sizes))
    if count == 1:
        return [sizes[0]]
    return [sizes[round(k * (len(sizes) - 1) / (count - 1))] for k in range(count)]


def _candidates(
    guides: Sequence[Guide], sizes: Sequence[int], method: str, effort: Effort, on_step: Callable[[str], None]
) -> list[Candidate]:
    algorithms: dict[tuple[object, ...], tuple[Guide, str, str, str, Algorithm]] = {}
    for size in anchors(sizes):
        on_step(f"{format_bytes(size)}: every method")
        guide = [guides[0], *(guide for guide in guides[1:] if guide.from_bytes <= size)][-1]
        asked = replace(guide.request, size_bytes=size)
        if method == "auto":
            drafts, _, _ = auto.candidates(METHODS, asked, effort, early=True)
        else:
            drafts = {method: synthesize(method, asked, effort)}
        best = min(draft.makespan_ns for draft in drafts.values())
        for name, draft in drafts.items():
            if draft.makespan_ns <= CONTENDERS * best:
                made = algorithm_of(draft.problem, draft.transfers)
                algorithms.setdefault(made.identity, (guide, name, draft.method, draft.status, made))
    found = []
    for guide, name, words, status, algorithm in algorithms.values():
        on_step(f"{words}: every size")
        times = tuple(algorithm.time_ns(resized(algorithm, guide.request, size)) for size in sizes)
        found.append(Candidate(guide, name, words, status, algorithm, times))
    return found


def segments(times: Sequence[Sequence[float]], tolerance: float) -> list[tuple[int, int, int]]:
    """(candidate, first, last size) of as few runs as keep every size within `tolerance` of its best."""
    sizes = len(times[0])
    best = [min(row[i] for row in times) for i in range(sizes)]
    ratio = [[row[i] / best[i] if best[i] else 1.0 for i in range(sizes)] for row in times]
    reach: list[tuple[int, float, list[tuple[int, int, int]]]] = [(0, 0.0, [])]
    for end in range(1, sizes + 1):
        options = []
        for candidate, row in enumerate(ratio):
            cost = 0.0
            for start in range(end - 1, -1, -1):
                if row[start] > 1 + tolerance:
                    break
                cost += row[start]
                runs, before, path = reach[start]
                options.append((runs + 1, round(before + cost, 9), [*path, (candidate, start, end - 1)]))
        reach.append(min(options))
    return reach[-1][2]


def _ranges(
    found: Sequence[Candidate], segments: Sequence[tuple[int, int, int]], sizes: Sequence[int]
) -> list[tuple[int, int, int]]:
    """(candidate, least bytes, most bytes), with the switch-over sizes between the segments."""

    def ahead(one: int, other: int, size: int) -> bool:
        return found[other].time_ns(size) <= found[one].time_ns(size)

    starts = [sizes[0]]
    for (one, _, last), (other, first, _) in pairwise(segments):
        low, high = sizes[last], sizes[first]
        for _ in range(SWITCH_STEPS):
            middle = (low + high) // 2
            if middle in (low, high):
                break
            low, high = (low, middle) if ahead(one, other, middle) else (middle, high)
        starts.append(high)
    ends = [start - 1 for start in starts[1:]] + [sizes[-1]]
    return [(index, low, high) for (index, _, _), low, high in zip(segments, starts, ends, strict=True)]


def _settings(
    candidate: Candidate,
    low: int,
    high: int,
    instances: int | None,
    protocol: Protocol | Literal["auto"] | None,
) -> list[Setting]:
    """Protocol and instances within a range, by the rules of one plan for one size."""

    kinds = {link.kind for link in candidate.algorithm.problem.links.values()}

    def at(size: int) -> tuple[Protocol, int]:
        fixed: Protocol = protocol_for(size, kinds) if protocol is None or protocol == "auto" else protocol
        return fixed, instances or candidate.guide.request.sketch.instances or instances_for(candidate.at(size))

    cuts = [low, *(size + 1 for size in (2**16, 2**20) if low <= size < high), high + 1]
    parts = [(first, after - 1, at(first)) for first, after in pairwise(cuts)]
    merged = [list(group) for _, group in groupby(parts, key=lambda part: part[2])]
    return [Setting(group[0][0], group[-1][1], *group[0][2], {}) for group in merged]


def _plan_at(
    candidate: Candidate,
    size: int,
    effort: Effort,
    instances: int | None,
    protocol: Protocol | Literal["auto"] | None,
) -> Plan[CollectiveDecisions]:
    guide = candidate.guide
    draft = candidate.algorithm.draft(candidate.at(size), candidate.method, candidate.status)
    draft = replace(draft, options={"chosen": candidate.name})
    decisions = decisions_of(draft, instances or guide.request.sketch.instances, protocol)
    return plan_of(draft, decisions, guide.request, guide.inputs, effort)


def _ends(candidate: Candidate, size: int) -> tuple[float, float]:
    """(us, bound in us) at one size."""
    asked = candidate.guide.request
    bound = universal_bound(asked.collective, asked.hardware, asked.sketch, size, asked.root, asked.demands)
    return candidate.time_ns(size) / 1000, bound.time_ns / 1000
