"""Memory problems of networks made of repeated blocks, for the methods that look for such."""

from __future__ import annotations

import random

from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem


def residual_network(blocks: int, seed: int, skips: bool = False) -> MemoryProblem:
    """Equal blocks of 3 to 5 nodes around a shortcut, with implementations, intermediates and in-place runs.

    With `skips` the first half's blocks are read again by the second half's, as in a U-Net.
    """
    dice = random.Random(seed)
    depth = dice.randint(3, 5)
    shapes = [
        (
            dice.randint(4, 9),
            [(dice.randint(0, 3), dice.randint(2, 9)) for _ in range(dice.choice((1, 1, 2)))],
            dice.choice(("input", "output", "both", "mask")),
            dice.randint(0, 2),
        )
        for _ in range(depth)
    ]
    fwd = [ForwardNode(op="stem", out_bytes=4, impls=(Forward(time_ns=3),))]
    backward: list[tuple[int, list[tuple[tuple[int, ...], int]]]] = [(0, [((), 2)])]
    ends = [0]
    for block in range(blocks):
        entry = ends[-1]
        for size, ways, kind, grad in shapes:
            j, i = len(fwd) - 1 if len(fwd) - 1 > entry else entry, len(fwd)
            j = j if fwd[j].kind == "op" else j - 1
            inplace = j if kind == "output" and j > entry and fwd[j].out_bytes == size else None
            impls = tuple(Forward(name=str(at), workspace_bytes=c, time_ns=t) for at, (c, t) in enumerate(ways))
            fwd.append(ForwardNode(op="part", out_bytes=size, inputs=(j,), impls=impls, inplace_of=inplace))
            needs: list[tuple[tuple[int, ...], int]] = []
            if kind in ("input", "both"):
                needs.append(((j,), 4))
            if kind in ("output", "both"):
                needs.append(((i,), 5))
            if kind == "mask":
                fwd.append(
                    ForwardNode(
                        op="mask",
                        out_bytes=1,
                        inputs=(i,),
                        impls=(Forward(time_ns=1),),
                        kind="intermediate",
                        creator=i,
                    )
                )
                needs += [((i,), 4), ((i + 1,), 5)]
            backward.append((grad, needs))
        j = len(fwd) - 1 if fwd[-1].kind == "op" else len(fwd) - 2
        extra = (ends[blocks - block - 1],) if skips and block >= (blocks + 1) // 2 else ()
        fwd.append(
            ForwardNode(op="add", out_bytes=4, inputs=tuple(sorted({entry, j, *extra})), impls=(Forward(time_ns=1),))
        )
        ends.append(len(fwd) - 1)
    bwd = [
        BackwardNode(
            op="back",
            out_grad_bytes=grad,
            live_grad_bytes=4,
            impls=tuple(Backward(name=str(at), needs=n, time_ns=t) for at, (n, t) in enumerate(needs)),
        )
        for grad, needs in reversed(backward)
    ]
    return MemoryProblem(version=1, budget_bytes=0, base={"parameters": 10}, fwd=tuple(fwd), bwd=tuple(bwd))
