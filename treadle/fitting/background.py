"""A search for a better plan in a process of its own, at the lowest priority, while the training continues.

The process imports no PyTorch, uses no GPU, and ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import weakref
from dataclasses import asdict, dataclass
from typing import IO

from treadle.fitting.plan_entry import PlanEntry
from treadle.fitting.settings import FitSettings
from treadle.planner.endings import ending

MODULE = "treadle.fitting.background_child"


@dataclass(frozen=True)
class BackgroundSearch:
    """A running search for the plan of an entry. Its process ends with this object, and with the interpreter."""

    entry: PlanEntry
    process: subprocess.Popen[bytes]
    complaints: IO[bytes]

    @classmethod
    def start(cls, entry: PlanEntry, settings: FitSettings) -> BackgroundSearch:
        """Start it, with a budget in bytes. Raises OSError where no process can be started."""
        complaints = tempfile.TemporaryFile()  # noqa: SIM115
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        text = json.dumps(asdict(settings))
        path = os.pathsep.join(filter(None, sys.path))
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(os.getpid()), str(entry.folder), text],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                start_new_session=True,  # Ctrl-C on the terminal is for the training
                env={**os.environ, **threads, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path},
            )
        except BaseException:
            complaints.close()
            raise
        search = cls(entry, process, complaints)
        weakref.finalize(search, _end, process, complaints)
        return search

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def failure(self) -> str:
        """Why it ended without a plan, in one line; nothing where it found one."""
        if self.process.returncode == 0:
            return ""
        self.complaints.seek(0)
        tail = self.complaints.read()[-2000:].decode(errors="replace").strip().splitlines()
        return tail[-1] if tail else f"its process {ending(self.process.returncode)}"


def _end(process: subprocess.Popen[bytes], complaints: IO[bytes]) -> None:
    process.kill()
    process.wait()
    complaints.close()
