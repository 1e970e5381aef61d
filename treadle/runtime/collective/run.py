"""`treadle run` for collective programs: on processes, fibers or GPUs, and by grouped messages between hosts."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from treadle.cli.json_output import print_json
from treadle.cli.output import note, print_table, require_good
from treadle.passes.interface import DEFAULT_SIZES, RunOptions
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.quantities import parse_list, parse_number
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.machine.measured_network import profile_of

MAX_DIGITS = 11
CPU_DTYPES = ("float32", "int64")
OPS = ("sum", "min", "max", "avg")
NATIVE_DTYPES = ("float32", "float16", "bfloat16", "int32")


def run(folder: Path, options: RunOptions) -> None:
    """Execute the programs in `folder`, or of one file, on the back-end that the options name."""
    backend = options.backend
    if backend in ("fibers", "cuda"):
        from treadle.runtime.collective.run_native import FIBER_SIZES, run_native

        options.require_world((None,), "all ranks run in one process")
        default = FIBER_SIZES if backend == "fibers" else DEFAULT_SIZES
        counts = _numbers(default if options.sizes is None else options.sizes)
        dtypes = _names(options.dtypes, NATIVE_DTYPES)
        run_native(folder, backend, counts, dtypes, options.repeats, options.timeout, options.as_json)
        return
    counts = _numbers(DEFAULT_SIZES if options.sizes is None else options.sizes)
    reductions = [word.strip() for word in options.ops.split(",")]
    if not set(reductions) <= set(OPS):
        raise InputError(f"found {options.ops!r}, expected some of {','.join(OPS)}", where="--ops")
    dtypes = _names(options.dtypes, CPU_DTYPES)
    _run(folder, options, counts, dtypes, reductions)


def _numbers(text: str) -> tuple[int, ...]:
    return parse_list(text, partial(parse_number, least=0, most=10**MAX_DIGITS - 1, where="--sizes"))


def _names(text: str | None, defaults: tuple[str, ...]) -> list[str]:
    words = [word.strip() for word in text.split(",")] if text is not None else list(defaults)
    known = (*NATIVE_DTYPES, "float64", "int64")
    if not set(words) <= set(known):
        raise InputError(f"found {text!r}, expected some of {','.join(known)}", where="--dtypes")
    return words


def _run(folder: Path, options: RunOptions, sizes: tuple[int, ...], dtypes: list[str], ops: list[str]) -> None:
    from treadle.codegen.collective import check as check_program
    from treadle.codegen.collective.expected import expected_outputs
    from treadle.codegen.targets import PLAN_NAME
    from treadle.planner.documents import store
    from treadle.runtime.collective.compare import compare
    from treadle.runtime.collective.messages import decisions_in, programs_in
    from treadle.runtime.joined import joined_rank

    programs, decisions = programs_in(folder), decisions_in(folder)
    for name, program in programs.items():
        findings = check_program.check(program, expected=None if decisions is None else expected_outputs(decisions))
        if findings:
            raise CheckFailed(f"{name}: not run, its check failed", tuple(f"{name}: {text}" for text in findings))
    ranks = len(next(iter(programs.values())).ranks)
    options.require_world((None, ranks), "the collective has that many ranks")
    plan = store.load(folder / PLAN_NAME, Plan) if (folder / PLAN_NAME).is_file() else None
    machine = None if plan is None else _hardware_of(plan, folder / PLAN_NAME)
    rows = compare(
        programs,
        decisions,
        sizes=sizes,
        dtypes=dtypes,
        ops=ops,
        repeats=options.repeats,
        timeout=options.timeout,
        hardware=machine,
        backend=options.backend,  # type: ignore[arg-type]  # fibers and cuda are gone
    )
    joined = joined_rank()
    if joined is None or joined[0] == 0:
        if options.as_json:
            print_json("run-collective", {"results": [{**asdict(row), "good": row.good} for row in rows]})
        else:
            priced = plan is not None and options.backend != "gloo"
            reference = _machine_of(plan) if plan is not None and priced else None
            profile = reference.file if reference is not None else None
            hosts = _hosts_of(machine, ranks) if machine is not None and priced and joined is None else 1
            _print(rows, ranks, profile, hosts, joined is not None)
    require_good(rows, "differ from PyTorch's")


def _machine_of(plan: Plan[Any]) -> InputRef | None:
    """The profile, or the cost matrix of hosts, that a plan was made for."""
    return plan.inputs.get("hardware") or plan.inputs.get("costs")


def _hardware_of(plan: Plan[Any], path: Path) -> Hardware | None:
    """The unchanged profile that a plan was made for, or that of its probed hosts; None where it is not found."""
    from treadle.check.inputs import inputs_of
    from treadle.planner.documents.sources import find_input

    if (reference := _machine_of(plan)) is None:
        return None
    role, kind = ("hardware", Hardware) if "hardware" in plan.inputs else ("costs", CostMatrix)
    try:
        file = find_input(role, kind, reference, str(path), None)
        found = inputs_of(plan, str(path), {role: file}, fresh=False)[1].get(role)
        if isinstance(found, CostMatrix):
            return profile_of(found, file)
    except InputError:
        return None
    return found if isinstance(found, Hardware) else None


def _hosts_of(hardware: Hardware, ranks: int) -> int:
    """The number of hosts for which times of the first `ranks` ranks are predicted."""
    cpu, before, hosts = hardware.transports.cpu, 0, 0
    for node in hardware.every_node:
        hosts, before = hosts + (before < ranks), before + node.devices_per_node
    return 1 if cpu is not None and cpu.hosts == "one" else hosts


def _print(rows: list[Any], ranks: int, hardware: str | None, hosts: int, joined: bool) -> None:
    """hosts: those that the prediction is for, where all processes were on one."""
    from treadle.planner.documents.scalars import format_bytes

    def cells(row: Any) -> tuple[object, ...]:
        error = "equal" if row.max_error == 0 else f"{row.max_error:.2g}"
        times = [row.seconds, row.reference_seconds, *([row.predicted_seconds] if hardware else [])]
        shown = ("" if time is None else f"{time * 1e3:.3f}" for time in times)
        ratio = (_ratio(row.predicted_seconds / row.seconds) if row.predicted_seconds else "",) if hardware else ()
        return row.program, row.dtype, row.op, f"{row.elements:,}", format_bytes(row.bytes), error, *shown, *ratio

    right = "all results equal within rounding" if all(row.good for row in rows) else "some results are wrong"
    columns = ("program", "dtype", "op", "elements", "input", "max error", "ours ms", "torch ms")
    predicted = (f"predicted ms on {hardware}", "predicted / ours") if hardware else ()
    where = "together" if joined else "on this machine"
    print_table(f"{ranks} processes {where}; {right}", (*columns, *predicted), [*map(cells, rows)])
    if hosts > 1:
        note(f"the prediction is for {hosts} hosts of {hardware}, and all processes ran on this one")
        return
    for line in _misses(rows):
        note(line)


def _ratio(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.1 else f"{value:.4f}"


def _times(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def _misses(rows: list[Any]) -> list[str]:
    """A line for each program and term by which predictions differ by more than a third, about the worst of them."""
    from treadle.codegen.collective.simulate_cpu import TERMS
    from treadle.planner.documents.scalars import format_bytes, format_time

    worst: dict[tuple[str, str], Any] = {}
    for row in rows:
        if row.off is not None:
            known = worst.get((row.program, row.off))
            if known is None or _distance(row) > _distance(known):
                worst[row.program, row.off] = row

    def line(row: Any, off: str) -> str:
        predicted, measured = (format_time(float(f"{s * 1e9:.3g}")) for s in (row.predicted_seconds, row.seconds))
        word = "long" if row.seconds > row.predicted_seconds else "fast"
        times = f"measured {measured}, {_times(_distance(row))} times as {word}"
        where = f"{row.program} at {format_bytes(row.bytes)} of {row.dtype}"
        return f"{where}: predicted {predicted}, most of it {TERMS[off]}; {times}"

    return [line(row, off) for (_, off), row in worst.items()]


def _distance(row: Any) -> float:
    ratio: float = row.seconds / row.predicted_seconds
    return max(ratio, 1 / ratio)
