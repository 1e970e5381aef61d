"""Runs checks one after the other, each in a process of its own with a time limit, so that no end of one ends the rest.

Imports the standard library only: the machine with the card has PyTorch and perhaps no other package.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.items import Item

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "gpu"
DRY_FACTOR = 8
"""How much longer a check may take where it compiles on few cores."""
DUMP_SECONDS = 5.0
"""Time for the stacks of a check that is stopped."""
DETAIL = 20
"""Lines of the log of a check that is not good."""


@dataclass(frozen=True)
class Record:
    """How a check ended: good, dry, missing, failed, crashed, timed out, not run. `detail` is what it last printed."""

    item: str
    result: str
    figure: str
    seconds: float
    detail: tuple[str, ...] = ()
    tables: list[dict[str, Any]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.result in ("good", "dry")


def environment(folder: Path = FOLDER) -> dict[str, str]:
    """Variables of a check: this checkout and the packages of the gathered wheels on the path, a cache of its own."""
    packages = unpacked(folder / "wheels", folder / "packages")
    path = [str(ROOT), *([str(packages)] if packages else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "XDG_CACHE_HOME": str(folder / "cache")}


def unpacked(wheels: Path, packages: Path) -> Path | None:
    """The folder `packages` with what this Python can load of the files in `wheels`; None where one is for another
    Python, or none is there."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    files = sorted(wheels.glob("*.whl"))
    if not files or any(not {"py3", "abi3", tag} & set(file.stem.replace("-", ".").split(".")) for file in files):
        return None
    stamp = packages / "wheels.txt"
    names = "".join(f"{file.name}\n" for file in files)
    if not stamp.is_file() or stamp.read_text() != names:
        for file in files:
            with zipfile.ZipFile(file) as wheel:
                wheel.extractall(packages)
        stamp.write_text(names)
    return packages


def run(
    item: Item, dry: bool, limit: float, env: Mapping[str, str], folder: Path = FOLDER, room: str = "benchmarks.gpu"
) -> Record:
    """The record of one check of a room, whatever becomes of its process, which has `limit` seconds."""
    result, log = folder / "results" / f"{item.name}.json", folder / "logs" / f"{item.name}.log"
    for path in (result, log):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    command = [sys.executable, "-X", "faulthandler", "-m", "benchmarks.gpu.work", f"{room}.{item.name}", str(result)]
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *(["--dry"] if dry else [])],
            env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        code = _ended(process, limit)
    seconds = time.monotonic() - start
    lines = tuple(log.read_text(encoding="utf-8", errors="replace").splitlines()[-DETAIL:])
    if code is None:
        return Record(item.name, "timed out", f"took more than {limit:.0f} s", seconds, lines)
    if code < 0:
        return Record(item.name, "crashed", f"ended by {signal.Signals(-code).name}", seconds, lines)
    try:
        found = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Record(item.name, "crashed", f"ended with {code} and no result", seconds, lines)
    word = "dry" if dry and found["result"] == "good" else found["result"]
    return Record(item.name, word, found["figure"], seconds, tuple(found["detail"]), found["tables"])


def _ended(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """The exit code of a process, None where it took longer than `limit`. Nothing of its session is left."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler writes all stacks
        with suppress(subprocess.TimeoutExpired):
            process.wait(DUMP_SECONDS)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
