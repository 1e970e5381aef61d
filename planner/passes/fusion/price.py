"""The predicted cost of a schedule on a machine (CoCoNet, section 3.5; docs/fusion.md describes the model).

A stage in isolation takes

    compute      launch + max(bytes / memory rate, tiles of a product / multiprocessors * what a tile takes)
    collective   launch + hops + max(links inside a node, links between nodes, threadblocks, bytes / memory rate)

and stages run one after the other, except in an overlap whose kernels meet piece by piece (`pieces`): there each starts
on the first piece of the one before, so the slowest sets the pace and the others add what they take for their first or
last piece, and handing a piece to the next kernel is a hop of its own. While C channels hold C of the machine's
multiprocessors, a GEMM has the rest. A product that overlaps with nothing is a call of a library where that takes less
time than our kernel. For every kernel with a collective an inner search takes the algorithm, protocol,
channels and chunk size that cost least; kernels that overlap share one choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from treadle.planner.errors import InputError
from treadle.planner.machine.collectives import (
    DEFAULT,
    Config,
    Placement,
    Tuning,
    configs,
    fastest,
    placement,
    timing,
)
from treadle.planner.machine.rates import Machine, Maker
from treadle.planner.passes.fusion import pieces
from treadle.planner.passes.fusion.layouts import RingTile, Sliced
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.stages import Stage, groups, moves_data
from treadle.planner.passes.fusion.work import Work, work_of

DIRECT = ("Send", "AllToAll")
"""Operations that have but one algorithm."""


@dataclass(frozen=True)
class StagePrice:
    """us of one launch in isolation and its parts; links, memory and multiplications work at the same time."""

    name: str
    kind: str
    launch_us: float
    latency_us: float = 0.0
    """us of hops, one after the other."""
    node_us: float = 0.0
    """us on links inside a node."""
    network_us: float = 0.0
    """us on links between nodes."""
    memory_us: float = 0.0
    compute_us: float = 0.0
    body_us: float = 0.0
    """`total_us` without launch and latency."""
    head_us: float = 0.0
    """From its start to its first finished piece, without launch and latency."""
    tail_us: float = 0.0
    """From its last input to its end, without latency."""
    config: Config | None = None
    """What the inner search chose for a collective."""
    offset: int = 0
    """Offset of the group that it runs in."""
    overlaps: bool = False
    """Starts on what the stage before has finished."""
    own_us: float | None = None
    """us of our own kernel in place of a library call."""

    @property
    def total_us(self) -> float:
        return self.launch_us + self.latency_us + self.body_us


@dataclass(frozen=True)
class SchedulePrice:
    """`total_us` is the sum of `groups_us`: of stages alone, and of those that overlap together."""

    total_us: float
    stages: tuple[StagePrice, ...]
    groups_us: tuple[float, ...]


def price(program: Program, bindings: Bindings, machine: Machine, tuning: Tuning = DEFAULT) -> SchedulePrice:
    """The predicted time of one run of the program as it is scheduled.

    Raises InputError when the machine has too few ranks or no links for it, or a dimension has no extent.
    """
    place = placement(machine, bindings.ranks, bindings.groups)
    priced: list[StagePrice] = []
    totals = []
    for together in _launched(program):
        works = tuple(work_of(program, stage, bindings) for stage in together)
        total, parts = _together(works, place, machine, tuning, supported(program, together, tuning))
        for at, (stage, part) in enumerate(zip(together, parts, strict=True)):
            priced.append(replace(part, name=stage.name, kind=stage.kind, overlaps=at > 0))
        totals.append(total)
    return SchedulePrice(sum(totals), tuple(priced), tuple(totals))


@lru_cache(maxsize=4096)
def _launched(program: Program) -> tuple[tuple[Stage, ...], ...]:
    """Stages that run at the same time. Remembered, since a schedule is priced for many sizes."""
    return tuple(launched for group in groups(program) for launched in pieces.together(program, group))


@lru_cache(maxsize=65536)
def _together(
    works: tuple[Work, ...], place: Placement, machine: Machine, tuning: Tuning, able: Tuning
) -> tuple[float, tuple[StagePrice, ...]]:
    """The best choice for launches that overlap, or for a single one, among those that kernels are `able` to run."""
    moved = [movement for work in works for movement in work.movements]
    if not moved:
        if len(works) == 1:
            part = _product(works[0], place, machine, tuning)
            return part.total_us, (part,)
        parts = _parts(works, place, machine, tuning, None)
        assert parts is not None
        return overlapped(parts), parts
    if all(movement.op in DIRECT for movement in moved):
        able = replace(able, algorithms=("all-pairs",))
    best: tuple[float, tuple[StagePrice, ...]] | None = None
    ops = tuple(dict.fromkeys(movement.op for movement in moved))
    for config in configs(machine, able, place, ops, len(works) == 1):
        parts = _parts(works, place, machine, tuning, config)
        if parts is not None:
            total = overlapped(parts) + (len(parts) - 1) * machine.handover_us(config.protocol)
            if best is None or total < best[0]:
                best = total, parts
    if best is None:
        message = f"found nothing that runs {', '.join(ops)} on {place.ranks} ranks of {machine.name}"
        raise InputError(f"{message}, expected links, a fitting algorithm and multiprocessors for all that overlaps")
    return best


def _product(work: Work, place: Placement, machine: Machine, tuning: Tuning) -> StagePrice:
    """A single launch that moves nothing; for a product, our kernel or a library call, whichever takes less."""
    makers = machine.makers if work.products else machine.makers[:1]
    priced = {maker: _compute(work, place, machine, tuning, machine.multiprocessors, maker) for maker in makers}
    best = min(makers, key=lambda maker: priced[maker].total_us)
    own = priced["own"].total_us if best == "library" and "own" in priced else None
    return replace(priced[best], own_us=own)


def _parts(
    works: Sequence[Work], place: Placement, machine: Machine, tuning: Tuning, config: Config | None
) -> tuple[StagePrice, ...] | None:
    """Every launch with this choice; None where a collective cannot run so, or would leave a GEMM nothing to run on."""
    held = sum(config.channels for work in works if work.movements) if config else 0
    free = machine.multiprocessors - held
    if free < any(not work.movements for work in works):
        return None
    pieces, parts, maker = place.ranks, [], machine.makers[0]
    for work in works:
        if work.movements:
            assert config is not None
            made = _collective(work, place, machine, tuning, config)
            if made is None:
                return None
            part, rounds = made
            pieces = max(pieces, place.ranks * rounds)
            parts.append(part)
        else:
            parts.append(_compute(work, place, machine, tuning, free, maker))
    return tuple(
        part if work.movements else _cut(part, min([pieces, *(machine.tiles(each, maker) for each in work.products)]))
        for part, work in zip(parts, works, strict=True)
    )


def _compute(work: Work, place: Placement, machine: Machine, tuning: Tuning, free: int, maker: Maker) -> StagePrice:
    memory = work.memory / min(machine.memory_rate, free * machine.channel_memory_rate)
    compute = sum(machine.product_us(product, free, maker) for product in work.products)
    small = [fastest(movement, place, machine, tuning) for movement in work.small]
    return StagePrice(
        "",
        "",
        launch_us=machine.launch_us + sum(launch for launch, _ in small),
        latency_us=sum(timed.total for _, timed in small),
        memory_us=memory,
        compute_us=compute,
        body_us=max(memory, compute),
        offset=work.offset,
    )


def _collective(
    work: Work, place: Placement, machine: Machine, tuning: Tuning, config: Config
) -> tuple[StagePrice, int] | None:
    """The launch and the number of rounds that its message goes in.

    Scalars that it sums over the ranks between two phases go by whatever is best for them, without another launch.
    """
    slower = 1 + machine.register_pressure * work.computes
    timed = [timing(movement, place, machine, config, slower) for movement in work.movements]
    times = [one for one in timed if one is not None]
    if len(times) < len(timed):
        return None
    sent = sum(one.body for one in times)
    memory = work.memory / min(machine.memory_rate, config.channels * machine.channel_memory_rate / slower)
    small = sum(fastest(movement, place, machine, tuning)[1].total for movement in work.small)
    latency, body, rounds = sum(one.latency for one in times) + small, max(sent, memory), times[0].rounds
    gathered = times[-1].body / max(sent, 1e-12)
    ops = tuple(movement.op for movement in work.movements)
    share = {"AllReduce": 0.5, "ReduceScatter": 1 / place.ranks}.get(ops[0], 1.0) if len(ops) == 1 else gathered
    first = {"AllReduce": 0.5, "AllGather": 1 / place.ranks}.get(ops[0], 1.0) if len(ops) == 1 else 1 - gathered
    part = StagePrice(
        "",
        "",
        launch_us=machine.collective_launch_us + machine.base_us(config.protocol),
        latency_us=latency,
        node_us=sum(one.node for one in times),
        network_us=sum(one.network for one in times),
        memory_us=memory,
        body_us=body,
        head_us=body * first / rounds,
        tail_us=body * share / rounds,
        config=config,
        offset=work.offset,
    )
    return part, rounds


def _cut(part: StagePrice, pieces: int) -> StagePrice:
    return replace(part, head_us=part.body_us / pieces, tail_us=part.body_us / pieces)


RESOURCES: tuple[Callable[[StagePrice], float], ...] = (
    lambda part: part.node_us,
    lambda part: part.network_us,
    lambda part: part.memory_us,
    lambda part: part.compute_us,
)


def overlapped(parts: Sequence[StagePrice]) -> float:
    """us of launches that overlap: all their hops, and the slowest of them or of the resources that they share.

    Before that one come the first pieces of the launches before it, after it the last pieces of those behind it.
    """
    heads, tails = [part.head_us for part in parts], [part.tail_us for part in parts]
    paces = [part.launch_us + sum(heads[:at]) + part.body_us + sum(tails[at + 1 :]) for at, part in enumerate(parts)]
    launch = max(part.launch_us for part in parts)
    for offset in {part.offset for part in parts} if len(parts) > 1 else ():
        for need in RESOURCES:
            users = [at for at, part in enumerate(parts) if part.offset == offset and need(part)]
            if len(users) > 1:
                busy = sum(need(parts[at]) for at in users)
                paces.append(launch + sum(heads[: users[0]]) + busy + sum(tails[users[-1] + 1 :]))
    return sum(part.latency_us for part in parts) + max(paces)


def supported(program: Program, stages: Sequence[Stage], tuning: Tuning) -> Tuning:
    """`tuning` without algorithms for which these stages, which share a choice, have no kernel (CoCoNet, section 5.3).

    Slices that are tiles of a ring need that ring and its channels. A tree finishes chunks at its roots and not at
    their owners, so what is computed there has no operands in slices.
    """
    moving = [stage for stage in stages if any(moves_data(node) for node in stage.nodes)]
    for stage in moving:
        for layout in _layouts(program, stage, computed=False):
            if isinstance(layout.map, RingTile):
                rings = tuple(each for each in tuning.algorithms if each == "ring")
                return replace(tuning, algorithms=rings, channels=(layout.map.channels,))
    if any(_layouts(program, stage, computed=True) for stage in moving):
        return replace(tuning, algorithms=tuple(each for each in tuning.algorithms if each != "tree"))
    return tuning


def _layouts(program: Program, stage: Stage, *, computed: bool) -> list[Sliced]:
    """Layouts of the slices in a stage, or only of those that its computation reads or makes."""
    nodes = [node for node in stage.nodes if not (computed and moves_data(node))]
    types = [of.type for node in nodes for of in (node, *(program.by_name[name] for name in node.reads))]
    return [of.layout for of in types if isinstance(of.layout, Sliced)]
