"""Shared by the importers of other tools' traces: names of operators and collectives, phases, and the trace itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from treadle.planner.documents import trace
from treadle.planner.documents.trace import Costs, Op, Phase, Tensor, Trace

_COLLECTIVES = (
    "allreduce", "allgather", "reducescatter", "reduce", "broadcast", "alltoall", "gather", "scatter", "barrier",
    "send", "recv",
)  # fmt: skip


def imported(
    source: Literal["execution-trace", "kineto", "chakra", "memory-snapshot"],
    costs: Literal["recorded", "absent"],
    ops: Sequence[Op],
    where: str,
    tensors: Iterable[Tensor] = (),
    gradients: Iterable[str] = (),
) -> Trace:
    """A trace of `ops`, of a training step if one of them is of the backward phase."""
    train = any(op.phase == "backward" or (source == "chakra" and "backward" in op.target.lower()) for op in ops)
    return Trace(
        version=trace.VERSION,
        name=where,
        mode="train" if train else "unknown",
        source=source,
        costs=Costs(model=costs),
        tensors=tuple(tensors),
        ops=tuple(ops),
        gradient_order=tuple(gradients),
    )


def target_of(schema: str, name: str) -> str:
    """`aten.transpose.int` from `aten::transpose.int(Tensor(a) self, ...)`; the plain name where there is no schema."""
    head = schema.partition("(")[0].strip()
    if not head:
        return name
    namespace, _, operator = head.rpartition("::")
    return f"{namespace}.{operator}" if "." in operator else f"{namespace}.{operator}.default"


def collective_of(target: str) -> str | None:
    """The collective or message that a `c10d` operator performs, None for any other operator."""
    return collective_named(target.split(".")[1]) if target.startswith("c10d.") else None


def collective_named(name: str) -> str | None:
    """The collective that a function performs, by its name in `c10d` or NCCL, such as `_allgather_base`."""
    plain = name.replace("_", "")
    return next((word for word in _COLLECTIVES if plain.startswith(word)), None)


def phase_of(names: Iterable[str]) -> Phase:
    """Backward below the autograd engine, optimizer below its step, else forward; `names` are those of the callers."""
    phase: Phase = "forward"
    for name in names:
        if name.startswith("autograd::engine::"):
            return "backward"
        if name.startswith(("Optimizer.step", "Optimizer.zero_grad")):
            phase = "optimizer"
    return phase
