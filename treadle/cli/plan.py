"""`treadle plan`: one subcommand per pass."""

from __future__ import annotations

import click

from treadle.cli.lazy import LazyGroup
from treadle.planner.passes import ROOMS

PASSES = {
    **{name: (f"treadle.passes.{name}.command", summary) for name, summary in ROOMS.items()},
    "job": ("treadle.cli.plan_job", "Everything for one training job, from capture to report."),
}


@click.group(cls=LazyGroup, table=PASSES)
def command() -> None:
    """Plan what one pass decides, or a whole job."""
