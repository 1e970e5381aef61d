"""Measure what the CPU runtime costs: on this machine, or over hosts where one process of each runs the command."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from msgspec.structs import replace

from treadle.host.cores import cores
from treadle.lab.environment import LAB, SCALE
from treadle.planner.documents.hardware import Device, Hardware, Switch, slow_motion
from treadle.planner.errors import InputError, MissingBackendError
from treadle.probe.cost_fit import CostFit
from treadle.probe.cpu_fit import fit_cpu
from treadle.probe.cpu_programs import HUGE, LARGE, ProbeRun, probe_runs
from treadle.probe.local import detect
from treadle.runtime.joined import joined_rank, run_joined
from treadle.runtime.launch import launch
from treadle.runtime.sockets import added_us

WORLD, MOST_RANKS = 4, 64
TIMEOUT_SECONDS = 120.0
BUSY = 1.5
"""Times of a run in another pass that count as those of a busy machine."""
MEMORY = "memory"
SLOW_US_PER_MB = 5000.0
"""Over slower links the largest messages are left out, which would take too long."""


@dataclass(frozen=True)
class _Plan:
    hardware: Hardware
    homes: list[int]
    lab: bool


def measure_cpu(world: int | None, base: Hardware | None, command: str, *, cold: bool = False) -> CostFit | None:
    """Fit the costs of the CPU runtime and write them into `base`, by default this machine with `world` ranks.

    Calls are timed one after the other, or if `cold` each one after its rank has used other memory, as in a training
    step.

    Where the environment says that this process is one rank of several (torchrun, `treadle lab run`), all of them
    measure together on the hosts of `base`; the first one has the result, the others None.

    Raises MissingBackendError without torch, InputError for a number of ranks that cannot be, or that is not that of
    the profile, and what `launch` raises.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingBackendError("measuring needs torch; install it with: pip install 'treadle[torch]'")
    joined = joined_rank()
    if joined is not None:
        if world is not None:
            raise InputError(f"found {world}, expected none: {joined[1]} processes were started", where="--world")
        if base is None and joined[1] > 1:
            raise InputError("found nothing, expected the profile of these hosts", where="--hardware")
        world = joined[1]
    elif base is not None and world is not None and world != base.ranks:
        raise InputError(f"found {world}, expected {base.ranks}: the profile has that many ranks", where="--world")
    if world is None:
        world = WORLD if base is None else base.ranks
    if not 2 <= world <= MOST_RANKS:
        raise InputError(f"found {world} ranks, expected 2 to {MOST_RANKS}", where="--world")
    if base is not None and world != base.ranks:
        raise InputError(f"found {world} processes, expected the {base.ranks} ranks of {base.name}", where="--hardware")
    if base is not None and joined is not None and LAB in os.environ:
        base = slow_motion(base, float(os.environ.get(SCALE, "1")), added_us())
    plan = _plan(base or _this_machine(world), joined is not None)
    runs = _affordable(plan)
    results = run_joined(_work, (runs, cold)) if joined else launch(world, _work, (runs, cold), TIMEOUT_SECONDS)
    if joined is not None and joined[0] > 0:
        return None
    times = slowest_rank_us(results)
    fitted = fit_cpu(plan.hardware, runs, times, cores(), "machine" if plan.lab else "host")
    return _written(fitted, base, command)


def _plan(hardware: Hardware, joined: bool) -> _Plan:
    """Launched processes all live on this machine, whatever hosts the profile has."""
    nodes = enumerate(hardware.every_node)
    homes = [number if joined else 0 for number, node in nodes for _ in range(node.devices_per_node)]
    if not joined and hardware.all_nodes > 1:
        hardware = replace(_this_machine(hardware.ranks), transports=hardware.transports)
    return _Plan(hardware, homes, joined and LAB in os.environ)


def _affordable(plan: _Plan) -> list[ProbeRun]:
    runs = probe_runs(plan.homes)
    network = plan.hardware.network
    if len(set(plan.homes)) == 1 or network is None:
        return runs
    most = HUGE if network.beta_us_per_MB < SLOW_US_PER_MB else LARGE
    return [run for run in runs if run.bytes <= most or run.name in ("copy", "sum")]


def _work(rank: int, world: int, runs: list[ProbeRun], cold: bool) -> Any:
    # Only the ranks import torch.
    from treadle.probe.cpu_worker import measured_calls

    return measured_calls(rank, world, runs, cold)


def slowest_rank_us(results: Sequence[Sequence[Sequence[Sequence[float]]]]) -> list[list[float]]:
    """By run the times of its calls on the slowest rank, from the seconds by rank, pass, run and sample. A pass in
    which the run took much longer than in another one had a busy machine and does not count."""
    found = []
    for run in zip(*(zip(*rank, strict=True) for rank in results), strict=True):
        passes = [[1e6 * max(each) for each in zip(*ranks, strict=True)] for ranks in zip(*run, strict=True)]
        least = min(map(median, passes))
        found.append([time for each in passes if median(each) <= BUSY * least for time in each])
    return found


def _this_machine(world: int) -> Hardware:
    """This machine as `world` processes that exchange through its memory."""
    machine = detect()
    memory = machine.host.memory_bytes
    model = machine.host.cpu_model or "CPU"
    device = Device(model=model, kind="cpu", count=world, memory_bytes=None if memory is None else memory // world)
    fabric = Switch(name=MEMORY, kind=MEMORY, members=tuple(range(world)), alpha_us=0.0, beta_us_per_MB=0.0)
    sources = {**machine.sources, "devices": "the processes that were measured, each with its share of the memory"}
    return replace(machine, devices=(device,), switches=(fabric,), links=(), sources=sources)


def _written(fitted: CostFit, base: Hardware | None, command: str) -> CostFit:
    """The fit in `base`, or in the measured machine with what its memory costs an exchange of all ranks."""
    found = fitted.hardware
    cpu = found.transports.cpu
    assert cpu is not None
    how = f"measured: `{command}`, probe programs on the CPU runtime, {found.ranks} processes"
    if base is not None:
        sources = {**base.sources, "transports.cpu": how}
        hardware = replace(base, transports=replace(base.transports, cpu=cpu), sources=sources)
        return CostFit(hardware, fitted.costs, fitted.rows)
    alpha = cpu.memory.latency_us + 2 * (cpu.memory.message_us + cpu.step_us)
    beta = 2 * cpu.memory.copy_us_per_MB * max(1.0, found.ranks / cpu.cores)
    switches = tuple(
        replace(each, alpha_us=float(f"{alpha:.4g}"), beta_us_per_MB=float(f"{beta:.4g}")) for each in found.switches
    )
    sources = {
        **found.sources,
        "switches": "from transports.cpu: latency and both ends of a message, while all ranks share the cores",
        "transports.cpu": how,
    }
    hardware = replace(found, name="measured", switches=switches, sources=sources)
    return CostFit(hardware, fitted.costs, fitted.rows)
