"""Planned collectives between the hosts of a lab, compared with gloo's own, templates and a plan of two levels."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import Row, Table, progress
from treadle.lab.layout import layout
from treadle.lab.lifecycle import the_lab
from treadle.lab.run import run
from treadle.lab.state import Lab
from treadle.planner.documents.scalars import format_bytes
from treadle.probe.resolve import load_hardware
from treadle.runtime.sockets import LATENCY

PROFILES = ("racks-2x4", "racks-2x4-mixed", "hosts-2x2", "slow-nic")
SCALE = 100.0
COLLECTIVES = ("allreduce", "allgather", "alltoall")
SIZES = (2**16, 2**20, 2**22)
TEMPLATES = ("ring", "all-pairs", "halving-doubling", "recursive-doubling", "double-tree")
TWO_LEVEL = "two-level"
PLANNING_SECONDS = 10
MANY, FEW, LARGE = 60, 5, 2**20


@dataclass(frozen=True)
class Candidate:
    """A plan for one size, in a folder with its programs; `predicted_us` on the profile it was made for."""

    method: str
    folder: str
    predicted_us: float


def tables() -> Iterator[Table]:
    """Collectives between the hosts of a lab: our plan, gloo's own, the best template, a plan of two levels."""
    for profile in PROFILES:
        with TemporaryDirectory() as folder:
            yield _table(profile, Path(folder))


def _table(profile: str, folder: Path) -> Table:
    with the_lab(layout(load_hardware(profile), SCALE)) as lab:
        progress(f"{profile}: measure the lab")
        hardware = folder / "lab.yaml"
        _on_hosts(lab, ["profile", "measure", "--backend", "cpu", "--hardware", profile, "-o", str(hardware)])
        rows = [
            row
            for collective in COLLECTIVES
            for size in SIZES
            for row in _rows(lab, collective, size, hardware, folder / f"{collective}-{size}")
        ]
    return Table(
        f"{profile} at --scale {SCALE:g}: float32, medians of the slowest rank, in turns in one run",
        rows,
        (
            "x gloo, x template, x two-level: their time over ours, above 1 ours is faster; template: the one with the "
            "least predicted time",
            "off: measured over predicted, on the profile that `treadle profile measure` wrote in the lab",
        ),
    )


def _rows(lab: Lab, collective: str, size: int, hardware: Path, folder: Path) -> Iterator[Row]:
    progress(f"{lab.layout.profile}: {collective} of {format_bytes(size)}")
    ours = _plan(collective, size, hardware, "auto", folder)
    named = [made for name in TEMPLATES if (made := _plan(collective, size, hardware, name, folder))]
    template = min(named, key=lambda each: each.predicted_us, default=None)
    levels = _plan(collective, size, hardware, TWO_LEVEL, folder)
    assert ours is not None, "auto always finds a plan"
    candidates = {"ours": ours, "template": template, "two-level": levels}
    rows = {name: _run(lab, each, collective, size) for name, each in candidates.items() if each is not None}
    mine = rows["ours"]
    times = {name: row["seconds"] for name, row in rows.items()}
    yield {
        "collective": collective,
        "size": format_bytes(size),
        "by": ours.method,
        "ours ms": times["ours"] * 1e3,
        "predicted ms": mine["predicted_seconds"] * 1e3,
        "off": times["ours"] / mine["predicted_seconds"],
        "gloo ms": mine["reference_seconds"] * 1e3,
        "x gloo": mine["reference_seconds"] / times["ours"],
        "template": template.method if template else None,
        "x template": times["template"] / times["ours"] if template else None,
        "x two-level": times["two-level"] / times["ours"] if levels else None,
        "right": all(row["good"] for row in rows.values()),
    }


def _run(lab: Lab, plan: Candidate, collective: str, size: int) -> Row:
    """What `treadle run` prints of a plan, measured against gloo in turns."""
    ranks = sum(host.devices for host in lab.layout.hosts)
    elements = size // 4 // (ranks if collective == "alltoall" else 1)
    repeats = MANY if size < LARGE else FEW
    options = ["--sizes", str(elements), "--dtypes", "float32", "--repeats", str(repeats), "--json"]
    rows: list[Row] = json.loads(_on_hosts(lab, ["run", plan.folder, *options]))["results"]
    return min(rows, key=lambda row: float(row["seconds"]))


def _plan(collective: str, size: int, hardware: Path, method: str, folder: Path) -> Candidate | None:
    """None where the method does not make this collective on this machine."""
    plan, programs = folder / f"{method}.json", folder / method
    folder.mkdir(exist_ok=True)
    sketch = [] if method == "auto" else ["--sketch", "mesh"]
    request = ["--hardware", str(hardware), "--size", str(size), *sketch, "--instances", "1", "--method", method]
    limits = ["--time-limit", str(PLANNING_SECONDS), "-o", str(plan), "--json"]
    made = _treadle(["plan", "collective", collective, *request, *limits])
    if made.returncode:
        return None
    _treadle(["generate", str(plan), "--target", "msccl-xml", "-o", str(programs)]).check_returncode()
    told = json.loads(made.stdout)
    return Candidate(told["method"], str(programs), told["time_us"])


def _treadle(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "treadle", *arguments], capture_output=True, text=True, check=False)


def _on_hosts(lab: Lab, arguments: Sequence[str]) -> str:
    """What treadle prints on rank 0 when it runs with a process for each rank, without the lab's latency, which gloo
    would not see."""
    printed: list[str] = []

    def show(name: str, is_error: bool, line: bytes) -> None:
        text = line.decode().rstrip()
        if is_error:
            progress(f"{name}: {text}")
        else:
            printed.append(text)

    run(lab, ["env", f"{LATENCY}=0", sys.executable, "-m", "treadle", *arguments], show)
    return "\n".join(printed)
