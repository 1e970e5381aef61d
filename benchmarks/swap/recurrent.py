"""A training step of a stacked LSTM as a swap problem, written cell by cell: the shape of SwapAdvisor's RNN-8-8K."""

from __future__ import annotations

from treadle.planner.passes.swap.problem import Role, SwapMachine, SwapOp, SwapProblem, SwapTensor

V100 = SwapMachine(
    memory_bytes=16 * 2**30,
    in_bandwidth=12 * 10**9,
    out_bandwidth=12 * 10**9,
    together=(5, 6),
    copy_ns=10_000,
)


def lstm(layers: int = 8, steps: int = 180, batch: int = 256, hidden: int = 8192) -> SwapProblem:
    """Layer by layer: three operators per cell forward (gates, cell state, output), three backward (gates, weight
    gradient, gradients of the cells below and before), one update per layer. Times: 14 TFLOP/s and 800 GB/s."""
    state, weight = 4 * batch * hidden, 4 * 2 * hidden * 4 * hidden
    tensors: list[SwapTensor] = []
    ops: list[SwapOp] = []

    def new(name: str, count: int, role: Role, kept: bool = False) -> int:
        tensors.append(SwapTensor(id=name, bytes=count, role=role, kept=kept))
        return len(tensors) - 1

    def op(name: str, inputs: list[int], outputs: list[int], flops: int = 0, writes: tuple[int, ...] = ()) -> None:
        moved = sum(tensors[t].bytes for t in (*inputs, *outputs, *writes))
        ops.append(
            SwapOp(
                id=name,
                inputs=tuple(dict.fromkeys(inputs)),
                outputs=tuple(outputs),
                writes=writes,
                after=tuple(sorted({wrote[t] for t in inputs if t in wrote})),
                time_ns=5_000 + max(flops // 14_000, moved * 10 // 8_000),
            )
        )
        wrote.update((t, len(ops) - 1) for t in writes)

    wrote: dict[int, int] = {}
    product = 2 * batch * 2 * hidden * 4 * hidden
    w = [new(f"w{layer}", weight, "parameter", True) for layer in range(layers)]
    below = [new(f"x{t}", state, "input") for t in range(steps)]
    saved = {}
    for layer in range(layers):
        h, c = [], []
        for t in range(steps):
            name = f"{layer}.{t}"
            gates = new(f"gates{name}", 4 * state, "activation")
            op(f"gates{name}", [w[layer], below[t], *h[-1:]], [gates], product)
            c.append(new(f"c{name}", state, "activation"))
            op(f"cell{name}", [gates, *c[-2:-1]], [c[-1]])
            h.append(new(f"h{name}", state, "activation"))
            op(f"output{name}", [gates, c[-1]], [h[-1]])
            saved[layer, t] = (gates, c[-1], below[t], h[-2:-1])
        below = h
    down: list[int] = list(below)
    for layer in reversed(range(layers)):
        gradient = new(f"dw{layer}", weight, "gradient")
        op(f"zero{layer}", [], [gradient])
        back: list[int] = []
        into = []
        for t in reversed(range(steps)):
            name = f"{layer}.{t}"
            gates, cell, source, before = saved[layer, t]
            dgates = new(f"dgates{name}", 4 * state, "gradient")
            op(f"back{name}", [gates, cell, down[t], *back], [dgates])
            op(f"weight{name}", [gradient, dgates, source, *before], [], product, (gradient,))
            back = [new(f"dh{name}", state, "gradient")]
            into.append(new(f"dx{name}", state, "gradient"))
            op(f"down{name}", [w[layer], dgates], [*back, into[-1]], product)
        down = into[::-1]
        op(f"update{layer}", [w[layer], gradient], [], writes=(w[layer],))
    return SwapProblem(version=1, machine=V100, tensors=tuple(tensors), ops=tuple(ops))
