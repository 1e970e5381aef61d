"""`treadle trace`: capture, import or show a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec.structs import replace

from treadle.cli.json_output import print_json
from treadle.cli.lazy import new_app
from treadle.cli.options import Json, document_option, hardware_option, whole
from treadle.cli.output import live_line, note, print_table
from treadle.planner.documents import store
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError

if TYPE_CHECKING:
    from treadle.runtime.memory.verify import Verified


command = new_app(help="Capture, import or show the trace of a model's step.")


@command.command()
def capture(
    *,
    spec: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="Function that returns model and inputs.")],
    train: Annotated[bool, typer.Option("--train/--infer", help="Forward and backward, or forward only.")] = True,
    optimizer: Annotated[Literal["adam", "sgd"] | None, typer.Option(help="Add the updates of this optimizer.")] = None,
    hardware: Annotated[
        str | None, hardware_option("Model each op's time by the roofline of this profile's device.")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Measure each op's time and workspace on this machine, or take what was measured."
        ),
    ] = False,
    fresh_costs: Annotated[
        bool, typer.Option("--fresh-costs", help="With --measure: measure everything anew.")
    ] = False,
    autocast: Annotated[
        Literal["bfloat16", "float16"] | None, typer.Option(help="Trace it as under torch.autocast to this dtype.")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option(help="Where the step will run; decides the kernels PyTorch picks."),
    ] = "cpu",
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Run one step of plain PyTorch and one of the capture, and compare them."),
    ] = False,
    output: Annotated[str, document_option("trace", "Write the trace to this file.")],
    as_json: Json = False,
) -> None:
    """Capture one step of a PyTorch model without running it.

    FUNCTION takes no arguments and returns (model, inputs) or (model, inputs, loss); the step computes
    loss(model, *inputs), or model(*inputs). Inputs in a dict are keywords: model(**inputs). MODULE is looked up in the
    current folder first.

    A step also lists other implementations of its ops (convolution algorithms, in-place forms and so on), from which
    `plan memory` and `plan swap` choose. Without --hardware or --measure the trace has no times; `plan memory` then
    measures them where it runs. With --verify the step is run too, which takes its memory.
    """
    if measure and hardware:
        raise InputError("found both, expected one of them", where="--measure --hardware")
    if fresh_costs and not measure:
        raise InputError("found no --measure, which it belongs to", where="--fresh-costs")
    from treadle.capture.load import autocast_to, load_function, on_device
    from treadle.probe.resolve import load_hardware

    profile = load_hardware(hardware) if hardware else None
    function = on_device(load_function(spec), device)
    from treadle.capture import costs, graph
    from treadle.capture.costs.cache import kept
    from treadle.capture.live import completed

    with autocast_to(autocast, device):
        trace = replace(graph.capture(function, spec, "train" if train else "infer"), entry=spec)
    verified = _verified(function, trace) if verify else None
    trace = completed(trace, optimizer=optimizer, measured_on=device if measure else None, note=note)
    if profile:
        trace = costs.with_roofline(trace, profile)
    elif measure:
        with live_line() as show_line, kept(device, fresh=fresh_costs) as known:
            trace = costs.with_measured_in_step(
                trace,
                lambda done, of, target: show_line(f"measuring {done}/{of} {target}"),
                device=device,
                known=known,
            )
    else:
        trace = costs.with_counts(trace)
    _save(trace, output, as_json, verified)


def _verified(function: Callable[[], Any], trace: Trace) -> Verified:
    from treadle.capture.load import build_step
    from treadle.runtime.memory.verify import verify_capture

    return verify_capture(build_step(function, trace.name), trace)


@command.command("import")
def import_(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace of another tool.")],
    step: Annotated[int | None, whole("Which ProfilerStep of a Kineto trace. [default: the last]", least=0)] = None,
    output: Annotated[str, document_option("trace", "Write the trace to this file.")],
    as_json: Json = False,
) -> None:
    """Import a trace of another tool.

    FILE is a PyTorch ExecutionTrace, a Kineto or Chrome trace, a Chakra trace, or a memory snapshot of PyTorch
    (torch.cuda.memory._dump_snapshot), packed or not.
    """
    from treadle.capture.formats import import_trace

    _save(import_trace(file, step), output, as_json)


@command.command()
def show(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace.")],
    top: Annotated[int, whole("How many rows a table has.", least=1)] = 12,
    as_json: Json = False,
) -> None:
    """Show operators by time, tensors by bytes, and where memory peaks."""
    from treadle.capture.summary import summarize

    trace = store.load(file, Trace)
    summary = summarize(trace, top)
    if as_json:
        print_json("trace-show", summary)
    else:
        _show(summary)


def _save(trace: Trace, output: str, as_json: bool, verified: Verified | None = None) -> None:
    from treadle.capture.summary import summarize

    store.save(trace, output)
    overview = summarize(trace, 1)["trace"]
    if verified:
        overview["verified"] = verified.measured
    if as_json:
        print_json("trace", overview)
    else:
        times = f"times {trace.costs.model}" if trace.costs.model != "absent" else "no times"
        choices = f", {overview['implementations']} other implementations" if overview["implementations"] else ""
        ops = sum(overview["ops"].values())
        note(f"wrote {output}: {ops} ops{choices}, {overview['tensors']} tensors, {times}")
    if verified:
        note(f"verified {verified.line}")
        if verified.findings:
            raise CheckFailed(f"{trace.name}: the capture is not verified", verified.findings)


def _show(summary: dict[str, Any]) -> None:
    typer.echo(_overview(summary["trace"]))
    print_table(
        "Collectives",
        ("collective", "calls", "bytes", "time"),
        [
            (r["collective"], r["calls"], format_bytes(r["bytes"]), _time(r["time_ns"]))
            for r in summary["trace"]["collectives"]
        ],
    )
    total = sum(row["time_ns"] or 0 for row in summary["operators"])
    whole = summary["trace"]["time_ns"] or total
    rows = [
        (
            _short(row["operator"]),
            row["calls"],
            _time(row["time_ns"]),
            f"{100 * row['time_ns'] / whole:.1f} %" if row["time_ns"] is not None and whole else "-",
            _giga(row["flops"]),
            _size(row["bytes_moved"]),
        )
        for row in summary["operators"]
    ]
    print_table("Operators by time", ("operator", "calls", "time", "share", "GFLOP", "bytes moved"), rows)
    rows = [
        (
            row["tensor"],
            row["role"],
            _size(row["bytes"]),
            _shape(row["shape"]),
            row["dtype"],
            _short(row["origin"] or ""),
        )
        for row in summary["tensors"]
    ]
    print_table("Tensors by bytes", ("tensor", "role", "bytes", "shape", "dtype", "name or made by"), rows)
    if summary["peak"]:
        _show_peak(summary["peak"])


def _show_peak(peak: dict[str, Any]) -> None:
    typer.echo(
        f"\nMemory peaks at {format_bytes(peak['bytes'])} in op {peak['op']} "
        f"({_short(peak['operator'])}, {peak['phase']}), number {peak['place'] + 1} of {len(peak['curve'])}"
    )
    typer.echo(f"  {sparkline(peak['curve'], 72)}  live bytes over the ops, top {format_bytes(peak['bytes'])}")
    typer.echo("  " + ", ".join(f"{role} {format_bytes(size)}" for role, size in peak["by_role"].items()))
    if peak["unknown_sizes"]:
        typer.echo(f"  {peak['unknown_sizes']} tensors have no size in this trace and are not counted")
    lines = [(_short(row["line"]), row["blocks"], _size(row["bytes"])) for row in peak.get("lines", ())]
    print_table("Live at the peak by the line that allocated it", ("line", "blocks", "bytes"), lines)
    if lines:
        return
    rows = [(row["tensor"], _size(row["bytes"]), _shape(row["shape"])) for row in peak["largest"]]
    print_table("Largest at the peak", ("tensor", "bytes", "shape"), rows)


def sparkline(values: list[int], width: int) -> str:
    """`values` as blocks of eight heights, each the largest of its share; zero is the base line."""
    width = min(width, len(values))
    top = max(values, default=0) or 1
    shares = [
        values[len(values) * i // width : max(len(values) * (i + 1) // width, len(values) * i // width + 1)]
        for i in range(width)
    ]
    return "".join("▁▂▃▄▅▆▇█"[min(7, 8 * max(share) // top)] for share in shares)


def _overview(trace: dict[str, Any]) -> str:
    ops = ", ".join(f"{count} {phase}" for phase, count in trace["ops"].items())
    device = f" on {trace['device']}" if trace["device"] else ""
    choices = f"{trace['implementations']} other implementations, {trace['optional_ops']} optional ops"
    lines = [
        ("trace", f"{trace['name']} ({trace['mode']}, from {trace['source']})"),
        ("ops", ops or "none"),
        *([("choices", choices)] if trace["implementations"] else []),
        ("parameters", f"{trace['parameters']:,}" if trace["parameters"] is not None else "-"),
        ("gradients", str(trace["gradients"])),
        ("bytes", ", ".join(f"{role} {format_bytes(size)}" for role, size in trace["bytes"].items()) or "-"),
        ("work", f"{_giga(trace['flops'])} GFLOP, {_size(trace['bytes_moved'])} moved"),
        ("time", f"{_time(trace['time_ns'])} summed over ops, {trace['costs']}{device}"),
    ]
    return "\n".join(f"{label:<11}{text}" for label, text in lines)


def _time(nanoseconds: int | None) -> str:
    return "-" if nanoseconds is None else format_time(nanoseconds)


def _giga(flops: int | None) -> str:
    return "-" if flops is None else f"{flops / 1e9:,.3f}"


def _size(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def _shape(shape: Any) -> str:
    return "-" if shape is None else "x".join(str(size) for size in shape) or "scalar"


def _short(name: str | None) -> str:
    name = name or "-"
    return name if len(name) <= 60 else name[:57] + "..."
