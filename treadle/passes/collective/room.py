"""The collective pass on this machine."""

from __future__ import annotations

import math
from pathlib import Path

from treadle.passes.interface import Room, RunOptions
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.interface import Inputs


class Collective(Room[CollectiveDecisions]):
    def check_prediction(self, plan: Plan[CollectiveDecisions], found: Inputs) -> list[str]:
        """The predicted time of a program is what this version simulates."""
        hardware, transport = found.get("hardware"), plan.provenance.known.transport
        predicted = plan.prediction.time_us
        if not isinstance(hardware, Hardware) or transport is None or transport.program_us != predicted:
            return []
        from treadle.passes.collective.tuning import program_us

        truth = program_us(plan.decisions, hardware, transport)
        if math.isclose(predicted, truth, rel_tol=1e-6, abs_tol=2e-3):
            return []
        return [f"prediction: time {predicted:g} us, this version simulates {truth:g} us; plan again"]

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.collective.run import run

        run(folder, options)


ROOM = Collective()
