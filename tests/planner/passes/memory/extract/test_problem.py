"""From traces written by hand to problems worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from msgspec.structs import replace

from tests.planner.plans import memory_plan
from treadle.planner.documents.trace import Costs, Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.check import check, check_against_trace
from treadle.planner.passes.memory.extract.problem import GENERATOR_STATE, problem_from_trace
from treadle.planner.passes.memory.variants import restrict


def tensor(name: str, role: str, size: int | None, /, **fields) -> Tensor:
    return Tensor(id=name, role=role, bytes=size, **fields)


def op(name: str, phase: str, reads: Sequence[str], makes: Sequence[str], time: int | None = 1, **fields) -> Op:
    return Op(
        id=name, target=f"aten.{name}", phase=phase, inputs=tuple(reads), outputs=tuple(makes), time_ns=time, **fields
    )


def step(tensors: Sequence[Tensor], ops: Sequence[Op], **fields) -> Trace:
    return Trace(
        version=1,
        name="hand",
        mode="train",
        source="hand",
        costs=Costs(model="recorded"),
        tensors=tuple(tensors),
        ops=tuple(ops),
        **fields,
    )


def perceptron() -> Trace:
    """x -> h = mm(x, w1.t()) -> a = relu(h) -> y = mm(a, w2.t()), tangent of y. Matrices are read through views."""
    tensors = [
        tensor("w1", "parameter", 40, name="w1"),
        tensor("w2", "parameter", 60, name="w2"),
        tensor("x", "input", 10),
        tensor("w1t", "activation", 40, alias_of="w1"),
        tensor("h", "activation", 20),
        tensor("a", "activation", 20),
        tensor("av", "activation", 20, alias_of="a"),
        tensor("y", "output", 30),
        tensor("dy", "tangent", 30),
        tensor("at", "gradient", 20, alias_of="av"),
        tensor("dw2", "gradient", 60, gradient_of="w2"),
        tensor("da", "gradient", 20),
        tensor("dh", "gradient", 20),
        tensor("dw1", "gradient", 40),
        tensor("dw1t", "gradient", 40, alias_of="dw1", gradient_of="w1"),
    ]
    ops = [
        op("t", "forward", ["w1"], ["w1t"], 0),
        op("mm", "forward", ["x", "w1t"], ["h"], 5),
        op("relu", "forward", ["h"], ["a"], 1),
        op("view", "forward", ["a"], ["av"], 0),
        op("mm_1", "forward", ["av", "w2"], ["y"], 6),
        op("t_1", "backward", ["av"], ["at"], 0),
        op("mm_2", "backward", ["dy", "at"], ["dw2"], 7),
        op("mm_3", "backward", ["dy", "w2"], ["da"], 8),
        op("relu_backward", "backward", ["da", "a"], ["dh"], 2),
        op("mm_4", "backward", ["dh", "x"], ["dw1"], 9),
        op("t_2", "backward", ["dw1"], ["dw1t"], 0),
    ]
    return step(tensors, ops, inputs=("x",), outputs=("y",), tangents=("dy",), gradient_order=("dw2", "dw1t"))


def test_perceptron_by_hand():
    problem = problem_from_trace(perceptron(), 500)
    assert problem.budget_bytes == 500
    assert problem.base == {"parameters": 100, "buffers": 0, "inputs": 10, "outputs": 30, "rng_state": 0}
    assert [(n.ops, n.out_bytes, n.inputs, n.impls[0].time_ns) for n in problem.fwd] == [
        (("mm",), 20, (), 5),
        (("relu",), 20, (0,), 1),
        (("mm_1",), 0, (1,), 6),
    ]
    assert [
        (n.ops, n.impls[0].needs, n.live_grad_bytes, n.out_grad_bytes, n.impls[0].time_ns) for n in problem.bwd
    ] == [
        (("mm_2",), (1,), 30, 60, 7),  # dy; dw2
        (("mm_3",), (), 90, 20, 8),  # dy, dw2; da. More than mm_2 needs, so a node of its own
        (("relu_backward",), (1,), 110, 20, 2),  # dy, dw2, da; dh
        (("mm_4",), (), 110, 40, 9),  # dy, dw2, dh; dw1
    ]


def test_held_gradients_are_in_the_base_and_new_ones_are_added_to_them_once_their_parameter_is_read_no_more():
    problem = problem_from_trace(perceptron(), 500, hold_gradients=True)
    assert problem.base["gradients"] == 100
    assert [(n.ops, n.live_grad_bytes, n.out_grad_bytes) for n in problem.bwd] == [
        (("mm_2",), 30, 60),  # dy and dw2
        (("mm_3",), 90, 20),  # dw2 still, for it reads w2
        (("relu_backward",), 50, 20),
        (("mm_4",), 50, 40),
    ]


def test_a_plan_of_the_perceptron_matches_its_trace_until_the_trace_changes():
    trace = perceptron()
    decisions = memory_plan(trace, Fraction(1)).decisions
    assert check(decisions) == []
    assert check_against_trace(decisions, trace) == []
    bigger = replace(trace, tensors=tuple(replace(t, bytes=24) if t.id == "h" else t for t in trace.tensors))
    assert check_against_trace(decisions, bigger)[0].startswith("$.problem.fwd[0]: found ")
    slower = replace(trace, ops=tuple(replace(o, time_ns=99) if o.id == "mm_4" else o for o in trace.ops))
    assert check_against_trace(decisions, slower)[0].startswith("$.problem.bwd[3]: found ")
    shorter = replace(trace, ops=trace.ops[:-2])
    assert "found 4 nodes, expected 3" in check_against_trace(decisions, shorter)[0]


def test_several_results_of_one_op():
    """Normalisation: out is read by forward only, stats by backward only, the new mean is written back."""
    tensors = [
        tensor("mean", "buffer", 4),
        tensor("x", "input", 64),
        tensor("out", "activation", 64),
        tensor("stats", "activation", 16),
        tensor("new", "activation", 4),
        tensor("unread", "activation", 3),
        tensor("y", "activation", 64),
        tensor("loss", "output", 4),
        tensor("g", "gradient", 64),
        tensor("gx", "gradient", 64),
    ]
    ops = [
        op("norm", "forward", ["x", "mean"], ["out", "stats", "new", "unread"]),
        op("gelu", "forward", ["out"], ["y"]),
        op("sum", "forward", ["y"], ["loss"]),
        op("gelu_backward", "backward", ["y"], ["g"]),
        op("norm_backward", "backward", ["g", "x", "stats"], ["gx"]),
    ]
    problem = problem_from_trace(step(tensors, ops, outputs=("loss",), updates=(("mean", "new"),)), 1000)
    assert problem.base["buffers"] == 8
    assert [(n.kind, n.out_bytes, n.inputs, n.impls[0].workspace_bytes, n.creator) for n in problem.fwd] == [
        ("op", 64, (), 16 + 4 + 3, None),  # when it runs again it makes all four
        ("intermediate", 16, (0,), 0, 0),
        ("op", 64, (0,), 0, None),
        ("op", 0, (2,), 0, None),
    ]
    assert [n.impls[0].needs for n in problem.bwd] == [(2,), (1,)]
    assert all(n.recomputable for n in problem.fwd)


def test_random_ops_cost_their_generator_state_and_collectives_never_run_again():
    tensors = [tensor("x", "input", 8), tensor("a", "activation", 8), tensor("b", "activation", 8)]
    tensors += [tensor("g", "gradient", 8)]
    ops = [
        op("dropout", "forward", ["x"], ["a"], random=True),
        op("all_gather", "forward", ["a"], ["b"], comm={"collective": "allgather"}),
        op("back", "backward", ["b"], ["g"]),
    ]
    problem = problem_from_trace(step(tensors, ops), 100)
    assert problem.base["rng_state"] == 2 * GENERATOR_STATE  # one that is kept, and one put aside while it runs again
    assert [n.recomputable for n in problem.fwd] == [True, False]
    assert "rng_state" not in restrict(problem, None, recompute=False).base


def test_random_ops_that_nothing_needs_again_cost_no_generator_state():
    tensors = [tensor("x", "input", 8), tensor("a", "activation", 8), tensor("b", "activation", 8)]
    tensors += [tensor("g", "gradient", 8)]
    ops = [
        op("noise", "forward", ["x"], ["a"], random=True),
        op("sum", "forward", ["a"], ["b"]),
        op("back", "backward", ["x"], ["g"]),
    ]
    assert problem_from_trace(step(tensors, ops), 100).base["rng_state"] == 0


def test_larger_storages_count_whole_and_ops_that_raise_no_peak_share_a_node():
    tensors = [tensor("x", "input", 8), tensor("a", "activation", 8, storage_bytes=4096)]
    tensors += [tensor(name, "gradient", 100) for name in ("g1", "g2", "g3", "g4")]
    ops = [
        op("f", "forward", ["x"], ["a"]),
        op("b1", "backward", ["a"], ["g1"]),
        op("b2", "backward", ["a", "g1"], ["g2"]),
        op("b3", "backward", ["g2"], ["g3"]),
        op("b4", "backward", ["g3", "a"], ["g4"]),
    ]
    problem = problem_from_trace(step(tensors, ops), 100)
    assert problem.fwd[0].out_bytes == 4096
    assert [(n.ops, n.live_grad_bytes, n.out_grad_bytes) for n in problem.bwd] == [(("b1", "b2", "b3", "b4"), 0, 200)]


def changed(trace: Trace, name: str, **fields) -> Trace:
    return replace(trace, ops=tuple(replace(o, **fields) if o.id == name else o for o in trace.ops))


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (changed(perceptron(), "mm", time_ns=None), r"\$.ops\[1\].time_ns: op 'mm' has no time; .*--measure"),
        (changed(perceptron(), "relu", mutates=("h",)), r"\$.ops\[2\]: op 'relu' .* writes into 'h' in place"),
        (changed(perceptron(), "relu", phase="optimizer"), "of phase optimizer, expected forward or backward"),
        (changed(perceptron(), "relu", phase="unknown"), "of phase unknown, expected forward or backward"),
        (changed(perceptron(), "relu", inputs=("da",)), "forward op 'relu' reads what a backward op makes"),
        (replace(perceptron(), ops=perceptron().ops[:5]), "no backward op; capture a training step with --train"),
        (replace(perceptron(), ops=()), "no backward op"),
        (
            replace(
                perceptron(), tensors=tuple(replace(t, bytes=None) if t.id == "h" else t for t in perceptron().tensors)
            ),
            "tensor 'h' has no size",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(trace, message):
    with pytest.raises(InputError, match=message):
        problem_from_trace(trace, 100)
