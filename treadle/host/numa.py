"""The NUMA domains of this machine, as libnuma reports them."""

from __future__ import annotations

import ctypes
import os
from functools import cache


def domain_cpus() -> list[list[int]]:
    """The CPUs of each NUMA domain that this process may use, in order of domains; one domain without libnuma."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    library = _libnuma()
    if library is None:
        return [allowed]
    found: dict[int, list[int]] = {}
    for cpu in allowed:
        found.setdefault(max(0, int(library.numa_node_of_cpu(cpu))), []).append(cpu)
    return [found[domain] for domain in sorted(found)]


def has_libnuma() -> bool:
    """Whether domains are known: the library is there and the kernel has NUMA."""
    return _libnuma() is not None


@cache
def _libnuma() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnuma.so.1")
    except OSError:
        return None
    return library if library.numa_available() >= 0 else None
