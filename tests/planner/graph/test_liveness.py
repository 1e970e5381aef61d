"""The sweep against a hand-worked step and against a slow count from the definition on random traces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.documents.trace import Costs, Op, Tensor, Trace
from treadle.planner.graph.liveness import RESIDENT, owners, sweep


def trace_of(tensors: list[Tensor], ops: list[Op], **fields: object) -> Trace:
    return Trace(
        version=1,
        name="hand",
        mode="train",
        source="hand",
        costs=Costs(model="absent"),
        tensors=tuple(tensors),
        ops=tuple(ops),
        **fields,  # type: ignore[arg-type]
    )


def test_a_step_by_hand() -> None:
    """x -> a -> (view) v -> y, backward makes the gradient of w from v; the weight and the input stay throughout."""
    tensors = [
        Tensor(id="w", role="parameter", bytes=100),
        Tensor(id="x", role="input", bytes=10),
        Tensor(id="a", role="activation", bytes=40, storage_bytes=48),
        Tensor(id="v", role="activation", bytes=40, alias_of="a"),
        Tensor(id="y", role="output", bytes=4),
        Tensor(id="t", role="tangent", bytes=4),
        Tensor(id="d", role="gradient", bytes=7),
        Tensor(id="g", role="gradient", bytes=100, gradient_of="w"),
        Tensor(id="u", role="gradient"),
    ]
    ops = [
        Op(id="1", target="mul", phase="forward", inputs=("x", "w"), outputs=("a",)),
        Op(id="2", target="view", phase="forward", inputs=("a",), outputs=("v",)),
        Op(id="3", target="sum", phase="forward", inputs=("v",), outputs=("y",)),
        Op(id="4", target="expand", phase="backward", inputs=("t",), outputs=("d", None)),
        Op(id="5", target="mm", phase="backward", inputs=("d", "v"), outputs=("g",)),
        Op(id="6", target="nop", phase="backward", outputs=("u",)),
    ]
    found = sweep(trace_of(tensors, ops, outputs=("y",), tangents=("t",)))
    assert found.resident == 114
    assert found.during == (162, 162, 166, 173, 273, 218)
    assert (found.peak, found.peak_op, found.unknown) == (273, 4, 1)
    assert found.live_at(4) == ["g", "a", "d", "y"]
    assert found.spans["a"] == (0, 4)


def test_without_ops_only_residents_live() -> None:
    found = sweep(trace_of([Tensor(id="w", role="parameter", bytes=3)], []))
    assert (found.peak, found.peak_op, found.during) == (3, None, ())


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(1, 12))
    tensors: list[Tensor] = []
    ops: list[Op] = []
    for index in range(count):
        role = draw(st.sampled_from(["activation", "activation", "gradient", "parameter", "input", "output"]))
        known = [tensor.id for tensor in tensors]
        reads = tuple(draw(st.lists(st.sampled_from(known), max_size=3, unique=True))) if known else ()
        alias = draw(st.sampled_from([None, *reads]))
        size = draw(st.one_of(st.none(), st.integers(0, 9)))
        tensors.append(Tensor(id=f"t{index}", role=role, bytes=size, alias_of=alias))
        if role in RESIDENT:
            ops.append(Op(id=f"o{index}", target="use", phase="forward", inputs=reads))
        else:
            ops.append(Op(id=f"o{index}", target="make", phase="forward", inputs=reads, outputs=(f"t{index}",)))
    return trace_of(tensors, ops, outputs=tuple(t.id for t in tensors if t.role == "output"))


def live_bytes(trace: Trace, place: int) -> int:
    """Straight from the definition."""
    owner = owners(trace)
    total = 0
    for tensor in trace.tensors:
        if tensor.alias_of is not None:
            continue
        group = {other for other, end in owner.items() if end == tensor.id}
        uses = [i for i, op in enumerate(trace.ops) if group & {*op.inputs, *op.outputs}]
        forever = bool(group & set(trace.outputs))
        alive = uses and uses[0] <= place and (forever or place <= uses[-1])
        if tensor.role in RESIDENT or alive:
            total += tensor.bytes or 0
    return total


@given(traces())
def test_agrees_with_the_definition(trace: Trace) -> None:
    found = sweep(trace)
    assert list(found.during) == [live_bytes(trace, place) for place in range(len(trace.ops))]


@given(traces())
def test_owners_are_ends_of_chains(trace: Trace) -> None:
    parent = {tensor.id: tensor.alias_of for tensor in trace.tensors}
    for key, end in owners(trace).items():
        assert parent[end] is None
        while key != end:
            key = parent[key]  # the chain leads there
