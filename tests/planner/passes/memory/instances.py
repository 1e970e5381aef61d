"""Random memory problems of three to five forward nodes with everything a problem can have."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem


def instance(seed: int) -> MemoryProblem:
    """Chains with skips, several implementations, intermediates, runs and gradients in place, nodes that run once."""
    rng = Random(seed)
    nodes: list[ForwardNode] = []
    for i in range(rng.randint(3, 5)):
        nodes.append(_forward(rng, i, nodes))
    nodes = [_perhaps_in_place(rng, i, nodes) for i in range(len(nodes))]
    bwd = tuple(_backward(rng, len(nodes), k) for k in reversed(range(rng.randint(2, 5))))
    base = {"parameters": rng.randint(0, 3)}
    return MemoryProblem(version=1, budget_bytes=rng.randint(8, 20), base=base, fwd=tuple(nodes), bwd=bwd)


def _forward(rng: Random, i: int, nodes: list[ForwardNode]) -> ForwardNode:
    ops = [j for j in range(i) if nodes[j].kind == "op"]
    inputs = {*ops[-1:], *rng.sample(ops, min(len(ops), rng.randint(0, 1)))}
    impls = tuple(
        Forward(
            name=str(way),
            workspace_bytes=rng.randint(0, 4),
            time_ns=rng.randint(1, 5),
            recompute_workspace_bytes=rng.choice([None, rng.randint(0, 4)]),
            recompute_time_ns=rng.choice([None, rng.randint(1, 5)]),
        )
        for way in range(rng.choice([1, 1, 2, 3]))
    )
    intermediate = bool(ops) and rng.random() < 0.25
    return ForwardNode(
        op=f"f{i}",
        out_bytes=rng.randint(0, 5),
        inputs=tuple(sorted(inputs)),
        impls=impls,
        kind="intermediate" if intermediate else "op",
        creator=max(inputs) if intermediate else None,
        recomputable=rng.random() > 0.1,
    )


def _perhaps_in_place(rng: Random, i: int, nodes: list[ForwardNode]) -> ForwardNode:
    node = nodes[i]
    last = {j: t for t, other in enumerate(nodes) for j in other.inputs}
    able = [j for j in node.inputs if last[j] == i]
    if not able or node.kind != "op" or rng.random() < 0.4:
        return node
    # Equal sizes are what makes it possible.
    nodes[i] = replace(
        node,
        out_bytes=nodes[able[0]].out_bytes,
        inplace_of=able[0],
        inplace_saves_ns=rng.randint(0, min(impl.time(again) for impl in node.impls for again in (False, True))),
    )
    return nodes[i]


def _backward(rng: Random, nodes: int, k: int) -> BackwardNode:
    impls = tuple(
        Backward(
            name=str(way),
            needs=tuple(sorted(rng.sample(range(nodes), rng.choice([0, 1, 1, 2])))),
            workspace_bytes=rng.randint(0, 3),
            time_ns=rng.randint(1, 4),
            grad_inplace=rng.random() < 0.3,
        )
        for way in range(rng.choice([1, 2, 3]))
    )
    return BackwardNode(op=f"b{k}", out_grad_bytes=rng.randint(0, 4), live_grad_bytes=rng.randint(0, 4), impls=impls)


def optional(seed: int) -> MemoryProblem:
    """Five forward nodes, many of them intermediates, read here and there: what could run is seldom what does."""
    rng = Random(seed)
    nodes: list[ForwardNode] = []
    for i in range(5):
        ops = [j for j in range(i) if nodes[j].kind == "op"]
        inputs = {*ops[-1:], *rng.sample(ops, min(len(ops), rng.randint(0, 2)))}
        intermediate = bool(ops) and i > 1 and rng.random() < 0.3
        node = ForwardNode(
            op=f"f{i}",
            out_bytes=rng.randint(1, 5),
            inputs=tuple(sorted(inputs)),
            impls=(Forward(time_ns=rng.randint(1, 9)),),
            kind="intermediate" if intermediate else "op",
            creator=max(inputs) if intermediate else None,
        )
        nodes.append(node)
    bwd = tuple(_backward_that_reads(rng, k) for k in range(rng.randint(3, 5)))
    return MemoryProblem(version=1, budget_bytes=rng.randint(8, 15), base={}, fwd=tuple(nodes), bwd=bwd)


def _backward_that_reads(rng: Random, k: int) -> BackwardNode:
    out, live = rng.randint(0, 3), rng.randint(0, 3)
    impls = tuple(
        Backward(needs=tuple(sorted(rng.sample(range(5), rng.choice([1, 1, 2])))), time_ns=1)
        for _ in range(rng.choice([1, 2]))
    )
    return BackwardNode(op=f"b{k}", out_grad_bytes=out, live_grad_bytes=live, impls=impls)
