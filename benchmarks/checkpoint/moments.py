"""When agents say in their logs that a loss is seen, a machine has memory again, its state is fetched, and all machines
are whole."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from pathlib import Path
from threading import Event, Thread

LOOK_S = 0.01
SAID = {
    "seen": re.compile(r"epoch \d+: .*; all go on from "),
    "replaced": re.compile(r"machine \d+ of .* holds its state "),
    "fetched": re.compile(r"version \d+ of machine \d+ is fetched "),
    "whole": re.compile(r"epoch \d+: all machines are whole"),
}


class Moments:
    """Reads the logs of a folder's agents while it is entered, and notes when lines came, to within LOOK_S."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: defaultdict[Path, int] = defaultdict(int)
        self._found: list[tuple[str, int]] = []
        self._ended = Event()
        self._thread = Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Moments:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def times(self, name: str, since_ns: int) -> list[int]:
        """When one of `SAID` was said after `since_ns`, in ns of the monotonic clock."""
        return [each for said, each in self._found if said == name and each > since_ns]

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Note what was said since the last look; a line that is not ended waits."""
        now = time.monotonic_ns()
        for log in sorted(self._folder.glob("agent*.log")):
            if log.stat().st_size == self._read[log]:
                continue
            with log.open("rb") as file:
                file.seek(self._read[log])
                lines = file.read().rpartition(b"\n")[0]
            if not lines:
                continue
            self._read[log] += len(lines) + 1
            text = lines.decode(errors="replace")
            self._found += [(name, now) for name, words in SAID.items() if words.search(text)]
