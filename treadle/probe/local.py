"""The parts of this machine that can be read without measuring: no costs, no assumptions."""

from __future__ import annotations

import importlib.util
import platform
from itertools import groupby
from pathlib import Path

import psutil

from treadle.planner.documents.hardware import VERSION, Device, Hardware, Host

_READ = "read from the operating system of this machine"
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def detect() -> Hardware:
    """One node: its GPUs, otherwise its CPU as the only device."""
    memory = psutil.virtual_memory().total
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    host = Host(cpu_cores=cores, memory_bytes=memory, cpu_model=cpu_model(), numa_nodes=_numa_nodes())
    devices = _gpus() or (Device(model=cpu_model(), kind="cpu", count=1, memory_bytes=memory),)
    sources = {"nodes": "this machine alone", "devices": _READ, "host": _READ}
    return Hardware(version=VERSION, name="local", nodes=1, devices=devices, host=host, sources=sources)


def cpu_model() -> str:
    """The CPU's name as it calls itself, `unknown CPU` without a name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or "unknown CPU"


def _numa_nodes() -> int | None:
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None


def _gpus() -> tuple[Device, ...]:
    # torch takes seconds to import, so it is imported only where a GPU driver is loaded.
    if not any(Path(driver).exists() for driver in _DRIVERS) or importlib.util.find_spec("torch") is None:
        return ()
    import torch

    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    runs = [list(run) for _, run in groupby(found, key=lambda gpu: (gpu.name, gpu.total_memory))]
    return tuple(
        Device(model=run[0].name, kind="gpu", count=len(run), memory_bytes=run[0].total_memory) for run in runs
    )
