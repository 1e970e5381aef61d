"""Temporary folders that no killed process leaves behind for long."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "treadle-scratch-"
YOUNG_SECONDS = 60.0
"""A folder this young may be one whose maker has not locked it yet."""


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """A folder in `parent` (TMPDIR) that only this user may enter, removed at the end.

    What killed processes left there goes first: each maker holds a lock on its folder while it runs. Raises
    OSError where no folder can be made.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    _sweep(place)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place) as name:
        lock = os.open(name, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks; there nothing is swept either
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


def _sweep(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            old = time.time() - status.st_mtime > YOUNG_SECONDS
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or not old:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
