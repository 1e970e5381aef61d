"""Batch and layer normalisation: backward by the output, and batch statistics that outlive a recomputation.

With y = gamma xhat + beta the normalised input is xhat = (y - beta) / gamma, so backward can read y in the place of x
wherever gamma is away from 0, which the runtime sees to (MONeT, section 4.4). A recomputed batch normalisation takes
the mean and inverse deviation of its first run and leaves the running statistics alone.
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.planner.documents.trace import Op, Trace
from treadle.planner.graph.implementations.index import implementation, substituted, tensor, tensor_of

BATCH = {"aten._native_batch_norm_legit_functional.default": 5, "aten._native_batch_norm_legit.no_stats": 3}
"""Batch normalisations: the place among their arguments of whether they train."""
BATCH_BACKWARD = "aten.native_batch_norm_backward.default"
LAYER = "aten.native_layer_norm.default"
LAYER_BACKWARD = "aten.native_layer_norm_backward.default"
INVERTING = {"treadle.batch_norm_backward_output": 2, "treadle.layer_norm_backward_output": 3}
"""Kernels that compute a normalisation's input from its output: the place of the scale among their arguments, which
they divide by; the shift comes after it."""


def with_normalisations(trace: Trace) -> Trace:
    """`trace` with output-activated backward of normalisations, and batch normalisation again by its statistics."""
    made = {name: op for op in trace.ops if op.target in (*BATCH, LAYER) for name in op.outputs if name is not None}
    changed: dict[str, tuple[Op, ...]] = {}
    for op in trace.ops:
        if op.args is None:
            continue
        training = op.target in BATCH and op.args[BATCH[op.target]]
        if training and op.phase == "forward" and None not in op.outputs[:3]:
            changed[op.id] = (_batch_again(op),)
        elif op.target == BATCH_BACKWARD:
            first = made.get(tensor_of(op.args[6]) or "")
            if first is not None and _same(first, op, (0, 1), (1, 2)) and op.args[7]:
                changed[op.id] = (_batch_backward(op, first),)
        elif op.target == LAYER_BACKWARD:
            first = made.get(tensor_of(op.args[4]) or "")
            if first is not None and _same(first, op, (0, 1), (1, 2), (2, 5), (3, 6)):
                changed[op.id] = (_layer_backward(op, first),)
    return substituted(trace, changed)


def _same(forward: Op, backward: Op, *pairs: tuple[int, int]) -> bool:
    """Whether the two calls have the same things at these argument places, and none of them is missing."""
    first, second = forward.args or (), backward.args or ()
    return all(first[here] is not None and first[here] == second[there] for here, there in pairs)


def _batch_again(op: Op) -> Op:
    x, weight, bias = (op.args or ())[:3]
    y, mean, deviation = (str(name) for name in op.outputs[:3])
    args = (x, weight, bias, tensor(mean), tensor(deviation))
    variant = implementation("again", "statistics", "treadle.batch_norm_again", (y,), args, again=True)
    return replace(op, implementations=(variant,))


def _batch_backward(op: Op, forward: Op) -> Op:
    grad, _, weight, _, _, _, deviation, _, _, mask = op.args or ()
    bias, y = (forward.args or ())[2], forward.outputs[0]
    if weight is None or bias is None or y is None:
        return op
    args = (grad, tensor(y), weight, bias, deviation, mask)
    variant = implementation("output", "out", "treadle.batch_norm_backward_output", op.outputs, args)
    return replace(op, implementations=(variant,))


def _layer_backward(op: Op, forward: Op) -> Op:
    grad, _, shape, _, deviation, weight, bias, mask = op.args or ()
    y = forward.outputs[0]
    if weight is None or bias is None or y is None:
        return op
    args = (grad, tensor(y), shape, weight, bias, deviation, mask)
    variant = implementation("output", "out", "treadle.layer_norm_backward_output", op.outputs, args)
    return replace(op, implementations=(variant,))
