"""A schedule becomes text: the tensors of each rank, one kernel or several for each launch, and the file of all.

Extents are constants of the text. Values live in memory only where a stage leaves them for another one or the caller;
the value of an Update lives in its target, and so does what gathers or broadcasts one (CoCoNet, sections 4 and 5).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from math import prod
from typing import TypeVar

from treadle.codegen.fusion import collective, conv2d, library, matmul, overlap, phased, pointwise, reductions
from treadle.codegen.fusion.algorithms import ProgramFactory
from treadle.codegen.fusion.choices import Carried, Choices, CollectiveChoice, collectives_of
from treadle.codegen.fusion.context import Context, Protocol
from treadle.codegen.fusion.expression import Scope, identifier
from treadle.codegen.fusion.kernel import Buffer, KernelText, Role
from treadle.codegen.fusion.overlap import Fallback
from treadle.codegen.templates import template
from treadle.planner import resources
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion import text
from treadle.planner.passes.fusion.anatomy import PROGRAMS
from treadle.planner.passes.fusion.layouts import Replicated, Sliced
from treadle.planner.passes.fusion.program import Bindings, Node, Program, TensorType
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.slice_maps import capacity
from treadle.planner.passes.fusion.stages import PRODUCTS, Stage, groups, home_of
from treadle.planner.passes.fusion.stages import kind as kind_of_node
from treadle.planner.passes.fusion.transforms.validate import outputs_in_memory, validate

T = TypeVar("T")
Emitted = KernelText | Sequence[KernelText]
REPORTED = 64
LINE = 128
INCLUDES = re.compile(r'"(\w+\.h)"')
SLOT_BYTES: dict[Protocol, int] = {"Simple": 512 << 10, "LL": 16 << 10, "LL128": 120 << 10}
"""Payload of a message."""

EMITTERS: dict[str, Callable[[Stage, Context], Emitted]] = {
    "pointwise": pointwise.emit,
    "permute": pointwise.emit,
    "matmul": matmul.emit,
    "convolution": conv2d.emit,
    "rows": reductions.emit,
    "reduction": reductions.emit,
}
"""By the kind of a stage without collectives."""


@dataclass(frozen=True)
class Changed:
    """A stage that runs on another choice than it should, each in words."""

    wanted: str
    ran: str
    why: str


@dataclass(frozen=True)
class Lowered:
    """`places` maps each value in memory to its buffer. A launch is one kernel, or several that run at the same time.
    `arena_bytes` is the size of each rank's arena. `fallbacks` are overlaps of the schedule that run one stage after
    the other. `ran` has the algorithm of each stage with a collective, `changed` those that are stand-ins, `carried`
    the collective plans. Buffers of `scattered` inputs hold tables. A launch without kernels is one of `calls`, made
    between the launches."""

    program: Program
    bindings: Bindings
    buffers: tuple[Buffer, ...]
    places: Mapping[str, int]
    launches: tuple[tuple[KernelText, ...], ...]
    arena_bytes: int
    fallbacks: tuple[Fallback, ...] = ()
    ran: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, Changed] = field(default_factory=dict)
    carried: tuple[Carried, ...] = ()
    scattered: frozenset[str] = frozenset()
    calls: Mapping[int, library.Call] = field(default_factory=dict)

    @property
    def runs(self) -> tuple[range | library.Call, ...]:
        """All launches in order: as many as go together, and calls of a library."""
        ends = [-1, *sorted(self.calls), len(self.launches)]
        between = [(range(before + 1, end), self.calls.get(end)) for before, end in pairwise(ends)]
        return tuple(each for pair in between for each in pair if each)

    @property
    def digest(self) -> str:
        """The digest of the schedule, the sizes and the choices that the text was made for."""
        plans = [f"{plan.file} {plan.digest}" for plan in self.carried]
        ran = [f"{name}: {ran}" for name, ran in self.ran.items()]
        return digest_of(self.program, self.bindings, [*ran, *plans, *(f"library: {at}" for at in self.calls)])

    @cached_property
    def text(self) -> str:
        """The file to compile, next to the headers of `headers`."""
        extents = ", ".join(f"{name} = {extent}" for name, extent in sorted(self.bindings.extents.items()))
        return template("fusion/schedule.cu.j2").render(
            program=self.program.name,
            extents=extents or "scalars",
            ranks=self.bindings.ranks * self.bindings.groups,
            digest=self.digest,
            schedule=text.show(self.program).rstrip().splitlines(),
            launches=self.launches,
            ran={identifier(name): ran for name, ran in self.ran.items()},
            carried=self.carried,
            buffers=self.buffers,
            headers=[
                "treadle_collective.h",
                "treadle_random.h",
                "treadle_reductions.h",
                "treadle_buckets.h",
                *_used(self.launches),
            ],
            arena_bytes=self.arena_bytes,
            sends_lines=any("LL128Slots" in kernel.text for launch in self.launches for kernel in launch),
        )

    @property
    def texts(self) -> dict[str, str]:
        """`schedule.cu` and all headers, by file name."""
        return with_headers({"schedule.cu": self.text})


def digest_of(program: Program, bindings: Bindings, choices: Iterable[str] = ()) -> str:
    """The digest of a schedule, the sizes that code is made for and the algorithms of its collectives, in words."""
    extents, parts = sorted(bindings.extents.items()), sorted(bindings.parts.items())
    sizes = f"{extents} {bindings.ranks} {bindings.groups} {parts}"
    return hashlib.sha256("\n".join((text.show(program), sizes, *choices)).encode()).hexdigest()


def headers() -> dict[str, str]:
    """The headers that generated schedules include, by file name."""
    folder = resources.folder("templates")
    return {
        path.name: path.read_text(encoding="utf-8")
        for part in ("cuda", "fusion")
        for path in sorted((folder / part).glob("*.h"))
    }


def with_headers(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts by file name and those of our headers that they include, or that these include."""
    ours, left, needed = headers(), list(texts.values()), dict[str, str]()
    while left:
        for name in INCLUDES.findall(left.pop()):
            if name in ours and name not in needed:
                needed[name] = ours[name]
                left.append(ours[name])
    return {**dict(sorted(needed.items())), **texts}


def lower(
    program: Program,
    bindings: Bindings,
    *,
    protocol: Protocol = "Simple",
    channels: int = 1,
    algorithm: str | ProgramFactory = "ring",
    slot_bytes: int | None = None,
    tile: tuple[int, int] | None = None,
    scattered: Collection[str] = (),
    choices: Choices | None = None,
    by_library: Collection[str] = (),
) -> Lowered:
    """The kernels of a schedule of `program` for these sizes.

    `choices` has the choice of each stage with a collective, and its stand-ins; stages without one run on `channels`
    copies of `algorithm` over `protocol`. Stages that overlap run on the choice of the first of them. `scattered` names
    inputs of which every rank has a list of tensors, in one dimension; their buffers hold tables
    (treadle.codegen.fusion.scattered). `by_library` names products, overlapped with nothing, that a library computes.
    Raises InvalidTransform for a kernel or overlap that no transformation makes, TypeRefusal for stages that no kernel
    of ours computes, InputError for sizes that do not fit and for unknown
    names.
    """
    outputs_in_memory(program)
    validate(program)
    _require_inputs(program, scattered)
    buffers, places = memory(program, bindings)
    scope = Scope(program, bindings, buffers, places, frozenset(scattered))
    default = (CollectiveChoice(algorithm, protocol, channels),)
    whole = groups(program)
    arena = LINE + sum(map(len, whole)) * MOST_KERNELS * REPORTED * LINE
    launches: list[tuple[KernelText, ...]] = []
    run = _Run(scope, choices or {}, default, slot_bytes, tile)
    calls: dict[int, library.Call] = {}
    alone = [stages[0].name for stages in whole if len(stages) == 1 and stages[0].kind in PRODUCTS]
    if unknown := sorted(set(by_library) - set(alone)):
        message = f"{program.name}: found {unknown[0]!r} for a library, expected a product that overlaps with nothing"
        raise InputError(f"{message}: {', '.join(alone) or 'there is none'}")
    for stages in whole:
        if stages[0].name in by_library:
            calls[len(launches)] = library.call_of(stages[0], scope)
            launches.append(())
            continue
        emitted = _emit(stages, arena, run)
        arena += _bytes(emitted)
        launches += emitted
    carried = {plan.file: plan for wanted in (choices or {}).values() for choice in wanted for plan in choice.carried}
    return Lowered(
        program,
        bindings,
        tuple(buffers),
        places,
        tuple(launches),
        arena,
        tuple(run.fallbacks),
        run.ran,
        run.changed,
        tuple(carried.values()),
        scope.scattered,
        calls,
    )


def _require_inputs(program: Program, scattered: Collection[str]) -> None:
    lists = [value.name for value in program.inputs if len(value.type.shape) == 1 and value.type.shape[0].names]
    for name in sorted(set(scattered) - set(lists)):
        expected = f"expected some of {', '.join(lists)}" if lists else "and no input has one named dimension"
        raise InputError(f"{program.name}: found {name!r} in scattered, {expected}")


MOST_KERNELS = 4
"""Kernels of one stage, for the reports at the beginning of an arena."""


@dataclass(frozen=True)
class _Run:
    """What all stages share, and what becomes of them."""

    scope: Scope
    choices: Choices
    default: tuple[CollectiveChoice, ...]
    slot_bytes: int | None
    tile: tuple[int, int] | None
    fallbacks: list[Fallback] = field(default_factory=list)
    ran: dict[str, str] = field(default_factory=dict)
    changed: dict[str, Changed] = field(default_factory=dict)

    def first(self, stages: Sequence[Stage], arena: int, make: Callable[[Context], T]) -> T:
        """What `make` makes of the first choice of these stages that it can. Raises InputError of the last one."""
        moving = [stage for stage in stages if any(node.op in PROGRAMS for node in stage.nodes)]
        wanted = next((self.choices[stage.name] for stage in moving if stage.name in self.choices), self.default)
        why = ""
        for choice in wanted:
            slots = self.slot_bytes or SLOT_BYTES[choice.protocol]
            try:
                made = make(Context(self.scope, choice.made, arena, choice.protocol, choice.channels, slots, self.tile))
            except InputError as error:
                why = why or str(error)
                if choice is wanted[-1]:
                    raise
                continue
            for stage in moving:
                kinds = collectives_of(stage)
                self.ran[stage.name] = choice.described(kinds)
                if why:
                    self.changed[stage.name] = Changed(wanted[0].described(kinds), choice.described(kinds), why)
            return made
        raise AssertionError("a stage without choices")


def _emit(stages: tuple[Stage, ...], arena: int, run: _Run) -> list[tuple[KernelText, ...]]:
    """The launches of stages that shall run at the same time: one, or several where not all of them can."""
    launches: list[tuple[KernelText, ...]] = []
    while stages:
        begin = arena + _bytes(launches)
        count = len(stages)
        while count > 1:
            try:
                launches.append(run.first(stages[:count], begin, partial(overlap.emit, stages[:count])))
                break
            except TypeRefusal as refusal:
                if count == len(stages) and not launches:
                    run.fallbacks.append(Fallback(tuple(stage.name for stage in stages), str(refusal)))
                count -= 1
        else:
            launches += run.first(stages[:1], begin, partial(_alone, stages[0]))
        stages = stages[count:]
    return launches


def _bytes(launches: Sequence[tuple[KernelText, ...]]) -> int:
    return sum(-(-kernel.arena_bytes // LINE) * LINE for launch in launches for kernel in launch)


def _alone(stage: Stage, context: Context) -> list[tuple[KernelText, ...]]:
    if any(node.op in PROGRAMS for node in stage.nodes):
        emitted: Emitted = phased.emit(stage, context) if phased.fits(stage) else collective.emit(stage, context)
    elif stage.kind in EMITTERS:
        emitted = EMITTERS[stage.kind](stage, context)
    else:
        expected = ", ".join([*sorted(EMITTERS), "a collective"])
        raise InputError(f"{stage.name}: found no kernel for {stage.kind}, expected {expected}")
    return [(emitted,)] if isinstance(emitted, KernelText) else [(kernel,) for kernel in emitted]


def _used(launches: tuple[tuple[KernelText, ...], ...]) -> list[str]:
    texts = [kernel.text for launch in launches for kernel in launch]
    headers = {"Gemm<": "treadle_gemm.h", "Convolution<": "treadle_conv2d.h"}
    return [header for name, header in headers.items() if any(name in text for text in texts)]


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
    """Whether a value outlives the kernel that makes it; an unread value is still made."""
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
