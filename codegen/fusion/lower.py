"""A schedule becomes text: the tensors of each rank, one kernel or several for each launch, and the file of all.

Extents are constants of the text. Values live in memory only where a stage leaves them for another one or the caller;
the value of an Update lives in its target, and so does what gathers or broadcasts one (CoCoNet, sections 4 and 5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from codegen.fusion import collective, collective_plan, matmul, overlap, phased, pointwise, reductions
from codegen.fusion.algorithms import Algorithm, named
from codegen.fusion.context import Context, Protocol
from codegen.fusion.expression import Scope
from codegen.fusion.kernel import Buffer, KernelText, Role
from codegen.fusion.overlap import Fallback
from codegen.templates import template
from planner import resources
from planner.errors import InputError
from planner.fusion import text
from planner.fusion.layouts import Replicated, Sliced
from planner.fusion.program import Bindings, Node, Program, TensorType
from planner.fusion.refusal import TypeRefusal
from planner.fusion.slice_maps import capacity
from planner.fusion.stages import Stage, groups, home_of
from planner.fusion.stages import kind as kind_of_node

Emitted = KernelText | Sequence[KernelText]
REPORTED = 64
LINE = 128
SLOT_BYTES: dict[Protocol, int] = {"Simple": 512 << 10, "LL": 16 << 10, "LL128": 120 << 10}
"""Payload of a message."""

EMITTERS: dict[str, Callable[[Stage, Context], Emitted]] = {
    "pointwise": pointwise.emit,
    "permute": pointwise.emit,
    "matmul": matmul.emit,
    "rows": reductions.emit,
    "reduction": reductions.emit,
}
"""By the kind of a stage without collectives."""


@dataclass(frozen=True)
class Lowered:
    """`places` says in which buffer each value lies that is in memory. A launch is one kernel, or several that run at
    the same time. `arena_bytes` of each rank. `fallbacks` are overlaps of the schedule that run one stage after the
    other."""

    program: Program
    bindings: Bindings
    buffers: tuple[Buffer, ...]
    places: Mapping[str, int]
    launches: tuple[tuple[KernelText, ...], ...]
    arena_bytes: int
    fallbacks: tuple[Fallback, ...] = ()

    @property
    def digest(self) -> str:
        """Of the schedule and the sizes that the text was made for."""
        return digest_of(self.program, self.bindings)

    @cached_property
    def text(self) -> str:
        """The file to compile, with the headers of `headers` beside it."""
        extents = ", ".join(f"{name} = {extent}" for name, extent in sorted(self.bindings.extents.items()))
        return template("fusion/schedule.cu.j2").render(
            program=self.program.name,
            extents=extents or "scalars",
            ranks=self.bindings.ranks * self.bindings.groups,
            digest=self.digest,
            schedule=text.show(self.program).rstrip().splitlines(),
            launches=self.launches,
            buffers=self.buffers,
            headers=[
                "treadle_collective.h",
                "treadle_random.h",
                "treadle_reductions.h",
                "treadle_buckets.h",
                *_used(self.launches),
            ],
            arena_bytes=self.arena_bytes,
        )

    @property
    def texts(self) -> dict[str, str]:
        """`schedule.cu` and all headers, by file name."""
        return {**headers(), "schedule.cu": self.text}


def digest_of(program: Program, bindings: Bindings) -> str:
    """Of a schedule and the sizes that code is made for."""
    extents, parts = sorted(bindings.extents.items()), sorted(bindings.parts.items())
    sizes = f"{extents} {bindings.ranks} {bindings.groups} {parts}"
    return hashlib.sha256(f"{text.show(program)}\n{sizes}".encode()).hexdigest()


def headers() -> dict[str, str]:
    """The headers that generated schedules include, by file name."""
    folder = resources.folder("templates")
    return {
        path.name: path.read_text(encoding="utf-8")
        for part in ("cuda", "fusion")
        for path in sorted((folder / part).glob("*.h"))
    }


def lower(
    program: Program,
    bindings: Bindings,
    *,
    protocol: Protocol = "Simple",
    channels: int = 1,
    algorithm: str | Algorithm = "ring",
    slot_bytes: int | None = None,
    tile: tuple[int, int] | None = None,
    scattered: Collection[str] = (),
) -> Lowered:
    """The kernels of a schedule of `program` for these sizes.

    Raises TypeRefusal for stages that no kernel of ours computes, InputError for sizes that do not fit.
    """
    buffers, places = memory(program, bindings)
    scope = Scope(program, bindings, buffers, places, frozenset(scattered))
    made = named(algorithm) if isinstance(algorithm, str) else algorithm
    whole = groups(program)
    arena = LINE + sum(map(len, whole)) * MOST_KERNELS * REPORTED * LINE
    launches: list[tuple[KernelText, ...]] = []
    fallbacks: list[Fallback] = []
    for stages in whole:
        context = Context(scope, made, arena, protocol, channels, slot_bytes or SLOT_BYTES[protocol], tile)
        emitted = _emit(stages, context, fallbacks)
        arena += sum(-(-kernel.arena_bytes // LINE) * LINE for launch in emitted for kernel in launch)
        launches += emitted
    return Lowered(program, bindings, tuple(buffers), places, tuple(launches), arena, tuple(fallbacks))


MOST_KERNELS = 4
"""Kernels of one stage, for the reports at the beginning of an arena."""


def _emit(stages: tuple[Stage, ...], context: Context, fallbacks: list[Fallback]) -> list[tuple[KernelText, ...]]:
    """The launches of stages that shall run at the same time: one, or several where not all of them can."""
    launches: list[tuple[KernelText, ...]] = []
    while stages:
        used = sum(-(-kernel.arena_bytes // LINE) * LINE for launch in launches for kernel in launch)
        within = replace(context, arena=context.arena + used)
        count = len(stages)
        while count > 1:
            try:
                launches.append(overlap.emit(stages[:count], within))
                break
            except TypeRefusal as refusal:
                if count == len(stages) and not launches:
                    fallbacks.append(Fallback(tuple(stage.name for stage in stages), str(refusal)))
                count -= 1
        else:
            launches += _alone(stages[0], within)
        stages = stages[count:]
    return launches


def _alone(stage: Stage, context: Context) -> list[tuple[KernelText, ...]]:
    if any(node.op in collective_plan.PROGRAMS for node in stage.nodes):
        emitted: Emitted = phased.emit(stage, context) if phased.fits(stage) else collective.emit(stage, context)
    elif stage.kind in EMITTERS:
        emitted = EMITTERS[stage.kind](stage, context)
    else:
        expected = ", ".join([*sorted(EMITTERS), "a collective"])
        raise InputError(f"{stage.name}: found no kernel for {stage.kind}, expected {expected}")
    return [(emitted,)] if isinstance(emitted, KernelText) else [(kernel,) for kernel in emitted]


def _used(launches: tuple[tuple[KernelText, ...], ...]) -> list[str]:
    products = any("Gemm<" in kernel.text for launch in launches for kernel in launch)
    return ["treadle_gemm.h"] if products else []


# Memory.


def memory(program: Program, bindings: Bindings) -> tuple[list[Buffer], dict[str, int]]:
    """The tensors of each rank, and in which of them each value lies that is in memory."""
    buffers: list[Buffer] = []
    places: dict[str, int] = {}

    def add(name: str, type_: TensorType, role: Role) -> None:
        places[name] = len(buffers)
        buffers.append(Buffer(name, type_.dtype, elements(type_, bindings), role, type_.layout))

    for value in program.inputs:
        add(value.name, value.type, "state" if value.name in program.updates else "input")
    homes = home_of(program)
    for node in program.nodes:
        if node.name not in homes or not _kept(program, node, homes):
            continue
        target = str(node.inputs[0]) if node.op == "Update" else _restored(program, node)
        if target is not None:
            places[node.name] = places[target]
        else:
            add(node.name, node.type, "output" if node.name in program.outputs else "temporary")
    return buffers, places


def elements(type_: TensorType, bindings: Bindings) -> int:
    """Elements of a tensor that each rank allocates."""
    extents = tuple(extent.value(bindings.values) for extent in type_.shape)
    return capacity(type_.layout, extents, bindings.ranks) if isinstance(type_.layout, Sliced) else prod(extents)


def _restored(program: Program, node: Node) -> str | None:
    """The Replicated input that a collective makes whole again after its Update."""
    made = program.by_name.get(str(node.inputs[0])) if node.op in ("AllGather", "Broadcast") else None
    if not isinstance(made, Node) or made.op != "Update":
        return None
    target = str(made.inputs[0])
    return target if isinstance(program.by_name[target].type.layout, Replicated) else None


def _kept(program: Program, node: Node, homes: Mapping[str, str]) -> bool:
    """Whether a value outlives the kernel that makes it; one that nobody reads is still made."""
    if node.op == "Update" or node.name in program.outputs or _restored(program, node) is not None:
        return True
    readers = list(program.readers[node.name])
    while any(kind_of_node(reader) == "view" for reader in readers):
        readers = [
            x
            for reader in readers
            for x in (program.readers[reader.name] if kind_of_node(reader) == "view" else (reader,))
        ]
    return not readers or any(homes[reader.name] != homes[node.name] for reader in readers)
