"""A lower bound on the time of every schedule of a program under the cost model of `price`.

    bound = one launch + hops + max(links of a node, links between nodes, memory, multiplications)

Each resource is counted in isolation, since an ideal overlap hides all but one, with the work that no transformation
saves:

- Sums: an element of an AllReduce or ReduceScatter crosses between ranks n - 1 times, between k nodes k - 1 times, on
  average (n-1)/n and (k-1)/k of the tensor for each rank and node; a rank also sends what its own node's ranks own.
- Gathering: what is replicated at the end has to be made whole somewhere behind the sums. The place where that is
  least, over all values in between, is a minimum cut of the dataflow graph with sizes as capacities.
- Sends: a replicated value crosses once, in slices, at best.
- Memory: inputs are read once and outputs and state written once, by slices where they are not a rank's own.
- Multiplications: all of them, divided by the ranks where each would do the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from treadle.planner.machine.collectives import DEFAULT, Movement, Placement, Tuning, configs, placement, timing
from treadle.planner.machine.rates import Machine
from treadle.planner.passes.fusion.layouts import At, Local, Replicated, Sliced
from treadle.planner.passes.fusion.program import Bindings, Node, Program, TensorType
from treadle.planner.passes.fusion.stages import behind, kind, moves_data
from treadle.planner.passes.fusion.work import product, whole_bytes
from treadle.planner.search.bound import Argument, Bound, Facts

SUMS = ("AllReduce", "ReduceScatter")
GATHERS = ("AllReduce", "AllGather", "Broadcast")


SENTENCES = {
    "resource": ("under the cost model, {binding} alone take {binding_us:.4g} us, launch and hops {fixed_us:.4g} us"),
    "hops": "under the cost model, launch and hops alone take {fixed_us:.4g} us, {binding} {binding_us:.4g} us",
}
"""The argument of each kind of bound."""


def sentence(bound: Bound) -> str:
    """Why `bound` holds, in words."""
    return bound.argument.printed(SENTENCES)


@dataclass(frozen=True)
class Needs:
    """us: a launch with the hops of one collective, and what each resource takes in isolation."""

    fixed_us: float
    parts: Mapping[str, float]

    @property
    def total_us(self) -> float:
        return self.fixed_us + max(self.parts.values())


@dataclass(frozen=True)
class _Case:
    """What is bounded, and on what; `nodes` are those that something needs."""

    program: Program
    nodes: tuple[Node, ...]
    bindings: Bindings
    machine: Machine
    place: Placement
    tuning: Tuning

    def hops(self, op: str) -> float:
        """us of the hops of one collective in the form that has least of them."""
        tried = configs(self.machine, self.tuning, self.place, (op,), True)
        times = [timing(Movement(op, 0.0), self.place, self.machine, config) for config in tried]
        return min((time.latency for time in times if time is not None), default=0.0)


def lower_bound(program: Program, bindings: Bindings, machine: Machine, tuning: Tuning = DEFAULT) -> Bound:
    """A proven lower bound of `price` over all schedules of the program. Raises InputError as `price` does."""
    least = needs(program, bindings, machine, tuning)
    binding = max(least.parts, key=lambda name: least.parts[name])
    facts: Facts = {"binding": binding, "binding_us": least.parts[binding], "fixed_us": least.fixed_us}
    kind = "resource" if least.parts[binding] >= least.fixed_us else "hops"
    return Bound(int(least.total_us * 1000), Argument(kind, facts=facts))


def needs(program: Program, bindings: Bindings, machine: Machine, tuning: Tuning = DEFAULT) -> Needs:
    """What every schedule of the program takes of each resource. Raises InputError as `price` does."""
    case = _Case(program, live(program), bindings, machine, placement(machine, bindings.ranks, bindings.groups), tuning)
    node_us, network_us = _links(case)
    parts = {
        "links inside a node": node_us,
        "links between nodes": network_us,
        "memory": _memory(case) / machine.memory_rate,
        "multiplications": sum(_gemm_us(case, node) for node in case.nodes),
    }
    return Needs(_fixed(case), parts)


def live(program: Program) -> tuple[Node, ...]:
    """Operations that an output or an Update needs, views left out."""
    needed = {behind(program, name) for name in program.outputs}
    found = []
    for node in reversed(program.nodes):
        if kind(node) != "view" and (node.name in needed or node.op == "Update"):
            needed |= {behind(program, name) for name in node.reads}
            found.append(node)
    return tuple(reversed(found))


def gathered_bytes(program: Program, nodes: Iterable[Node], bindings: Bindings) -> float:
    """Bytes of the values that are made whole at least: a minimum cut between what is summed and what is replicated."""
    import networkx as nx  # slow to import

    held = {node.name: node for node in nodes}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(("source", "sink"))
    for name, node in held.items():
        graph.add_edge(f"{name} in", f"{name} out", capacity=float(whole_bytes(node.type, bindings)))
        if node.op in GATHERS:
            graph.add_edge("source", f"{name} in", capacity=inf)
        for read in node.reads:
            if behind(program, read) in held:
                graph.add_edge(f"{behind(program, read)} out", f"{name} in", capacity=inf)
        if _needs_whole(program, node) and behind(program, str(node.inputs[0])) in held:
            graph.add_edge(f"{behind(program, str(node.inputs[0]))} out", "sink", capacity=inf)
    for name in program.outputs:
        if name in held and isinstance(held[name].type.layout, Replicated):
            graph.add_edge(f"{name} out", "sink", capacity=inf)
    value, _ = nx.minimum_cut(graph, "source", "sink")
    return float(value)


def _needs_whole(program: Program, node: Node) -> bool:
    """Whether every rank needs its whole first operand: a replicated one times columns of its own."""
    if node.op != "MatMul":
        return False
    x, w = (program.by_name[str(name)].type.layout for name in node.inputs)
    return isinstance(x, Replicated) and isinstance(w, Sliced)


def _links(case: _Case) -> tuple[float, float]:
    """us of links inside a node and between nodes, at the best rate that a protocol reaches on all channels."""
    program, nodes, bindings, place = case.program, case.nodes, case.bindings, case.place
    n, k, m = place.ranks, place.nodes, place.per_node
    node_rate, network_rate = _rates(case.machine, place, case.tuning)
    summed = sum(whole_bytes(node.type, bindings) for node in nodes if node.op in SUMS)
    gathered = gathered_bytes(program, nodes, bindings) if n > 1 else 0.0
    sends = any(node.op == "Send" for node in nodes)
    volume = max(summed, gathered) if sends else summed + gathered  # behind a Send, another group's ranks gather
    inside, between = volume * (m - 1) / n, volume * (k - 1) / k
    for node in nodes:
        if node.op == "AllToAll":
            payload = float(whole_bytes(node.type, bindings))
            inside += payload * (m - 1) / n
            between += payload * m * (n - m) / n if k > 1 and m * k == n else 0.0
        if node.op == "Send":
            of = program.by_name[str(node.inputs[0])].type
            payload = _owned(of, bindings)
            if n * place.groups <= case.machine.per_node:
                inside += payload
            else:
                between += m * payload
    return (inside / node_rate if node_rate else 0.0), (between / network_rate if network_rate else 0.0)


def _rates(machine: Machine, place: Placement, tuning: Tuning) -> tuple[float, float]:
    """Bytes per us out of a rank inside its node, and out of a node."""
    node, network = 0.0, 0.0
    for config in configs(machine, tuning, place, (), True):
        protocol = next(x for x in machine.protocols if x.name == config.protocol)
        channel = config.channels * protocol.channel_rate
        nics = min(config.channels, machine.nics, place.per_node)
        node = max(node, min(machine.node_rate * protocol.wire_share, channel))
        network = max(network, min(nics * machine.nic_rate * protocol.wire_share, place.per_node * channel))
    return node, network


def _owned(of: TensorType, bindings: Bindings) -> float:
    """Bytes that one rank handles at least: all of a Local tensor, a share of a tensor that ranks have in common."""
    whole = whole_bytes(of, bindings)
    return whole if isinstance(of.layout, Local) else 0.0 if isinstance(of.layout, At) else whole / bindings.ranks


def _memory(case: _Case) -> float:
    """Bytes of the ranks that the program starts on."""
    program, nodes, bindings = case.program, case.nodes, case.bindings
    held = {node.name for node in nodes}
    read = {behind(program, name) for node in nodes for name in node.reads}
    total = 0.0
    for value in program.inputs:
        if value.name in read and value.type.shape:
            total += _owned(value.type, bindings)
    for name in dict.fromkeys(program.outputs):
        of = program.by_name[name].type
        if name in held and of.shape and not of.group.offset:
            replicated = isinstance(of.layout, Replicated)
            total += whole_bytes(of, bindings) if replicated else _owned(of, bindings)
    return total + sum(
        _owned(node.type, bindings)
        for node in nodes
        if node.op == "Update" and node.name not in program.outputs and node.type.shape
    )


def _gemm_us(case: _Case, node: Node) -> float:
    if node.op not in ("MatMul", "Conv2d"):
        return 0.0
    share = case.bindings.ranks if isinstance(node.type.layout, Replicated) else 1
    dtype = case.program.by_name[str(node.inputs[0])].type.dtype
    return product(case.program, node, case.bindings).flops / case.machine.rate(dtype) / share


def _fixed(case: _Case) -> float:
    """One launch, and the hops of the collective that has most of them in any form that it may take."""
    hops = case.hops
    whole = gathered_bytes(case.program, case.nodes, case.bindings) > 0
    gather = min(hops("AllGather"), hops("Broadcast"), hops("AllReduce")) if whole else 0.0
    forms = {
        "AllReduce": min(hops("AllReduce"), hops("ReduceScatter") + gather, hops("Reduce") + gather),
        "ReduceScatter": min(hops("ReduceScatter"), hops("AllReduce")),
        "AllGather": gather,
    }
    longest = max((forms.get(node.op, hops(node.op)) for node in case.nodes if moves_data(node)), default=0.0)
    return min(case.machine.launch_us, case.machine.collective_launch_us) + longest
