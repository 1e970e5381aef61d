"""`treadle plan`: one subcommand per pass."""

from __future__ import annotations

import click

from treadle.cli.lazy import LazyGroup
from treadle.planner.passes import rooms

PASSES = {
    **{room.name: (f"treadle.passes.{room.name}.command", room.summary) for room in rooms()},
    "job": ("treadle.cli.plan_job", "Everything for one training job, from capture to report."),
}


@click.group(cls=LazyGroup, table=PASSES)
def command() -> None:
    """Plan what one pass decides, or a whole job."""
