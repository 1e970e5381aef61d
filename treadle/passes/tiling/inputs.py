"""What `treadle plan tiling` is given, as problems of one mesh or another and the documents they were made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from treadle.cli.output import live_line, note
from treadle.passes.tiling.meshes import Mesh, fixed_tilings, require_divides, require_nested
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.scalars import Document, many
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.extract import mesh_axes
from treadle.planner.passes.tiling.planning import plan_tiling
from treadle.planner.passes.tiling.problem import CostModel, MeshAxis, TilingProblem

if TYPE_CHECKING:
    from treadle.passes.tiling.extract import TracedProblem

MOST_BYTES = 2**62
"""What a problem can say."""


@dataclass(frozen=True)
class TilingSetup:
    """What a problem has besides its graph; what is None is as in the problem, or follows from the rest."""

    mesh: Mesh | None = None
    hardware: Hardware | None = None
    measured: bool = False
    """Whether transfers have the costs that processes over gloo have on this machine now."""
    model: CostModel | None = None
    memory_bytes: int | None = None
    dup_bytes: int | None = None
    fixed: Sequence[str] = ()
    states: int = 2
    """States of the optimizer for each weight of a model."""
    strict: bool = False
    """Whether an operator without a rule is refused."""


@dataclass(frozen=True)
class TilingInputs:
    """`on` makes the problem on a mesh. `unruled` counts calls of operators that are replicated without a rule."""

    on: Callable[[Mesh | None], TilingProblem]
    inputs: Mapping[str, InputRef]
    unruled: Counter[str] = field(default_factory=Counter)


def from_problem(file: str, setup: TilingSetup, hardware: str | None) -> TilingInputs:
    """The problem in a file, with what the setup changes. Raises InputError for rules on another mesh than theirs."""
    given = store.load(file, TilingProblem)
    inputs = {"problem": _reference(Path(file).name, given)} if setup == TilingSetup() else {}
    return _of_arrays(given, setup, {**inputs, **_hardware_input(hardware, setup)})


def from_program(spec: str, setup: TilingSetup, hardware: str | None) -> TilingInputs:
    """The graph of a program of `treadle.array`, `PROGRAM.py` or `PROGRAM.py:FUNCTION`, which is run to capture it.
    Raises InputError for whatever ends the program, and for shapes that its data decide."""
    from treadle.array.program import problem_of_program

    name, _, function = spec.partition(":")
    given = problem_of_program(Path(name), function or None)
    return _of_arrays(given, setup, _hardware_input(hardware, setup))


def from_trace(file: str, setup: TilingSetup, hardware: str | None) -> TilingInputs:
    """The problem of a captured step of a model. Raises InputError as `problem_of_trace`, and under `strict` for an
    operator without a rule."""
    trace = store.load(file, Trace)
    from treadle.passes.tiling.extract import ModelTiling, problem_of_trace  # imports torch, which takes seconds

    timed, call_ns = _with_times(trace, setup)
    inputs = {"trace": _reference(Path(file).name, trace), **_hardware_input(hardware, setup)}
    unruled = Counter[str]()

    def on(mesh: Mesh | None) -> TilingProblem:
        sizes = _required(mesh or setup.mesh)
        axes = mesh_axes(sizes, None) if setup.measured else _axes(sizes, setup)
        with live_line() as show_line:
            made = problem_of_trace(
                timed,
                ModelTiling(axes, _model(setup), setup.memory_bytes, setup.states, call_ns),
                lambda done, of, target: show_line(f"rules {done}/{of} {target}"),
            )
        unruled.clear()
        unruled.update(made.unruled)
        _require_ruled(made, setup)
        return _checked(_measured(made.problem, trace) if setup.measured else made.problem, setup)

    return TilingInputs(on, inputs, unruled)


def _measured(problem: TilingProblem, trace: Trace) -> TilingProblem:
    """`problem` with what the step of `trace` takes on the processes that would run it."""
    from treadle.codegen.tiling.dtensor_model import step_text
    from treadle.runtime.tiling.measured_step import measured_step

    whole = tuple("R" for _ in problem.mesh)
    arrays = tuple(replace(each, fixed=whole) for each in problem.arrays)
    uncut = plan_tiling(replace(problem, arrays=arrays, model="exact", memory_bytes=None)).decisions
    found = measured_step(trace, [axis.size for axis in problem.mesh], step_text(uncut, trace), len(problem.nodes))
    note(found.contention)
    return found.priced(problem)


def without_rules(unruled: Mapping[str, int]) -> str:
    """`aten.sort.default (2 calls)` for each operator."""
    return ", ".join(f"{target} ({many(calls, 'call')})" for target, calls in sorted(unruled.items()))


def _of_arrays(given: TilingProblem, setup: TilingSetup, inputs: Mapping[str, InputRef]) -> TilingInputs:
    has_rules = any(node.operator == "rule" for node in given.nodes)

    def on(mesh: Mesh | None) -> TilingProblem:
        sizes = mesh or setup.mesh
        if sizes is None and setup.hardware is not None:
            sizes = tuple(axis.size for axis in given.mesh)
        axes = given.mesh if sizes is None else _axes(sizes, setup)
        if has_rules and tuple(axis.size for axis in axes) != tuple(axis.size for axis in given.mesh):
            raise InputError("found rules in the problem, which are for its own mesh; give --trace", where="--mesh")
        changed = replace(
            given,
            mesh=axes,
            model=setup.model or ("time" if axes[0].costs and len(axes) > 1 else given.model),
            memory_bytes=setup.memory_bytes or given.memory_bytes,
            dup_bytes=given.dup_bytes if setup.dup_bytes is None else setup.dup_bytes,
        )
        return _checked(changed, setup)

    return TilingInputs(on, inputs)


def _checked(problem: TilingProblem, setup: TilingSetup) -> TilingProblem:
    for name, count in (("--memory-per-worker", problem.memory_bytes), ("--dup-budget", problem.dup_bytes)):
        if count is not None and count > MOST_BYTES:
            raise InputError(f"found {count}, expected at most {MOST_BYTES} bytes", where=name)
    if problem.model == "time" and any(axis.size > 1 and not axis.costs for axis in problem.mesh):
        raise InputError(
            "found model time without costs of the mesh, expected --hardware or --measure", where="--model"
        )
    require_divides(problem)
    fixed = fixed_tilings(setup.fixed, problem)
    arrays = tuple(replace(each, fixed=fixed.get(each.id, each.fixed)) for each in problem.arrays)
    return replace(problem, arrays=arrays) if fixed else problem


def _axes(sizes: Mesh, setup: TilingSetup) -> tuple[MeshAxis, ...]:
    if setup.hardware is not None:
        require_nested(sizes, setup.hardware)
    if setup.measured:
        from treadle.runtime.tiling.measured import measured_axes

        return measured_axes(sizes)
    return mesh_axes(sizes, setup.hardware)


def _model(setup: TilingSetup) -> CostModel:
    priced = setup.measured or setup.hardware is not None
    return setup.model or ("time" if priced else "exact")


def _required(mesh: Mesh | None) -> Mesh:
    if mesh is None:
        raise InputError("found no mesh, expected workers along each axis such as 2x4", where="--mesh")
    return mesh


def _require_ruled(made: TracedProblem, setup: TilingSetup) -> None:
    if made.unruled and setup.strict:
        found = f"found no rule of {without_rules(made.unruled)}, expected rules of all operators"
        raise InputError(found, where="--strict")


def _with_times(trace: Trace, setup: TilingSetup) -> tuple[Trace, int]:
    """The trace with times where the model needs them, and ns of them that every call takes besides its work."""
    if _model(setup) != "time" or trace.costs.model != "absent" or setup.hardware is None:
        return trace, 0
    from treadle.capture.costs import with_roofline  # imports torch, which takes seconds

    device = next((each for each in setup.hardware.devices if each.kind == "gpu"), setup.hardware.devices[0])
    return with_roofline(trace, setup.hardware), round(device.launch_us * 1e3)


def _hardware_input(name: str | None, setup: TilingSetup) -> dict[str, InputRef]:
    return {"hardware": _reference(name, setup.hardware)} if name and setup.hardware is not None else {}


def _reference(name: str, document: Document) -> InputRef:
    return InputRef(file=name, digest=store.digest(document))
