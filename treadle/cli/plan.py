"""`treadle plan`: one subcommand per pass."""

from __future__ import annotations

import click

from treadle.cli.lazy import LazyGroup

PASSES = {
    "memory": ("treadle.cli.plan_memory", "What to keep and what to recompute under a budget in bytes."),
    "swap": ("treadle.cli.plan_swap", "What to copy to the host and back: order, memory pool and copies together."),
    "collective": ("treadle.cli.plan_collective", "How the chunks of an allreduce or another collective travel."),
    "fusion": ("treadle.cli.plan_fusion", "Which computation and collectives share a kernel, and what overlaps."),
    "job": ("treadle.cli.plan_job", "Everything for one training job, from capture to report."),
}


@click.group(cls=LazyGroup, table=PASSES)
def command() -> None:
    """Plan memory, swapping, a collective, fusion, or a whole job."""
