"""`treadle plan`: one subcommand per pass."""

from __future__ import annotations

from treadle.cli.lazy import LazyGroup, new_app
from treadle.planner.passes import ROOMS

PASSES = {
    **{name: (f"treadle.passes.{name}.command", summary) for name, summary in ROOMS.items()},
    "job": ("treadle.cli.plan_job", "Everything for one training job, from capture to report."),
}


class Passes(LazyGroup):
    table = PASSES


command = new_app(Passes)


@command.callback()
def plan() -> None:
    """Plan what one pass decides, or a whole job."""
