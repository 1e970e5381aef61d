"""From a captured trace to the memory problem: what is made, who reads it, and how many bytes that takes.

Bytes belong to storages: a view costs nothing, is part of no node and is made again from its base wherever it is
read, so whoever reads a view reads the storage's owner.

* Forward node: one forward op that makes storages. It is worth the storages that some later op reads; what nobody
  reads counts as workspace. What the caller holds anyway is in `base`: parameters, buffers (with the new values that
  the step writes back), inputs, outputs, and 8 KiB of generator state for each random op, which makes it repeatable.
  What an op returns for the backward pass alone (statistics, a mask, indices) is an intermediate node of its own,
  without ops, where that matters: if backward reads nothing else of the op, or if it takes much room. Below 1/1024 of
  the op's other results it is always kept.
* Backward node: consecutive backward ops. An op joins the node before it if it reads no other forward storages and
  does not raise the node's peak of gradient bytes by more than 1/1024 of all forward bytes, for then next to nothing
  is lost by treating both as one; so there are about as many nodes as ops that read forward storages.
  |Lhat_k| and |y_k| come from the exact lives of the gradient-side storages: |Lhat_k| is alive when the node starts,
  |Lhat_k| + |y_k| is the peak while it runs. Tangents live through the whole backward pass, because the caller's
  engine holds them. Gradients of parameters and inputs live from where they are made to the end; with
  `hold_gradients` the parameters' are in `base` instead, and a new one is added to what is held as soon as it is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.errors import InputError
from planner.liveness import owners
from planner.memory.problem import VERSION, Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from planner.trace import Op, Tensor, Trace

GENERATOR_STATE = 8192
"""Bytes of a saved random generator state: the CPU's takes 5056."""
SPLIT_SHARE = 1 / 8
"""What only backward reads is a node of its own from this share of the op's other results on."""


def problem_from_trace(trace: Trace, budget_bytes: int, *, hold_gradients: bool = False) -> MemoryProblem:
    """The memory problem of one training step. All sizes are bytes, all times ns.

    Raises InputError for a trace that is no training step, lacks sizes or times, or writes into tensors in place.
    """
    step = _Step.of(trace)
    held = step.held(trace)
    node_of, forward = _forward_nodes(step, held)
    backward = _backward_nodes(step, held, node_of, hold_gradients)
    if not backward:
        raise InputError("the trace has no backward op; capture a training step with --train", where=trace.name)
    base = {
        role + "s": sum(step.size(t.id) for t in trace.tensors if t.role == role and t.alias_of is None)
        for role in ("parameter", "buffer", "input", "unknown")
    }
    base["inputs"] += base.pop("unknowns")
    outputs = {step.owner[t] for t in trace.outputs} & held
    base["outputs"] = sum(map(step.size, outputs))
    base["buffers"] += sum(map(step.size, held - outputs))
    base["rng_state"] = GENERATOR_STATE * sum(op.random for op in step.forward)
    if hold_gradients:
        base["gradients"] = sum(map(step.size, step.parameter_gradients))
    return MemoryProblem(version=VERSION, budget_bytes=budget_bytes, base=base, fwd=forward, bwd=backward)


@dataclass(frozen=True)
class _Step:
    """The ops that make storages, and whose storage each tensor lies in."""

    name: str
    tensors: dict[str, Tensor]
    owner: dict[str, str]
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    parameter_gradients: frozenset[str]
    gradients: frozenset[str]
    tangents: frozenset[str]

    @staticmethod
    def of(trace: Trace) -> _Step:
        tensors = {tensor.id: tensor for tensor in trace.tensors}
        owner = owners(trace)
        made = {t for op in trace.ops for t in op.outputs if t is not None}
        places = {op.id: f"$.ops[{index}]" for index, op in enumerate(trace.ops)}
        phases: dict[str, list[Op]] = {"forward": [], "backward": []}
        for op in trace.ops:
            if op.phase not in phases:
                expected = "forward or backward, which a memory plan covers; capture it without --optimizer"
                raise InputError(f"op {op.id!r} is of phase {op.phase}, expected {expected}", path=places[op.id])
            if op.mutates:
                raise InputError(
                    f"op {op.id!r} ({op.target}) writes into {op.mutates[0]!r} in place, expected a functional "
                    "trace as `treadle trace capture` makes it",
                    where=trace.name,
                    path=places[op.id],
                )
            if all(t is None or owner[t] != t for t in op.outputs):
                continue
            if op.time_ns is None:
                raise InputError(
                    f"op {op.id!r} has no time; capture the trace with costs: "
                    "`treadle trace capture --hardware NAME` or `--measure`",
                    where=trace.name,
                    path=f"{places[op.id]}.time_ns",
                )
            phases[op.phase].append(op)
        late = {owner[t] for op in phases["backward"] for t in op.outputs if t is not None}
        for op in phases["forward"]:
            if any(owner[t] in late for t in op.inputs):
                raise InputError(f"forward op {op.id!r} reads what a backward op makes", path=places[op.id])
        finals = {owner[t.id]: t.gradient_of for t in trace.tensors if t.gradient_of is not None}
        return _Step(
            name=trace.name,
            tensors=tensors,
            owner=owner,
            forward=tuple(phases["forward"]),
            backward=tuple(phases["backward"]),
            parameter_gradients=frozenset(t for t, of in finals.items() if tensors[of].role == "parameter") & made,
            gradients=frozenset(finals) & made,
            tangents=frozenset(owner[t] for t in trace.tangents),
        )

    def size(self, tensor: str) -> int:
        """Bytes of the storage that `tensor` owns."""
        found = self.tensors[tensor]
        count = found.bytes if found.storage_bytes is None else found.storage_bytes
        if count is None:
            raise InputError(f"tensor {tensor!r} has no size, expected bytes of every tensor", where=self.name)
        return count

    def made(self, op: Op) -> list[str]:
        """The storages that `op` makes."""
        return sorted({t for t in op.outputs if t is not None and self.owner[t] == t})

    def read(self, ops: Iterable[Op]) -> set[str]:
        """The storages that `ops` read."""
        return {self.owner[t] for op in ops for t in op.inputs}

    def held(self, trace: Trace) -> frozenset[str]:
        """Storages of forward ops that somebody holds to the end of the step: outputs and new buffer values."""
        made = {t for op in self.forward for t in self.made(op)}
        return frozenset(made & {self.owner[t] for t in (*trace.outputs, *(value for _, value in trace.updates))})


def _forward_nodes(step: _Step, held: frozenset[str]) -> tuple[dict[str, int], tuple[ForwardNode, ...]]:
    """The nodes, and which node makes each storage that somebody reads later."""
    early, late = step.read(step.forward) - held, step.read(step.backward) - held
    node_of: dict[str, int] = {}
    nodes: list[ForwardNode] = []
    for op in step.forward:
        made = step.made(op)
        main, extra = [t for t in made if t in early], [t for t in made if t in late - early]
        size, beside = sum(map(step.size, main)), sum(map(step.size, extra))
        split = bool(main and extra) and (late.isdisjoint(main) or beside >= SPLIT_SHARE * size)
        # A recomputation makes everything again; a first run puts what is held where `base` has room for it.
        unread = [t for t in made if t not in early | late and (t not in held or main or extra)]
        place = len(nodes)
        nodes.append(
            ForwardNode(
                op=op.target,
                out_bytes=size + (0 if split else beside),
                inputs=tuple(sorted({node_of[t] for t in step.read([op]) if t in node_of})),
                impls=(
                    Forward(
                        workspace_bytes=sum(map(step.size, unread)) + (beside if split else 0), time_ns=op.time_ns or 0
                    ),
                ),
                recomputable=op.comm is None,
                ops=(op.id,),
            )
        )
        node_of.update(dict.fromkeys(main + extra, place))
        if split:
            node_of.update(dict.fromkeys(extra, place + 1))
            nodes.append(
                ForwardNode(
                    op=op.target,
                    out_bytes=beside,
                    inputs=(place,),
                    kind="intermediate",
                    creator=place,
                    recomputable=op.comm is None and beside > size // 1024,
                )
            )
    return node_of, tuple(nodes)


def _backward_nodes(
    step: _Step, held: frozenset[str], node_of: dict[str, int], hold_gradients: bool
) -> tuple[BackwardNode, ...]:
    ops = step.backward
    needs = [frozenset(node_of[t] for t in step.read([op]) if t in node_of) for op in ops]
    births, deaths = _lives(step, hold_gradients)
    in_use = _bytes_in_use(step, births, deaths, len(ops))
    slack = sum(map(step.size, node_of)) // 1024
    groups: list[list[int]] = []
    for place in range(len(ops)):
        group = groups[-1] if groups else []
        together = frozenset().union(*(needs[p] for p in group))
        small = in_use[place] <= slack + max((in_use[p] for p in group), default=0)
        joins = needs[place] == together or (needs[place] < together and small)
        if group and joins:
            group.append(place)
        else:
            groups.append([place])
    nodes = []
    for group in groups:
        live = sum(step.size(t) for t, birth in births.items() if birth < group[0] <= deaths[t])
        together = frozenset().union(*(needs[p] for p in group))
        nodes.append(
            BackwardNode(
                op=ops[group[0]].target,
                live_grad_bytes=live,
                out_grad_bytes=max(in_use[p] for p in group) - live,
                impls=(Backward(needs=tuple(sorted(together)), time_ns=sum(ops[p].time_ns or 0 for p in group)),),
                ops=tuple(ops[p].id for p in group),
            )
        )
    return tuple(nodes)


def _lives(step: _Step, hold_gradients: bool) -> tuple[dict[str, int], dict[str, int]]:
    """First and last place among the backward ops at which each gradient-side storage takes room."""
    end = len(step.backward)
    births = dict.fromkeys(sorted(step.tangents), -1)
    deaths = dict.fromkeys(births, end)
    for place, op in enumerate(step.backward):
        for tensor in step.made(op):
            births[tensor] = deaths[tensor] = place
        for tensor in step.read([op]) & births.keys():
            deaths[tensor] = max(deaths[tensor], place)
    for tensor in step.gradients - (step.parameter_gradients if hold_gradients else frozenset()):
        if tensor in births:
            deaths[tensor] = end
    return births, deaths


def _bytes_in_use(step: _Step, births: dict[str, int], deaths: dict[str, int], count: int) -> list[int]:
    """Gradient-side bytes while each backward op runs."""
    change = [0] * (count + 2)
    for tensor, birth in births.items():
        size = step.size(tensor)
        change[max(birth, 0)] += size
        change[min(deaths[tensor], count) + 1] -= size
    in_use = []
    total = 0
    for place in range(count):
        total += change[place]
        in_use.append(total)
    return in_use
