"""The swap pass on this machine."""

from __future__ import annotations

from pathlib import Path

from treadle.passes.interface import Room, RunOptions
from treadle.planner.passes.swap.decisions import SwapDecisions


class Swap(Room[SwapDecisions]):
    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        if target == "torch-offload":
            from treadle.passes.memory.run import run_memory

            options.require_world((None, 1), "a training step runs in one process")
            run_memory(folder, options.backend, options.steps, options.as_json)
            return
        from treadle.passes.swap.run import run_swap

        options.require_world((None, 1), "a swap plan runs in one process")
        run_swap(folder, options.backend, options.steps, options.timeout, options.as_json)


ROOM = Swap()
