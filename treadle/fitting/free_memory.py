"""Memory that this process could still take."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import torch

GROUPS = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Bytes that are free on `device`. On the CPU limits of the process and of its control group count."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(psutil.virtual_memory().available, *_limits())


def _limits() -> Iterator[int]:
    for files in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        with suppress(OSError, ValueError):  # there is no such limit
            most, used = (int((GROUPS / name).read_text()) for name in files)
            yield most - used
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        yield most - psutil.Process().memory_info().vms
    yield 2**62
