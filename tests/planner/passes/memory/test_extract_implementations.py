"""Problems of steps whose ops have several implementations, worked out by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.graph.implementations.test_dropout import dropout
from tests.planner.graph.implementations.test_inplace import chain
from tests.planner.graph.implementations.test_normalisation import batch_norm
from tests.planner.graph.implementations.traces import back, changed, op, priced, rewritten, small_net, step, t, value
from tests.planner.passes.memory.formulation.test_checkpoint import solved
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.lower import store_all
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import Backward, Forward, MemoryProblem
from treadle.planner.passes.memory.variants import VARIANTS, restrict


def problem(trace: Trace, **costs: dict[str, int]) -> MemoryProblem:
    found = problem_from_trace(priced(rewritten(trace), **costs), 2**30)
    assert list(found.problems()) == []
    return found


def test_small_net_by_hand():
    times = {"conv1": 50, "conv1/winograd": 30, "relu": 8, "relu/inplace": 5, "back2_weight": 40}
    workspace = {"conv1/winograd": 700, "conv2/im2col": 900, "unpool": 33, "back2_input/winograd": 80, "relu_mask": 7}
    found = problem(small_net(), times=times, workspace=workspace)
    assert [(n.ops, n.kind, n.out_bytes, n.inputs, n.inplace_of, n.inplace_saves_ns) for n in found.fwd] == [
        (("conv1",), "op", 2048, (), None, 0),
        (("relu",), "op", 2048, (0,), 0, 3),
        (("relu_mask",), "intermediate", 64, (1,), None, 0),
        (("pool",), "op", 512, (1,), None, 0),
        (("pool_index",), "intermediate", 128, (1, 3), None, 0),
        (("conv2",), "op", 512, (3,), None, 0),
        (("mean",), "op", 0, (5,), None, 0),
    ]
    assert found.fwd[0].impls == (
        Forward(time_ns=50),
        Forward(name="im2col", family="conv", time_ns=1),
        Forward(name="im2col_sample", family="conv", time_ns=1),
        Forward(name="winograd", family="conv", time_ns=30, workspace_bytes=700),
    )
    assert [impl.workspace_bytes for impl in found.fwd[5].impls] == [0, 900, 0, 0]
    assert found.fwd[2].impls[0].workspace_bytes == 7
    assert (found.fwd[2].creator, found.fwd[4].creator) == (1, 3)
    # live: the tangent of 4 bytes; then gy of 512; then gw2 of 576 with gb2 of 16 instead of gy and gp of 512
    assert [(n.ops, n.live_grad_bytes, n.out_grad_bytes) for n in found.bwd] == [
        (("fill",), 4, 512),
        (("back2_weight",), 516, 592),
        (("back2_input",), 1108, 512),
        (("unpool",), 1108, 2048),
        (("unrelu",), 2644, 2048),
        (("back1_weight",), 2644, 448),
    ]
    assert [impl.needs for impl in found.bwd[1].impls] == [(3,)] * 3
    assert [impl.needs for impl in found.bwd[2].impls] == [()] * 4
    assert [impl.workspace_bytes for impl in found.bwd[2].impls] == [0, 0, 0, 80]
    assert found.bwd[3].impls == (
        Backward(needs=(1,), workspace_bytes=33, time_ns=1),
        Backward(name="index", family="int", needs=(4,), time_ns=1),
    )
    assert [(impl.name, impl.family, impl.needs, impl.grad_inplace) for impl in found.bwd[4].impls] == [
        ("default", "out", (1,), False),
        ("input", "", (0,), False),
        ("mask", "int", (2,), False),
        ("inplace", "out+grad-inplace", (1,), True),
        ("input-inplace", "grad-inplace", (0,), True),
        ("mask-inplace", "int+grad-inplace", (2,), True),
    ]


def test_what_each_family_is_good_for_in_the_small_net():
    """Least times at five budgets: all 11 calls take 1 ns, only the convolutions' own forward calls take 9.

    Backward of the pooling uses 1108 + 2048 and what it reads: the ReLU's output of 2048 or the index of 128. That of
    the ReLU uses 2644 + 2048, without the 2048 where it writes into the incoming gradient, and what it reads: input or
    output of 2048, or the mask of 64, which the pooling's backward then holds in addition. So input-activated both
    fit 7252, or 6740 if the first convolution runs again; by the output 6740, in place 5204; by the mask 5268 with
    the pooling by its input, and 4756 with the index; 3348 in place.
    """
    whole = problem(small_net(), times={"conv1": 9, "conv2": 9})

    def best(variant: str) -> list[int | None]:
        small = restrict(whole, VARIANTS[variant])
        rooms = (4096, 4756, 5204, 6740, 7252)
        return [solved(replace(small, budget_bytes=whole.base_bytes + room)) for room in rooms]

    assert {variant: best(variant) for variant in VARIANTS} == {
        "noop": [None, None, None, 27 + 9, 27],
        "conv": [None, None, None, 11 + 1, 11],
        "out": [None, None, None, 27, 27],
        "int": [None, 27 + 2, 27 + 2, 27 + 1, 27],
        "conv+out": [None, None, None, 11, 11],
        "all": [11 + 2, 11 + 2, 11, 11, 11],
    }


def test_implementations_need_costs():
    trace = priced(rewritten(small_net()))
    ops = [
        replace(done, implementations=tuple(replace(way, time_ns=None) for way in done.implementations))
        for done in trace.ops
    ]
    with pytest.raises(InputError, match="implementation 'im2col' of op 'conv1' has no time"):
        problem_from_trace(replace(trace, ops=tuple(ops)), 0)


def test_batch_statistics_are_kept_and_repeated_runs_use_them():
    found = problem(batch_norm(), times={"norm": 20, "norm/again": 6}, workspace={"norm": 11, "norm/again": 3})
    norm, statistics = found.fwd[1:3]
    assert (norm.out_bytes, norm.ops) == (288, ("norm",))
    # a first run makes the statistics of 32 bytes besides, and new running statistics of 32
    assert norm.impls == (Forward(workspace_bytes=75, time_ns=20, recompute_workspace_bytes=3, recompute_time_ns=6),)
    assert (statistics.kind, statistics.out_bytes, statistics.recomputable) == ("intermediate", 32, False)
    assert [(impl.name, impl.needs) for impl in found.bwd[0].impls] == [("default", (0, 2)), ("output", (1, 2))]


def test_without_a_lasting_reader_of_the_statistics_a_repeated_run_is_like_the_first():
    """The result of the normalisation is read after its own backward, when its statistics may be freed."""
    trace = batch_norm()
    late = back("late", "aten.mul.Tensor", [t("gh"), t("y")], ["g2"])
    tensors = (*trace.tensors, value("g2", "gradient", (2, 4, 3, 3)))
    found = problem(replace(trace, tensors=tensors, ops=(*trace.ops, late)))
    assert found.fwd[1].impls[0].recompute_time_ns is None
    assert found.fwd[2].recomputable


def test_dropout_by_mask_bits_or_state():
    found = problem(dropout())
    assert [(n.ops, n.kind, n.out_bytes, n.inputs, n.creator, n.recomputable) for n in found.fwd] == [
        (("neg",), "op", 60, (), None, True),
        (("drop_state",), "intermediate", 5056, (0,), 0, False),
        (("drop",), "op", 15, (0,), None, True),  # the values are the caller's
        (("drop_packed",), "intermediate", 2, (2,), 2, True),
    ]
    assert [(impl.name, impl.family, impl.needs) for impl in found.bwd[0].impls] == [
        ("default", "", (2,)),
        ("packed", "int", (3,)),
        ("again", "rng", (1,)),
    ]


def test_bits_are_packed_while_the_mask_is_there():
    trace = changed(dropout(), "y", role="activation")
    last = op("last", "aten.neg.default", [t("y")], ["z"])
    ops = (*trace.ops[:2], last, *trace.ops[2:])
    trace = replace(trace, ops=ops, tensors=(*trace.tensors, value("z", "output", (3, 5))), outputs=("z",))
    found = problem(trace)
    assert [(n.ops, n.out_bytes, n.impls[0].workspace_bytes) for n in found.fwd[2:5]] == [
        (("drop",), 60, 15),
        ((), 15, 0),
        (("drop_packed",), 2, 15),
    ]


@pytest.mark.parametrize(
    "trace",
    [
        chain(),
        replace(chain(), ops=(*chain().ops[:-1], back("mul", "aten.mul.Tensor", [t("gz"), t("x")], ["gx"]))),
    ],
    ids=["backward reads it", "no op reads it"],
)
def test_what_may_be_overwritten(trace):
    found = problem(trace, times={"act": 1, "act/inplace": 9})
    assert (found.fwd[1].inplace_of, found.fwd[1].inplace_saves_ns) == (0, 0)  # never a negative saving


def test_an_op_that_saves_more_than_it_takes_saves_all_of_it():
    trace = priced(rewritten(chain()), times={"act": 7, "act/inplace": 0})
    trace = changed(trace, "act", time_ns=7)
    assert problem_from_trace(trace, 0).fwd[1].inplace_saves_ns == 7


@pytest.mark.parametrize(
    ("size", "groups"),
    [
        (8, [("neg_2",), ("unrelu",), ("sum", "neg_3")]),
        (4096, [("neg_2",), ("unrelu", "sum"), ("neg_3",)]),
    ],
)
def test_ops_join_one_of_several_implementations_only_below_its_least_peak(size, groups):
    """In place the backward of the ReLU uses nothing new. The sum after it makes 4 bytes, which is next to nothing
    where the forward pass makes much; the last op makes as much as there is."""
    names = {"x": "input", "h": "activation", "y": "activation", "z": "output", "gz": "tangent"}
    tensors = [value(name, role, (size,)) for name, role in names.items()]
    tensors += [value("g", "gradient", (size,)), value("gr", "gradient", (size,)), value("s", "gradient", ())]
    tensors.append(value("gx", "gradient", (size,), gradient_of="x"))
    ops = [
        *chain().ops[:3],
        back("neg_2", "aten.neg.default", [t("gz")], ["g"]),
        back("unrelu", "aten.threshold_backward.default", [t("g"), t("y"), 0], ["gr"]),
        back("sum", "aten.sum.default", [t("gr")], ["s"]),
        back("neg_3", "aten.neg.default", [t("gr")], ["gx"]),
    ]
    trace = step(tensors, ops, outputs=("z",), tangents=("gz",))
    found = problem(trace, times={"sum": 5, "unrelu/input": 2}, workspace={"unrelu": 6})
    assert [node.ops for node in found.bwd] == groups
    joined = 4 if len(groups[1]) == 2 else 0
    node = found.bwd[1]
    assert (node.live_grad_bytes, node.out_grad_bytes) == (8 * size, 4 * size)
    costs = {impl.name: (impl.workspace_bytes, impl.time_ns) for impl in node.impls}
    more = 5 if joined else 0
    assert costs["default"] == (6, 1 + more)
    assert costs["input"] == (0, 2 + more)
    assert costs["inplace"] == (joined, 1 + more)


def test_plans_of_rewritten_traces_stand_their_check():
    for trace in (small_net(), batch_norm(), dropout(), chain()):
        found = problem(trace)
        for families in VARIANTS.values():
            small = restrict(found, families)
            assert list(small.problems()) == []
            assert check(decide(small, store_all(small))) == []
