"""The hand-worked fixtures of the memory pass. Node numbers are 0-based here."""

from __future__ import annotations

from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem


def problem(budget: int, fwd: list[ForwardNode], bwd: list[BackwardNode], base: int = 0) -> MemoryProblem:
    return MemoryProblem(
        version=1, budget_bytes=budget, base={"parameters": base} if base else {}, fwd=tuple(fwd), bwd=tuple(bwd)
    )


def forward(size: int, inputs: tuple[int, ...] = (), *costs: tuple[int, int], **fields) -> ForwardNode:
    """`costs` are (workspace, time)."""
    impls = tuple(Forward(workspace_bytes=c, time_ns=t) for c, t in costs or ((0, 1),))
    return ForwardNode(op="forward", out_bytes=size, inputs=inputs, impls=impls, **fields)


def backward(out: int, live: int, *costs: tuple[tuple[int, ...], int, int]) -> BackwardNode:
    """`costs` are (needs, workspace, time)."""
    impls = tuple(Backward(needs=n, workspace_bytes=c, time_ns=t) for n, c, t in costs)
    return BackwardNode(op="backward", out_grad_bytes=out, live_grad_bytes=live, impls=impls)


def chain(*sizes: int, times: tuple[int, ...] | None = None) -> list[ForwardNode]:
    times = times or (1,) * len(sizes)
    return [
        forward(size, (i - 1,) if i else (), (0, time)) for i, (size, time) in enumerate(zip(sizes, times, strict=True))
    ]


def a(budget: int) -> MemoryProblem:
    """Chain, checkpoint-only."""
    bwd = [backward(2 if k else 0, 2, ((k - 1,) if k else (), 0, 2)) for k in (3, 2, 1, 0)]
    return problem(budget, chain(2, 2, 2, 2), bwd)


def b(budget: int) -> MemoryProblem:
    """A skip connection around four ops."""
    fwd = chain(2, 2, 1, 2)
    fwd.append(forward(2, (0, 3), (0, 1)))
    needs: list[tuple[int, ...]] = [(), (2,), (1,), (0,), ()]
    sizes = [(4, 2), (1, 4), (2, 3), (2, 4), (0, 2)]
    return problem(budget, fwd, [backward(y, lhat, (n, 0, 2)) for (y, lhat), n in zip(sizes, needs, strict=True)])


def c(budget: int, conv: bool = False, out: bool = False, intermediate: bool = False) -> MemoryProblem:
    """Operator choice and intermediates: conv, relu (mask), pool (index), conv."""
    x1, x2, x4 = 0, 1, 3 if intermediate else 2
    pick = slice(None) if conv else slice(1)
    fwd = [forward(16, (), *[(0, 6), (8, 4)][pick]), forward(16, (x1,))]
    if intermediate:
        fwd.append(forward(1, (x2,), kind="intermediate", creator=x2))
    fwd.append(forward(4, (x2,)))
    if intermediate:
        fwd.append(forward(1, (x4,), kind="intermediate", creator=x4))
    fwd.append(forward(4, (x4,), *[(0, 5), (6, 3)][pick]))
    relu: list[tuple[tuple[int, ...], int, int]] = [((x1,), 0, 1)]
    pool: list[tuple[tuple[int, ...], int, int]] = [((x2,), 0, 2)]
    if out:
        relu.append(((x2,), 0, 1))
    if intermediate:
        relu.append(((2,), 0, 2))
        pool.append(((4,), 0, 2))
    bwd = [
        backward(0, 4, *[((x4,), 0, 5), ((x4,), 6, 3)][pick]),
        backward(4, 4, *[((), 0, 5), ((), 6, 3)][pick]),
        backward(16, 4, *pool),
        backward(16, 16, *relu),
        backward(0, 16, *[((), 0, 6), ((), 8, 4)][pick]),
    ]
    return problem(budget, fwd, bwd)


def d(budget: int, inplace: bool = True) -> MemoryProblem:
    """In-place forward."""
    fwd = [
        forward(4, (), (0, 3)),
        forward(4, (0,), (0, 1), inplace_of=0 if inplace else None),
        forward(8, (1,), (0, 3)),
        forward(1, (2,), (3, 2)),
    ]
    bwd = [
        backward(0, 1, ((2,), 0, 2)),
        backward(8, 1, ((), 0, 2)),
        backward(0, 8, ((1,), 0, 2)),
        backward(4, 8, ((), 0, 2)),
        backward(4, 4, ((1,), 0, 2)),
        backward(0, 4, ((), 0, 2)),
    ]
    return problem(budget, fwd, bwd)


def e(budget: int) -> MemoryProblem:
    """The chain on which stage indices shifted by one give a plan that cannot run."""
    sizes = (3, 3, 2, 4)
    bwd = [backward(sizes[k - 1] if k else 0, sizes[k], ((k - 1,) if k else (), 0, 1)) for k in (3, 2, 1, 0)]
    return problem(budget, chain(*sizes, times=(1, 3, 2, 3)), bwd)


def f(budget: int, fast: bool = True) -> MemoryProblem:
    """Joint choice beats choosing kernels afterwards."""
    fwd = [forward(4), forward(4, (0,)), forward(1, (1,), *[(0, 10), (5, 2)][: 2 if fast else 1])]
    bwd = [backward(4, 1, ((1,), 0, 1)), backward(4, 4, ((0,), 0, 1)), backward(0, 4, ((), 0, 1))]
    return problem(budget, fwd, bwd)
