"""Pointwise stages as kernels: every thread takes 16 bytes of the widest type at a time (CoCoNet, section 5.5)."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import Functor, Scope, functor
from treadle.codegen.fusion.kernel import ANY, KernelText
from treadle.codegen.fusion.slices import slice_type
from treadle.codegen.templates import template
from treadle.planner.passes.fusion.layouts import WORLD, At, RingTile, Sliced
from treadle.planner.passes.fusion.program import Node, Program, TensorType
from treadle.planner.passes.fusion.stages import Stage


def emit(stage: Stage, context: Context) -> KernelText:
    """The kernel of a stage of pointwise operations. Raises InputError for values of different sizes that it keeps."""
    scope = context.scope
    made = functor(scope, f"{stage.name}_elements", stage.nodes, stores=live_outs(scope.program, stage.nodes))
    whole = scope.program.by_name[made.stores[0]].type
    text = template("fusion/pointwise.cu.j2").render(
        functor=made.text,
        functor_name=made.name,
        table="" if isinstance(whole.layout, Sliced) and isinstance(whole.layout.map, RingTile) else made.scattered,
        name=stage.name,
        about=about(stage, made),
        slice=slice_type(whole.layout, scope.extents(whole.shape), scope.bindings.ranks),
        condition=condition(scope, whole),
        ranks=scope.bindings.ranks,
    )
    return KernelText(stage.name, text, ANY, "compute", about(stage, made))


def about(stage: Stage, made: Functor) -> str:
    """A line for readers."""
    return f"{stage.name}: {', '.join(stage.named)}; {made.pack} elements per thread and step"


def live_outs(program: Program, nodes: Sequence[Node]) -> tuple[str, ...]:
    """The values that a kernel of these operations leaves in memory: those that others read, unread ones, outputs and
    updates."""
    inside = {node.name for node in nodes}
    return tuple(
        node.name
        for node in nodes
        if node.op == "Update"
        or node.name in program.outputs
        or not program.readers[node.name]
        or any(reader.name not in inside for reader in program.readers[node.name])
    )


def condition(scope: Scope, type_: TensorType) -> str:
    """In C++, which ranks have a value of this type; nothing when all do."""
    ranks, groups = scope.bindings.ranks, scope.bindings.groups
    tests = []
    if isinstance(type_.layout, At):
        tests.append(f"rank % {ranks} == {type_.layout.rank}")
    everywhere = type_.group == WORLD and not type_.shape
    if groups > 1 and not everywhere:
        last = groups - 1 - max(value.type.group.offset for value in scope.program.by_name.values())
        first = type_.group.offset
        tests.append(f"rank / {ranks} >= {first} && rank / {ranks} <= {first + last}")
    return " && ".join(tests)
