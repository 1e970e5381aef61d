"""What programs cost on the runtime that executes a job's exchange, measured on as many processes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from treadle.host.source import source_digest
from treadle.job.kept import CostCache, machine
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.transports import CpuTransport

SOURCES = (
    "probe/*cpu*.py",
    "runtime/*/wire/*.*",
    "runtime/native_build.py",
    "codegen/*/actions.py",
    "codegen/*/order.py",
    "codegen/*/simulate_cpu.py",
    "planner/timeline/streams.py",
    "planner/documents/transports.py",
)
"""What runs, what times it, and the model that is fitted to the times."""


class RuntimeCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of the runtime."""

    cpu: CpuTransport
    doubt: str
    """What makes these costs doubtful, empty where nothing does."""
    usable: bool
    """Whether they predict anything."""


def with_runtime_costs(hardware: Hardware, say: Callable[[str], None], cache: CostCache) -> Hardware:
    """`hardware` with the costs of the CPU runtime on processes of this machine, which all its ranks are in a job.

    Those that the profile has stay. Costs that predict nothing are used once, and not kept.
    """
    if hardware.transports.cpu is not None or hardware.ranks < 2:
        return hardware
    found = cache.get(
        RuntimeCosts,
        (*machine(hardware.ranks), "CPU runtime, caches in use", source_digest(*SOURCES)),
        lambda: _measured(hardware, say),
        keep=lambda found: found.usable,
    )
    if found.doubt:
        how = "--fresh-costs measures them again" if found.usable else "they are used this once and not kept"
        say(f"  {found.doubt}; {how}")
    sources = {**hardware.sources, "transports.cpu": f"measured: `treadle plan job`, {hardware.ranks} processes"}
    transports = replace(hardware.transports, cpu=replace(found.cpu, hosts="one"))
    return replace(hardware, transports=transports, sources=sources)


def _measured(hardware: Hardware, say: Callable[[str], None]) -> RuntimeCosts:
    from treadle.probe.measure_cpu import measure_cpu

    say(f"measure the CPU runtime on {hardware.ranks} processes, once for this machine")
    fitted = measure_cpu(None, hardware, "treadle plan job", cold=True)
    assert fitted is not None
    assert fitted.hardware.transports.cpu is not None
    return RuntimeCosts(fitted.hardware.transports.cpu, fitted.doubt, fitted.usable)
