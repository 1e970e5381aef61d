"""What a program launches: one stage for each kernel, and for each named operation that no kernel holds.

Anonymous pointwise operations run inside the stage that reads them, where that is one and computes. Slice and Load
are views and no stage. Stages wait for the values they read and, since an Update overwrites its target, a stage with
an Update waits for all others that read the value from before (an anti-dependence).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.operations import Kind, operation
from treadle.planner.passes.fusion.program import Kernel, Node, Policy, Program

PRODUCTS = ("matmul", "convolution")
"""Kinds of stages that multiply, each a launch of its own."""

Graph = Mapping[str, set[str]]
"""For every name the names that it waits for."""


@dataclass(frozen=True)
class Stage:
    """One launch. `kind` says what it is ("pointwise", "rows", "reduction", "matmul", "allgather", "fused allreduce",
    "send", ...); a "rows" kernel reduces along the last dimension, a "reduction" kernel along others or all.
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
    """The launches in order, those of one overlap together (in the order of its members), all others alone.

    Raises InputError for stages that wait for each other.
    """
    homes = home_of(program)
    made = {name: stage_of(program, name, homes) for name in dict.fromkeys(homes.values())}
    try:
        return tuple(tuple(made[name] for name in group) for group in launches(program, homes))
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise InputError(
            f"{program.name}: found launches that wait for each other ({circle}), expected none"
        ) from error


def launches(program: Program, homes: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Names of the stages, grouped and ordered as by `groups`. Raises CycleError, with the cycle."""
    graph, first = dependences(program, homes), first_positions(program, homes)
    together = {member: overlap.members for overlap in program.overlaps for member in overlap.members}
    group = {name: together.get(name, (name,)) for name in first}
    contracted = {
        names[0]: {group[x][0] for name in names for x in graph[name]} - {names[0]} for names in group.values()
    }
    return tuple(group[name] for name in ordered(contracted, first))


def home_of(program: Program) -> dict[str, str]:
    """The stage that each operation runs in, by name: that of its outermost kernel, its reader or itself. No views."""
    return _homes(program, program.kernels)


def _homes(program: Program, kernels: Iterable[Kernel]) -> dict[str, str]:
    """`home_of` for a program with these kernels."""
    outer = {member: kernel.name for kernel in kernels for member in kernel.members}
    homes: dict[str, str] = {}
    for node in reversed(program.nodes):
        if kind(node) != "view":
            readers = program.readers[node.name]
            absorbed = node.anonymous and kind(node) == "pointwise" and node.name not in program.outputs
            computing = all(kind(reader) in ("pointwise", "reduction") for reader in readers)
            held = {homes[reader.name] for reader in readers} if absorbed and computing else set()
            homes[node.name] = held.pop() if len(held) == 1 else _outermost(outer, node.name)
    return homes


def dependences(program: Program, homes: Mapping[str, str]) -> dict[str, set[str]]:
    """For every stage, in program order, the stages it waits for: makers of what it reads, readers of what it
    overwrites. `homes` are those of `home_of`, or others to see what would depend on what."""
    graph: dict[str, set[str]] = {homes[node.name]: set() for node in program.nodes if node.name in homes}
    for before, after in _links(program):
        if homes[before] != homes[after]:
            graph[homes[after]].add(homes[before])
    return graph


def _links(program: Program) -> Iterator[tuple[str, str]]:
    """Pairs of operations, none a view, of which the second must follow the first: data and anti-dependences."""
    for source, readers in consumers(program).items():
        update = program.updates.get(source)
        for reader in readers:
            if isinstance(program.by_name[source], Node):
                yield source, reader.name
            elif update is not None and reader is not update:
                yield reader.name, update.name


def consumers(program: Program) -> dict[str, list[Node]]:
    """Operations that read each value, or a view of it, in program order; none of them a view."""
    found: dict[str, list[Node]] = {name: [] for name in program.by_name}
    for node in program.nodes:
        if kind(node) != "view":
            for source in dict.fromkeys(behind(program, name) for name in node.reads):
                found[source].append(node)
    return found


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
    """Names after all they wait for, else by position. Raises CycleError with the cycle when there is one."""
    sorter = TopologicalSorter({name: sorted(waits) for name, waits in graph.items()})
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
        return Stage(name, _stage_kind(mine), mine)
    apart = _homes_inside(program, homes, name)
    inside = tuple(stage_of(program, member, apart) for member in kernel.members)
    nodes = tuple(node for node in program.nodes if homes.get(node.name) == name)
    return Stage(name, _stage_kind(nodes, kernel.policy), nodes, kernel, inside)


def _homes_inside(program: Program, homes: Mapping[str, str], kernel: str) -> dict[str, str]:
    """The stages that the operations of a kernel would run in if it were taken apart."""
    apart = _homes(program, (other for other in program.kernels if other.name != kernel))
    return {name: home for name, home in apart.items() if homes.get(name) == kernel}


def kind(node: Node) -> Kind:
    """The family of its operation."""
    return operation(node.op).kind


def moves_data(node: Node) -> bool:
    """Whether it sends data between ranks."""
    return kind(node) in ("collective", "transfer")


def reduces_all(node: Node) -> bool:
    """Whether it needs all elements of a tensor before its result, or all of one of the tensors that share it."""
    return kind(node) == "reduction" and node.attribute("dim") is None


def phases(program: Program, nodes: Iterable[Node], ends: Callable[[Node], bool]) -> dict[str, int]:
    """By operation of a kernel: how many phases, each ended by a reduction that `ends` it, must end before it."""
    inside: dict[str, Node] = {}
    found: dict[str, int] = {}
    for node in nodes:
        sources = (inside[x] for x in (behind(program, read) for read in node.reads) if x in inside)
        found[node.name] = max((found[of.name] + ends(of) for of in sources), default=0)
        inside[node.name] = node
    return found


def _stage_kind(nodes: tuple[Node, ...], policy: Policy = "ComputationFuse") -> str:
    """What a launch of these operations is called."""
    if policy != "ComputationFuse":
        return f"fused {policy.removesuffix('Fuse').lower()}"
    if len(nodes) == 1 and kind(nodes[0]) not in ("pointwise", "reduction"):
        return "convolution" if nodes[0].op == "Conv2d" else nodes[0].op.lower()
    reductions = [node for node in nodes if kind(node) == "reduction"]
    if not reductions:
        return "pointwise"
    rows = all(node.attribute("dim") == len(node.type.shape) - 1 for node in reductions)
    return "rows" if rows else "reduction"


def _outermost(outer: Mapping[str, str], name: str) -> str:
    while name in outer:
        name = outer[name]
    return name
