"""Measure what grouped messages of NCCL cost a program, on the GPUs of a profile: those of this machine, or of several
hosts where one process for each GPU runs the command."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from msgspec.structs import replace

from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError, MissingBackendError
from treadle.probe.cost_fit import CostFit
from treadle.probe.cpu_programs import ProbeRun, grouped_runs
from treadle.probe.grouped_fit import fit_grouped
from treadle.probe.measure_cpu import slowest_rank_us
from treadle.runtime.joined import joined_rank, run_joined
from treadle.runtime.launch import launch

TIMEOUT_SECONDS = 300.0


def measure_nccl(
    world: int | None, base: Hardware | None, command: str, library: Literal["gloo", "nccl"] = "nccl"
) -> CostFit | None:
    """Fit the costs of grouped messages between the ranks of `base`, and write them into it as `transports.nccl`.

    Where the environment says that this process is one rank of several (torchrun, `treadle lab run`), all of them
    measure together; the first one has the result, the others None. `library` carries the messages: gloo between CPUs.

    Raises MissingBackendError without torch, NCCL or a GPU for each rank, InputError without a profile, for one with
    fewer than two ranks or with another number than processes, and what `launch` raises.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingBackendError("measuring needs torch; install it with: pip install 'treadle[torch]'")
    if base is None:
        raise InputError("found nothing, expected the profile of these GPUs", where="--hardware")
    joined = joined_rank()
    found = joined[1] if joined else world or base.ranks
    if base.ranks < 2 or found != base.ranks:
        expected = f"2 or more and the {base.ranks} of {base.name}"
        raise InputError(f"found {found} ranks, expected {expected}", where="--world")
    runs = grouped_runs([number for number, node in enumerate(base.every_node) for _ in range(node.devices_per_node)])
    args = runs, library
    results = run_joined(_work, args) if joined else launch(found, _work, args, TIMEOUT_SECONDS)
    if joined and joined[0] > 0:
        return None
    fitted = fit_grouped(base, runs, slowest_rank_us(results))
    how = f"measured: `{command}`, probe programs as grouped messages, {found} processes"
    hardware = replace(fitted.hardware, sources={**base.sources, "transports.nccl": how})
    return CostFit(hardware, fitted.costs, fitted.rows, fitted.runtime)


def _work(rank: int, world: int, runs: list[ProbeRun], library: Literal["gloo", "nccl"]) -> Any:
    # Only the ranks import torch.
    from treadle.probe.cpu_worker import measured_calls

    return measured_calls(rank, world, runs, cold=False, backend=library)
