"""`treadle run`: execute artefacts on this machine and compare with the framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.output import json_option, many, print_json, require_good
from treadle.passes.fusion.run import is_fusion, run_fusion

MAX_DIGITS = 11
DEFAULT_SIZES = "0,1,1000,65537,1000003"
CPU_DTYPES = ("float32", "int64")
OPS = ("sum", "min", "max", "avg")
NATIVE_DTYPES = ("float32", "float16", "bfloat16", "int32")


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--backend", type=click.Choice(["cpu", "fibers", "cuda"]), default="cpu", show_default=True)
@click.option("--world", type=click.IntRange(min=1), help="Processes; a collective needs its number of ranks.")
@click.option("--sizes", help=f"Collective: element counts, comma between. [default: {DEFAULT_SIZES}; fewer on fibers]")
@click.option("--dtypes", help="Collective: element types, comma between. [default: two or four, by backend]")
@click.option("--ops", default="sum", show_default=True, help="Collective on cpu: sum, min, max, avg, comma between.")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Collective or fusion: timed runs; on fibers, random orders.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Give up after this many seconds; swap plan: of one iteration. [default: 600 for a swap plan]",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Memory or swap plan: training steps."
)
@json_option
def command(
    folder: str,
    backend: str,
    world: int | None,
    sizes: str | None,
    dtypes: str | None,
    ops: str,
    repeats: int,
    timeout: float | None,
    steps: int,
    as_json: bool,
) -> None:
    """Execute the artefacts in DIR, or one MSCCL XML file, and compare them with what PyTorch does by itself.

    This executes code that DIR contains, and imports the model that it names: run only what you trust
    (docs/security.md).

    A collective runs with one process per rank (cpu), as compiled kernels whose threads are fibers of one process
    (fibers, needs g++), or on GPUs (cuda, needs nvcc; ranks share a GPU where there are too few). Size N means N
    elements as the collective counts them: what a rank contributes (allgather, gather), receives (reducescatter,
    scatter), exchanges with each peer (alltoall), one part of a pattern, else the whole buffer.

    Kernels of a fusion plan run in the same three ways and are compared with the reference interpreter: on whole
    numbers, which must be equal to the last bit, and on floats. What they send, load and store is counted, but not on
    GPUs.
    """
    from treadle.codegen import emit
    from treadle.codegen.targets import MEMORY_TARGETS
    from treadle.planner.errors import InputError

    target = emit.read(folder)[0].target if Path(folder).is_dir() else "msccl-xml"
    if target == "deepspeed":
        raise InputError("found a section of a DeepSpeed configuration, which DeepSpeed runs", where=folder)
    if target == "tp-overlap":
        raise InputError("found settings of TransformerEngine, which runs them by itself", where=folder)
    if target in ("torch", "nccl", "nccl-device") and is_fusion(Path(folder)):
        raise InputError(f"found target {target} of a fusion plan, expected cuda, whose kernels run here", where=folder)
    if target in (*MEMORY_TARGETS, "torch-offload"):
        if world not in (None, 1):
            raise InputError(f"found {world}, expected 1: a training step runs in one process", where="--world")
        _run_memory(folder, backend, steps, as_json)
        return
    if target == "torch-swap":
        if world not in (None, 1):
            raise InputError(f"found {world}, expected 1: a swap plan runs in one process", where="--world")
        _run_swap(folder, backend, steps, timeout, as_json)
        return
    if target == "cuda" and is_fusion(Path(folder)):
        if world is not None:
            raise InputError(f"found {world}, expected none: the plan says how many ranks there are", where="--world")
        run_fusion(Path(folder), backend, repeats, timeout, as_json)
        return
    if backend != "cpu":
        from treadle.passes.collective.run_native import FIBER_SIZES, run_native

        if world is not None:
            raise InputError(f"found {world}, expected none: all ranks run in one process", where="--world")
        counts = _numbers((FIBER_SIZES if backend == "fibers" else DEFAULT_SIZES) if sizes is None else sizes)
        run_native(Path(folder), backend, counts, _names(dtypes, NATIVE_DTYPES), repeats, timeout, as_json)
        return
    counts = _numbers(DEFAULT_SIZES if sizes is None else sizes)
    reductions = [word.strip() for word in ops.split(",")]
    if not set(reductions) <= set(OPS):
        raise InputError(f"found {ops!r}, expected some of {','.join(OPS)}", where="--ops")
    _run_collective(Path(folder), world, counts, _names(dtypes, CPU_DTYPES), reductions, repeats, timeout, as_json)


def _numbers(text: str) -> list[int]:
    from treadle.planner.errors import InputError

    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS for word in words):
        expected = f"element counts of at most {MAX_DIGITS} digits such as 0,1,1000"
        raise InputError(f"found {text!r}, expected {expected}", where="--sizes")
    return [int(word) for word in words]


def _names(text: str | None, defaults: tuple[str, ...]) -> list[str]:
    from treadle.planner.errors import InputError

    words = [word.strip() for word in text.split(",")] if text is not None else list(defaults)
    known = (*NATIVE_DTYPES, "float64", "int64")
    if not set(words) <= set(known):
        raise InputError(f"found {text!r}, expected some of {','.join(known)}", where="--dtypes")
    return words


def _run_collective(
    folder: Path,
    world: int | None,
    sizes: list[int],
    dtypes: list[str],
    ops: list[str],
    repeats: int,
    timeout: float | None,
    as_json: bool,
) -> None:
    from treadle.codegen.collective import check as check_program
    from treadle.codegen.collective.promise import promise_of
    from treadle.codegen.targets import PLAN_NAME
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import Plan
    from treadle.planner.errors import CheckFailed, InputError
    from treadle.runtime.collective.compare import compare
    from treadle.runtime.collective.messages import decisions_in, programs_in

    programs, decisions = programs_in(folder), decisions_in(folder)
    for name, program in programs.items():
        findings = check_program.check(program, promise=None if decisions is None else promise_of(decisions))
        if findings:
            raise CheckFailed(f"{name}: not run, its check failed", tuple(f"{name}: {text}" for text in findings))
    ranks = len(next(iter(programs.values())).ranks)
    if world not in (None, ranks):
        raise InputError(f"found {world}, expected {ranks}: the collective has that many ranks", where="--world")
    plan = store.load(folder / PLAN_NAME, Plan) if (folder / PLAN_NAME).is_file() else None
    rows = compare(programs, decisions, sizes=sizes, dtypes=dtypes, ops=ops, repeats=repeats, timeout=timeout)
    if as_json:
        print_json([{**row._asdict(), "good": row.good} for row in rows])
    else:
        reference = plan.inputs.get("hardware") if plan is not None else None
        _print(rows, ranks, reference.file if reference is not None else None)
    require_good(rows, "differ from PyTorch's")


def _print(rows: list[Any], ranks: int, hardware: str | None) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from treadle.planner.documents.scalars import format_bytes

    table = Table(title=f"{ranks} processes on this machine; all results equal within rounding")
    if not all(row.good for row in rows):
        table.title = f"{ranks} processes on this machine; some results are wrong"
    for heading in ("program", "dtype", "op", "elements", "input", "max error", "ours ms", "torch ms"):
        table.add_column(heading, justify="left" if heading in ("program", "dtype", "op") else "right", no_wrap=True)
    if hardware is not None:
        table.add_column(f"predicted ms on {escape(hardware)}", justify="right")
    for row in rows:
        cells = [
            row.program,
            row.dtype,
            row.op,
            f"{row.elements:,}",
            format_bytes(row.bytes),
            "equal" if row.max_error == 0 else f"{row.max_error:.2g}",
            f"{row.seconds * 1e3:.3f}",
            f"{row.reference_seconds * 1e3:.3f}",
        ]
        if hardware is not None:
            cells.append("" if row.predicted_seconds is None else f"{row.predicted_seconds * 1e3:.3f}")
        table.add_row(*map(escape, cells))
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(table)


def _run_memory(folder: str, backend: str, steps: int, as_json: bool) -> None:
    from treadle.planner.documents.scalars import format_bytes
    from treadle.planner.errors import CheckFailed
    from treadle.runtime.memory.training import run_folder

    result = run_folder(folder, steps=steps, backend=backend)
    if as_json:
        print_json(result)
    else:
        peaks, losses, seconds = result["peak_bytes"], result["losses"], result["step_seconds"]
        handed_out = result["allocator_peak_bytes"]
        equal = "bit-equal" if result["bit_equal"] else f"within {result['max_gradient_difference']:.3g}"
        if result["gradient_rounding"]:
            equal += f" (plain PyTorch's own are {result['gradient_rounding']:.3g} off double precision)"
        click.echo(f"{steps} training steps, plain PyTorch beside the plan; gradients {equal}")
        click.echo(f"  loss         {losses['eager'][-1]:.6g} plain, {losses['planned'][-1]:.6g} planned")
        click.echo(
            f"  peak         {format_bytes(peaks['eager'])} plain, {format_bytes(peaks['planned'])} planned"
            + (f", {format_bytes(peaks['predicted'])} predicted" if "predicted" in peaks else "")
            + (f", budget {format_bytes(peaks['budget'])}" if "budget" in peaks else "")
            + (f" beside a reserve of {format_bytes(peaks['reserve'])}" if "reserve" in peaks else "")
        )
        if None not in handed_out.values():
            click.echo(
                f"  allocator    {format_bytes(handed_out['eager'])} plain, "
                f"{format_bytes(handed_out['planned'])} planned, workspaces of kernels included"
            )
        click.echo(f"  step         {seconds['eager'] * 1e3:.1f} ms plain, {seconds['planned'] * 1e3:.1f} ms planned")
        if result["target"] == "torch-offload":
            if backend == "cpu":
                click.echo(
                    "  stand-ins copy on the CPU, within the same memory: peak and step say nothing of an accelerator"
                )
        elif result["target"] != "torch" and peaks["planned"] >= peaks["eager"]:
            click.echo(f"  {result['target']} saves no memory for this model: plain PyTorch needs as little")
        elif result["target"] != "torch" and peaks["planned"] > peaks["budget"]:
            click.echo(
                f"  {result['target']} leaves the order of recomputation to PyTorch and does not hold the budget here"
            )
    if result["findings"]:
        raise CheckFailed(
            f"{folder}: the run broke {many(len(result['findings']), 'promise')}", tuple(result["findings"])
        )


def _run_swap(folder: str, backend: str, steps: int, timeout: float | None, as_json: bool) -> None:
    from treadle.planner.documents.scalars import format_bytes
    from treadle.planner.errors import CheckFailed
    from treadle.runtime.swap.compare import run_folder

    result = run_folder(folder, steps=steps, backend=backend, timeout=timeout)
    if as_json:
        print_json(result)
    else:
        losses, peaks, copied = result["losses"], result["peak_bytes"], result["copied_bytes"]
        taken, places = result["iteration_ns"], result["places"]
        equal = "equal to the last bit" if result["bit_equal"] else "not equal"
        click.echo(f"{many(steps, 'iteration')} without a limit on memory beside the plan; values {equal}")
        click.echo(
            f"  output       {losses['unconstrained'][-1]:.6g} without a limit, {losses['swapped'][-1]:.6g} planned"
        )
        click.echo(
            f"  peak         {format_bytes(peaks['unconstrained'])} without a limit, {format_bytes(peaks['swapped'])} "
            f"planned: an arena of {format_bytes(peaks['arena'])} and {format_bytes(peaks['beside'])} beside it"
        )
        click.echo(
            f"  memory       {format_bytes(peaks['memory'])} of the planned device; the host keeps "
            f"{format_bytes(result['host_bytes'])}"
        )
        if peaks["swapped"] > peaks["memory"]:
            more = format_bytes(peaks["swapped"] - peaks["memory"])
            click.echo(f"  {more} more than that: operators allocate more beside the arena than the trace states")
        click.echo(
            f"  copies       {format_bytes(copied['in'])} in and {format_bytes(copied['out'])} out per iteration"
        )
        click.echo(
            f"  operators    {places['direct']} write straight into the arena, the results of {places['copied']} are "
            "copied there"
        )
        slower = f", on a machine {result['pace']:.3g} times as slow" if backend == "cpu" else ""
        planned, measured = (f"{taken[key] / 1e3:,.1f} us {key}" for key in ("planned", "measured"))
        click.echo(f"  iteration    {planned}, {measured}{slower}")
        click.echo(
            f"  simulator    {taken['simulated'] / 1e3:,.1f} us from the times that the operators took, "
            f"{result['simulation_error']:+.1%} of the measured"
        )
    if result["findings"]:
        raise CheckFailed(
            f"{folder}: the run broke {many(len(result['findings']), 'promise')}", tuple(result["findings"])
        )
