"""An unrolled trace computes what the trace computes, bit for bit, and says what a plan got wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tests.treadle.capture.replay import replay
from tests.treadle.runtime.models import STEPS, trace_of
from treadle.capture.load import build_step
from treadle.capture.optimizer import with_optimizer
from treadle.planner.documents import store
from treadle.planner.documents.trace import Costs, Implementation, Op, OpRun, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.graph.index import Graph
from treadle.planner.graph.liveness import sweep
from treadle.planner.graph.unrolling import INPLACE, copies_alone, inplace_runs, plain_runs, unrolled, without_useless


def values_of(name: str, trace: Trace) -> dict[str, Any]:
    torch.manual_seed(3)
    step = build_step(STEPS[name], name)
    torch.manual_seed(4)
    if any(op.phase == "optimizer" for op in trace.ops):
        trace = replace(trace, ops=tuple(op for op in trace.ops if op.phase != "optimizer"))
    return replay(trace, step)


def handed(trace: Trace) -> list[str]:
    return [*trace.outputs, *(v for _, v in trace.updates), *(t.id for t in trace.tensors if t.gradient_of)]


def everything_again(trace: Trace) -> tuple[OpRun, ...]:
    """Before every backward op the whole forward pass once more, as far as it is not random; repeats that no op
    reads are left out."""
    graph = Graph(trace)
    plain = plain_runs(trace)
    again = [run for run in plain if graph.ops[run.op].phase == "forward" and not graph.ops[run.op].random]
    runs: list[OpRun] = []
    for run in plain:
        runs += again if graph.ops[run.op].phase == "backward" else []
        runs.append(run)
    return without_useless(trace, runs)


@pytest.mark.parametrize("name", sorted(set(STEPS) - {"lstm"}))
def test_values_are_those_of_the_trace_bit_for_bit(name: str) -> None:
    trace = trace_of(name)
    expected = values_of(name, trace)
    for runs in (plain_runs(trace), everything_again(trace)):
        other = unrolled(trace, runs)
        assert store.loads(store.dumps(other), "here", Trace) == other
        found = values_of(name, other)
        assert all(torch.equal(found[tensor], expected[tensor]) for tensor in handed(trace))
        count = sum(not Graph(other).is_view(op) for op in other.ops)
        assert count == len(runs)
    assert len(runs) > len(plain_runs(trace))


def test_plain_runs_take_the_bytes_of_the_trace() -> None:
    for name in ("gpt2", "convnet", "unet"):
        trace = trace_of(name)
        assert sweep(unrolled(trace, plain_runs(trace))).peak == sweep(trace).peak


def test_each_other_call_makes_the_same_bits() -> None:
    """One op at a time by each of its implementations that rounds as the op itself does."""
    trace = with_implementations(trace_of("convnet"))
    expected = values_of("convnet", trace)
    optional = {op.outputs[0]: op for op in trace.ops if op.intermediate_of}
    tried = set()
    for op in trace.ops:
        for way in op.implementations:
            if set(way.family.split("+")) & {"conv", "out", "statistics"}:
                continue
            wanted = [optional[tensor] for tensor in way.inputs if tensor in optional]
            chosen: list[OpRun] = []
            for run in plain_runs(trace):
                chosen.append(OpRun(op=op.id, implementation=way.name) if run.op == op.id else run)
                chosen += [OpRun(op=other.id) for other in wanted if other.intermediate_of == run.op]
            found = values_of("convnet", unrolled(trace, chosen))
            assert all(torch.equal(found[tensor], expected[tensor]) for tensor in handed(trace))
            tried.add(way.target)
    assert len(tried) >= 5
    assert any(target.endswith(("_.default", "_")) for target in tried)


@pytest.mark.parametrize("name", ["convnet", "gpt2", "unet"])
def test_in_place_takes_less_memory_and_changes_no_bit(name: str) -> None:
    trace = with_implementations(trace_of(name))
    expected, chosen = values_of(name, trace), inplace_runs(trace)
    other = unrolled(trace, chosen)
    assert [run.op for run in chosen] == [run.op for run in plain_runs(trace)]
    assert any(run.implementation == INPLACE for run in chosen)
    assert copies_alone(chosen)
    assert not copies_alone((*chosen, chosen[0]))
    found = values_of(name, other)
    assert all(torch.equal(found[tensor], expected[tensor]) for tensor in handed(trace))
    assert sum(sweep(other).during) < sum(sweep(trace).during)


def inplace(trace: Trace) -> list[str]:
    return [run.op for run in inplace_runs(trace) if run.implementation == INPLACE]


def test_nothing_is_overwritten_that_is_read_later() -> None:
    """y takes the place of h, unless an op reads h after it, directly or through a view, which may be an older one."""
    way = Implementation(name=INPLACE, family="inplace", target="f_", inputs=("h",), outputs=("y",), overwrites="h")
    make, act = op("make", "x", "h"), op("act", "h", "y", implementations=(way,))
    view, late = op("view", "h", "v"), op("late", "v", "z")
    assert inplace(hand_trace(make, act)) == ["act"]
    assert inplace(hand_trace(make, view, late, act, outputs=("y", "z"))) == ["act"]
    assert inplace(hand_trace(make, act, view)) == ["act"], "a view that no op reads is never made"
    for ops in ((make, act, op("late", "h", "z")), (make, view, act, late), (make, act, view, late)):
        assert inplace(hand_trace(*ops, outputs=("y", "z"))) == []
    other = replace(act, implementations=(replace(way, name="mask-inplace"),))
    assert inplace(hand_trace(make, other)) == [], "that of another call, which reads something else"


def trace_op(trace: Trace, name: str) -> Op:
    return next(op for op in trace.ops if op.id == name)


def hand_trace(*ops: Op, outputs: tuple[str, ...] = ("y",)) -> Trace:
    made = {tensor for op in ops for tensor in op.outputs if tensor}
    tensors = [Tensor(id="x", role="input", bytes=8), Tensor(id="w", role="parameter", bytes=8)]
    for op in ops:
        for tensor in op.outputs:
            view = op.target == "view"
            tensors.append(Tensor(id=str(tensor), role="activation", bytes=8, alias_of=op.inputs[0] if view else None))
    assert made >= set(outputs)
    return Trace(
        version=1, name="hand", mode="train", source="hand", costs=Costs(model="absent"), tensors=tuple(tensors),
        ops=ops, inputs=("x",), outputs=outputs,
    )  # fmt: skip


def op(name: str, inputs: str, output: str = "", **fields: Any) -> Op:
    target = fields.pop("target", name)
    return Op(
        id=name, target=target, phase=fields.pop("phase", "forward"), inputs=tuple(inputs.split()),
        outputs=(output,) if output else (), args=tuple({"tensor": t} for t in inputs.split()), **fields,
    )  # fmt: skip


def runs(names: str) -> list[OpRun]:
    return [OpRun(op=name.split("!")[0], implementation=(name + "!default").split("!")[1]) for name in names.split()]


CHAIN = hand_trace(
    op("f", "x w", "a"), op("v", "a", "va", target="view"), op("g", "va", "b"), op("h", "b va", "y", phase="backward")
)  # fmt: skip


def test_views_follow_the_latest_instance_of_their_base() -> None:
    other = unrolled(CHAIN, runs("f g f h"))
    assert [op.id for op in other.ops] == ["f", "v", "g", "f#2", "v#2", "h"]
    assert other.ops[-1].inputs == ("b", "va#2")
    assert other.ops[-1].args == ({"tensor": "b"}, {"tensor": "va#2"})
    assert {t.id: t.alias_of for t in other.tensors if t.alias_of} == {"va": "a", "va#2": "a#2"}


def test_outputs_are_first_instances_also_as_views() -> None:
    trace = replace(CHAIN, outputs=("va", "y"))
    other = unrolled(trace, runs("f f g h"))
    assert [op.id for op in other.ops] == ["f", "v", "f#2", "v#2", "g", "h"]
    assert next(t for t in other.tensors if t.id == "va").alias_of == "a"


def test_a_call_that_overwrites_ends_the_life_of_its_input() -> None:
    inplace = Implementation(name="inplace", family="inplace", target="g_", inputs=("a",), outputs=("b",),
                             args=({"tensor": "a"},), overwrites="a", time_ns=3)  # fmt: skip
    trace = hand_trace(op("f", "x w", "a"), op("g", "a", "b", implementations=(inplace,)), op("h", "a b", "y"))
    with pytest.raises(InputError, match="'h', which reads 'a', which another call has overwritten"):
        unrolled(trace, runs("f g!inplace h"))
    other = unrolled(trace, runs("f g!inplace f h"))
    assert [op.id for op in other.ops] == ["f", "g", "f#2", "h"]
    assert (other.ops[1].mutates, other.ops[1].target, other.ops[1].time_ns) == (("a",), "g_", 3)
    assert other.ops[3].inputs == ("a#2", "b")
    assert next(t for t in other.tensors if t.id == "b").alias_of == "a"
    assert sweep(other).during == (24, 24, 32, 40)  # b takes the place of a, then a comes again, then y


@pytest.mark.parametrize(
    ("trace", "names", "message"),
    [
        (CHAIN, "f g", "never makes 'y'"),
        (CHAIN, "g f h", "op 'g', which reads 'a', which nothing has made"),
        (CHAIN, "f q", "runs op 'q', which the trace lacks"),
        (CHAIN, "f!fast", "runs op 'f' by 'fast', which the trace lacks"),
        (hand_trace(op("f", "x", "y", random=True)), "f f", "again, which draws random numbers"),
        (hand_trace(op("f", "x w", "y"), op("s", "w y", mutates=("w",))), "f", "never runs op 's'"),
        (
            hand_trace(op("f", "x w", "y"), op("s", "w y", mutates=("w",))),
            "f s f",
            "op 'f', which reads 'w', which was written to 1 times by then, in the trace 0 times",
        ),
    ],
)
def test_what_a_plan_gets_wrong_is_named(trace: Trace, names: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        unrolled(trace, runs(names))


def test_updates_run_once_and_last() -> None:
    trace = with_optimizer(trace_of("mlp"), "sgd")
    other = unrolled(trace, plain_runs(trace))
    assert [op.id for op in other.ops if op.phase == "optimizer"] == [
        op.id for op in trace.ops if op.phase == "optimizer"
    ]
    forward = next(run for run in plain_runs(trace) if trace_op(trace, run.op).phase == "forward")
    with pytest.raises(InputError, match="written to 1 times"):
        unrolled(trace, (*plain_runs(trace), forward))
