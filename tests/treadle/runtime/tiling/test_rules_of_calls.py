"""Each rule holds: a call on the parts of its inputs leaves parts that make up the result of the whole call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tests.conftest import GOLDEN
from treadle.capture.costs.counting import signature
from treadle.capture.costs.measuring import sample
from treadle.capture.graph import capture
from treadle.capture.live import completed
from treadle.capture.load import load_function
from treadle.capture.operator_calls import call
from treadle.planner.documents import store
from treadle.planner.documents.trace import Op, Tensor, Trace
from treadle.planner.passes.tiling.problem import TilingRule
from treadle.runtime.tiling.rules import rules_of

WORKERS = 2
MEANS = {
    *("aten.mean.dim", "aten.mse_loss.default", "aten.binary_cross_entropy_with_logits.default"),
    *("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"),
}
"""Calls whose first result is a mean: each worker's is divided by their number."""
Values = Mapping[str, torch.Tensor]


def op(target: str, *shapes: tuple[int, ...], args: tuple[Any, ...], made: Sequence[tuple[int, ...]]) -> Any:
    """A call and its tensors: inputs a, b, ..., results r0, r1, ..."""
    names = [chr(ord("a") + place) for place in range(len(shapes))]
    results = [f"r{place}" for place in range(len(made))]
    tensors = {
        name: Tensor(id=name, role="activation", shape=shape, stride=torch.empty(shape).stride(), dtype="float32")
        for name, shape in zip([*names, *results], [*shapes, *made], strict=True)
    }
    return Op(id="op", target=target, phase="forward", inputs=tuple(names), outputs=tuple(results), args=args), tensors


def words(rules: Sequence[TilingRule]) -> set[str]:
    return {f"{' '.join(rule.inputs)} -> {' '.join(rule.outputs)}" for rule in rules}


A, B, C = {"tensor": "a"}, {"tensor": "b"}, {"tensor": "c"}


def test_a_product_is_cut_by_rows_by_columns_or_along_its_sum() -> None:
    called, tensors = op("aten.mm.default", (8, 4), (4, 6), args=(A, B), made=[(8, 6)])
    assert words(rules_of(called, tensors, 2)) >= {"R R -> R", "S0 R -> S0", "R S1 -> S1", "S1 S0 -> P"}


def test_all_replicated_comes_first() -> None:
    called, tensors = op("aten.t.default", (8, 4), args=(A,), made=[(4, 8)])
    assert rules_of(called, tensors, 2)[0] == TilingRule(inputs=("R",), outputs=("R",))
    assert words(rules_of(called, tensors, 2)) == {"R -> R", "S0 -> S1", "S1 -> S0", "P -> P"}


def test_a_view_is_not_cut_where_its_axes_are_mixed() -> None:
    called, tensors = op("aten.view.default", (4, 6), args=(A, [4, 3, 2]), made=[(4, 3, 2)])
    assert words(rules_of(called, tensors, 2)) == {"R -> R", "S0 -> S0", "P -> P"}
    assert "S1 -> S1" in words(rules_of(called, tensors, 3))


def test_attention_on_the_cpu_is_cut_by_batches_and_by_heads() -> None:
    shape = (2, 4, 8, 16)
    called, tensors = op(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        *(shape, shape, shape),
        args=(A, B, C),
        made=[shape, shape[:3]],
    )
    assert words(rules_of(called, tensors, 2)) == {"R R R -> R R", "S0 S0 S0 -> S0 S0", "S1 S1 S1 -> S1 S1"}


def test_a_tensor_that_is_read_twice_has_one_placement() -> None:
    called, tensors = op("aten.mul.Tensor", (4, 6), args=(A, A), made=[(4, 6)])
    assert words(rules_of(called, tensors, 2)) >= {"R -> R", "S0 -> S0", "S1 -> S1"}
    assert "P -> P" not in words(rules_of(called, tensors, 2))


def test_there_is_none_of_an_operator_that_no_one_knows() -> None:
    called, tensors = op("aten._pdist_forward.default", (8, 4), args=(A, 2.0), made=[(28,)])
    assert rules_of(called, tensors, 2) == ()


def local_parts(whole: torch.Tensor, word: str) -> list[torch.Tensor]:
    if word[0] == "S":
        return list(whole.chunk(WORKERS, int(word[1:])))
    if word == "P":
        return [whole * 0.25, whole * 0.75]
    return [whole] * WORKERS


def local_call(called: Op, tensors: Mapping[str, Tensor], rule: TilingRule) -> Op:
    """The call with the shape of its part where the arguments have that of the result."""
    shape = list(tensors[called.outputs[0]].shape or ()) if called.outputs[0] else []
    word, given = rule.outputs[0], list(called.args or ())
    own = [size // WORKERS if word == f"S{place}" else size for place, size in enumerate(shape)]
    if "view" in called.target:
        return replace(called, args=(given[0], own))
    return replace(called, args=tuple(own if each == shape else each for each in given))


def divides(tensors: Mapping[str, Tensor], names: Sequence[str | None], placements: Sequence[str]) -> bool:
    shapes = [tensors[name].shape or () if name is not None else () for name in names]
    return all(
        word[0] != "S" or shape[int(word[1:])] % WORKERS == 0 for shape, word in zip(shapes, placements, strict=True)
    )


def wrong(called: Op, tensors: Mapping[str, Tensor], rule: TilingRule, values: Values, whole: Sequence[Any]) -> str:
    """What is wrong with the results of the parts."""
    parts = [local_parts(values[name], word) for name, word in zip(called.inputs, rule.inputs, strict=True)]
    made = []
    for worker in range(WORKERS):
        own = {name: each[worker].contiguous() for name, each in zip(called.inputs, parts, strict=True)}
        if called.target == "aten.addmm.default" and rule.inputs == ("R", "S1", "S0") and worker:
            own[called.inputs[0]] = torch.zeros_like(own[called.inputs[0]])  # the runtime adds the bias once
        made.append(call(local_call(called, tensors, rule), own))
    for place, (word, wanted) in enumerate(zip(rule.outputs, whole, strict=True)):
        found = [each[place] for each in made]
        if wanted is None or called.outputs[place] is None:
            continue
        if word[0] == "S":
            joined = torch.cat(found, int(word[1:]))
        else:
            joined = sum(found) if word == "P" else found[-1]
            joined = joined / WORKERS if word == "P" and called.target in MEANS and place == 0 else joined
        if joined.shape != wanted.shape or not torch.allclose(joined.double(), wanted.double(), rtol=1e-3, atol=1e-4):
            return f"result {place} of {called.target} by {rule}"
    return ""


def findings(trace: Trace) -> Iterator[tuple[int, str]]:
    """Number of rules and what is wrong, for each kind of call."""
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    seen = set[str]()
    generator = torch.Generator().manual_seed(0)
    for called in trace.ops:
        key = signature(called, tensors)
        if key in seen or not called.inputs or called.intermediate_of is not None or called.random:
            continue
        seen.add(key)
        rules = rules_of(called, tensors, WORKERS)
        assert rules, called.target
        values = {name: sample(tensors[name], generator) for name in called.inputs}
        whole = call(called, values)
        for rule in rules:
            if divides(tensors, called.inputs, rule.inputs) and divides(tensors, called.outputs, rule.outputs):
                yield 1, wrong(called, tensors, rule, values, whole)


def test_every_rule_of_a_small_step_holds() -> None:
    found = list(findings(store.load(GOLDEN / "inputs" / "step.json", Trace)))
    assert [text for _, text in found if text] == []
    assert len(found) > 40


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2:tiny", "moe:tiny", "dlrm:tiny_dense", "resnet50:tiny"])
def test_every_rule_of_a_model_holds(model: str) -> None:
    spec = f"examples.models.{model}"
    function: Callable[[], Any] = load_function(spec)
    found = list(findings(completed(capture(function, spec, "train"))))
    assert [text for _, text in found if text] == []
