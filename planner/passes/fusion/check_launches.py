"""The checker's own reading of what a schedule launches, without the code that makes schedules.

Each kernel holds what its policy allows, and launches have an order in which data is made before it is read, and read
before it is overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from treadle.planner.passes.fusion.check_overwriting import overwriting, streaming
from treadle.planner.passes.fusion.dims import PARTS
from treadle.planner.passes.fusion.layouts import Sliced
from treadle.planner.passes.fusion.program import Kernel, Node, Program

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


def launches(schedule: Program) -> dict[str, str]:
    """The launch of every node: its outermost kernel, the named operation that an anonymous one is part of, or its own
    name. Views are computed by the launches that read them and have none."""
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


def check_kernels(schedule: Program) -> Iterator[str]:
    """Members exist, each in one kernel, and are of the kind that the policy allows."""
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
    launch = launches(schedule)
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


def waits(schedule: Program, launch: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of launches of which the second waits for the first: to read what it makes, or overwrite what it reads."""
    read = [(node.name, reader.name) for node in schedule.nodes for reader in _through_views(schedule, node.name)]
    updates = schedule.updates.items()
    kept = [(reader.name, update.name) for target, update in updates for reader in _through_views(schedule, target)]
    for before, after in (*read, *kept):
        if before in launch and launch[before] != launch[after]:
            yield launch[before], launch[after]


def check_order(schedule: Program) -> Iterator[str]:
    """Launches must have an order in which data is made before it is read, and read before it is overwritten."""
    import networkx as nx  # slow to import

    launch = launches(schedule)
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(launch.values())
    graph.add_edges_from(waits(schedule, launch))
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
