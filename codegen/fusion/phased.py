"""Collectives fused with norms and other reductions, in phases (CoCoNet, section 5.6).

A norm needs all of its elements before the first one is used. So the kernel reduces and scatters all tiles into slices
that stay in the arena, synchronises, reduces its slices and exchanges the totals, synchronises again, and computes in a
last pass, from which the results are stored and gathered.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from treadle.codegen.fusion import collective, collective_stage, reductions
from treadle.codegen.fusion.broadcast import EndTable
from treadle.codegen.fusion.collective import Parts
from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import functor, identifier
from treadle.codegen.fusion.kernel import KernelText
from treadle.codegen.fusion.pointwise import condition
from treadle.codegen.templates import template
from treadle.planner.machine.dtypes import BYTES
from treadle.planner.passes.fusion.layouts import At, Sliced
from treadle.planner.passes.fusion.operations import operation
from treadle.planner.passes.fusion.program import Node
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.slice_maps import capacity
from treadle.planner.passes.fusion.stages import Stage


def fits(stage: Stage) -> bool:
    """Whether a collective stage needs phases."""
    return any(operation(node.op).kind == "reduction" for node in stage.nodes)


def emit(stage: Stage, context: Context) -> KernelText:
    """The kernel of a collective stage with reductions. Raises TypeRefusal as `collective_stage` does."""
    scope, program, name = context.scope, context.scope.program, identifier(stage.name)
    first, last = _ends(stage)
    computing = [node for node in stage.nodes if operation(node.op).kind == "pointwise"]
    arena = reductions.Arena(context.arena)
    counter = arena.take(reductions.LINE)
    reduced: dict[str, int] = {}
    collectives: list[Parts] = []
    if first is not None:
        reduced[first.name] = arena.take(_slice_bytes(first, context))
        alone = Stage(f"{name}_first", first.op.lower(), (first,))
        within = replace(context, arena=arena.end)
        made = collective.parts(collective_stage.collective_stage(alone, within), within, output_at=reduced[first.name])
        arena.take(made.arena_bytes)
        collectives.append(made)
    result, kept = collective_stage.handed_out(program, stage.nodes, last)
    # The blocks are those of the collectives; how many they are is only known after both are planned.
    blocks = max(
        _blocks_of_last(stage, last, context),
        *(each.blocks for each in collectives),
        reductions.blocks_of(scope, stage),
    )
    tables: list[EndTable] = []
    levels = reductions.levels_of(stage, scope, arena, blocks, reduced, tables)
    finals = reductions.finals_of(stage, computing, scope, reduced, kept) if last is None else []
    if last is not None:
        made_functor = functor(scope, f"{name}_elements", computing, result=result, stores=kept, reduced=reduced)
        ending = Stage(f"{name}_last", last.op.lower(), (*computing, last))
        within = replace(context, arena=arena.end)
        made = collective.parts(collective_stage.collective_stage(ending, within, made_functor), within)
        arena.take(made.arena_bytes)
        collectives.append(made)
    about = f"{stage.name}: {', '.join(stage.named)}; {len(levels) + 1 + bool(first)} phases, {context.protocol}"
    over = program.by_name[str(levels[0][0].name)].type
    rooted = program.by_name[str(first.name if first else last.inputs[0] if last else over)].type
    source = template("fusion/phased.cu.j2").render(
        name=name,
        about=about,
        tables=tables,
        functors=[*(each.functor for level in levels for each in level), *(each.functor for each in finals)],
        collectives=[each.text for each in collectives],
        counter=counter,
        meetings=2 * len(levels) + bool(first),
        first=f"{name}_first" if first else None,
        last=f"{name}_last" if last else None,
        levels=levels,
        finals=finals,
        group="",
        condition=condition(scope, rooted) if isinstance(rooted.layout, At) else "",
        ranks=scope.bindings.ranks,
    )
    return KernelText(name, source, blocks, "communication", about, arena.end - context.arena)


def _ends(stage: Stage) -> tuple[Node | None, Node | None]:
    collectives = [node for node in stage.nodes if operation(node.op).kind in ("collective", "transfer")]
    reducing = [node for node in collectives if node.op in ("ReduceScatter", "Reduce")]
    ending = [node for node in collectives if node.op in ("AllGather", "Broadcast")]
    if len(reducing) > 1 or len(ending) > 1 or len(collectives) > len(reducing) + len(ending):
        names = ", ".join(node.op for node in collectives)
        raise TypeRefusal(stage.name, "5.6", f"found {names} with reductions, expected RS, AG, Reduce or Broadcast")
    return (reducing[0] if reducing else None), (ending[0] if ending else None)


def _slice_bytes(first: Node, context: Context) -> int:
    extents = context.scope.extents(first.type.shape)
    layout = first.type.layout
    elements = capacity(layout, extents, context.scope.bindings.ranks) if isinstance(layout, Sliced) else prod(extents)
    return elements * BYTES[first.type.dtype]


def _blocks_of_last(stage: Stage, last: Node | None, context: Context) -> int:
    if last is None:
        return 1
    alone = collective_stage.collective_stage(Stage(f"{stage.name}_last", last.op.lower(), (last,)), context)
    return max(len(lanes) for lanes in alone.typed.lanes)
