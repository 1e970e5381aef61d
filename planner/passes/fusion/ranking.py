"""From a program and a machine to its schedules, the fastest first: search and prices (CoCoNet, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor, inf

from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.planner.machine.collectives import DEFAULT, Tuning
from treadle.planner.machine.rates import Machine, machine_of
from treadle.planner.passes.fusion.candidates import AllowedTransforms
from treadle.planner.passes.fusion.canonical import canonical_hash
from treadle.planner.passes.fusion.counts import Counts, counts
from treadle.planner.passes.fusion.decisions import CLOSE, TransformCall
from treadle.planner.passes.fusion.enumerate import LIMIT, Derivation, Enumeration, enumerate_schedules, never
from treadle.planner.passes.fusion.layouts import FLAT, Replicated
from treadle.planner.passes.fusion.notation import notation
from treadle.planner.passes.fusion.overlaps import Chain, Chains, chains, overlap_call
from treadle.planner.passes.fusion.price import SchedulePrice, price
from treadle.planner.passes.fusion.program import Bindings, Node, Program
from treadle.planner.passes.fusion.prune import PRUNED, Prunings, idle, pointwise_first, undominated
from treadle.planner.passes.fusion.transform_calls import replay
from treadle.planner.passes.fusion.transforms.validate import outputs_in_memory, validate
from treadle.planner.search.clock import Clock
from treadle.planner.solver import Progress

NS = 1000
SEARCH, PRICES = 0.3, 0.15
"""Shares of the remaining time for the search and for prices; reasons, check and writing take as long."""
MOST_CHAINS = 16
"""Chains of one schedule of which all combinations are looked at; each further one joins the best of them."""


@dataclass(frozen=True)
class FusionProblem:
    """A program, the extents of its dimensions and its ranks, and the machine that runs it."""

    program: Program
    bindings: Bindings
    machine: Hardware | Machine


@dataclass(frozen=True)
class FusionOptions:
    """Options of the search and of prices; defaults are those of `treadle plan fusion`."""

    allowed: AllowedTransforms | None = None
    """Default: those that `useful` finds for the program."""
    prunings: Prunings = PRUNED
    overlap: bool = True
    tuning: Tuning = DEFAULT
    limit: int = LIMIT
    """Schedules that the search looks at, at most."""


DEFAULTS = FusionOptions()


@dataclass(frozen=True)
class Space:
    """The schedules of a program, whatever its sizes. `kept` are those worth pricing, with their counts and chains;
    `peers` the program as it was written, and with its computation fused."""

    program: Program
    options: FusionOptions
    enumeration: Enumeration
    kept: tuple[Derivation, ...]
    counted: tuple[Counts, ...]
    peers: tuple[Derivation, ...]
    known: dict[str, Chains] = field(default_factory=dict, compare=False)

    def chains_of(self, found: Derivation) -> Chains:
        """Chains that generated kernels overlap, computed once."""
        if not self.options.overlap:
            return Chains({}, ())
        if found.hash not in self.known:
            self.known[found.hash] = chains(found.program, generated=True)
        return self.known[found.hash]

    def among(self, *few: Derivation) -> Space:
        """These schedules alone."""
        hashes = {found.hash for found in few}
        at = [number for number, found in enumerate(self.kept) if found.hash in hashes]
        return replace(
            self,
            kept=tuple(self.kept[x] for x in at),
            counted=tuple(self.counted[x] for x in at),
            peers=tuple(found for found in self.peers if found.hash in hashes),
        )


@dataclass(frozen=True)
class Ranked:
    """A schedule with the overlaps that serve it best."""

    found: Derivation
    program: Program
    calls: tuple[TransformCall, ...]
    """From the caller's program on."""
    price: SchedulePrice
    counts: Counts

    @property
    def time_ns(self) -> int:
        return sum(nanoseconds(us) for us in self.price.groups_us)

    @cached_property
    def name(self) -> str:
        return notation(self.program)


@dataclass(frozen=True)
class Ranking:
    """`ranked` schedules, the best first: by time, then by launches, state, traffic and the order of the search."""

    space: Space
    bindings: Bindings
    machine: Machine
    ranked: tuple[Ranked, ...]
    clock: Clock = field(default_factory=Clock, compare=False)
    limit_fired: bool = False
    """Whether the clock left schedules without a look or a price."""

    @property
    def chosen(self) -> Ranked:
        return self.ranked[0]


def rank_schedules(
    problem: FusionProblem,
    options: FusionOptions = DEFAULTS,
    clock: Clock | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Ranking:
    """All schedules of a program with their prices on a machine, the best one first; parameters and errors are those
    of `treadle.planner.passes.fusion.planning.plan_fusion`."""
    program, machine, clock = problem.program, problem.machine, clock or Clock()
    machine = machine_of(machine) if isinstance(machine, Hardware) else machine
    with clock.listening():
        looking, pricing = TimeShare.of(clock, SEARCH), TimeShare.of(clock, SEARCH + PRICES)
        space = search(program, options.allowed or useful(program), options, looking)

        def on_priced(best: Ranked) -> None:
            if on_progress is not None:
                on_progress(Progress(best.time_ns, None, None, clock.elapsed_s, "schedules"))

        ranked = rank(space, problem.bindings, machine, pricing, on_priced)
    return Ranking(space, problem.bindings, machine, ranked, clock, looking.fired or pricing.fired)


@dataclass
class TimeShare:
    """A share of a clock's time; `fired` records whether the limit cut it short."""

    clock: Clock
    fired: bool = False

    @classmethod
    def of(cls, clock: Clock, share: float) -> TimeShare:
        """The first `share` of the time that is left."""
        return cls(clock.share(1 / share))

    def __call__(self) -> bool:
        """Whether the time has expired."""
        self.fired |= self.clock.late()
        return self.clock.over()


def useful(program: Program) -> AllowedTransforms:
    """Transformations that can gain time: slices of replicated values before a Send, of rows where rows are computed,
    of products that are equal on all ranks; merges where the program itself has the two halves of an AllReduce."""
    rows = any(node.op in ("MatMul", "Conv2d") or node.attribute("dim") is not None for node in _behind_sums(program))
    return AllowedTransforms(
        merge=idle(program),
        slice_intro=any(node.op == "Send" for node in program.nodes),
        slice_inputs=any(node.op == "Send" for node in program.nodes),
        cut_products=any(node.op == "MatMul" and isinstance(node.type.layout, Replicated) for node in program.nodes),
        as_slice=True,
        computation_fuse=False,
        one_sided_fuse=True,
        send_fuse=True,
        all_to_all_fuse=True,
        dims=(FLAT, 0) if rows else (FLAT,),
    )


def search(
    program: Program, allowed: AllowedTransforms, options: FusionOptions = DEFAULTS, over: Callable[[], bool] = never
) -> Space:
    """Every schedule of a program, those that no pruning leaves out counted; those found by then once `over`. Kernels
    and overlaps that the program has already stay as they are; raises InvalidTransform for one that fuse or overlap
    would not make."""
    outputs_in_memory(program)
    if program.kernels or program.overlaps:
        validate(program)
    prunings = options.prunings
    start, calls = pointwise_first(program, prunings.largest) if prunings.pointwise_first else (program, ())
    found = enumerate_schedules(
        start,
        replace(allowed, lone_slice_intro=not prunings.lone_slices),
        begin_with=calls,
        limit=options.limit,
        over=over,
    )
    busy = tuple(x for x in found.schedules if not idle(x.program))
    kept = busy if prunings.idle_splits and busy else found.schedules
    written = Derivation(program, canonical_hash(program))
    peers = tuple({each.hash: each for each in (written, found.schedules[0])}.values())
    return Space(program, options, found, kept, tuple(counts(x.program) for x in kept), peers)


def rank(
    space: Space,
    bindings: Bindings,
    machine: Machine,
    over: Callable[[], bool] = never,
    on_priced: Callable[[Ranked], None] | None = None,
) -> tuple[Ranked, ...]:
    """The schedules by price for these sizes, the best first; of those within CLOSE of the fastest, the one of
    fewest launches and overlaps. None that is slower than a peer comes first: a peer that is faster than all of them is
    ranked too. Once `over`, only those that have a price: peers and the first schedule, then those of the most
    transformations."""
    worth: Sequence[int] = range(len(space.kept))
    if space.options.prunings.dominated:
        worth = undominated([found.program for found in space.kept], space.counted, bindings)
    priced: dict[int, Ranked] = {}
    for at in (*worth[:1], *reversed(worth[1:])):
        if priced and over():
            break
        priced[at] = _overlapped(space, space.kept[at], space.counted[at], bindings, machine)
        if on_priced is not None:
            on_priced(min(priced.values(), key=lambda of: of.time_ns))
    ranked = [priced[at] for at in worth if at in priced]
    peers = [_as_it_is(space, found, counts(found.program), bindings, machine) for found in space.peers]
    for peer in peers:
        ranked += [peer] if all(peer.time_ns < of.time_ns for of in ranked) else []
    limit = min((1 + CLOSE) * min(of.time_ns for of in ranked), *(peer.time_ns for peer in peers), inf)

    def order(of: Ranked) -> tuple[float, ...]:
        state, traffic = of.counts.state.value(bindings), of.counts.traffic.value(bindings)
        close = (of.counts.launches, len(of.program.overlaps)) if of.time_ns <= limit else (inf, inf)
        return *close, of.time_ns, of.counts.launches, float(state), float(traffic)

    return tuple(sorted(ranked, key=order))


def peers_on(machine: Machine) -> Machine:
    """What the program without a search is priced on: it may have a library's products where plans may not."""
    return machine if "library" in machine.makers else machine.with_library


def nanoseconds(us: float) -> int:
    """Rounded to the nearest ns, halves up."""
    return floor(us * NS + 0.5)


def _as_it_is(space: Space, found: Derivation, counted: Counts, bindings: Bindings, machine: Machine) -> Ranked:
    """Without further overlaps."""
    return Ranked(
        found, found.program, found.calls, price(found.program, bindings, machine, space.options.tuning), counted
    )


def _overlapped(space: Space, found: Derivation, counted: Counts, bindings: Bindings, machine: Machine) -> Ranked:
    """The schedule with the overlaps that save most, of those that find multiprocessors for all their launches."""

    def priced(program: Program) -> SchedulePrice:
        return price(program, bindings, machine, space.options.tuning)

    alone = _as_it_is(space, found, counted, bindings, machine)
    gains: dict[Chain, float] = {}
    overlapped = space.chains_of(found).programs
    for chain, program in overlapped.items():
        try:
            gain = alone.price.total_us - priced(program).total_us
        except InputError:
            continue
        if gain * NS >= 1:
            gains[chain] = gain
    for chosen in _combinations(gains):
        calls = [overlap_call(chain) for chain in chosen]
        try:
            program = overlapped[chosen[0]] if len(chosen) == 1 else replay(found.program, calls)
            return Ranked(found, program, (*found.calls, *calls), priced(program), counted)
        except InputError:
            continue
    return alone


def _combinations(gains: Mapping[Chain, float]) -> list[tuple[Chain, ...]]:
    """Sets of chains without a common stage, those that save most first, then those of fewest chains."""
    ordered = sorted(gains, key=lambda chain: -gains[chain])
    sets: list[tuple[Chain, ...]] = [()]
    for number, chain in enumerate(ordered):
        apart = [held for held in sets if all(set(chain).isdisjoint(other) for other in held)]
        if number >= MOST_CHAINS:
            apart = [max(apart, key=lambda held: sum(gains[x] for x in held))]
        sets += [(*held, chain) for held in apart]
    return sorted((held for held in sets if held), key=lambda held: (-sum(gains[x] for x in held), len(held)))


def _behind_sums(program: Program) -> list[Node]:
    """Operations that depend on an AllReduce."""
    found: dict[str, Node] = {}
    for node in program.nodes:
        sources = [program.by_name[name] for name in node.reads]
        if any(isinstance(of, Node) and (of.op == "AllReduce" or of.name in found) for of in sources):
            found[node.name] = node
    return list(found.values())
