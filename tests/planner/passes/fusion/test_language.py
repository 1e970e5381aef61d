"""The language: values, names, what Execute collects, and what it refuses."""

# ruff: noqa: F403, F405, F841, RUF059 (programs are written as programs are)
from __future__ import annotations

import pytest

from treadle.fusion import *
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion import language
from treadle.planner.passes.fusion.naming import canonical
from treadle.planner.passes.fusion.operations import OPERATIONS, completed
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Input, Node, Program, TensorType
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.text import show

N = dims("N")


def tensors():
    return Tensor("g", f32, [N], Local), Tensor("p", f32, [N], Replicated), Scalars("lr", f32)


def test_nodes_are_called_after_variables_and_expressions_after_their_owner():
    g, p, lr = tensors()
    total = AllReduce("+", g)
    p_ = Update(p, p - lr * (total + 1) / 2)
    program = Execute("sgd", [g, p, lr], [p_])
    assert [(node.name, node.op, node.inputs) for node in program.nodes] == [
        ("total", "AllReduce", ("g",)),
        ("_p__1", "Add", ("total", 1)),
        ("_p__2", "Mul", ("lr", "_p__1")),
        ("_p__3", "Div", ("_p__2", 2)),
        ("_p__4", "Sub", ("p", "_p__3")),
        ("p_", "Update", ("p", "_p__4")),
    ]
    assert program.outputs == ("p_",)


def test_nested_operations_that_are_not_pointwise_get_visible_names():
    g, p, lr = tensors()
    a = p - AllReduce("+", g) * AllReduce("max", g)
    names = [node.name for node in Execute("x", [g, p], [a]).nodes]
    assert names == ["allreduce_1", "allreduce_2", "_a_1", "a"]


def test_an_expression_that_is_used_twice_gets_a_visible_name():
    g, p, lr = tensors()
    value = p + 1
    value = value * value
    program = Execute("x", [p], [value])
    assert [node.name for node in program.nodes] == ["add_1", "value"]


def test_explicit_names():
    g, p, lr = tensors()
    program = Execute("x", [g], [AllReduce("+", g, name="total")])
    assert program.outputs == ("total",)
    with pytest.raises(InputError, match="found two values called 'total'"):
        Execute("x", [g], [AllReduce("+", g, name="total"), AllReduce("max", g, name="total")])
    with pytest.raises(InputError, match="found the name 'Norm', which is a word of the language"):
        Execute("x", [g], [Norm(g, name="Norm")])


def test_a_variable_called_as_an_input_is_another_name():
    g, p, lr = tensors()
    inputs = [lr, p]
    p = Update(p, p * lr)
    program = Execute("x", inputs, [p])
    assert program.outputs == ("p_",)


def test_later_reads_of_a_written_tensor_mean_the_new_value():
    g, p, lr = tensors()
    before = p * 2
    p_ = Update(p, p + 1)
    after = p * 3
    program = Execute("x", [p], [before, after, p])
    assert program.by_name["before"].inputs == ("p", 2)
    assert program.by_name["after"].inputs == ("p_", 3)
    assert program.outputs == ("before", "after", "p_")


def test_an_old_value_inside_a_later_expression_keeps_its_place():
    g, p, lr = tensors()
    total = (p + 1) * Update(p, p * 2)
    program = Execute("x", [p], [total])
    assert [(node.name, node.inputs) for node in program.nodes] == [
        ("add_1", ("p", 1)),
        ("_update_1_1", ("p", 2)),
        ("update_1", ("p", "_update_1_1")),
        ("total", ("add_1", "update_1")),
    ]


def test_updates_and_named_values_belong_to_the_program_without_being_outputs():
    g, p, lr = tensors()
    rs = ReduceScatter("+", g)
    p_ = Update(p, Slice(p) - rs)
    whole = AllGather(p_)
    side = g * 2
    other = Tensor("other", f32, [N], Local)
    foreign = other * 2
    program = Execute("x", [g, p], [rs])
    assert [node.name for node in program.nodes] == ["rs", "slice_1", "_p__1", "p_", "whole", "side"]


def test_schedules():
    g, p, lr = tensors()
    rs = ReduceScatter("+", g)
    p_ = Update(p, Slice(p) - rs)
    whole = AllGather(p_)
    c = fuse("ComputationFuse", p_)
    far = fuse("AllReduceFuse", rs, c, whole)
    chain = overlap(rs, far)
    program = Execute("x", [g, p], [whole])
    assert [(kernel.name, kernel.policy, kernel.members) for kernel in program.kernels] == [
        ("c", "ComputationFuse", ("p_",)),
        ("far", "AllReduceFuse", ("rs", "c", "whole")),
    ]
    assert [(of.name, of.members) for of in program.overlaps] == [("chain", ("rs", "far"))]


def test_schedules_that_cannot_be():
    g, p, lr = tensors()
    rs = ReduceScatter("+", g)
    for call, message in [
        (lambda: fuse("Fuse", rs), "found policy 'Fuse', expected one of ComputationFuse"),
        (lambda: fuse("AllReduceFuse"), "fuse: found 0 members"),
        (lambda: fuse("AllReduceFuse", g), "expected operations or kernels"),
        (lambda: overlap(rs), "overlap: found 1 members"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
    chain = overlap(rs, fuse("ComputationFuse", rs))
    with pytest.raises(InputError, match="found a kernel without a name"):
        Execute("x", [g], [rs])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Tensor("x", "f8", [N], Local), "found dtype 'f8', expected one of f16"),
        (lambda: Tensor("x", f32, [0], Local), "found extent 0, expected"),
        (lambda: Tensor("x", f32, [True], Local), "found extent True, expected"),
        (lambda: Tensor("1x", f32, [N], Local), "found the name '1x', expected letters"),
        (lambda: Tensor("_x", f32, [N], Local), "found the name '_x', expected letters"),
        (lambda: Tensor("x", f32, [N], "Local"), "x: found layout 'Local', expected Replicated, Local"),
        (lambda: Tensor("x", f32, [N], Local, "WORLD"), "x: found group 'WORLD', expected WORLD or GROUP"),
        (lambda: Tensor("x", f32, [N], Sliced(1)), r"found dim=1 of \[N\]"),
        (lambda: Tensor("x", f32, [N], Sliced(0, "block")), "found slice map 'block', expected Block"),
        (lambda: dims("Norm"), "found the name 'Norm', which is a word of the language"),
        (lambda: Tensor("x", f32, [N], Local) + float("nan"), "Add: found nan, expected a tensor or a number"),
        (lambda: Tensor("x", f32, [N], Local) * "y", "Mul: found 'y', expected a tensor or a number"),
        (lambda: bool(Tensor("x", f32, [N], Local) > 0), "found a tensor as a condition, expected Where"),
        (lambda: Update(Tensor("x", f32, [N], Local) * 2, 1), "found the target .*, expected a Tensor"),
        (lambda: Send(Tensor("x", f32, [N], Local, GROUP), 1), "found 1, expected GroupRank"),
        (lambda: Send(Tensor("x", f32, [N], Local, GROUP), GroupRank(GROUP + 1, 0)), "expected GroupRank"),
        (lambda: Send(Tensor("x", f32, [N], Local, GROUP), GroupRank(WORLD, RANK)), "expected GroupRank"),
        (lambda: Execute("x", [1], []), "x: found 1, expected tensors"),
        (lambda: Execute("x y", [], []), "found the name 'x y'"),
    ],
)
def test_refusals_in_one_line(build, message):
    with pytest.raises(InputError, match=message) as refused:
        build()
    assert "\n" not in str(refused.value)


def test_tensors_that_are_no_inputs_are_refused():
    g, p, lr = tensors()
    with pytest.raises(InputError, match="x: found the tensor 'lr' used, expected it among the inputs"):
        Execute("x", [p], [p * lr], scope={})


def test_two_updates_of_one_tensor():
    g, p, lr = tensors()
    Update(p, p * lr)
    with pytest.raises(TypeRefusal, match="found a second Update of p") as refused:
        Update(p, p * lr)
    assert refused.value.row == "30"


def test_all_reduce_of_what_is_replicated_warns():
    g, p, lr = tensors()
    with pytest.warns(UserWarning, match="a sum counts it once for every rank"):
        AllReduce("+", p)


def test_every_operation_has_a_word_or_an_operator():
    operators = {"Neg", "Not", "Add", "Sub", "Mul", "Div", "Lt", "Le", "Gt", "Ge", "And", "Or", "Xor", "GroupSize"}
    assert set(OPERATIONS) - operators <= set(language.__all__)
    for word in language.__all__:
        assert hasattr(language, word)


def _anonymous(op, *inputs, name):
    of = TensorType("f32", (), language.Replicated())
    attributes = completed(op, {"op": "+"} if op == "AllReduce" else {})
    return Node(name, op, inputs, of, attributes)


def test_long_expressions_are_cut():
    g, p, lr = tensors()
    total = sum((p * k for k in range(1000)), p)
    program = Execute("x", [p], [total])
    assert 5 < sum(not node.anonymous for node in program.nodes) < 25
    assert parse(show(program), "x") == program


def test_canonical_names_follow_the_order_of_evaluation():
    of = TensorType("f32", (), language.Replicated())
    nodes = (
        _anonymous("Neg", "x", name="_z"),
        _anonymous("Abs", "x", name="_a"),
        _anonymous("Neg", "x", name="_dead"),
        _anonymous("Add", "_a", "_z", name="v"),
    )
    program = canonical(Program("p", (Input("x", of),), nodes, ("v",)))
    assert [(node.name, node.op) for node in program.nodes] == [
        ("neg_1", "Neg"),
        ("_v_1", "Abs"),
        ("_v_2", "Neg"),
        ("v", "Add"),
    ]
    assert canonical(program) == program


def test_a_program_computes_something() -> None:
    with pytest.raises(InputError, match="p: found no operation, expected outputs or Updates"):
        Execute("p", [], [])
