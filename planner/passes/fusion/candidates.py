"""The transformations that apply to a program: the edges of the search (CoCoNet, section 5).

Every candidate is applied, so that an edge is a validated transformation and a refused one states why. Transformations
are joined where the first one alone gains nothing: slice_intro with a reorder, as_slice with dead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.layouts import FLAT, Replicated, Sliced
from treadle.planner.passes.fusion.program import Policy, Program, TensorType
from treadle.planner.passes.fusion.refusal import InvalidTransform
from treadle.planner.passes.fusion.stages import Stage, behind, stages
from treadle.planner.passes.fusion.transform_calls import apply
from treadle.planner.passes.fusion.transforms.editing import Rewrite

COMPUTE = ("pointwise", "rows", "reduction", "permute")
"""Kinds of stages that go into kernels of several."""
MOVABLE = (*COMPUTE, "matmul", "convolution", "send", "fused send")
"""Kinds of stages that may run before a gather instead of after it."""
MOST_REGIONS = 256
"""Sets of stages that are tried behind or before one collective, and the set of all."""


@dataclass(frozen=True)
class AllowedTransforms:
    """What the search may do. `dims` are those that splits and slices divide along."""

    split: bool = True
    split_reduce_broadcast: bool = False
    merge: bool = False
    reorder: bool = True
    slice_intro: bool = False
    slice_inputs: bool = False
    """Inputs too, and not sums alone, may be gathered from slices."""
    cut_products: bool = False
    """Products of Replicated operands may be cut by rows, each rank making a part, which is gathered behind what
    computes on it."""
    lone_slice_intro: bool = False
    """Keep a slice_intro that no reorder follows."""
    as_slice: bool = False
    computation_fuse: bool = False
    all_reduce_fuse: bool = True
    one_sided_fuse: bool = False
    """Computation in the kernel of a ReduceScatter or Reduce before it, or of an AllGather or Broadcast behind it."""
    send_fuse: bool = False
    all_to_all_fuse: bool = False
    dims: tuple[int, ...] = (FLAT,)


@dataclass(frozen=True)
class Reached:
    """A program that `calls`, one after the other, lead to."""

    calls: tuple[TransformCall, ...]
    rewrite: Rewrite


@dataclass(frozen=True)
class Refused:
    """The last of `calls` does not apply after the others."""

    calls: tuple[TransformCall, ...]
    error: InvalidTransform


@dataclass(frozen=True)
class LeftOut:
    """More sets of stages go with the collective `end` than the MOST_REGIONS that are tried."""

    end: str


Outcome = Reached | Refused | LeftOut


def outcomes(program: Program, allowed: AllowedTransforms, *, first: bool = True) -> Iterator[Outcome]:
    """What becomes of every candidate, in a fixed order. Products are cut in the `first` program of a search alone."""
    flow = StageGraph.of(program)
    if allowed.cut_products and first:
        yield from _cuts(flow)
    if allowed.split or allowed.split_reduce_broadcast:
        yield from _splits(flow, allowed)
    if allowed.merge:
        yield from _merges(flow)
    if allowed.reorder:
        for gather in flow.unfused("allgather", "broadcast", "alltoall"):
            yield from _reorders(flow, gather, allowed)
    if allowed.slice_intro:
        yield from _slice_intros(flow, allowed)
    if allowed.as_slice:
        yield from _sliced_states(program)
    yield from _fusions(flow, allowed)


@dataclass(frozen=True)
class StageGraph:
    """The stages of a program and what they read from each other."""

    program: Program
    stages: Mapping[str, Stage]
    readers: Mapping[str, frozenset[str]]
    sources: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, program: Program) -> StageGraph:
        found = {stage.name: stage for stage in stages(program)}
        home = {node.name: stage.name for stage in found.values() for node in stage.nodes}
        sources = {
            name: frozenset(
                home[source]
                for node in stage.nodes
                for source in (behind(program, read) for read in node.reads)
                if home.get(source, name) != name
            )
            for name, stage in found.items()
        }
        readers = {name: frozenset(other for other in found if name in sources[other]) for name in found}
        return cls(program, found, readers, sources)

    def unfused(self, *kinds: str) -> list[str]:
        """Single operations of these kinds."""
        return [name for name, stage in self.stages.items() if stage.kind in kinds and stage.kernel is None]

    def after(self, start: str, kinds: Iterable[str]) -> list[str]:
        """Stages of these kinds that depend on `start` through such stages only, in order."""
        return self._beyond(start, kinds, self.readers)

    def before(self, end: str, kinds: Iterable[str]) -> list[str]:
        """Stages of these kinds that `end` depends on through such stages only, in order."""
        return self._beyond(end, kinds, self.sources)

    def _beyond(self, start: str, kinds: Iterable[str], graph: Mapping[str, frozenset[str]]) -> list[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            near = {name for name in graph[waiting.pop()] if self.stages[name].kind in kinds} - found
            found |= near
            waiting += sorted(near)
        return [name for name in self.stages if name in found]


def _splits(flow: StageGraph, allowed: AllowedTransforms) -> Iterator[Outcome]:
    """Splits of AllReduces that are not read in slices: Slice(AG(t)) is t, so those need a reorder as well."""
    for name in flow.unfused("allreduce"):
        if any(reader.op in ("Slice", "Load") for reader in flow.program.readers[name]):
            continue
        if allowed.split:
            for dim in _dims(flow.program, name, allowed):
                yield _tried(flow.program, "split", ar=name, policy="ARSplitRSAG", dim=dim)
        if allowed.split_reduce_broadcast:
            yield _tried(flow.program, "split", ar=name, policy="ARSplitReduceBcast", root=0)


def _merges(flow: StageGraph) -> Iterator[Outcome]:
    for first in flow.unfused("reducescatter", "reduce"):
        for second in flow.unfused("allgather", "broadcast"):
            if first in flow.sources[second]:
                yield _tried(flow.program, "merge", first=first, second=second)


def _reorders(
    flow: StageGraph, gather: str, allowed: AllowedTransforms, before: Reached | None = None
) -> Iterator[Outcome]:
    """Every set of stages behind `gather` that holds all of its members' sources behind `gather`; no products where
    these are cut.

    Sets grow from valid ones: what is refused for a stage stays refused with more of them.
    """

    def moved(region: list[str]) -> Outcome:
        return _tried(flow.program, "reorder", before, gather=gather, region=region)

    kinds = [kind for kind in MOVABLE if not (allowed.cut_products and kind == "matmul")]
    yield from _ideals(gather, flow.after(gather, kinds), flow.sources, moved, past_refusals=False)


def _slice_intros(flow: StageGraph, allowed: AllowedTransforms) -> Iterator[Outcome]:
    """Replicated values gathered from their slices, so that computation may move before the gather."""
    inputs = [value.name for value in flow.program.inputs if allowed.slice_inputs and _whole(value.type)]
    for name in (*flow.unfused("allreduce"), *inputs):
        if all(reader.op == "Slice" for reader in flow.program.readers[name]):
            continue
        for dim in _dims(flow.program, name, allowed):
            outcome = _tried(flow.program, "slice_intro", x=name, dim=dim)
            if isinstance(outcome, Refused):
                yield outcome
                continue
            if allowed.lone_slice_intro:
                yield outcome
            made = StageGraph.of(outcome.rewrite.program)
            for gather in made.unfused("allgather"):
                if gather in outcome.rewrite.made:
                    yield from _reorders(made, gather, allowed, outcome)


def _cuts(flow: StageGraph) -> Iterator[Outcome]:
    """Products of Replicated operands cut by rows: those of the same shapes together, and all of them."""
    classes: dict[object, list[str]] = {}
    for name in flow.unfused("matmul"):
        product = flow.stages[name].nodes[0]
        types = [flow.program.type_of(operand) for operand in product.inputs]
        if all(of is not None and _whole(of) for of in types):
            classes.setdefault(tuple(of.shape for of in types if of is not None), []).append(name)
    together = [
        *classes.values(),
        *([[name for names in classes.values() for name in names]] if len(classes) > 1 else []),
    ]
    for names in together:
        reached: Reached | None = None
        for name in (name for name in flow.stages if name in names):
            outcome = _cut(reached.rewrite.program if reached else flow.program, name, reached)
            if isinstance(outcome, Reached):
                reached = outcome
            else:
                yield outcome
        if reached is not None:
            yield reached


def _cut(program: Program, name: str, before: Reached | None) -> Reached | Refused:
    """One product by rows, with what computes on it and updates nothing, in one kernel with its gather if it can be."""
    flow = StageGraph.of(program)
    region, behind_it = {name}, {name}
    for each, stage in flow.stages.items():
        if sources := flow.sources[each] & behind_it:
            behind_it.add(each)
            if sources <= region and stage.kind in COMPUTE and not _updates(stage):
                region.add(each)
    left, right = map(str, flow.stages[name].nodes[0].inputs)
    ordered = [each for each in flow.stages if each in region]
    outcome: Reached | Refused | None = None
    if left != right and left in flow.unfused("allgather") and _of_rows(program, left):
        outcome = _tried(program, "reorder", before, gather=left, region=ordered)
    if not isinstance(outcome, Reached):
        start = _tried(program, "slice_intro", before, x=left, dim=0, readers=[name])
        if isinstance(start, Refused):
            return start
        gather = start.rewrite.made[-1]
        outcome = _tried(program, "reorder", start, gather=gather, region=ordered)
        if isinstance(outcome, Refused):
            outcome = _tried(program, "reorder", start, gather=gather, region=[name])
    if isinstance(outcome, Refused):
        return outcome
    flow, computed = StageGraph.of(outcome.rewrite.program), set(outcome.rewrite.made)
    for whole in (each for each in flow.unfused("allgather") if each in outcome.rewrite.gathers.values()):
        near = computed.intersection(flow.before(whole, COMPUTE))
        members = [each for each in flow.stages if each in near or each == whole]
        fused = _tried(program, "fuse", outcome, members=members, policy="AllGatherFuse") if near else outcome
        outcome = fused if isinstance(fused, Reached) else outcome
    return outcome


def _of_rows(program: Program, gather: str) -> bool:
    """Whether it gathers slices of the first dimension."""
    (node,) = (node for node in program.nodes if node.name == gather)
    layout = program.by_name[str(node.inputs[0])].type.layout
    return isinstance(layout, Sliced) and layout.dim == 0


def _updates(stage: Stage) -> bool:
    return any(node.op == "Update" for node in stage.nodes)


def _whole(of: TensorType) -> bool:
    return isinstance(of.layout, Replicated) and len(of.shape) > 0


def _sliced_states(program: Program) -> Iterator[Outcome]:
    """Inputs that the program updates as slices, without the gathers that no other op needs."""
    for target, update in program.updates.items():
        if not isinstance(program.by_name[target].type.layout, Replicated):
            continue
        gathers = [reader.name for reader in program.readers[update.name] if reader.op == "AllGather"]
        if any(gather in kernel.members for kernel in program.kernels for gather in gathers):
            continue
        outcome = _tried(program, "as_slice", t=target)
        for gather in gathers:
            if isinstance(outcome, Reached):
                outcome = _tried(program, "dead", outcome, ag=gather)
        yield outcome


def _fusions(flow: StageGraph, allowed: AllowedTransforms) -> Iterator[Outcome]:
    if allowed.computation_fuse:
        for region in _connected(flow):
            yield _fused(flow, "ComputationFuse", region)
    if allowed.all_reduce_fuse:
        for scatter in flow.unfused("reducescatter"):
            between = flow.after(scatter, COMPUTE)
            for gather in flow.unfused("allgather"):
                if between and flow.sources[gather] & set(between):
                    yield _fused(flow, "AllReduceFuse", {scatter, *between, gather})
    one_sided: list[tuple[Policy, str, bool]] = []
    if allowed.one_sided_fuse:
        one_sided += [("ReduceScatterFuse", "reducescatter", True), ("AllGatherFuse", "allgather", False)]
        one_sided += [("ReduceFuse", "reduce", True), ("BroadcastFuse", "broadcast", False)]
    if allowed.send_fuse:
        one_sided.append(("SendFuse", "send", False))
    if allowed.all_to_all_fuse:
        one_sided.append(("AllToAllFuse", "alltoall", False))
    for policy, kind, forward in one_sided:
        for end in flow.unfused(kind):
            yield from _fusions_with(flow, policy, end, forward)


def _fusions_with(flow: StageGraph, policy: Policy, end: str, forward: bool) -> Iterator[Outcome]:
    """Kernels of the collective `end` and computation behind it (`forward`) or before it."""
    near = flow.after(end, COMPUTE) if forward else flow.before(end, COMPUTE)
    needs = flow.sources if forward else flow.readers
    return _ideals(end, near, needs, lambda held: _fused(flow, policy, {end, *held}), past_refusals=True)


def _fused(flow: StageGraph, policy: Policy, members: Collection[str]) -> Outcome:
    return _tried(flow.program, "fuse", members=[name for name in flow.stages if name in members], policy=policy)


def _ideals(
    end: str,
    names: list[str],
    needs: Mapping[str, frozenset[str]],
    tried: Callable[[list[str]], Outcome],
    *,
    past_refusals: bool,
) -> Iterator[Outcome]:
    """What becomes of sets of `names` that hold all their members need of them, smallest first.

    Sets grow from those that are reached, with `past_refusals` from all. Where there are more than MOST_REGIONS, the
    rest are left out but for the set of all.
    """
    waiting: list[frozenset[str]] = [frozenset()]
    seen = {frozenset[str]()}
    while waiting:
        held = waiting.pop(0)
        for name in names:
            grown = held | {name}
            if name in held or grown in seen or not needs[name] & set(names) <= held:
                continue
            if len(seen) > MOST_REGIONS and len(grown) < len(names):
                yield LeftOut(end)
                if frozenset(names) not in seen:
                    yield tried(names)
                return
            seen.add(grown)
            outcome = tried([x for x in names if x in grown])
            if past_refusals or isinstance(outcome, Reached):
                waiting.append(grown)
            yield outcome


def _connected(flow: StageGraph) -> Iterator[frozenset[str]]:
    """Sets of two or more single computations that hang together."""
    alone = flow.unfused(*COMPUTE)
    waiting = [frozenset((name,)) for name in alone]
    seen = set(waiting)
    while waiting:
        held = waiting.pop(0)
        for name in alone:
            region = held | {name}
            if name not in held and region not in seen and (flow.sources[name] | flow.readers[name]) & held:
                seen.add(region)
                waiting.append(region)
                yield region


def _dims(program: Program, name: str, allowed: AllowedTransforms) -> list[int]:
    """FLAT is the same as the only dimension there is."""
    extents = len(program.by_name[name].type.shape)
    return [
        dim for dim in allowed.dims if dim == FLAT or (dim < extents and not (extents == 1 and FLAT in allowed.dims))
    ]


def _tried(
    program: Program, transform: str, before: Reached | None = None, /, **arguments: object
) -> Reached | Refused:
    call = TransformCall(transform=transform, arguments=arguments)
    calls = (*before.calls, call) if before else (call,)
    start = before.rewrite.program if before else program
    try:
        return Reached(calls, apply(start, call))
    except InvalidTransform as error:
        return Refused(calls, error)
