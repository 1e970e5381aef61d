"""From a captured trace to the memory problem: what is made, what reads it, and how many bytes that takes.

Bytes belong to storages. A view costs nothing, is part of no node and is computed from its base wherever it is read, so
an op that reads a view reads the storage's owner.

* Forward node: one forward op that makes storages. Its output bytes are those of the storages that some later op reads;
  unread ones count as workspace. What the caller holds anyway is in `base`: parameters, buffers (with the new values
  that the step writes back), inputs, outputs, and 8 KiB of generator state for each random op, which makes it
  repeatable. Results that only the backward pass reads (statistics, a mask, indices) are an intermediate node of their
  own, without ops, if backward reads nothing else of the op, or if they are large. Below 1/1024 of the op's other
  results they are always kept.
* Backward node: consecutive backward ops. An op joins the node before it if it reads no other forward storages and
  raises the node's peak of gradient bytes by at most 1/1024 of all forward bytes, so that treating both as one loses
  next to nothing. There are about as many nodes as ops that read forward storages.
  |Lhat_k| and |y_k| come from the exact lifetimes of the gradient-side storages: |Lhat_k| is live when the node starts,
  |Lhat_k| + |y_k| is the peak while it runs. Tangents are live throughout the backward pass, because the caller's
  engine holds them. Gradients of parameters and inputs are live from where they are made to the end; with
  `hold_gradients` those of parameters are in `base` instead, and a new one is also live from where it is made to the
  last read of its parameter, after which it is added to the held one.
* Implementations of an op are those of its node, by name. Family `inplace` and calls for repeated runs are no separate
  choices: they give a forward node what it may overwrite and what a recomputation costs. What a repeated run reads is
  then never recomputed. An optional op is an intermediate node if any backward op may read its results. A backward op
  with several implementations starts a node; another op joins it if it reads only what all of them read, and if its
  bytes are never the node's peak. Workspace comes on top of gradient bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from treadle.planner.documents.trace import Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.extract.backward import backward_nodes
from treadle.planner.passes.memory.extract.step import TrainingStep, calls_of, name_of
from treadle.planner.passes.memory.problem import VERSION, BackwardNode, Forward, ForwardNode, MemoryProblem

GENERATOR_STATE = 5056
"""Bytes of the CPU's random generator state; a CUDA device's takes fewer."""
SPLIT_SHARE = 1 / 8
"""Results that only backward reads are a node of their own from this share of the op's other results on."""
STATE = "treadle.rng_state"
"""The op that saves the generator's state, which a later stage cannot recompute."""


def problem_from_trace(trace: Trace, budget_bytes: int = 0, *, hold_gradients: bool = False) -> MemoryProblem:
    """The memory problem of one training step. All sizes are bytes, all times ns.

    Raises InputError for a trace that is no training step, lacks sizes or times, or writes into tensors in place.
    """
    step = TrainingStep.of(trace)
    held = step.held(trace)
    node_of, nodes = _forward_nodes(step, held)
    backward = backward_nodes(step, node_of, hold_gradients=hold_gradients)
    if not backward:
        raise InputError("the trace has no backward op; capture a training step with --train", where=trace.name)
    forward = _recosted(step, held, node_of, nodes, backward)
    base = {
        role + "s": sum(step.size(t.id) for t in trace.tensors if t.role == role and t.alias_of is None)
        for role in ("parameter", "buffer", "input", "unknown")
    }
    base["inputs"] += base.pop("unknowns")
    outputs = {step.owner[t] for t in trace.outputs} & held
    base["outputs"] = sum(map(step.size, outputs))
    base["buffers"] += sum(map(step.size, held - outputs))
    base["rng_state"] = _generator_bytes(step, forward, backward)
    if hold_gradients:
        base["gradients"] = sum(map(step.size, step.parameter_gradients))
    return MemoryProblem(
        version=VERSION,
        budget_bytes=budget_bytes,
        base=base,
        fwd=forward,
        bwd=backward,
        plain_peak_bytes=None if hold_gradients else trace.plain_peak_bytes,
    )


def _generator_bytes(step: TrainingStep, nodes: Sequence[ForwardNode], backward: Sequence[BackwardNode]) -> int:
    """The generator's state from before each random op that may run again, and the one put aside while one does."""
    useful, _ = _last_uses(nodes, backward)
    again = {name for i, node in enumerate(nodes) if node.recomputable and useful[i] >= 0 for name in node.ops}
    count = sum(op.random and op.id in again for op in step.forward)
    return GENERATOR_STATE * (count + 1 if count else 0)


def _forward_nodes(step: TrainingStep, held: frozenset[str]) -> tuple[dict[str, int], list[ForwardNode]]:
    """The node that makes each storage that a later op reads, and the nodes."""
    early = step.read(op for op in step.forward if op.intermediate_of is None) - held
    late = step.read(call for op in step.backward for call in calls_of(op)) - held
    calls = [call for op in step.forward for call in op.implementations]
    overwritten = {step.owner[call.overwrites] for call in calls if call.overwrites}
    node_of: dict[str, int] = {}
    place_of: dict[str, int] = {}
    nodes: list[ForwardNode] = []
    for op in step.forward:
        made = step.made(op)
        if op.intermediate_of is not None:
            if not late.isdisjoint(made) and op.intermediate_of in place_of:
                node_of.update(dict.fromkeys(made, len(nodes)))
                nodes.append(_optional(step, op, place_of[op.intermediate_of], node_of, nodes))
            continue
        main, extra = [t for t in made if t in early], [t for t in made if t in late and t not in early]
        size, extra_bytes = sum(map(step.size, main)), sum(map(step.size, extra))
        apart = not overwritten.isdisjoint(main) or any(call.again for call in op.implementations)
        split = bool(main and extra) and (apart or late.isdisjoint(main) or extra_bytes >= SPLIT_SHARE * size)
        # A recomputation makes everything again; a first run puts what is held where `base` has room for it.
        unread = [t for t in made if t not in early and t not in late and (t not in held or main or extra)]
        unread_bytes = sum(map(step.size, unread)) + (extra_bytes if split else 0)
        place = place_of[op.id] = len(nodes)
        nodes.append(
            ForwardNode(
                op=op.target,
                out_bytes=size + (0 if split else extra_bytes),
                inputs=tuple(sorted({node_of[t] for t in step.read([op]) if t in node_of})),
                impls=tuple(
                    Forward(
                        name=name_of(call),
                        family=call.family,
                        workspace_bytes=unread_bytes + (call.workspace_bytes or 0),
                        time_ns=call.time_ns or 0,
                    )
                    for call in calls_of(op)
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
                    out_bytes=extra_bytes,
                    inputs=(place,),
                    kind="intermediate",
                    creator=place,
                    recomputable=op.comm is None and extra_bytes > size // 1024,
                )
            )
    return node_of, nodes


def _optional(
    step: TrainingStep, op: Op, creator: int, node_of: dict[str, int], nodes: Sequence[ForwardNode]
) -> ForwardNode:
    """The node of an optional op. Intermediates that it reads count as its workspace."""
    sources = {node_of[t] for t in step.read([op]) if t in node_of}
    direct = {i for i in sources if nodes[i].kind == "op"}
    read_bytes = sum(nodes[i].out_bytes for i in sources - direct)
    return ForwardNode(
        op=op.target,
        out_bytes=sum(map(step.size, step.made(op))),
        inputs=tuple(sorted(direct | {creator})),
        impls=(Forward(workspace_bytes=read_bytes + (op.workspace_bytes or 0), time_ns=op.time_ns or 0),),
        kind="intermediate",
        creator=creator,
        recomputable=nodes[creator].recomputable and op.target != STATE,
        ops=(op.id,),
    )


def _recosted(
    step: TrainingStep,
    held: Collection[str],
    node_of: dict[str, int],
    nodes: Sequence[ForwardNode],
    backward: Sequence[BackwardNode],
) -> tuple[ForwardNode, ...]:
    """The forward nodes with what they may overwrite, and with the costs of recomputations from what the first run
    left.

    These costs apply only where that is surely still live: intermediates that every implementation of a backward node
    reads after which no backward node needs the results of the op.
    """
    found = list(nodes)
    last_reader = {j: i for i, node in enumerate(nodes) for j in node.inputs}
    useful, sure = _last_uses(nodes, backward)
    place_of = {name: i for i, node in enumerate(nodes) for name in node.ops}
    for op in step.forward:
        for call in op.implementations:
            i, node = place_of[op.id], found[place_of[op.id]]
            if call.again:
                left = {node_of.get(t, -1) for t in step.read([call]).intersection(step.made(op)) - set(held)}
                whole = all(t in call.outputs for t in step.made(op) if node_of.get(t) == i)
                if whole and all(j > i and sure[j] >= useful[i] for j in left):
                    costs = {"recompute_workspace_bytes": call.workspace_bytes or 0, "recompute_time_ns": call.time_ns}
                    found[i] = replace(node, impls=(replace(node.impls[0], **costs), *node.impls[1:]))
                    for j in left:
                        found[j] = replace(found[j], recomputable=False)
            elif op.phase == "forward" and call.overwrites is not None:
                storage = step.owner[call.overwrites]
                j = node_of.get(storage, -1)
                if last_reader.get(j) == i and nodes[j].out_bytes == node.out_bytes == step.size(storage):
                    quickest = min(impl.time(again) for impl in node.impls for again in (False, True))
                    saved = min(quickest, max(0, (op.time_ns or 0) - (call.time_ns or 0)))
                    found[i] = replace(node, inplace_of=j, inplace_saves_ns=saved)
    return tuple(found)


def _last_uses(nodes: Sequence[ForwardNode], backward: Sequence[BackwardNode]) -> tuple[list[int], list[int]]:
    """For each forward node the last backward node that needs it, directly or through others, and the last one whose
    every implementation reads it; -1 for none."""
    useful, sure = [-1] * len(nodes), [-1] * len(nodes)
    for k, back in enumerate(backward):
        for i in {i for impl in back.impls for i in impl.needs}:
            useful[i] = k
        for i in frozenset.intersection(*(frozenset(impl.needs) for impl in back.impls)):
            sure[i] = k
    for i in reversed(range(len(nodes))):
        for j in nodes[i].inputs:
            useful[j] = max(useful[j], useful[i])
    return useful, sure
