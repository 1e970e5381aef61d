"""`treadle run` for checkpoint plans: agents and ranks as processes here, and what they find."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from treadle.cli.output import print_run
from treadle.codegen.targets import PLAN_NAME
from treadle.passes.interface import RunOptions
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

BACKENDS = ("gloo", "cpu")
"""Both are processes of this machine, which gloo joins; the second is the default of `treadle run`."""
PHASES = {
    "detect": "until the root saw it",
    "agree": "from then until all agents were whole",
    "fetch": "of it for the states to reach the new agent",
    "restart": "from the loss until new ranks had their states",
    "step": "for their first iteration",
}
"""What the phases of a recovery are."""


def run_checkpoint(folder: Path, options: RunOptions) -> None:
    """Train a small model on the plan's machines as processes here, and print what checkpoints cost and that a lost
    machine comes back. Raises InputError for another back end or number of ranks, and what `run_folder` raises."""
    from treadle.runtime.checkpoint.compare import run_folder

    if options.backend not in BACKENDS:
        text = f"found {options.backend}, expected gloo; on GPUs attach the plan in a training script"
        raise InputError(text, where="--backend")
    file = folder / PLAN_NAME
    problem = require_pass(store.load(file, Plan), CheckpointDecisions, str(file)).decisions.problem
    options.require_world((None, problem.machines * problem.devices), "the plan has that many ranks")
    with _unwound_by_sigterm():
        result = run_folder(folder, steps=options.steps, timeout=options.timeout)
    print_run("run-checkpoint", folder, result, [*run_lines(result)], options.as_json)


@contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """SIGTERM ends what was started and removes files, as Ctrl-C does."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_lines(found: dict[str, Any]) -> Iterator[str]:
    """What the run found, for people."""
    machines, state = many(found["machines"], "machine"), format_bytes(found["state_bytes"])
    yield f"{machines} as processes here, {found['copies']} of them hold each state; a small model with {state} a rank"
    without = found["iteration_ns"]
    yield f"  without      {format_time(without)} an iteration"
    for name, each in found["variants"].items():
        yield f"  {name:<12} {_variant(each, without)}"
    if "measured_ns" in found["variants"]["planned"]:
        yield f"  planned's    {_terms(found['variants']['planned'])}"
    lost = found["lost"]
    what = f"machine {lost['machine']}" if found["machines"] > 1 else "the rank"
    curve = "equal to an uninterrupted run, bit by bit" if lost["equal"] else "not those of an uninterrupted run"
    yield f"  lost         {what} in iteration {lost['step']}; went on from {lost['resumed']} ({_whence(lost)})"
    for name, words in PHASES.items():
        phase = lost["phases"][name]
        if phase["measured_ns"] is not None:
            planned = "" if phase["predicted_ns"] is None else f"{format_time(phase['predicted_ns'])} predicted, "
            yield f"  {name:<12} {planned}{format_time(phase['measured_ns'])} measured {words}"
    yield f"  losses       {curve}"


def _variant(found: dict[str, Any], without: int) -> str:
    if "refused" in found:
        return f"not planned: {found['refused']}"
    measured = found["measured_ns"]
    more = (measured - without) / without
    arrived = f"{found['equal']} of {many(found['pieces'], 'piece')} as sent"
    predicted, waited = format_time(found["predicted_ns"]), format_time(found["drained_ns"])
    return f"{predicted} predicted, {format_time(measured)} measured ({more:+.1%}), update waited {waited}; {arrived}"


def _terms(found: dict[str, Any]) -> str:
    """What makes an iteration longer, and which of it a prediction that is off by more than a third lacks."""
    names = {"to begin": "kept_ns", "for the update to wait": "drained_ns", "of cores shared with copies": "rest_ns"}
    terms = ", ".join(f"{format_time(found[each])} {name}" for name, each in names.items())
    if 2 / 3 <= found["measured_ns"] / found["predicted_ns"] <= 4 / 3:
        return terms
    return (
        f"{terms}; the prediction is off most by what it takes {max(names, key=lambda name: abs(found[names[name]]))}"
    )


def _whence(lost: dict[str, Any]) -> str:
    return f"{lost['source']} of {lost['holder']}" if lost["holder"] else str(lost["source"])
