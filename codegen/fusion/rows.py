"""Stages that reduce along the last dimension, as RMSNorm and softmax: one threadblock per row.

Every reduction is one pass over the row, from which nothing is stored; a last pass computes and stores the rest. So an
Update may overwrite what an earlier pass has read. Only the first pass over a tensor counts as traffic: by the next
one its row lies in a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import CPP, Functor, Scope, functor, identifier
from treadle.codegen.fusion.kernel import ANY, KernelText
from treadle.codegen.fusion.pointwise import about, condition, live_outs
from treadle.codegen.fusion.slices import slice_type
from treadle.codegen.templates import template
from treadle.planner.passes.fusion.layouts import Sliced
from treadle.planner.passes.fusion.program import Node
from treadle.planner.passes.fusion.stages import Stage, kind

KINDS = {"+": "SumOf", "max": "GreatestOf", "min": "LeastOf"}


@dataclass(frozen=True)
class RowReduction:
    """One value per row, or per tensor: `functor` gives the elements, `kind` is the C++ type that combines them."""

    node: Node
    functor: Functor
    kind: str

    @property
    def variable(self) -> str:
        return identifier(self.node.name)


def combination(node: Node) -> str:
    """The C++ type that a reduction combines elements with."""
    return f"{'LengthOf' if node.op == 'Norm' else KINDS[str(node.attribute('op'))]}<{CPP[node.type.dtype]}>"


def fits(stage: Stage, scope: Scope) -> bool:
    """Whether all its reductions are along the last dimension of tensors of one shape, and ranks hold whole rows."""
    reduced = [node for node in stage.nodes if kind(node) == "reduction"]
    types = [scope.program.by_name[str(node.inputs[0])].type for node in reduced]
    last = len(types[0].shape) - 1
    parted = any(isinstance(of.layout, Sliced) and of.layout.dim == last for of in types)
    return (
        not parted
        and all(node.attribute("dim") == last for node in reduced)
        and all(of.shape == types[0].shape for of in types)
    )


def emit(stage: Stage, context: Context) -> KernelText:
    """The kernel of a stage that `fits`."""
    scope, program = context.scope, context.scope.program
    reduced = [node for node in stage.nodes if kind(node) == "reduction"]
    wide = program.by_name[str(reduced[0].inputs[0])].type
    rows, rows_type = tuple(node.name for node in reduced), f"{stage.name}_Rows"
    kept = live_outs(program, stage.nodes)
    narrow = tuple(name for name in kept if program.by_name[name].type.shape == reduced[0].type.shape)
    narrow = tuple(name for name in narrow if program.by_name[name].type.shape != wide.shape)
    pointwise = [node for node in stage.nodes if kind(node) != "reduction"]
    seen: set[str] = set()

    def part(name: str, result: str | None = None, stores: tuple[str, ...] = ()) -> Functor:
        name, again = f"{stage.name}_{name}", frozenset(seen)
        made = functor(
            scope, name, pointwise, result=result, stores=stores, rows=rows, rows_type=rows_type, again=again
        )
        seen.update(made.loads)
        return made

    reductions = [
        RowReduction(node, part(node.name, result=str(node.inputs[0])), combination(node)) for node in reduced
    ]
    broad = tuple(name for name in kept if name not in narrow)
    elements = part("elements", stores=broad) if broad else None
    ends = part("ends", stores=narrow) if narrow else None
    finals = [each for each in (elements, ends) if each]
    line = about(stage, elements or reductions[0].functor)
    text = template("fusion/rows.cu.j2").render(
        name=stage.name,
        about=line,
        rows=[(CPP[each.node.type.dtype], each.variable) for each in reductions],
        reductions=reductions,
        finals=finals,
        functors=[*(each.functor for each in reductions), *finals],
        elements=elements,
        ends=ends,
        width=scope.extents(wide.shape)[-1],
        slice=slice_type(wide.layout, scope.extents(wide.shape), scope.bindings.ranks),
        condition=condition(scope, wide),
        ranks=scope.bindings.ranks,
    )
    return KernelText(stage.name, text, ANY, "compute", line)
