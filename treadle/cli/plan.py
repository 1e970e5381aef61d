"""`treadle plan`: one subcommand per pass."""

from __future__ import annotations

import click

from treadle.cli.lazy import LazyGroup

PASSES = {
    "memory": ("treadle.passes.memory.command", "What to keep and what to recompute under a budget in bytes."),
    "swap": (
        "treadle.passes.swap.command",
        "What to copy to the host and back: order, memory pool and copies together.",
    ),
    "collective": ("treadle.passes.collective.command", "How the chunks of an allreduce or another collective travel."),
    "fusion": ("treadle.passes.fusion.command", "Which computation and collectives share a kernel, and what overlaps."),
    "job": ("treadle.cli.plan_job", "Everything for one training job, from capture to report."),
}


@click.group(cls=LazyGroup, table=PASSES)
def command() -> None:
    """Plan memory, swapping, a collective, fusion, or a whole job."""
