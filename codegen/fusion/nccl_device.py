"""Target (d): one kernel for RS, computation and AG against NCCL's device API (nccl_device.h, NCCL 2.28 and newer).

Two-shot: a rank loads its slice from the symmetric memory of all ranks of its node, sums in the order of the ranks,
computes, and stores the results to all of them. Barriers of the ranks stand before and behind. Tensors that others
reach lie in windows; all others are passed as to every kernel of ours (CoCoNet, section 5.12).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from treadle.codegen.fusion import lower
from treadle.codegen.fusion.collective import JOINS
from treadle.codegen.fusion.expression import CPP, Scope, functor, identifier
from treadle.codegen.fusion.kernel import Buffer
from treadle.codegen.fusion.pointwise import live_outs
from treadle.codegen.fusion.slices import slice_type
from treadle.codegen.templates import template
from treadle.planner.passes.fusion import text
from treadle.planner.passes.fusion.anatomy import anatomy_of
from treadle.planner.passes.fusion.layouts import FLAT, Block, Sliced
from treadle.planner.passes.fusion.operations import operation
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.stages import Stage, stages

BLOCKS = 32
"""Threadblocks, each with a barrier of its own."""


@dataclass(frozen=True)
class DeviceSchedule:
    """One file for a kernel. `buffers` are the tensors of a rank in their order, of which `windows` lie in symmetric
    memory: what is reduced, and what is gathered."""

    name: str
    text: str
    buffers: tuple[Buffer, ...]
    windows: tuple[str, str]


def generate(program: Program, bindings: Bindings) -> tuple[DeviceSchedule, ...]:
    """A file for each fused AllReduce of a schedule. Raises TypeRefusal for ring tiles, for norms inside, and for more
    than one group: ranks must reach each other's memory."""
    buffers, places = lower.memory(program, bindings)
    scope = Scope(program, bindings, buffers, places)
    return tuple(_schedule(stage, scope) for stage in stages(program) if stage.kind == "fused allreduce")


def _schedule(stage: Stage, scope: Scope) -> DeviceSchedule:
    program, bindings = scope.program, scope.bindings
    if any(operation(node.op).kind == "reduction" for node in stage.nodes):
        raise TypeRefusal(stage.name, "5.6", "found a norm or another reduction, expected pointwise operations alone")
    anatomy = anatomy_of(stage)
    first, last = anatomy.first, anatomy.last
    assert first is not None
    assert last is not None
    layout = first.type.layout
    extents = scope.extents(first.type.shape)
    if not isinstance(layout, Sliced) or not isinstance(layout.map, Block):
        raise TypeRefusal(stage.name, "5.4", "found the tiles of a ring, expected blocks: there is no ring")
    if layout.dim != FLAT and prod(extents[: layout.dim]) != 1:
        raise TypeRefusal(
            stage.name, "3.1", f"found slices along dimension {layout.dim}, expected neighbouring elements"
        )
    if bindings.groups > 1:
        raise TypeRefusal(stage.name, "5.12", "found several groups, expected ranks that reach each other's memory")
    name, result = identifier(stage.name), str(last.inputs[0])
    kept = [each for each in live_outs(program, stage.nodes) if each not in (result, last.name)]
    made = functor(scope, f"{name}_elements", anatomy.members, value=first.name, result=result, stores=kept)
    wire = program.by_name[str(first.inputs[0])].type.dtype
    windows = tuple(scope.storage(each)[1].name for each in (str(first.inputs[0]), last.name))
    source = template("fusion/nccl_device.cu.j2").render(
        program=program.name,
        schedule=text.show(program).rstrip().splitlines(),
        digest=lower.digest_of(program, bindings),
        name=name,
        about=f"{stage.name}: {', '.join(stage.named)}",
        functor=made.text,
        functor_name=made.name,
        pack=made.pack,
        slice=slice_type(layout, extents, bindings.ranks),
        join=JOINS[str(first.attribute("op"))],
        wire=CPP[wire],
        result=CPP[last.type.dtype],
        buffers=scope.buffers,
        windows=windows,
        ranks=bindings.ranks,
        blocks=BLOCKS,
    )
    return DeviceSchedule(name, source, tuple(scope.buffers), (windows[0], windows[1]))
