"""Size sweeps: a few algorithms with switch-over sizes in place of one plan for one size.

Every method is run at a few anchor sizes and priced as `auto` prices it there. The programs of what comes out are timed
at every size, and as few ranges as possible are chosen such that at each size the chosen program takes at most
`tolerance` longer than the best (a shortest path over sizes; among equals the least sum of ratios). Between two sizes
the switch is where the next one gets ahead. At its own anchors and their neighbours a plan is timed in all protocols
and instances that its search reaches; between two anchors only programs are followed that take at most CONTENDERS times
as long as the best at one of them. Without a pricing, and where a plan cannot be priced or the time for prices has
passed, all are compared by their schedules on links and ports instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from math import inf
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
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.planning import methods_for, plan_of, synthesize
from treadle.planner.passes.collective.pricing import Key, Pricing, Programs, in_form, label, never
from treadle.planner.passes.collective.retime import AnyAlgorithm, drafted, resized
from treadle.planner.passes.collective.rivals import fitted, rivals
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.universal import universal_bound

TOLERANCE = 0.05
MAX_SIZES = 64
ANCHORS = 6
CONTENDERS = 1.3
"""Programs slower than this, relative to the best at the same size, are not followed."""
SWITCH_STEPS = 5
"""Halvings of the interval in which a switch-over size is searched."""


@dataclass(frozen=True)
class Guide:
    """What is asked for sizes from `from_bytes` on (the request's own size is not read), and the references that plans
    record."""

    from_bytes: int
    request: Request
    inputs: dict[str, InputRef]


@dataclass
class Candidate:
    """A plan made at one of the anchors: what is timed at other sizes."""

    guide: Guide
    name: str
    draft: Draft
    decisions: CollectiveDecisions
    algorithm: AnyAlgorithm
    programs: Programs
    simulated: bool
    """Whether protocol and instances are chosen by time, not by size."""
    anchors: set[int] = field(default_factory=set)
    """Numbers of the anchors at which a method found it."""

    def time_ns(self, size_bytes: int) -> int:
        """ns of its schedule at another size."""
        return self.algorithm.time_ns(resized(self.algorithm, self.guide.request, size_bytes))

    def as_schedule(self) -> Candidate:
        """The candidate with its schedule timed, not its programs."""
        schedules = Schedules(self.decisions, self.algorithm, self.guide.request)
        return replace(self, programs=schedules, simulated=False)


@dataclass(frozen=True)
class Schedules:
    """In place of programs where they are not timed: the schedule, whatever protocol and instances."""

    decisions: CollectiveDecisions
    algorithm: AnyAlgorithm
    request: Request

    def time_us(self, key: Key, input_bytes: int) -> float:
        """us of the schedule at another size."""
        return self.algorithm.time_ns(resized(self.algorithm, self.request, input_bytes)) / 1000

    def search(self, input_bytes: int) -> dict[Key, float]:
        """The one schedule."""
        key = self.decisions.protocol, self.decisions.instances
        return {key: self.time_us(key, input_bytes)}


Row = tuple[int, Key]
"""A program: number of the candidate, protocol and instances."""


class Setting(NamedTuple):
    """Protocol and instances of a range of bytes."""

    min_bytes: int
    max_bytes: int
    protocol: Protocol
    instances: int


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
    pricing: Pricing | None = None,
    on_step: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Plan[CollectiveDecisions]], Selection]:
    """(plans by file name, the selection over `sizes`). `guides` are the same request for ascending classes of sizes,
    each with a sketch of its own; what any of them leads to is considered at every size.

    Raises what the methods raise where none finds a plan, CheckFailed should a plan be wrong.
    """
    found = _candidates(guides, sizes, method, effort, instances, protocol, pricing, on_step)
    over: Callable[[], bool] = effort.overdue
    rows, tried = _timed(found, sizes, over, on_step)
    if not rows or any(isinstance(candidate.programs, Schedules) for candidate in found):
        found, over = [candidate.as_schedule() for candidate in found], never
        rows, tried = _timed(found, sizes, over, on_step)
    runs = segments([[tried[size].get(row, inf) for size in sizes] for row in rows], tolerance)
    chosen = list(dict.fromkeys(rows[index][0] for index, _, _ in runs))
    files = {number: f"{place}-{found[number].name}.plan.json" for place, number in enumerate(chosen)}
    plans = {number: _plan(found[number], effort) for number in chosen}
    entries: list[Entry] = []
    ranges = _ranges(found, rows, runs, sizes, over)
    for (number, key), low, high in ranges:
        candidate = found[number]
        one = [Setting(low, high, *key)]
        for setting in (
            one
            if candidate.simulated or candidate.decisions.switched
            else _settings(candidate, low, high, instances, protocol)
        ):
            ends = [_ends(candidate, size) for size in (setting.min_bytes, setting.max_bytes)]
            entries.append(
                Entry(
                    min_bytes=setting.min_bytes,
                    max_bytes=setting.max_bytes,
                    plan=InputRef(file=files[number], digest=digest(plans[number])),
                    method=candidate.name,
                    protocol=setting.protocol,
                    instances=setting.instances,
                    predicted_us=(ends[0][0], ends[1][0]),
                    bound_us=(ends[0][1], ends[1][1]),
                    simulated_us=_compared(candidate, number, setting, tried),
                )
            )
    request, inputs = guides[0].request, guides[0].inputs

    def plan_us(size: int) -> float | None:
        used = [(found[number], key) for (number, key), low, high in ranges if low <= size <= high]
        simulated = not over() and used and used[0][0].simulated
        return used[0][0].programs.time_us(used[0][1], size) if simulated else None

    cuts = [*(entry.min_bytes for entry in entries), entries[-1].max_bytes + 1]
    selection = Selection(
        version=VERSION,
        collective=request.collective,
        ranks=found[0].algorithm.problem.ranks,
        nodes=request.hardware.all_nodes,
        tolerance=tolerance,
        sizes=tuple(sizes),
        inputs={role: ref for role, ref in inputs.items() if all(guide.inputs[role] == ref for guide in guides)},
        entries=tuple(entries),
        rivals_fitted=fitted(request.hardware),
        rivals=rivals(request.hardware, request.collective, cuts, plan_us),
    )
    return {files[index]: plan for index, plan in plans.items()}, selection


def anchors(sizes: Sequence[int]) -> list[int]:
    """At most ANCHORS of `sizes`, evenly spread, the first and the last among them."""
    count = min(ANCHORS, len(sizes))
    if count == 1:
        return [sizes[0]]
    return [sizes[round(k * (len(sizes) - 1) / (count - 1))] for k in range(count)]


def _candidates(
    guides: Sequence[Guide],
    sizes: Sequence[int],
    method: str,
    effort: Effort,
    instances: int | None,
    protocol: Protocol | Literal["auto"] | None,
    pricing: Pricing | None,
    on_step: Callable[[str], None],
) -> list[Candidate]:
    """What the methods find at the anchors and is near the best there, each once."""
    found: dict[tuple[object, ...], Candidate] = {}
    for number, size in enumerate(anchors(sizes)):
        on_step(f"{format_bytes(size)}: every method")
        guide = [guides[0], *(guide for guide in guides[1:] if guide.from_bytes <= size)][-1]
        asked = replace(guide.request, size_bytes=size)
        given = instances or asked.sketch.instances
        if method == "auto":
            drafts, prices, _, _ = auto.priced_candidates(methods_for(asked.collective), asked, effort, pricing)
        else:
            drafts, prices = {method: synthesize(method, asked, effort)}, {}
            if pricing is not None:
                prices[method] = auto.price_of(decisions_of(drafts[method], given, protocol), effort, pricing)
        times = {name: price.time_us for name, price in prices.items() if price.time_us is not None}
        times = times or {name: draft.makespan_ns / 1000 for name, draft in drafts.items()}
        for name in sorted(times, key=lambda name: times[name]):
            if times[name] > CONTENDERS * min(times.values()):
                break
            price = prices.get(name)
            draft = replace(drafts[name], price=price, options={"chosen": name})
            decisions = in_form(decisions_of(draft, given, protocol), price)
            symmetric = None if price is None else price.symmetric
            made = drafted(draft)
            identity = (*made.identity, decisions.ordered, decisions.fused, symmetric)
            if identity not in found:
                timed = pricing if price is not None and price.time_us is not None else None
                run = None if timed is None else timed.programs(decisions, effort.overdue, symmetric)
                programs = run or Schedules(decisions, made, asked)
                simulated = price is not None and price.simulated
                found[identity] = Candidate(guide, name, draft, decisions, made, programs, simulated)
            found[identity].anchors.add(number)
    return list(found.values())


def _timed(
    found: Sequence[Candidate], sizes: Sequence[int], over: Callable[[], bool], on_step: Callable[[str], None]
) -> tuple[list[Row], dict[int, dict[Row, float]]]:
    """(programs, their us by size as far as they were tried there); some program is tried at every size. Without
    programs when `over` before that."""
    marks = anchors(sizes)
    tried: dict[int, dict[Row, float]] = {size: {} for size in sizes}
    for place, mark in enumerate(marks):
        on_step(f"{format_bytes(mark)}: programs")
        for number, candidate in enumerate(found):
            if any(abs(place - other) <= 1 for other in candidate.anchors):
                if over():
                    return [], {}
                tried[mark] |= {(number, key): time for key, time in candidate.programs.search(mark).items()}
    for low, high in pairwise(marks):
        on_step(f"{format_bytes(low)}: programs up to {format_bytes(high)}")
        followed = sorted(_near(tried[low]) | _near(tried[high]))
        for size in (size for size in sizes if low <= size <= high):
            for number, key in followed:
                if (number, key) not in tried[size]:
                    if over():
                        return [], {}
                    tried[size][number, key] = found[number].programs.time_us(key, size)
    return sorted({row for times in tried.values() for row in times}), tried


def _near(times: Mapping[Row, float]) -> set[Row]:
    least = min(times.values())
    return {row for row, time in times.items() if time <= CONTENDERS * least}


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
    found: Sequence[Candidate],
    rows: Sequence[Row],
    runs: Sequence[tuple[int, int, int]],
    sizes: Sequence[int],
    over: Callable[[], bool],
) -> list[tuple[Row, int, int]]:
    """(program, least bytes, most bytes), with the switch-over sizes between the runs."""

    def time(index: int, size: int) -> float:
        number, key = rows[index]
        return found[number].programs.time_us(key, size)

    starts = [sizes[0]]
    for (one, _, last), (other, first, _) in pairwise(runs):
        low, high = sizes[last], sizes[first]
        for _ in range(SWITCH_STEPS):
            middle = (low + high) // 2
            if middle in (low, high) or over():
                break
            low, high = (low, middle) if time(other, middle) <= time(one, middle) else (middle, high)
        starts.append(high)
    ends = [start - 1 for start in starts[1:]] + [sizes[-1]]
    return [(rows[index], low, high) for (index, _, _), low, high in zip(runs, starts, ends, strict=True)]


def _compared(
    candidate: Candidate, number: int, setting: Setting, tried: Mapping[int, Mapping[Row, float]]
) -> dict[str, tuple[float | None, float | None]]:
    """us of the plan's programs at both ends of a range, None where one was not tried; nothing of a schedule."""
    if isinstance(candidate.programs, Schedules):
        return {}
    used = (setting.protocol, setting.instances)
    ends = (setting.min_bytes, setting.max_bytes)
    keys = {used}
    if candidate.simulated:
        keys |= {key for size in ends for other, key in tried.get(size, {}) if other == number}
    times: dict[str, tuple[float | None, float | None]] = {}
    for key in sorted(keys):
        low, high = (
            candidate.programs.time_us(key, size) if key == used else tried.get(size, {}).get((number, key))
            for size in ends
        )
        times[label(*key)] = (low, high)
    return times


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
        problem = resized(candidate.algorithm, candidate.guide.request, size)
        return fixed, instances or candidate.guide.request.sketch.instances or instances_for(problem)

    cuts = [low, *(size + 1 for size in (2**16, 2**20) if low <= size < high), high + 1]
    parts = [(first, after - 1, at(first)) for first, after in pairwise(cuts)]
    merged = [list(group) for _, group in groupby(parts, key=lambda part: part[2])]
    return [Setting(group[0][0], group[-1][1], *group[0][2]) for group in merged]


def _plan(candidate: Candidate, effort: Effort) -> Plan[CollectiveDecisions]:
    guide = candidate.guide
    return plan_of(candidate.draft, candidate.decisions, guide.request, guide.inputs, effort)


def _ends(candidate: Candidate, size: int) -> tuple[float, float]:
    """(us, bound in us) at one size."""
    asked = candidate.guide.request
    bound = universal_bound(asked.collective, asked.hardware, asked.sketch, size, asked.root, asked.demands)
    return candidate.time_ns(size) / 1000, bound.time_ns / 1000
