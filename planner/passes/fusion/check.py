"""The independent checker of a fusion plan: from its two program texts alone, with none of the transformations' code.

What the plan tells beside them (transformations, stages, rivals) is held against them by
treadle.planner.passes.fusion.told.

The schedule must mean what the program means: both are run by the reference interpreter, on data of whole numbers, for
several small sizes and numbers of ranks, and every output and every updated state must be the same to the last bit. Its
kernels and overlaps must be launches that can run: no cycle of data or of reads before writes, the operations that the
policy of a kernel allows, one iteration space, chains of producers and consumers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.fusion.check_overwriting import overwriting, streaming
from treadle.planner.passes.fusion.decisions import FusionDecisions
from treadle.planner.passes.fusion.dims import PARTS
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.layouts import Local, Replicated, Sliced
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings, Input, Kernel, Node, Program
from treadle.planner.passes.fusion.slice_maps import global_indices
from treadle.planner.passes.fusion.told import check_rivals, check_sizes, check_told, read, rivals_of

VIEWS = {"Slice", "Load"}
COLLECTIVES = {"AllReduce", "ReduceScatter", "AllGather", "Reduce", "Broadcast", "AllToAll"}
LIBRARY = {"MatMul", "Conv2d"}
SUMS = {"Norm", "ReduceTensor"}
POLICIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "ComputationFuse": ((),),
    "AllReduceFuse": (("ReduceScatter", "AllGather"),),
    "ReduceScatterFuse": (("ReduceScatter",),),
    "AllGatherFuse": (("AllGather",),),
    "ReduceFuse": (("Reduce",),),
    "BroadcastFuse": (("Broadcast",),),
    "AllToAllFuse": (("AllToAll",),),
    "SendFuse": (("Send",),),
}
"""Which communication a kernel of each policy has, in this order."""


def check(decisions: FusionDecisions) -> list[str]:
    """What is wrong with a plan's schedule; empty when nothing is."""
    try:
        program = parse(decisions.program, "$.decisions.program")
        schedule = parse(decisions.schedule, "$.decisions.schedule")
    except InputError as error:
        return [str(error)]
    findings = [*check_sizes(decisions, program), *_contract(program, schedule), *_kernels(schedule)]
    if not findings:
        findings += [*_launch_order(schedule), *_told(decisions, schedule)]
    if not findings:
        findings += _meaning(program, schedule, decisions)
    if not findings:
        findings += [*check_told(decisions, program, schedule), *_rivals(program, decisions)]
    return findings


def _rivals(program: Program, decisions: FusionDecisions) -> Iterator[str]:
    """Other schedules mean what the program means too; tried once each, on one size."""
    bindings, values, ours = _first_tried(program, decisions)
    for rival in rivals_of(decisions):
        try:
            schedule = read(rival.schedule)
            findings = [*_contract(program, schedule), *_kernels(schedule)] or [*_launch_order(schedule)]
            findings = findings or _compared(program, ours, schedule, bindings, values)
        except (InputError, CheckFailed) as error:
            findings = [str(error)]
        if findings:
            yield f"rivals: {rival.name}: {findings[0]}"
            return
    yield from check_rivals(decisions, program)


def _contract(program: Program, schedule: Program) -> Iterator[str]:
    """The caller gives and gets the same tensors, but for state that became sliced."""
    ours, theirs = ({value.name: value.type for value in each.inputs} for each in (program, schedule))
    if list(ours) != list(theirs):
        yield f"schedule: inputs {', '.join(theirs)}, the program has {', '.join(ours)}"
        return
    for name, type_ in ours.items():
        other = theirs[name]
        if (type_.dtype, type_.shape, type_.group) != (other.dtype, other.shape, other.group):
            yield f"schedule: input {name} is another tensor than the program's"
        sliced = isinstance(type_.layout, Replicated) and isinstance(other.layout, Sliced)
        if type_.layout != other.layout and not (sliced and name in program.updates):
            yield f"schedule: input {name} lives elsewhere than in the program, and is no state that may be sliced"
    if set(program.updates) != set(schedule.updates):
        yield "schedule: updates other tensors than the program"
    if program.name != schedule.name:
        yield f"schedule: of {schedule.name}, the program is {program.name}"
    if len(program.outputs) != len(schedule.outputs):
        yield f"schedule: {len(schedule.outputs)} outputs, the program has {len(program.outputs)}"
    for ours_, theirs_ in zip(program.outputs, schedule.outputs, strict=False):
        mine, its = program.by_name[ours_].type, schedule.by_name[theirs_].type
        if mine != its:
            yield f"schedule: output {theirs_} is not of the type of the program's {ours_}"


# Kernels.


def _launches(schedule: Program) -> dict[str, str]:
    """The launch of every node: its outermost kernel, the named operation that an anonymous one is part of, or its own
    name. Views are computed by whoever reads them and have none."""
    outer = {member: kernel.name for kernel in schedule.kernels for member in kernel.members}
    nodes = {node.name: node for node in schedule.nodes}

    def top(name: str) -> str:
        while name in outer:
            name = outer[name]
        return name

    launch: dict[str, str] = {}
    for node in reversed(schedule.nodes):
        if node.op in VIEWS:
            continue
        if node.anonymous and node.name not in outer:
            around = {launch[each.name] for each in _through_views(schedule, node.name) if each.name in launch}
            launch[node.name] = around.pop() if len(around) == 1 else node.name
        else:
            launch[node.name] = top(node.name)
    return {name: launch[name] for name in nodes if name in launch}


def _through_views(schedule: Program, name: str) -> Iterator[Node]:
    for reader in schedule.readers[name]:
        if reader.op in VIEWS:
            yield from _through_views(schedule, reader.name)
        else:
            yield reader


def _flat(schedule: Program, kernel: Kernel) -> list[str]:
    inner = {each.name: each for each in schedule.kernels}
    return [
        name for member in kernel.members for name in (_flat(schedule, inner[member]) if member in inner else [member])
    ]


def _kernels(schedule: Program) -> Iterator[str]:
    """Members are there, once, and of the kind that the policy says."""
    names = {node.name for node in schedule.nodes} | {kernel.name for kernel in schedule.kernels}
    used: set[str] = set()
    for kernel in schedule.kernels:
        for member in kernel.members:
            if member not in names:
                yield f"kernel {kernel.name}: member {member} is no operation of the schedule"
                return
            if member in used:
                yield f"kernel {kernel.name}: member {member} is part of another kernel too"
            used.add(member)
    launch = _launches(schedule)
    for kernel in schedule.kernels:
        inside = set(_flat(schedule, kernel))
        nodes = [node for node in schedule.nodes if node.name in inside or launch.get(node.name) == kernel.name]
        yield from _policy(schedule, kernel, nodes)
        yield from overwriting(schedule, kernel.name, nodes)


def _policy(schedule: Program, kernel: Kernel, nodes: list[Node]) -> Iterator[str]:
    moving = tuple(node.op for node in nodes if node.op in COLLECTIVES | {"Send"})
    if moving not in POLICIES[kernel.policy]:
        wanted = " and ".join(POLICIES[kernel.policy][0]) or "no communication"
        yield f"kernel {kernel.name}: {kernel.policy} with {', '.join(moving) or 'no communication'}, expected {wanted}"
        return
    exchanged = {node.name for node in nodes if node.op == "AllToAll"}
    for node in nodes:
        if exchanged.intersection(node.reads):
            yield f"kernel {kernel.name}: {node.name} reads what the AllToAll makes, which ends the kernel"
        if node.op in LIBRARY:
            yield f"kernel {kernel.name}: {node.name} is a {node.op}, which is a launch of its own"
        if node.op in SUMS and kernel.policy in ("SendFuse", "AllToAllFuse", "BroadcastFuse", "ReduceFuse"):
            yield f"kernel {kernel.name}: {node.name} needs all elements before the first can travel on"
    computed = [node for node in nodes if node.op not in COLLECTIVES | SUMS | {"Send", "Permute"} and _elements(node)]
    layouts = {node.type.layout for node in computed}
    if len(layouts) > 1:
        yield f"kernel {kernel.name}: its operations have {len(layouts)} layouts, expected one iteration space"
    if len({node.type.group for node in computed}) > 1:
        yield f"kernel {kernel.name}: its operations belong to several groups"
    members = {node.name for node in nodes}
    for node in nodes:
        if node.op in COLLECTIVES | {"Send"}:
            inside = {x for x in node.reads if x in members}
            if kernel.policy == "AllReduceFuse" and bool(inside) != (node.op == "AllGather"):
                yield f"kernel {kernel.name}: {node.name} does not stand where an allreduce has its {node.op}"
    if kernel.policy == "AllReduceFuse":
        gathered = next(node for node in nodes if node.op == "AllGather")
        for node in nodes:
            leaves = any(reader.name not in members for reader in schedule.readers[node.name])
            leaves = leaves or node.name in schedule.outputs
            if leaves and node.name != gathered.name and not isinstance(node.type.layout, Sliced):
                yield f"kernel {kernel.name}: {node.name} is used outside, and only slices and the gathered value leave"


def _elements(node: Node) -> bool:
    """Whether it computes elements, and not a scalar or one scalar for each of several tensors."""
    return any(not name.endswith(PARTS) for extent in node.type.shape for name in extent.names or ("",))


def _launch_order(schedule: Program) -> Iterator[str]:
    """Launches must have an order in which data is made before it is read, and read before it is overwritten."""
    import networkx as nx  # slow to import

    launch = _launches(schedule)
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(launch.values())
    for node in schedule.nodes:
        for reader in _through_views(schedule, node.name):
            if node.name in launch and launch[node.name] != launch[reader.name]:
                graph.add_edge(launch[node.name], launch[reader.name])
    for target, update in schedule.updates.items():
        for reader in _through_views(schedule, target):
            if launch[reader.name] != launch[update.name]:
                graph.add_edge(launch[reader.name], launch[update.name])
    if not nx.is_directed_acyclic_graph(graph):
        ring = " -> ".join(edge[0] for edge in nx.find_cycle(graph))
        yield f"schedule: launches {ring} wait for one another"
        return
    chained: set[str] = set()
    for overlap in schedule.overlaps:
        for name in overlap.members:
            if name not in graph:
                yield f"overlap {overlap.name}: {name} is no launch of the schedule"
                return
            if name in chained:
                yield f"overlap {overlap.name}: {name} overlaps twice"
            chained.add(name)
        for before, after in zip(overlap.members, overlap.members[1:], strict=False):
            if not graph.has_edge(before, after):
                yield f"overlap {overlap.name}: {after} does not read what {before} makes"
        chain = [[node for node in schedule.nodes if launch.get(node.name) == name] for name in overlap.members]
        yield from streaming(schedule, overlap.name, chain)
        inside = set(overlap.members)
        outside = [(a, b) for a, b in graph.edges if (a in inside) != (b in inside)]
        left = {b for a, b in outside if a in inside}
        back = {a for a, b in outside if b in inside}
        for name in sorted(left):
            if back & ({name} | set(nx.descendants(graph, name))):
                yield f"overlap {overlap.name}: a path leaves it over {name} and comes back"
                break


def _told(decisions: FusionDecisions, schedule: Program) -> Iterator[str]:
    """The table of stages must be that of the schedule, and its times must make up the whole."""
    launch = _launches(schedule)
    expected = set(launch.values())
    told = [stage.name for stage in decisions.stages]
    if set(told) != expected or len(told) != len(expected):
        yield f"stages: {', '.join(sorted(told))}, the schedule launches {', '.join(sorted(expected))}"
        return
    followers = {name for overlap in schedule.overlaps for name in overlap.members[1:]}
    if not followers.issuperset(stage.name for stage in decisions.stages if stage.overlaps):
        yield "stages: those that overlap are not those of the schedule"
    before = 0
    for stage in decisions.stages:
        if not stage.overlaps and stage.start_ns != before:
            yield f"stages: {stage.name} starts at {stage.start_ns} ns, the stages before it end at {before} ns"
        if stage.end_ns - stage.start_ns < stage.time_ns:
            yield f"stages: {stage.name} takes {stage.time_ns} ns, and has from {stage.start_ns} to {stage.end_ns} ns"
        before = max(before, stage.end_ns)
    if decisions.time_ns != before:
        yield f"time: {decisions.time_ns} ns, its stages end at {before} ns"


# Meaning.

TRIED_RANKS = (2, 3, 5)
EXTENTS = (5, 7, 3, 4, 6, 2)
"""Of the dimensions in order, in the first trial; in the second they are multiples of the ranks."""
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-2, "bf16": 5e-2}
"""Relative, where sums over all elements may be added up in another order."""


def _meaning(program: Program, schedule: Program, decisions: FusionDecisions) -> list[str]:
    """Differences of values for small sizes; one finding that nothing could be tried counts as well."""
    why = "it has no sizes"
    tried = 0
    for ranks in sorted({min(each, decisions.ranks) for each in TRIED_RANKS}):
        for multiple in (False, True):
            try:
                bindings, values, ours = _tried(program, _small(program, decisions, ranks, multiple))
                findings = _compared(program, ours, schedule, bindings, values)
            except CheckFailed as error:
                return [f"schedule: {error}"]
            except InputError as error:
                why = str(error)
                continue
            tried += 1
            if findings:
                return findings
    return [] if tried else [f"schedule: cannot be run by the interpreter: {why}"]


def _small(program: Program, decisions: FusionDecisions, ranks: int, multiple: bool) -> Bindings:
    names = sorted(decisions.extents)
    extents = {
        name: ranks * (1 + place % 2) if multiple else EXTENTS[place % len(EXTENTS)] for place, name in enumerate(names)
    }
    parts = {name: (extents[name] - 1, 1) for name in decisions.parts if extents[name] > 1}
    return Bindings(extents, ranks, min(decisions.groups, 2 + _reach(program)), parts)


Values = Mapping[str, NDArray[Any]]


def _tried(program: Program, bindings: Bindings) -> tuple[Bindings, Values, Values]:
    """Inputs for these sizes, and what the program makes of them. Raises InputError for sizes that it does not take."""
    values = {value.name: _whole_numbers(value, bindings) for value in program.inputs}
    return bindings, values, evaluate(program, bindings, values)


def _first_tried(program: Program, decisions: FusionDecisions) -> tuple[Bindings, Values, Values]:
    ranks = min(2, decisions.ranks)
    try:
        return _tried(program, _small(program, decisions, ranks, False))
    except InputError:  # some programs take equal parts alone
        return _tried(program, _small(program, decisions, ranks, True))


def _compared(program: Program, ours: Values, schedule: Program, bindings: Bindings, values: Values) -> list[str]:
    theirs = evaluate(schedule, bindings, values)
    summed = any(node.op in SUMS and node.attribute("dim") is None for node in program.nodes)
    findings = []
    pairs = [(a, b, f"output {b}") for a, b in zip(program.outputs, schedule.outputs, strict=True)]
    pairs += [(program.updates[t].name, schedule.updates[t].name, f"state {t}") for t in sorted(program.updates)]
    for mine, its, what in pairs:
        expected = _assembled(program, ours, mine, bindings)
        found = _assembled(schedule, theirs, its, bindings)
        tolerance = TOLERANCE.get(program.by_name[mine].type.dtype, 0.0) if summed else 0.0
        if not np.allclose(expected, found, rtol=tolerance, atol=tolerance, equal_nan=True):
            size = ", ".join(f"{name}={extent}" for name, extent in sorted(bindings.extents.items()))
            findings.append(f"schedule: {what} is not the program's, for example for {size} on {bindings.ranks} ranks")
    return findings


def _whole_numbers(value: Input, bindings: Bindings) -> NDArray[np.float64]:
    """Small whole numbers, positive so that roots are defined; scalars are powers of two."""
    draw = np.random.default_rng(len(value.name) * 1009 + sum(map(ord, value.name)))
    shape = tuple(extent.value(bindings.values) for extent in value.type.shape)
    if value.type.dtype in ("i32", "i64"):
        return np.broadcast_to(draw.permutation(shape[0]) if shape else np.array(1), shape).astype(np.float64)
    if not shape:
        return np.array(draw.choice([0.25, 0.5, 2.0]))
    each = (bindings.groups, bindings.ranks, *shape) if isinstance(value.type.layout, Local) else shape
    return draw.integers(1, 6, each).astype(np.float64)


def _assembled(program: Program, values: Mapping[str, NDArray[Any]], name: str, bindings: Bindings) -> NDArray[Any]:
    """A value as the ranks together have it, by group: slices put together, else what every rank has. Only for the
    groups that have it."""
    of, found = program.by_name[name].type, np.asarray(values[name])
    first, last = of.group.offset, bindings.groups - _reach(program) + of.group.offset
    found = found[first:last]
    if not isinstance(of.layout, Sliced):
        return found
    whole = found[:, 0].reshape(found.shape[0], -1).copy()
    for rank in range(bindings.ranks):
        mine = global_indices(of.layout, found.shape[2:], bindings.ranks, rank)
        whole[:, mine] = found[:, rank].reshape(found.shape[0], -1)[:, mine]
    return np.broadcast_to(whole.reshape(found.shape[0], 1, *found.shape[2:]), found.shape)


def _reach(program: Program) -> int:
    """How many groups after its own a program sends to."""
    return max(value.type.group.offset for value in program.by_name.values())
