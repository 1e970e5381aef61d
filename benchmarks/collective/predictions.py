"""Predicted and measured times of planned collectives on the CPU runtime: on this machine, and over hosts of a lab."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import Row, Table, machine, progress
from treadle.planner.documents.scalars import format_bytes

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall")
SIZES = (2**10, 2**13, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
LAB_SIZES = SIZES[2:]
PLANNED = 2**20
LABS = (("hosts-2x2", 10, LAB_SIZES), ("hosts-2x2", 100, LAB_SIZES[:-1]), ("racks-2x4", 100, LAB_SIZES[:-2]))
"""Profiles, scales and sizes that end within minutes."""
WITHIN = 0.15
SECONDS = 600


def tables() -> Iterator[Table]:
    """Predicted time over measured time of planned collectives on the CPU runtime, on this machine and in a lab."""
    yield table("4 processes on this machine", [], None, SIZES)
    for profile, scale, sizes in LABS:
        inside = ["lab", "run", profile, "--scale", str(scale), "--", sys.executable, "-m", "treadle"]
        yield table(f"{profile} in a lab, all rates divided by {scale}", inside, profile, sizes)


def table(title: str, inside: Sequence[str], profile: str | None, sizes: Sequence[int]) -> Table:
    """Measure the costs, plan each collective for PLANNED, run it at all sizes; `inside` starts a command on every
    host."""
    progress(title)
    with TemporaryDirectory() as folder:
        costs = Path(folder, "costs.yaml")
        given = [] if profile is None else ["--hardware", profile]
        _treadle([*inside, "profile", "measure", "--backend", "cpu", *given, "-o", str(costs), "--json"])
        rows = [row for each in COLLECTIVES for row in _measured(each, sizes, costs, inside)]
    off = [row for row in rows if abs(row["predicted / measured"] - 1) > WITHIN]
    share = f"{len(rows) - len(off)} of {len(rows)} predictions are within {WITHIN:.0%} of the measured time"
    return Table(title, rows, (share, f"{machine()}; plans for {format_bytes(PLANNED)}, medians of the slowest rank"))


def _measured(collective: str, sizes: Sequence[int], costs: Path, inside: Sequence[str]) -> Iterator[Row]:
    progress(f"  {collective}")
    plan, folder = costs.with_name(f"{collective}.json"), costs.with_name(collective)
    hardware = ["--hardware", str(costs)]
    _treadle(["plan", "collective", collective, *hardware, "--size", str(PLANNED), "-o", str(plan), "--json"])
    _treadle(["generate", str(plan), "--target", "msccl-xml", "-o", str(folder)])
    parts = _ranks(plan) if collective in ("reducescatter", "alltoall") else 1
    elements = ",".join(str(size // 4 // parts) for size in sizes)
    asked = ["--backend", "cpu", "--sizes", elements, "--dtypes", "float32", "--json"]
    for row in _treadle([*inside, "run", str(folder), *asked])["results"]:
        if row["program"] != f"{collective}.xml":
            continue
        yield {
            "collective": collective,
            "input": format_bytes(row["bytes"]),
            "predicted ms": row["predicted_seconds"] * 1e3,
            "measured ms": row["seconds"] * 1e3,
            "gloo ms": row["reference_seconds"] * 1e3,
            "measured / gloo": row["seconds"] / row["reference_seconds"],
            "predicted / measured": row["predicted_seconds"] / row["seconds"],
            "off": row["off"],
        }


def _ranks(plan: Path) -> int:
    ranks: int = json.loads(plan.read_text())["decisions"]["ranks"]
    return ranks


def _treadle(words: Sequence[str]) -> dict[str, list[Row]]:
    """The document that a command prints, if any; in a lab that of the first rank."""
    done = subprocess.run(
        [sys.executable, "-m", "treadle", *words], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise SystemExit(f"treadle {' '.join(words)}: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    if words[0] == "lab":
        first = ("[node0] ", "[node0:0] ")
        lines = [line.split("] ", 1)[1] for line in lines if line.startswith(first)]
    text = "\n".join(lines)
    found: dict[str, list[Row]] = json.loads(text[text.index("{") :]) if "{" in text else {}
    return found
