"""The memory pass on this machine."""

from __future__ import annotations

from pathlib import Path

from treadle.passes.interface import Room, RunOptions
from treadle.planner.passes.memory.decisions import MemoryDecisions


class Memory(Room[MemoryDecisions]):
    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.memory.run import run_memory

        options.require_world((None, 1), "a training step runs in one process")
        run_memory(folder, options.backend, options.steps, options.as_json)


ROOM = Memory()
