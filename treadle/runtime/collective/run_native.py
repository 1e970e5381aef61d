"""`treadle run --backend fibers|cuda`: collective programs as compiled kernels, compared with a plain reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from treadle.cli.json_output import print_json
from treadle.cli.output import print_table, require_good

FIBER_SIZES = "0,1,1000,65537"
MAX_SPECIALISED_STEPS = 2000


def run_native(
    folder: Path,
    backend: Any,
    sizes: Sequence[int],
    dtypes: Sequence[str],
    repeats: int,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Run every program in `folder`, or of one XML file, with both kernels; print what was compared.

    Raises CheckFailed for wrong results and for programs that hang, MissingBackendError without compiler or GPU.
    """
    from treadle.codegen.collective import check as check_program
    from treadle.planner.errors import CheckFailed
    from treadle.planner.passes.collective.direct import is_in_switch
    from treadle.runtime.collective.compare_native import compare
    from treadle.runtime.collective.messages import in_switch_program, plan_in, programs_in

    plan = plan_in(folder) if folder.is_dir() else None
    if plan is not None and is_in_switch(plan.decisions):
        program = in_switch_program(plan.decisions)
        programs, libraries = {program.name: program}, {}
    else:
        programs = programs_in(folder)
        for name, program in programs.items():
            findings = check_program.check(program)
            if findings:
                raise CheckFailed(f"{name}: not run, its check failed", tuple(f"{name}: {text}" for text in findings))
        libraries = _libraries(folder, programs, backend, timeout)
    libraries |= _over_symmetric_memory(plan, programs, backend, timeout)
    ranks = len(next(iter(programs.values())).ranks)
    devices, where = _devices(backend, ranks)
    rows = compare(
        libraries,
        sizes=sizes,
        dtypes=dtypes,
        ops=("sum", "avg", "min", "max"),
        seeds=repeats,
        devices=devices,
    )
    if as_json:
        print_json("run-collective", {"results": [{**asdict(row), "good": row.good} for row in rows]})
    else:
        orders = f", {repeats} random order{'s' * (repeats > 1)} each" if backend == "fibers" else ""
        _print(rows, f"{ranks} ranks {where}{orders}")
    require_good(rows, "are wrong")


def _libraries(folder: Path, programs: Any, backend: Any, timeout: float | None) -> dict[str, Any]:
    """Both kernels of every program, of long ones the interpreter alone. The texts of a folder for CUDA as they lie
    there; of other folders and files what this version generates."""
    import typer

    from treadle.codegen import emit
    from treadle.runtime.collective.native import LaunchSettings, build, build_folder

    settings = LaunchSettings() if timeout is None else LaunchSettings(timeout=timeout)
    steps = max(sum(1 for _ in program.steps()) for program in programs.values())
    kernels: tuple[Any, ...] = ("specialised", "interpreter")
    if steps > MAX_SPECIALISED_STEPS:
        kernels = ("interpreter",)
        typer.echo(f"{steps:,} steps: the specialised kernel would take long to compile and is left out", err=True)
    generated = folder.is_dir() and emit.manifest_in(folder).target == "cuda"
    libraries = {}
    for kernel in kernels:
        if generated:
            made = build_folder(folder, backend, kernel=kernel, settings=settings)
        else:
            made = {
                name: build(program, backend, kernel=kernel, settings=settings) for name, program in programs.items()
            }
        libraries.update({f"{name}, {kernel}": library for name, library in made.items()})
    return libraries


def _over_symmetric_memory(plan: Any, programs: Any, backend: Any, timeout: float | None) -> dict[str, Any]:
    """One of the programs as the kernels over symmetric memory do it, where the plan was priced for them."""
    from treadle.runtime.collective.messages import symmetric_of
    from treadle.runtime.collective.native import LaunchSettings
    from treadle.runtime.collective.symmetric import Exchange, SymmetricKernels, SymmetricProgram

    if plan is None or (shots := symmetric_of(plan)) is None:
        return {}
    name, program = next(iter(programs.items()))
    exchange = Exchange(plan.decisions.collective, shots, plan.decisions.root or 0)
    switched = bool(plan.decisions.switched) and backend == "fibers"
    limit = LaunchSettings().timeout if timeout is None else timeout
    made = SymmetricProgram(program, exchange, SymmetricKernels(backend), limit, switched)
    return {f"{name.removesuffix('.xml')}, {shots} over symmetric memory": made}


def _devices(backend: str, ranks: int) -> tuple[list[str], str]:
    """One GPU per rank where there are enough, else the first one for all."""
    import torch

    if backend == "fibers":
        return ["cpu"], "as fibers of one process"
    if torch.cuda.device_count() >= ranks > 1:
        return [f"cuda:{rank}" for rank in range(ranks)], "on a GPU each"
    return ["cuda:0"], f"on one GPU, {torch.cuda.get_device_name(0)}"


def _print(rows: Sequence[Any], title: str) -> None:
    """One line for each program, data type and operation: the worst of all sizes, and the time of the largest."""
    shown = []
    for kind, found in groupby(rows, key=lambda row: (row.program, row.dtype, row.op)):
        group = list(found)
        worst = max(group, key=lambda row: (not row.good, row.max_error))
        sizes = sorted((row.elements, row.seconds) for row in group)
        (least, _), (most, seconds) = sizes[0], sizes[-1]
        error = "equal" if worst.max_error == 0 else f"{worst.max_error:.2g}"
        size = str(most) if len(group) == 1 else f"{least} to {most}"
        shown.append((*kind, size, error, f"{worst.tolerance:.2g}", f"{seconds * 1e3:.3f}"))
    right = "all results are right" if all(row.good for row in rows) else "some results are wrong"
    columns = ("program", "dtype", "op", "elements", "max error", "allowed", "ms")
    print_table(f"{title}; {right}", columns, shown)
