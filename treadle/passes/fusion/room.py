"""The fusion pass on this machine."""

from __future__ import annotations

from pathlib import Path

from treadle.passes.interface import Room, RunOptions
from treadle.planner.passes.fusion.decisions import FusionDecisions


class Fusion(Room[FusionDecisions]):
    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.fusion.run import run_fusion

        options.require_world((None,), "the plan says how many ranks there are")
        run_fusion(folder, options.backend, options.repeats, options.timeout, options.as_json)


ROOM = Fusion()
