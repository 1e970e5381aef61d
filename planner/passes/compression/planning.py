"""From a compression problem to a checked plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Literal, Protocol

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import InputError
from treadle.planner.passes.compression.baselines import baselines, grouped_baselines
from treadle.planner.passes.compression.bound import compute, lower_bound, sentence
from treadle.planner.passes.compression.candidates import Named
from treadle.planner.passes.compression.check import check
from treadle.planner.passes.compression.decided import UNCOMPRESSED, decided, plain_groups
from treadle.planner.passes.compression.decisions import CompressionDecisions, Groups
from treadle.planner.passes.compression.espresso import espresso
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.fused import exact_groups, published
from treadle.planner.passes.compression.joint import joint, rounds
from treadle.planner.passes.compression.palette import palette
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.passes.compression.timeline_of import time_ns
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import SEARCHED, Measuring, Shortlist, cut_short, measure_in_turns
from treadle.planner.search.incumbent import Incumbent
from treadle.planner.search.top import Predicted
from treadle.planner.solver import Progress, relative_gap
from treadle.planner.version import TOOL

EVERYTHING = ("GRACE", "HiTopKComm", "all compression")
GROUPED = ("groups, ", "algorithm 5.1, ")
PUBLISHED = "espresso, published"
MODEL = "timeline of an iteration"
"""What predicts, as plans and reports call it."""


@dataclass(frozen=True)
class CompressionOptions:
    """as_published: the method of its paper without what was added here. bubble_pruning: Espresso leaves gradients that
    are sent before an idle gap of the links as they are. `time_limit_s` is a safety net; what it ends may differ
    between runs. measuring: how the best plans that were found are measured after the search, if they are."""

    method: Literal["joint", "espresso", "cupcake"] = "joint"
    as_published: bool = False
    time_limit_s: float = 60.0
    bubble_pruning: bool = True
    measuring: Measuring[CompressionDecisions] | None = None

    def __post_init__(self) -> None:
        if self.as_published and self.method == "joint":
            raise InputError("found a method without a paper, expected espresso or cupcake", where="--as-published")


DEFAULTS = CompressionOptions()


@dataclass
class _Search:
    """The plans found by name with their times, the best of them, and what the search records.

    price: ns of an iteration; that of `evaluator` pays where there are many.
    """

    problem: CompressionProblem
    evaluator: Evaluator
    price: Callable[[Groups], int]
    clock: Clock
    incumbent: Incumbent[Groups]
    on_progress: Callable[[Progress], None] | None
    bound: Bound
    found: dict[str, Groups] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    best: Groups = ()
    best_ns: int = 0
    method: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    limit_fired: bool = False
    cut: set[str] = field(default_factory=set)
    """Names of plans whose method a limit or Ctrl-C ended early."""

    def stopped(self) -> bool:
        """Whether no more work may begin; publishes what is due."""
        self.incumbent.poll()
        late = self.clock.now() > self.incumbent.search_ends
        self.limit_fired = self.limit_fired or late
        return late or self.clock.stop.is_set()

    def offer(self, groups: Groups, ns: int, name: str) -> None:
        """`groups` are the best so far if they take less time, or are fewer at the same time."""
        if self.best and (ns, len(groups)) >= (self.best_ns, len(self.best)):
            return
        self.best, self.best_ns, self.method = groups, ns, name
        self.incumbent.offer(groups)
        if self.on_progress is not None:
            least_ns = self.bound.time_ns
            self.on_progress(Progress(ns, least_ns, relative_gap(ns, least_ns), self.clock.elapsed_s, name))

    def titled(self, title: str, compressor: str | None) -> str:
        """The title of a method, with its compressor where there are several."""
        return f"{title}, {compressor}" if compressor and len(self.problem.names) > 1 else title

    def rivals(self) -> dict[str, Groups]:
        """The plans that the best is shown with: nothing and everything compressed, both papers and their repairs."""
        grouped = [name for name in self.found if name.startswith(GROUPED)]
        best = min(grouped, key=lambda name: self.times[name], default=None)
        everything = next((name for name in self.found if name.startswith(EVERYTHING)), None)
        papers = [name for name in self.found if name.startswith(PUBLISHED)]
        paper = min(papers, key=lambda name: self.times[name], default=None)
        kept = (UNCOMPRESSED, everything, paper, "espresso", best)
        return {name: self.found[name] for name in kept if name is not None and name in self.found}

    def distinct(self) -> dict[str, Groups]:
        """The plans that differ by the first of their names, the best with its own."""
        found = {self.best: self.method}
        for name, groups in self.found.items():
            found.setdefault(groups, name)
        return {name: groups for groups, name in found.items()}

    def add(self, plans: Mapping[str, Groups], *, rivals: bool = False, cut: Collection[str] = ()) -> None:
        """More plans by name; rivals are only what others are compared with, `cut` those that ended early."""
        self.cut.update(cut)
        for name, groups in plans.items():
            self.found[name] = groups
            self.times[name] = ns = self.price(groups)
            if not rivals:
                self.offer(groups, ns, name)


@dataclass
class _Turn:
    """Whether the time of one method has passed: all that is left, or its share. `fired` once it said so."""

    search: _Search
    share: Clock | None = None
    fired: bool = False

    def __call__(self) -> bool:
        late = self.share is not None and self.share.late()
        self.search.limit_fired = self.search.limit_fired or late
        self.fired = self.search.stopped() or late or self.fired
        return self.fired


def plan_compression(
    problem: CompressionProblem,
    *,
    options: CompressionOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[CompressionDecisions]], None] | None = None,
) -> Plan[CompressionDecisions]:
    """The fastest plan found for one iteration, checked. It may compress nothing.

    With `options.measuring` it is the fastest measured of those that are predicted to be best, where `clock` and Ctrl-C
    leave time for that. To `on_plan` goes the best checked plan so far, marked as interrupted. Ctrl-C and SIGTERM end
    the search with the best plan so far. Raises InputError for a problem that is not sound, or where none of its plans
    can be measured.
    """
    clock = clock or Clock.of(options.time_limit_s)
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="compression problem", path=path)
    measuring, groups, records = options.measuring, None, list[Tuned]()
    with clock.listening():
        searching = clock if measuring is None else clock.share(1 / SEARCHED)
        search, plan = _searched(problem, options, searching, inputs or {}, on_progress, on_plan)
        if measuring is not None and not clock.over():
            records = _measured(search, measuring, clock)
    for tuned in records:
        groups, search.method = search.distinct()[tuned.chosen], tuned.chosen
        search.limit_fired |= cut_short(tuned, clock)
    return plan(groups or search.best, tuple(records), interrupted=clock.stop.is_set())


def _recorded(options: CompressionOptions) -> dict[str, Any]:
    """Those that people set."""
    return {each.name: getattr(options, each.name) for each in fields(options) if each.name != "measuring"}


def _measured(search: _Search, measuring: Measuring[CompressionDecisions], clock: Clock) -> list[Tuned]:
    """The record of the plans that were found, of which the best predicted were measured."""
    plans = search.distinct()
    choices = [decided(search.problem, groups) for groups in plans.values()]
    predicted = [Predicted(name, each.time_ns) for name, each in zip(plans, choices, strict=True)]
    return measure_in_turns(MODEL, [Shortlist("exchange of gradients", predicted, choices)], measuring, clock)


class _Planned(Protocol):
    """The checked plan of some groups."""

    def __call__(
        self, groups: Groups, tuned: tuple[Tuned, ...] = (), *, interrupted: bool = True
    ) -> Plan[CompressionDecisions]: ...


def _searched(
    problem: CompressionProblem,
    options: CompressionOptions,
    clock: Clock,
    inputs: Mapping[str, InputRef],
    on_progress: Callable[[Progress], None] | None,
    on_plan: Callable[[Plan[CompressionDecisions]], None] | None,
) -> tuple[_Search, _Planned]:
    """The search when it has ended, and what makes plans of its groups."""

    def plan(groups: Groups, tuned: tuple[Tuned, ...] = (), *, interrupted: bool = True) -> Plan[CompressionDecisions]:
        decisions = decided(problem, groups, search.rivals(), search.cut)
        return certified(
            decisions,
            time_ns=decisions.time_ns,
            bound=search.bound.of_plan(decisions.time_ns),
            sentence=sentence,
            check=check,
            inputs=inputs,
            provenance=Provenance(
                tool=TOOL,
                method=search.method,
                parts=tuple(search.found),
                options={**_recorded(options), **search.record, "candidates_ns": dict(search.times)},
                tuned=tuned,
                limit_fired=search.limit_fired,
                interrupted=clock.stop.is_set() or interrupted,
            ),
        )

    publish = (lambda groups: on_plan(plan(groups))) if on_plan is not None else lambda groups: None
    incumbent = Incumbent[Groups](publish, ends=clock.ends, now=clock.now)
    evaluator = Evaluator(problem)
    price = partial(time_ns, problem) if options.method == "cupcake" else evaluator.time
    search = _Search(problem, evaluator, price, clock, incumbent, on_progress, compute(problem))
    faithful = options.as_published and bool(problem.names) and problem.compressions != 0
    search.add({UNCOMPRESSED: plain_groups(problem)}, rivals=faithful)
    if options.method != "espresso":
        _cupcake(search, options)
    search.bound = lower_bound(problem, search.stopped)
    match options.method:
        case "espresso":
            _espresso(search, options, faithful=options.as_published)
            if not options.as_published:
                _baselines(search, baselines)
        case "joint":
            _published(search, options)
            _baselines(search, grouped_baselines)
            few = palette(problem, evaluator, search.stopped)
            _quick(search, few)
            _espresso(search, options)
            _baselines(search, baselines)
            _joint(search, few)
    if options.method != "cupcake":
        search.record["evaluations"] = evaluator.evaluations
    return search, plan


def _espresso(
    search: _Search, options: CompressionOptions, *, faithful: bool = False, compressor: str | None = None
) -> None:
    """Adds the plan of Espresso, in its published form if `faithful`, with `compressor`."""
    if search.stopped() and search.best:
        return
    turn = _Turn(search, search.clock.share(2) if options.method == "joint" else None)
    result = espresso(
        search.evaluator,
        as_published=faithful,
        compressor=compressor,
        bubble_pruning=options.bubble_pruning,
        expired=turn,
    )
    name = search.titled(PUBLISHED, compressor) if faithful else "espresso"
    search.add({name: result.groups}, cut=(name,) if turn.fired else ())
    counted = asdict(result)
    search.record[name] = {key: counted[key] for key in counted if key not in ("groups", "ns")}


def _published(search: _Search, options: CompressionOptions) -> None:
    """Adds the plans of Espresso's published form with each compressor."""
    for name in search.problem.names or (None,):
        _espresso(search, options, faithful=True, compressor=name)


def _baselines(search: _Search, make: Callable[..., Mapping[str, Groups]]) -> None:
    for name in search.problem.names or (None,):
        plans = make(search.evaluator, name, expired=search.stopped)
        search.add({search.titled(title, name): groups for title, groups in plans.items() if title != "FP32"})


def _quick(search: _Search, options: Sequence[Named]) -> None:
    """Improves the best of the plans that take little time to find, before those that take longer are looked for."""
    offer = partial(search.offer, name="joint")
    groups = rounds(search.problem, search.evaluator, search.found, options, stopped=search.stopped, offer=offer)
    search.add({"joint, first": groups})


def _joint(search: _Search, options: Sequence[Named]) -> None:
    """Improves the best of all plans."""
    result = joint(
        search.problem,
        search.evaluator,
        search.found,
        options,
        stopped=search.stopped,
        offer=partial(search.offer, name="joint"),
    )
    if result.exact is not None:
        search.record["nodes"] = result.exact.nodes
        if result.exact.complete:
            search.bound = Bound(result.ns, Argument("search", facts={"nodes": result.exact.nodes}))


def _cupcake(search: _Search, options: CompressionOptions) -> None:
    """Adds the plans of Cupcake; for joint plans those of its own model too, which ignores decoding."""
    joined = options.method == "joint"
    turn = _Turn(search, search.clock.share(2) if joined else None)
    plans = (published if options.as_published else exact_groups)(search.problem, expired=turn)
    if joined:
        faithful = exact_groups(search.problem, decoding="ignore", expired=turn)
        plans |= {f"{name}, decoding ignored": each for name, each in faithful.items()}
    search.record["decoding"] = "ignore" if options.as_published else "fold"
    search.record["model_ns"] = {name: each.model_ns for name, each in plans.items()}
    searched = {name: each.searched for name, each in plans.items() if each.searched is not None}
    if searched:
        search.record["nodes"] = sum(each.nodes for each in searched.values())
        search.record["incomplete"] = [name for name, each in searched.items() if not each.complete]
    cut = [name for name, each in plans.items() if each.cut]
    search.add({name: each.groups for name, each in plans.items()}, cut=cut)
