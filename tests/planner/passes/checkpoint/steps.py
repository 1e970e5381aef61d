"""A small training step with measured times."""

from __future__ import annotations

from treadle.planner.documents.trace import Costs, Op, Tensor, Trace


def step(*sizes: int, optimizer: bool = True) -> Trace:
    """A step of 10 ns forward, and 5 ns backward for each gradient."""
    names = [f"w{place}" for place in range(len(sizes))]
    tensors = [
        each
        for name, size in zip(names, sizes, strict=True)
        for each in (
            Tensor(id=name, role="parameter", bytes=size, dtype="float32"),
            Tensor(id=f"g{name}", role="gradient", bytes=size, dtype="float32", gradient_of=name),
        )
    ]
    states = [Tensor(id=f"m{name}", role="buffer", bytes=size) for name, size in zip(names, sizes, strict=True)]
    ops = [Op(id="forward", target="op", phase="forward", time_ns=10)]
    ops += [Op(id=name, target="op", phase="backward", outputs=(f"g{name}",), time_ns=5) for name in names]
    ops += [Op(id="step", target="op", phase="optimizer", time_ns=7)] if optimizer else []
    return Trace(
        version=1, name="step", mode="train", source="torch-aot", costs=Costs(model="measured"),
        tensors=(*tensors, *(states if optimizer else ())), ops=tuple(ops),
        gradient_order=tuple(f"g{name}" for name in names),
    )  # fmt: skip
