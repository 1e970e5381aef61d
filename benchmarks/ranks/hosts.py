"""Commands of treadle, and allreduces between the hosts of a lab under several orders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.common import progress
from benchmarks.ranks.networks import NETWORKS, SCALE, LabNetwork
from treadle.lab.layout import layout
from treadle.lab.lifecycle import the_lab
from treadle.lab.run import run
from treadle.lab.state import Lab
from treadle.probe.resolve import load_hardware
from treadle.runtime.sockets import LATENCY

SOURCE = Path(__file__).with_name("halving_doubling.cpp")
Order = Sequence[int]


@dataclass(frozen=True)
class Work:
    """An allreduce of `bytes` under an order: PyTorch's own, or the `program` in a folder, or a loop of training."""

    name: str
    order: Order
    bytes: int
    repeats: int
    program: str | None = None
    loop: str = "allreduce"


def measured(lab: Lab, works: Sequence[Work], folder: Path) -> dict[str, float]:
    """Seconds of each work by its name, the median of the slowest rank's."""
    file = folder / "works.json"
    file.write_text(json.dumps([asdict(work) for work in works]))
    printed = on_hosts(lab, [sys.executable, "-m", "benchmarks.ranks.worker", str(file)])
    found = map(json.loads, printed["node0"])
    return {each["name"]: median(each["seconds"]) for each in found}


def halving_doubling(lab: Lab, works: Sequence[Work], folder: Path) -> dict[str, float] | None:
    """The same of gloo's AllreduceHalvingDoubling, which PyTorch does not offer; None without Debian's libgloo-dev."""
    program = folder / "halving_doubling"
    compiler = ["g++", "-O2", "-w", str(SOURCE), "-o", str(program), "-lgloo", "-lpthread"]
    if not program.exists() and subprocess.run(compiler, capture_output=True, check=False).returncode:
        return None
    with TemporaryDirectory(dir=folder) as store:
        orders = [",".join(map(str, work.order)) for work in works]
        words = [str(program), store, "eth0", '"$RANK"', str(works[0].bytes // 4), str(works[0].repeats), *orders]
        printed = on_hosts(lab, ["sh", "-c", f"exec {' '.join(words)}"])
    slowest: dict[str, list[float]] = {}
    for lines in zip(*printed.values(), strict=True):
        number, *_ = (line.split()[0] for line in lines)
        slowest.setdefault(works[int(number)].name, []).append(max(float(line.split()[1]) for line in lines))
    return {name: median(times) for name, times in slowest.items()}


def probed_networks() -> Iterator[tuple[LabNetwork, Lab, Path, Path]]:
    """Each network in a lab of its own, the file of what was probed in it, and a folder for more."""
    for network in NETWORKS:
        with TemporaryDirectory() as name:
            folder = Path(name)
            file = folder / "network.yaml"
            file.write_text(network.text)
            with the_lab(layout(load_hardware(str(file)), SCALE)) as lab:
                progress(f"{network.name}: probe")
                yield network, lab, probed(lab, folder), folder


def probed(lab: Lab, folder: Path) -> Path:
    """What `treadle profile measure` finds between the hosts of the lab."""
    costs = folder / "costs.json"
    on_hosts(lab, [sys.executable, "-m", "treadle", "profile", "measure", "--pairs", "--quiet", "-o", str(costs)])
    return costs


def on_hosts(lab: Lab, command: Sequence[str]) -> dict[str, list[str]]:
    """Lines that the command prints, by host, without the lab's latency, which libraries would not see."""
    printed: dict[str, list[str]] = {host.name: [] for host in lab.layout.hosts}

    def show(name: str, is_error: bool, line: bytes) -> None:
        text = line.decode().rstrip()
        if is_error:
            progress(f"{name}: {text}")
        else:
            printed[name].append(text)

    run(lab, ["env", f"{LATENCY}=0", "OMP_NUM_THREADS=1", *command], show)
    return printed


def treadle(*words: str) -> None:
    """Raises SystemExit with what the command says when it fails."""
    done = subprocess.run([sys.executable, "-m", "treadle", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"treadle {' '.join(words)}: {done.stderr.strip()}")
