"""What a program launches: one stage for each kernel, and for each named operation that no kernel holds.

Anonymous pointwise operations run inside the stage that reads them, where that is one and computes. Slice and Load
are views and no stage. Stages wait for the values they read and, since an Update overwrites its target, a stage with
an Update waits for all others that read the value from before (an anti-dependence).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from planner.fusion.operations import Kind, operation
from planner.fusion.program import Kernel, Node, Overlap, Policy, Program

Graph = Mapping[str, set[str]]
"""For every name the names that it waits for."""


@dataclass(frozen=True)
class Stage:
    """One launch. `kind` says what it is ("pointwise", "rows", "reduction", "matmul", "allgather", "fused allreduce",
    "send", ...); a "rows" kernel reduces along one dimension, a "reduction" kernel over all elements.
    """

    name: str
    kind: str
    nodes: tuple[Node, ...]
    """All operations that run in it, in program order, without views."""
    kernel: Kernel | None = None
    inside: tuple[Stage, ...] = ()
    """The stages that `kernel` was made of, in the order of its members."""

    @property
    def named(self) -> tuple[str, ...]:
        """Names of its operations, without the anonymous ones."""
        return tuple(node.name for node in self.nodes if not node.anonymous)


def stages(program: Program) -> tuple[Stage, ...]:
    """The launches of the program, in the order in which they are made; overlapped ones follow each other."""
    return tuple(stage for group in groups(program) for stage in group)


def groups(program: Program) -> tuple[tuple[Stage, ...], ...]:
    """The launches in order, those of one overlap together (in the order of its members), all others alone."""
    homes = home_of(program)
    graph, first = dependences(program, homes), first_positions(program, homes)
    together = {member: overlap for overlap in program.overlaps for member in overlap.members}
    members = {name: together[name].members if name in together else (name,) for name in first}
    made = {name: stage_of(program, name, homes) for name in first}
    heads = {name: group[0] for name, group in members.items()}
    contracted = {head: {heads[x] for name in members[head] for x in graph[name]} - {head} for head in heads.values()}
    return tuple(tuple(made[name] for name in members[head]) for head in ordered(contracted, first))


def home_of(program: Program) -> dict[str, str]:
    """The stage that each operation runs in, by name: that of its outermost kernel, its reader or itself. No views."""
    outer = {member: kernel.name for kernel in program.kernels for member in kernel.members}
    homes: dict[str, str] = {}
    for node in reversed(program.nodes):
        if kind(node) != "view":
            readers = program.readers[node.name]
            absorbed = node.anonymous and kind(node) == "pointwise" and node.name not in program.outputs
            computing = all(kind(reader) in ("pointwise", "reduction") for reader in readers)
            held = {homes[reader.name] for reader in readers} if absorbed and computing else set()
            homes[node.name] = held.pop() if len(held) == 1 else outermost(outer, node.name)
    return homes


def dependences(program: Program, homes: Mapping[str, str]) -> dict[str, set[str]]:
    """For every stage, in program order, the stages it waits for: makers of what it reads, readers of what it
    overwrites. `homes` are those of `home_of`, or others to see what would depend on what."""
    graph: dict[str, set[str]] = {homes[node.name]: set() for node in program.nodes if node.name in homes}
    for before, after in links(program):
        if homes[before] != homes[after]:
            graph[homes[after]].add(homes[before])
    return graph


def links(program: Program) -> Iterator[tuple[str, str]]:
    """Pairs of operations, none a view, of which the second must follow the first: data and anti-dependences."""
    readers_of: dict[str, list[str]] = {}
    for node in program.nodes:
        if kind(node) != "view":
            for name in node.reads:
                source = behind(program, name)
                readers_of.setdefault(source, []).append(node.name)
                if isinstance(program.by_name[source], Node):
                    yield source, node.name
    for target, update in program.updates.items():
        yield from ((reader, update.name) for reader in readers_of.get(target, ()) if reader != update.name)


def behind(program: Program, name: str) -> str:
    """The tensor that `name` is a view of, `name` itself when it is none."""
    value = program.by_name[name]
    while isinstance(value, Node) and kind(value) == "view":
        value = program.by_name[str(value.inputs[0])]
    return value.name


def first_positions(program: Program, homes: Mapping[str, str]) -> dict[str, int]:
    """Where the first operation of each stage stands in the program."""
    found: dict[str, int] = {}
    for position, node in enumerate(program.nodes):
        if node.name in homes:
            found.setdefault(homes[node.name], position)
    return found


def ordered(graph: Graph, position: Mapping[str, int]) -> Iterator[str]:
    """Names after all they wait for, else by position. Raises graphlib.CycleError with the cycle when there is one."""
    sorter: TopologicalSorter[str] = TopologicalSorter(graph)
    sorter.prepare()
    ready: list[tuple[int, str]] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(ready, (position[name], name))
        _, name = heappop(ready)
        yield name
        sorter.done(name)


def stage_of(program: Program, name: str, homes: Mapping[str, str]) -> Stage:
    """The stage `name`, which may be one that a kernel holds."""
    kernels = {kernel.name: kernel for kernel in program.kernels}
    kernel = kernels.get(name)
    if kernel is None:
        whole = tuple(node for node in program.nodes if homes.get(node.name) == name)
        mine = whole or tuple(node for node in program.nodes if node.name == name)
        return Stage(name, kind_of(mine), mine)
    inside = tuple(stage_of(program, member, homes_inside(program, homes, name)) for member in kernel.members)
    nodes = tuple(node for node in program.nodes if homes.get(node.name) == name)
    return Stage(name, kind_of(nodes, kernel.policy), nodes, kernel, inside)


def homes_inside(program: Program, homes: Mapping[str, str], kernel: str) -> dict[str, str]:
    """The stages that the operations of a kernel would run in if it were taken apart."""
    without = replace(program, kernels=tuple(other for other in program.kernels if other.name != kernel))
    return {name: home for name, home in home_of(without).items() if homes.get(name) == kernel}


def kind(node: Node) -> Kind:
    """The family of its operation."""
    return operation(node.op).kind


def kind_of(nodes: tuple[Node, ...], policy: Policy = "ComputationFuse") -> str:
    """What a launch of these operations is called."""
    if policy != "ComputationFuse":
        return f"fused {policy.removesuffix('Fuse').lower()}"
    if len(nodes) == 1 and kind(nodes[0]) not in ("pointwise", "reduction"):
        return "convolution" if nodes[0].op == "Conv2d" else nodes[0].op.lower()
    reductions = [node for node in nodes if kind(node) == "reduction"]
    if not reductions:
        return "pointwise"
    return "rows" if all(node.attribute("dim") is not None for node in reductions) else "reduction"


def overlap_of(program: Program, stage: str) -> Overlap | None:
    """The overlap that a stage takes part in."""
    return next((overlap for overlap in program.overlaps if stage in overlap.members), None)


def outermost(outer: Mapping[str, str], name: str) -> str:
    while name in outer:
        name = outer[name]
    return name
