"""`treadle run` for compression plans: the hook on synthetic gradients, next to DistributedDataParallel."""

from __future__ import annotations

from pathlib import Path

from treadle.cli.output import print_run
from treadle.codegen.targets import PLAN_NAME
from treadle.passes.compression.words import kept, sent
from treadle.passes.interface import RunOptions
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.compression.decisions import CompressionDecisions

BACKENDS = ("gloo", "cpu")
"""Both are processes over gloo; the second is the default of `treadle run`."""


def run_compression(folder: Path, options: RunOptions) -> None:
    """Execute the hook on as many processes as the plan has ranks, and print what they found."""
    from treadle.runtime.compression.compare import run_folder

    if options.backend not in BACKENDS:
        text = f"found {options.backend}, expected gloo; on GPUs attach the plan in a training script"
        raise InputError(text, where="--backend")
    file = folder / PLAN_NAME
    decisions = require_pass(store.load(file, Plan), CompressionDecisions, str(file)).decisions
    options.require_world((None, decisions.problem.ranks), "the plan has that many ranks")
    result = run_folder(folder, steps=options.steps, timeout=options.timeout)
    time, lost = result["iteration_ns"], kept(decisions)
    exact = "equal to the last bit" if result["identity_equal"] else "not equal"
    same = "the same on all ranks" if result["ranks_equal"] else "different between ranks"
    lines = [
        f"{result['world']} ranks over gloo on the links of this machine; operators are slept through",
        f"  exchange     with the identity as compressor against a dense exchange: {exact}",
        f"  compressed   {same}; the first means differ by {result['relative_error']:.1%} from the dense ones{lost}",
        f"  iteration    {format_time(time['planned'])} planned, {format_time(time['measured'])} measured "
        f"({time['measured'] / max(1, time['planned']) - 1:+.0%})",
        f"  plain        {format_time(time['uncompressed_planned'])} predicted for each gradient alone, "
        f"{format_time(time['ddp_measured'])} measured of DistributedDataParallel",
        f"  sent         {sent(decisions)} planned, {format_bytes(result['sent_bytes']['measured'])} measured, by the "
        "busiest rank",
        *slower(time["measured"], time["ddp_measured"]),
    ]
    print_run("run-compression", folder, result, lines, options.as_json)


def slower(planned_ns: int, plain_ns: int) -> tuple[str, ...]:
    """A line where the planned exchange took longer than the plain one, none otherwise."""
    if planned_ns <= plain_ns:
        return ()
    times = f"{format_time(planned_ns)}, {planned_ns / max(1, plain_ns):.2f}x of the {format_time(plain_ns)}"
    return (f"  slower       on these links the planned exchange takes {times} of DistributedDataParallel",)
