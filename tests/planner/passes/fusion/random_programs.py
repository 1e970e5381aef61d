"""Random well-typed programs, for properties that hold for all of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.dims import Dim, dim
from treadle.planner.passes.fusion.infer import retyped, stale, typed
from treadle.planner.passes.fusion.layouts import FLAT, At, Local, Replicated, RingTile, Sliced
from treadle.planner.passes.fusion.naming import canonical
from treadle.planner.passes.fusion.operations import BINARY, UNARY
from treadle.planner.passes.fusion.program import Input, Kernel, Node, Program, TensorType

T, H = Dim(("T",)), Dim(("H",))
SHAPES = [(T, H), (H,), (T, dim(1)), ()]
LAYOUTS = [Replicated(), Local(), Sliced(0), Sliced(FLAT), Sliced(FLAT, RingTile(2, 4)), At(0)]
NAMES = ["in", "T", "p", "a_b", "x", "y", "lambda", "program", "f"]
SLICES = [{"dim": 0}, {}, {"map": "ring_tile(2,4,1)"}, {"map": "ring_tile(1,2,2,rank_major)"}]
MOVES = [
    *(("AllReduce", {"op": op}) for op in ("+", "max", "min")),
    *(("ReduceScatter", {"op": "+", **slices}) for slices in SLICES),
    *(("Slice", slices) for slices in SLICES),
    *(("AllGather", {}), ("Reduce", {"op": "+", "root": 0}), ("Broadcast", {"root": 0}), ("Load", {"root": 0})),
    *(("AllToAll", {}), ("Norm", {}), ("Norm", {"dim": 0}), ("ReduceTensor", {"op": "max", "dim": 0})),
    *(("Dropout", {"p": 0.25, "key": 'a "quoted" key'}), ("Cast", {"dtype": "i32"}), ("Cast", {"dtype": "f32"})),
    *(("GroupSize", {}), ("GroupSize", {"dtype": "i32"})),
]


@st.composite
def programs(draw: st.DrawFn, most: int = 12) -> Program:
    """Canonical programs of up to `most` operations, with kernels that need not make sense."""
    inputs = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=5, unique=True)):
        shape = draw(st.sampled_from(SHAPES))
        layout = draw(st.sampled_from(LAYOUTS)) if shape else Replicated()
        if isinstance(layout, Sliced) and layout.dim == 0 and shape[0].one:
            layout = Local()
        inputs.append(Input(name, TensorType(draw(st.sampled_from(["f32", "i32"])), shape, layout)))
    types = {value.name: value.type for value in inputs}
    readable, nodes = list(types), list[Node]()
    for number in range(draw(st.integers(1, most))):
        node = draw(_nodes(f"{'_' if draw(st.booleans()) else 'v'}{number}", readable, types))
        if node is None:
            continue
        nodes.append(node)
        types[node.name] = node.type
        readable.append(node.name)
        if node.op == "Update":
            readable.remove(node.inputs[0])
    if not nodes:
        nodes.append(typed("v", "Neg", [inputs[0].name], {}, types))
    program = Program("random", tuple(inputs), tuple(nodes), (nodes[-1].name,))
    for target in stale(program):
        update = program.updates[target].name
        gather = typed(f"whole_{len(program.nodes)}", "AllGather", [update], {}, {update: program.type_of(update)})
        program = replace(program, nodes=(*program.nodes, gather))
    program = canonical(retyped(program))
    visible = [node.name for node in program.nodes if not node.anonymous]
    if draw(st.booleans()):
        members = draw(st.lists(st.sampled_from(visible), min_size=1, unique=True))
        program = replace(program, kernels=(Kernel("kernel", "ComputationFuse", tuple(members)),))
    return program


@st.composite
def _nodes(draw: st.DrawFn, name: str, readable: list[str], types: dict[str, TensorType]) -> Node | None:
    kind = draw(st.sampled_from(["unary", "binary", "binary", "binary", "move", "move", "Update", "Where"]))
    operand = st.sampled_from(readable)
    number = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -1e-5, 2.0**40, float("inf")]))
    attributes: dict[str, object] = {}
    match kind:
        case "unary":
            op, inputs = draw(st.sampled_from(UNARY)), [draw(operand)]
        case "binary":
            op, inputs = draw(st.sampled_from(BINARY)), [draw(operand), draw(st.one_of(operand, operand, number))]
            inputs = inputs[::-1] if draw(st.booleans()) else inputs
        case "Where":
            op, inputs = "Where", [draw(operand), draw(operand), draw(st.one_of(operand, number))]
        case "move":
            op, attributes = draw(st.sampled_from(MOVES))
            inputs = [] if op == "GroupSize" else [draw(operand)]
        case _:
            op, inputs = "Update", [draw(operand), draw(operand)]
            if inputs[0][0] in "v_" or name.startswith("_"):
                return None
    try:
        return typed(name, op, inputs, attributes, types)
    except InputError:
        return None
