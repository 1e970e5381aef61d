"""PyTorch tables of a swap plan: `step.py`, which `treadle.runtime.swap` runs as one iteration.

Storages have places in one arena. A node computes an operator, copies a storage in or out, or drops one; nodes stand in
the order in which the simulation starts them, so that a runtime that issues them in this order on three streams, each
in order, never waits forever. Views are calls like others that no node computes: the runtime derives from them where
in its storage each tensor lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from treadle.codegen.python_text import (
    WIDTH,
    PythonTree,
    calling,
    constants,
    labelled,
    layout,
    literal,
    returning,
    word,
)
from treadle.codegen.templates import quote, template
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import ready
from treadle.planner.graph.index import Graph
from treadle.planner.graph.unrolling import as_run
from treadle.planner.passes.swap.decisions import SwapDecisions, SwapNode
from treadle.planner.passes.swap.timeline_of import start_bytes, tasks_of
from treadle.planner.timeline.simulator import simulate

FILE_NAME = "step.py"


def generate(plan: Plan[SwapDecisions], trace: Trace) -> dict[str, str]:
    """The tables of a swap plan over the trace it was made from, as {relative path: text}. Raises InputError for a plan
    without addresses (allocator `bytes`), or when plan and trace do not belong together."""
    decisions = plan.decisions
    if decisions.allocator == "bytes":
        text = "found a plan without addresses, expected one made with --allocator pool or offset"
        raise InputError(text, where=trace.name, path="$.decisions.allocator")
    writer = _Writer(decisions, Graph(as_run(trace, decisions.runs)))
    problem = decisions.problem
    beside = problem.reserve_bytes + problem.scratch_bytes
    calls, nodes = list(writer.calls()), list(writer.nodes())
    names = {name for name in ("T", "compute", "copy_in", "copy_out", "drop") if any(f"{name}(" in x for x in nodes)}
    pool = [[place.address, place.object_bytes, place.count] for place in decisions.pool]
    text = template("torch/swap.py.j2").render(
        name=trace.name,
        memory=format_bytes(problem.machine.memory_bytes),
        time=_microseconds(decisions.time_ns),
        busy=_microseconds(problem.ideal_ns),
        copied_in=format_bytes(decisions.in_bytes),
        copied_out=format_bytes(decisions.out_bytes),
        arena=format_bytes(writer.arena_bytes),
        scratch=format_bytes(beside) if beside else "",
        again=writer.again(trace),
        torch=any("aten." in line or "torch." in line for line in calls),
        kernels=any("kernels." in line for line in calls),
        names=", ".join(sorted(names | {"T"} if any("T(" in line for line in calls) else names)),
        arena_bytes=writer.arena_bytes,
        machine=list(writer.machine()),
        aliases=list(_table("ALIASES", writer.aliases())),
        gradients=bool(writer.gradients),
        leaves=list(writer.leaves()),
        storages=list(_table("STORAGES", writer.storages())),
        pool=list(constants(POOL=pool) if pool else ()),
        residents=list(writer.residents()),
        objects=any("objects.made(" in line for line in returning(trace)),
        called=trace.called is not None,
        returned=list(returning(trace)),
        calls=calls,
        nodes=nodes,
    )
    return {FILE_NAME: text}


@dataclass(frozen=True)
class _Writer:
    decisions: SwapDecisions
    graph: Graph

    def __post_init__(self) -> None:
        """Raises InputError where the plan names ops or tensors that the trace does not have."""
        problem, where = self.decisions.problem, self.graph.trace.name
        for op in problem.ops:
            if op.id not in self.graph.ops:
                raise InputError(f"the plan runs op {op.id!r}, which the trace lacks", where=where)
            if self.graph.ops[op.id].args is None:
                text = f"op {op.id!r} has no recorded arguments, expected a trace captured from PyTorch"
                raise InputError(text, where=where)
        for tensor in problem.tensors:
            if tensor.id not in self.graph.tensors or self.graph.owner[tensor.id] != tensor.id:
                raise InputError(f"the plan places {tensor.id!r}, which is no storage of the trace", where=where)

    @cached_property
    def arena_bytes(self) -> int:
        if pool := self.decisions.pool:
            return max(each.address + each.object_bytes * each.count for each in pool)
        tensors = self.decisions.problem.tensors
        return max((at + tensors[tensor].bytes for tensor, at in self._placed()), default=0)

    def _placed(self) -> Iterator[tuple[int, int]]:
        """Every tensor that gets a place, and its address in the plan."""
        for resident in self.decisions.initial:
            yield resident.tensor, resident.at
        for node in self.decisions.nodes:
            if node.kind in ("in", "compute"):
                yield from zip(self._entering(node), node.at, strict=True)

    def _entering(self, node: SwapNode) -> tuple[int, ...]:
        """The tensors whose residency begins with `node`."""
        if node.kind == "compute":
            return self.decisions.problem.ops[node.item].outputs
        return (node.item,) if node.kind == "in" else ()

    def machine(self) -> Iterator[str]:
        machine = self.decisions.problem.machine
        fields = {
            "memory_bytes": machine.memory_bytes,
            "in_bandwidth": machine.in_bandwidth,
            "out_bandwidth": machine.out_bandwidth,
            "together": machine.together,
            "copy_ns": machine.copy_ns,
        }
        yield from layout("MACHINE = ", PythonTree("{", tuple(f"{quote(k)}: {v}" for k, v in fields.items()), "}"), 0)
        yield f"PREDICTED_NS = {self.decisions.time_ns}"

    @cached_property
    def gradients(self) -> dict[str, str]:
        """Gradient tensor of each parameter, where the plan keeps it for the caller."""
        kept = {tensor.id for tensor in self.decisions.problem.tensors if tensor.kept}
        return {
            leaf.name or leaf.id: gradient.id
            for leaf, gradient in ready(self.graph.trace)
            if self.graph.owner[gradient.id] in kept
        }

    def leaves(self) -> Iterator[str]:
        trace = self.graph.trace
        yield from layout("NAME = ", quote(trace.name), 0)
        groups: dict[str, dict[str, str]] = {"PARAMETERS": {}, "BUFFERS": {}, "OPTIMIZER": {}}
        added = self._optimizer_state
        for tensor in trace.tensors:
            if tensor.role in ("parameter", "buffer") and tensor.id not in self.graph.producer:
                role = "OPTIMIZER" if tensor.id in added else f"{tensor.role.upper()}S"
                groups[role][tensor.name or tensor.id] = tensor.id
        for heading, group in groups.items():
            yield from _table(heading, {name: quote(tensor) for name, tensor in group.items()})
        yield from calling(trace)
        yield from constants(INPUTS=trace.inputs, TANGENTS=trace.tangents, OUTPUTS=trace.outputs, UPDATES=trace.updates)
        if self.gradients:
            yield from _table("GRADIENTS", {name: quote(tensor) for name, tensor in self.gradients.items()})
        yield from constants(EVALUATING=trace.evaluating)
        yield f"TRAINING = {trace.mode != 'infer'}"
        if trace.autocast is not None:
            yield f"AUTOCAST = {quote(trace.autocast)}"

    @cached_property
    def _optimizer_state(self) -> set[str]:
        """Buffers that only the optimizer's calls read."""
        users: dict[str, set[str]] = {}
        for op in self.graph.trace.ops:
            for tensor in op.inputs:
                users.setdefault(tensor, set()).add(op.phase)
        return {tensor for tensor, phases in users.items() if phases == {"optimizer"}}

    def storages(self) -> dict[str, str | PythonTree]:
        """Those that the plan places, and those of the step's leaves."""
        bytes_of = {tensor.id: tensor.bytes for tensor in self.decisions.problem.tensors}
        found: dict[str, str | PythonTree] = {}
        for tensor in self.graph.trace.tensors:
            leaf = tensor.role in ("parameter", "buffer", "input", "tangent") and tensor.id not in self.graph.producer
            if self.graph.owner[tensor.id] == tensor.id and (leaf or tensor.id in bytes_of):
                size = bytes_of.get(tensor.id, self.graph.storage_bytes(tensor.id))
                found[tensor.id] = literal([size, tensor.dtype, tensor.shape, tensor.stride])
        return found

    def aliases(self) -> dict[str, str | PythonTree]:
        """Results of planned operators in memory that is there already, or in that of another result."""
        found: dict[str, str | PythonTree] = {}
        for op in self.decisions.problem.ops:
            for name in self.graph.ops[op.id].outputs:
                tensor = self.graph.tensors[name] if name is not None else None
                if tensor is not None and tensor.alias_of is not None:
                    found[tensor.id] = literal([tensor.alias_of, tensor.dtype, tensor.shape, tensor.stride])
        return found

    def residents(self) -> Iterator[str]:
        tensors = self.decisions.problem.tensors
        for heading, group in (("INITIAL", self.decisions.initial), ("FINAL", self.decisions.final)):
            places = sorted((resident.at, tensors[resident.tensor].id) for resident in group)
            yield from _table(heading, {name: str(at) for at, name in places})

    def calls(self) -> Iterator[str]:
        """The planned operators, and the views that they, the outputs, or the new values of buffers read."""
        trace = self.graph.trace
        planned = {op.id for op in self.decisions.problem.ops}
        wanted = {*trace.outputs, *self.gradients.values(), *(value for _, value in trace.updates)}
        chosen: list[Op] = []
        for op in reversed(trace.ops):
            if op.id in planned or (op.intermediate_of is None and self.graph.is_view(op) and wanted & set(op.outputs)):
                chosen.append(op)
                wanted.update(op.inputs)
        options = self._options(chosen)
        for text, name in options.items():
            yield from layout(f"{name} = ", text, 4)
        yield "    return {"
        for op in reversed(chosen):
            args = PythonTree("[", tuple(_value(tree) for tree in op.args or ()), "]")
            named = _named(op)
            call = PythonTree("(", (_target(op.target), args, options.get(named, named), literal(op.outputs)), ")")
            yield from _ended(layout(f"{quote(op.id)}: ", call, 8))
        yield "    }"

    def _options(self, ops: Iterable[Op]) -> dict[PythonTree, str]:
        """Names for the named arguments that several calls share, such as those of an optimizer."""
        counts = Counter(named for op in ops if len((named := _named(op)).items) > 2)
        shared = sorted((named for named, count in counts.items() if count > 1), key=str)
        return {named: f"options_{number}" for number, named in enumerate(shared)}

    def nodes(self) -> Iterator[str]:
        decisions = self.decisions
        times = simulate(*tasks_of(decisions), start_bytes(decisions))
        issue = sorted(range(len(decisions.nodes)), key=lambda node: (times.start[node], node))
        number = {node: index for index, node in enumerate(issue)}
        ends = self._ends()
        yield "NODES = ["
        for node in issue:
            found = decisions.nodes[node]
            lines = list(_ended(layout("", self._node(found, number, ends.get(node, ())), 4)))
            note = f"  # {number[node]}, {_microseconds(times.start[node])}"
            if len(lines) == 1 and len(lines[0]) + len(note) <= WIDTH:
                yield lines[0] + note
            else:
                yield f"   {note[1:]}"
                yield from lines
        yield "]"

    def _node(self, node: SwapNode, number: dict[int, int], ends: Sequence[str]) -> PythonTree:
        problem = self.decisions.problem
        waits = literal(sorted(number[before] for before in node.after))
        after = (labelled("after=", waits),) if node.after else ()
        if node.kind == "compute":
            op = problem.ops[node.item]
            places = zip(op.outputs, node.at, strict=True)
            makes = PythonTree("{", tuple(f"{quote(problem.tensors[x].id)}: {at}" for x, at in places), "}")
            last = (labelled("ends=", literal(list(ends))),) if ends else ()
            return PythonTree("compute(", (quote(op.id), *((makes,) if op.outputs else ()), *last, *after))
        name = quote(problem.tensors[node.item].id)
        if node.kind == "in":
            return PythonTree("copy_in(", (name, str(node.at[0]), *after))
        early = ("early=True",) if node.early else ()
        return PythonTree("drop(" if node.kind == "drop" else "copy_out(", (name, *early, *after))

    def _ends(self) -> dict[int, tuple[str, ...]]:
        """For compute nodes, the tensors whose place is free right after their last read."""
        problem = self.decisions.problem
        here: set[int] = set()
        last: dict[int, int] = {}
        found: dict[int, list[str]] = {}
        for place, node in enumerate(self.decisions.nodes):
            if node.kind == "compute":
                op = problem.ops[node.item]
                here.update(op.outputs)
                last.update((tensor, place) for tensor in (*op.inputs, *op.outputs))
            elif node.kind == "in":
                here.add(node.item)
            elif not node.early:
                here.discard(node.item)
        for tensor in sorted(here):
            if not problem.tensors[tensor].kept and tensor in last:
                found.setdefault(last[tensor], []).append(problem.tensors[tensor].id)
        return {place: tuple(names) for place, names in found.items()}

    def again(self, trace: Trace) -> str:
        """How many operators run more than once, as the start of a sentence."""
        extra = len(self.decisions.problem.ops) - len({op.id.split("#")[0] for op in self.decisions.problem.ops})
        return f"{extra} operators are" if extra > 1 else "1 operator is" if extra else ""


def _target(target: str) -> str:
    namespace, rest = target.split(".", 1)
    return f"{ {'aten': 'aten', 'treadle': 'kernels'}.get(namespace, 'torch.ops.' + namespace) }.{rest}".replace(
        " ", ""
    )


def _named(op: Op) -> PythonTree:
    """The named arguments of a call, a dict."""
    return PythonTree("{", tuple(labelled(f"{quote(k)}: ", _value(tree)) for k, tree in (op.kwargs or {}).items()), "}")


def _value(tree: Any) -> str | PythonTree:
    if isinstance(tree, list | tuple):
        return PythonTree("[", tuple(_value(item) for item in tree), "]")
    if not isinstance(tree, dict):
        return quote(tree) if isinstance(tree, str) else repr(tree)
    ((key, value),) = tree.items()
    if key == "tensor":
        return f"T({quote(value)})"
    return word(key, value)


def _table(heading: str, entries: dict[str, Any]) -> Iterator[str]:
    items = tuple(labelled(f"{quote(name)}: ", value) for name, value in entries.items())
    yield from layout(f"{heading} = ", PythonTree("{", items, "}"), 0)


def _ended(lines: Iterable[str]) -> Iterator[str]:
    """`lines` with a comma at the end."""
    *first, last = lines
    yield from first
    yield last + ","


def _microseconds(time: int) -> str:
    return f"{time / 1000:,.3f} us"
