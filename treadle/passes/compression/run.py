"""`treadle run` for compression plans: the hook on synthetic gradients, next to DistributedDataParallel."""

from __future__ import annotations

from pathlib import Path

from treadle.cli.output import print_run
from treadle.codegen.targets import PLAN_NAME
from treadle.passes.compression.words import kept
from treadle.passes.interface import RunOptions
from treadle.planner.documents import store
from treadle.planner.documents.artefact import FILE_NAME, Artefact
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.errors import InputError

BACKENDS = ("gloo", "cpu")
"""Both are processes over gloo; the second is the default of `treadle run`."""


def run_compression(folder: Path, options: RunOptions) -> None:
    """Execute the hook on as many processes as the plan has ranks, and print what they found."""
    from treadle.runtime.compression.compare import run_folder

    if options.backend not in BACKENDS:
        text = f"found {options.backend}, expected gloo; on GPUs attach the plan in a training script"
        raise InputError(text, where="--backend")
    facts = store.load(folder / FILE_NAME, Artefact).facts
    options.require_world((None, facts["machines"] * facts["devices"]), "the plan has that many ranks")
    result = run_folder(folder, steps=options.steps, timeout=options.timeout)
    lost = kept(store.load(folder / PLAN_NAME, Plan).decisions)
    time, sent = result["iteration_ns"], result["sent_bytes"]
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
        f"  sent         {format_bytes(sent['planned'])} planned, {format_bytes(sent['measured'])} measured, by the "
        "busiest rank",
    ]
    print_run("run-compression", folder, result, lines, options.as_json)
