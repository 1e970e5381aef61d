"""`treadle run` for server plans: servers and workers as processes here, and what they find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.cli.output import print_run
from treadle.codegen.targets import PLAN_NAME
from treadle.passes.interface import RunOptions
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time, many
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.server.decisions import ServerDecisions

BACKENDS = ("gloo", "cpu")
"""Both are processes of this machine, which gloo joins; the second is the default of `treadle run`."""
CARRIERS = {"shared": "shared memory", "tcp": "TCP", "rdma": "network cards"}


def run_server(folder: Path, options: RunOptions) -> None:
    """Exchange random gradients between the servers and workers of the plan, and print what they found. Raises
    InputError for another back end or number of workers, and what `run_folder` raises."""
    from treadle.runtime.server.compare import run_folder

    if options.backend not in BACKENDS:
        text = f"found {options.backend}, expected gloo; on GPUs attach the servers in a training script"
        raise InputError(text, where="--backend")
    file = folder / PLAN_NAME
    decisions = require_pass(store.load(file, Plan), ServerDecisions, str(file)).decisions
    options.require_world((None, decisions.problem.workers), "the plan has that many workers")
    result = run_folder(folder, steps=options.steps, timeout=options.timeout)
    print_run("run-server", folder, result, [*run_lines(result)], options.as_json)


def run_lines(found: dict[str, Any]) -> Iterator[str]:
    """What the run found, for people."""
    times, busy = found["time_ns"], found["busy"]
    joined = f"{many(found['workers'], 'worker')} and {many(found['servers'], 'server')}"
    yield f"{joined} as processes of this machine, by {CARRIERS[found['carrier']]}; random gradients"
    limits, here = found["bottleneck"], format_time(times["here"])
    yield f"  exchange    {format_time(times['planned'])} planned, {here} predicted here without links"
    yield f"  measured    {format_time(times['measured'])}, with what it takes to wake processes"
    yield f"  bottleneck  {limits['planned']} planned, {limits['here']} predicted here, {limits['measured']} measured"
    core = f"the busiest core of a server {busy['server_core']:.0%} of the time"
    yield f"  at work     {busy['cores']:.2f} of {many(busy['of_cores'], 'core')}; {core}"
    yield f"  weights     {_compared(found)}"
    yield (
        f"  gloo        {format_time(times['gloo_measured'])} measured of its allreduce and a local step, which takes "
        f"{format_time(times['local_measured'])} of it"
    )


def _compared(found: dict[str, Any]) -> str:
    steps = f"after {many(found['steps'] + 1, 'step')} of {found['optimizer']}"
    if found["equal"] is None:
        return f"not compared {steps}: gradients are added as they arrive"
    return f"{'those' if found['equal'] else 'not those'} of local steps, bit by bit, {steps}"
