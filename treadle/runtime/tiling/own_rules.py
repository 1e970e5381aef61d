"""Rules that DTensor has not, or not without tracing what an operator is made of for seconds. A runtime calls these
operators on the workers' own parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from treadle.planner.documents.trace import Op, Tensor
from treadle.planner.passes.tiling.problem import TilingRule

PARALLEL_AXES: Mapping[str, tuple[int, ...]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (0, 1),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (0, 1),
    "aten.avg_pool2d_backward.default": (0, 1),
    "aten.hardtanh_backward.default": tuple(range(8)),
    "treadle.max_pool2d": (0, 1),
    "treadle.max_pool2d_backward": (0, 1),
}
"""Axes along which an operator computes each part on its own."""
BY_COLUMNS = frozenset({"aten._embedding_bag.default", "aten._embedding_bag_backward.default"})
"""Each column of the weight, and of what is made from it, is computed on its own."""
WEIGHT_GRADIENTS = frozenset({"treadle.conv2d_weight_gradient", "treadle.convolution_weight_gradient"})
INPUT_GRADIENTS = frozenset({"treadle.conv2d_input_gradient", "treadle.convolution_input_gradient"})
"""Each of a batch is computed on its own; the third argument is the shape of the result."""
MEAN_GRADIENTS: Mapping[str, int] = {
    "aten.mse_loss_backward.default": 3,
    "aten.smooth_l1_loss_backward.default": 3,
    "aten.huber_loss_backward.default": 3,
    "aten.soft_margin_loss_backward.default": 3,
    "aten.binary_cross_entropy_backward.default": 4,
}
"""Place of the argument `reduction`. The gradient of a mean is divided by the number of elements of a call, which is
that of a part where the call is cut: DTensor has rules that do not know it."""
_MEAN = 1
BESIDE = frozenset({"aten.addmm.default"})
"""Operators of which DTensor has rules too."""


def own_rules(op: Op, tensors: Mapping[str, Tensor]) -> tuple[TilingRule, ...]:
    """The rules of a call, all replicated first; none of most operators."""
    given = [tensors[name] for name in op.inputs]
    made = [tensors[name] if name is not None else None for name in op.outputs]
    whole = TilingRule(inputs=("R",) * len(given), outputs=("R",) * len(made))
    place = MEAN_GRADIENTS.get(op.target)
    if place is not None and (*(op.args or ()), *[_MEAN] * 5)[place] == _MEAN:
        return (whole,)
    found = [*_own(op.target, given, made)]
    return (whole, *found) if found else ()


def _own(target: str, given: Sequence[Tensor], made: Sequence[Tensor | None]) -> Iterator[TilingRule]:
    results = [result for result in made if result is not None]
    for axis in PARALLEL_AXES.get(target, ()):
        shape = given[0].shape or ()
        if axis < len(shape) and shape[axis] > 1 and all(_fits(each, axis, shape[axis]) for each in (*given, *results)):
            yield _rule(given, made, {each.id: f"S{axis}" for each in (*given, *results) if _size(each, axis) > 1})
    if target in BY_COLUMNS:
        yield _rule(given, made, {each.id: "S1" for each in (*given, *results) if len(each.shape or ()) == 2})
    if target in WEIGHT_GRADIENTS:
        yield _rule(given, made, {each.id: "S0" for each in given} | {each.id: "P" for each in results})
    if target in INPUT_GRADIENTS:
        yield _rule(given, made, {each.id: "S0" for each in (given[0], *results)})
    if target == "aten.addmm.default" and len(given) == 3:
        bias, left, right = given
        yield _rule(given, made, {bias.id: "R", left.id: "S1", right.id: "S0", results[0].id: "P"})


def _rule(given: Sequence[Tensor], made: Sequence[Tensor | None], words: Mapping[str, str]) -> TilingRule:
    return TilingRule(
        inputs=tuple(words.get(each.id, "R") for each in given),
        outputs=tuple(words.get(each.id, "R") if each is not None else "R" for each in made),
    )


def _size(tensor: Tensor, axis: int) -> int:
    shape = tensor.shape or ()
    return shape[axis] if axis < len(shape) else 1


def _fits(tensor: Tensor, axis: int, size: int) -> bool:
    return _size(tensor, axis) in (1, size)
