"""Measure this machine: N real processes time their devices and the links between them.

`measure_worker.py` is what each of them does.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from statistics import median
from typing import Literal, TypeVar

import psutil
from msgspec.structs import replace

from treadle.host.scratch import scratch
from treadle.planner.documents.hardware import CopyEngine, Device, Hardware, Link, Switch
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.errors import InputError, MissingBackendError
from treadle.probe.fit import LinkFit, fit_link
from treadle.probe.local import detect
from treadle.probe.nvidia_smi import import_nvidia_smi
from treadle.probe.timing import MeasureResults, MeasureSettings, SendTiming
from treadle.runtime.launch import launch

SIZES = (4 << 10, 64 << 10, 1 << 20)
CHUNKS = 8
REPEATS = 9
MAX_WORLD = 64
PAIRS_PER_CLASS = 6
STALL_SECONDS = 120.0
LOOPBACK = "loopback"
Part = TypeVar("Part", Link, Switch)
T = TypeVar("T")
_DIRECTIONS: tuple[Literal["host-to-device", "device-to-host"], ...] = ("host-to-device", "device-to-host")


@dataclass(frozen=True)
class Measurement:
    """The profile, and the fit behind each link class and copy direction."""

    hardware: Hardware
    fits: dict[str, LinkFit]


def measure(
    world: int | None = None,
    sizes: Sequence[int] = SIZES,
    *,
    command: str = "treadle profile measure",
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Measurement:
    """Measure `world` processes, one per GPU, or 4 on a machine without; `sizes` are bytes per chunk.

    `on_step(done, total)` is called as work gets done. Raises MissingBackendError without torch, InputError for a
    world or sizes that cannot be, CheckFailed when a process dies, LimitError when one hangs.
    """
    machine = detect()
    on_gpu = machine.devices[0].kind == "gpu"
    if world is None:
        world = machine.devices_per_node if on_gpu else 4
    if not 1 <= world <= (machine.devices_per_node if on_gpu else MAX_WORLD):
        limit = f"the {machine.devices_per_node} GPUs here" if on_gpu else str(MAX_WORLD)
        raise InputError(f"found {world}, expected 1 to {limit}", where="--world")
    if not sizes or min(sizes) < 1 or max(sizes) > 1 << 30:
        raise InputError("expected chunk sizes from 1 byte to 1 GiB", where="--sizes")
    graph = _gpu_graph(machine, world) if on_gpu else _loopback(machine, world)
    pairs = {name: _spread(members) for name, members in _classes(graph).items()}
    if importlib.util.find_spec("torch") is None:
        raise MissingBackendError("measuring needs torch; install it with: pip install 'treadle[torch]'")
    threads = max(1, (psutil.cpu_count() or 1) // world)
    with scratch() as folder:
        settings = MeasureSettings(
            world=world,
            device="cuda" if on_gpu else "cpu",
            threads=threads,
            store=str(folder / "store"),
            sizes=tuple(sizes),
            chunks=CHUNKS,
            repeats=REPEATS,
            pairs=pairs,
        )
        done, total = count(1), settings.steps
        results = launch(
            world,
            _work,
            (settings,),
            STALL_SECONDS,
            joined=False,
            on_message=lambda _: on_step(next(done), total),
        )
    rates = _by_name(rate for result in results for rate in result.rates)
    timings = _by_name(timing for result in results for timing in result.timings)
    fits = {name: fit_link(_pooled(samples)) for name, samples in sorted(timings.items())}
    return Measurement(_profile(graph, rates, fits, command), fits)


def _loopback(machine: Hardware, world: int) -> Hardware:
    """This machine as `world` CPU processes that share its memory and talk over the loopback interface."""
    memory = machine.host.memory_bytes
    device = Device(
        model=machine.devices[0].model,
        kind="cpu",
        count=world,
        memory_bytes=None if memory is None else max(1, memory // world),
    )
    links = tuple(Link(src=src, dst=dst, kind=LOOPBACK) for src in range(world) for dst in range(world) if src != dst)
    sources = {
        **machine.sources,
        "devices": "the processes that were measured, each with its share of this machine's memory",
    }
    return replace(machine, devices=(device,), links=links, sources=sources)


def _gpu_graph(machine: Hardware, world: int) -> Hardware:
    """The first `world` GPUs with the links that `nvidia-smi topo -m` names, or all pairs alike without it."""
    devices, left = [], world
    for device in machine.devices:
        if left > 0:
            devices.append(replace(device, count=min(device.count, left)))
            left -= device.count
    machine = replace(machine, devices=tuple(devices))
    seen = _nvidia_smi(machine.name)
    if seen is not None and seen.devices_per_node >= world:
        links = tuple(link for link in seen.links if max(link.src, link.dst) < world)
        kept = (replace(switch, members=tuple(m for m in switch.members if m < world)) for switch in seen.switches)
        switches = tuple(switch for switch in kept if len(switch.members) > 1)
        if links or switches:
            return replace(machine, links=links, switches=switches)
    pairs = [(src, dst) for src in range(world) for dst in range(world) if src != dst]
    return replace(machine, links=tuple(Link(src=src, dst=dst, kind="gpu-peer") for src, dst in pairs))


def _nvidia_smi(name: str) -> Hardware | None:
    """The topology of `nvidia-smi topo -m`; None where the tool is missing or prints something else."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        shown = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60, check=True)
        return import_nvidia_smi(shown.stdout, "nvidia-smi topo -m", name)
    except (InputError, OSError, subprocess.SubprocessError):
        return None


def _classes(graph: Hardware) -> dict[str, list[tuple[int, int]]]:
    """Pairs of ranks by the kind and number of links that join them: equal links are fitted together."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for link in graph.links:
        if link.src < link.dst:
            found[_class_of(link)].append((link.src, link.dst))
    for switch in graph.switches:
        found[_class_of(switch)].extend(combinations(sorted(switch.members), 2))
    return dict(sorted(found.items()))


def _class_of(part: Link | Switch) -> str:
    return part.kind if part.count == 1 else f"{part.kind}-x{part.count}"


def _spread(pairs: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    step = max(1, -(-len(pairs) // PAIRS_PER_CLASS))
    return tuple(pairs[::step])


def _work(rank: int, world: int, settings: MeasureSettings) -> MeasureResults:
    # Only the workers import torch.
    from treadle.probe.measure_worker import measured

    return measured(rank, settings)


def _by_name(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for name, value in pairs:
        found[name].append(value)
    return found


def _pooled(samples: list[SendTiming]) -> list[SendTiming]:
    """One timing per setting, with the repeats of every pair or process that ran it."""
    times: dict[tuple[int, float, bool], tuple[float, ...]] = defaultdict(tuple)
    for sample in samples:
        times[sample.chunks, sample.megabytes, sample.sequential] += sample.times_us
    return [SendTiming(*setting, repeats) for setting, repeats in sorted(times.items())]


def _profile(graph: Hardware, rates: dict[str, list[float]], fits: dict[str, LinkFit], command: str) -> Hardware:
    """`graph` with the measured costs; each number is rounded to four significant digits."""
    flops = {
        name.partition(".")[2]: _rounded(median(values)) for name, values in rates.items() if name.startswith("flops.")
    }
    devices = tuple(
        replace(
            device,
            peak_flops=flops,
            memory_bandwidth=_rounded(median(rates["memory_bandwidth"])),
            launch_us=_rounded(median(rates["launch_us"])),
        )
        for device in graph.devices
    )
    engines = tuple(
        CopyEngine(
            direction=direction,
            bandwidth=_rounded(MEBIBYTE * 1e6 / fit.beta_us_per_MB),
            alpha_us=_rounded(fit.alpha_us),
        )
        for direction in _DIRECTIONS
        if (fit := fits.get(direction)) is not None and fit.beta_us_per_MB > 0
    )
    how = f"measured: `{command}` on {graph.host.cpu_model}"
    sends = f"{how}, sequential and bulk sends between processes"
    sources = {**graph.sources}
    for index in range(len(devices)):
        together = f"{how}, {graph.devices_per_node} processes at once"
        sources[f"devices[{index}].peak_flops"] = f"{together}, matrix products"
        sources[f"devices[{index}].memory_bandwidth"] = f"{together}, bytes read and written by a copy"
        sources[f"devices[{index}].launch_us"] = f"{together}, an operator on one element"
    for field, source, present in (
        ("links", sends, graph.links),
        ("switches", sends, graph.switches),
        ("copy_engines", f"{how}, pinned copies of all processes at once", engines),
    ):
        if present:
            sources[field] = source
    return replace(
        graph,
        name="measured",
        devices=devices,
        links=tuple(_with_costs(link, fits) for link in graph.links),
        switches=tuple(_with_costs(switch, fits) for switch in graph.switches),
        copy_engines=engines,
        sources=sources,
    )


def _with_costs(part: Part, fits: dict[str, LinkFit]) -> Part:
    fit = fits[_class_of(part)]
    # beta was measured over all parallel links together; the profile states it for one.
    return replace(part, alpha_us=_rounded(fit.alpha_us), beta_us_per_MB=_rounded(fit.beta_us_per_MB * part.count))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
