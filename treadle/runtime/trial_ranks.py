"""Ranks that measure what a planner asks for: processes of this machine, or those that a launcher started together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psutil

from treadle.host.cores import cores
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.search.clock import Clock
from treadle.planner.solver.interrupt import raised_at_once
from treadle.probe.local import cpu_model
from treadle.probe.resolve import load_hardware
from treadle.runtime.joined import StartedRank, joined_rank, started_rank
from treadle.runtime.launch import launch

WHERE = "--measure"
MOST_RANKS = 16
"""Processes of one machine."""
SHARE = 0.8
"""Share of the time that is left for a measurement; the rest is for the check of the plan."""
LAB, SCALE = "TREADLE_LAB_HOST", "TREADLE_LAB_SCALE"
Ask = Callable[[Callable[..., Any], tuple[Any, ...]], list[Any]]
"""Results of `function(rank, world, *args)` by rank."""


def require_priced_here(ranks: int, hardware: Hardware | None) -> None:
    """Raises InputError where times of the ranks that this process can reach are none of the machine that the plan is
    priced for: processes of one machine have not the links of a cluster, and a lab in slow motion does not slow the
    work down with them. `hardware` is None where a problem written by hand states its links."""
    if hardware is not None:
        require_cpus(hardware)
    here = joined_rank()
    if here is not None:
        if here[1] != ranks:
            raise InputError(f"found {here[1]} processes, expected the {ranks} of the profile", where="WORLD_SIZE")
        if (scale := os.environ.get(SCALE, "1")) != "1":
            found = f"found a lab in slow motion, --scale {scale}, expected --scale 1"
            raise InputError(f"{found}: work is not slowed down with the links", where=WHERE)
        return
    require_few(ranks)
    if hardware is None:
        return
    if hardware.nodes > 1:
        found = f"found {hardware.nodes} nodes in the profile, expected this machine"
        raise InputError(f"{found}; `treadle lab run PROFILE -- treadle plan ...` measures on their links", where=WHERE)
    if models := {device.model for device in hardware.devices} - {cpu_model()}:
        found = f"found a profile of {min(models)}, expected one of this machine, {cpu_model()}"
        raise InputError(f"{found}; `treadle profile measure -o FILE` writes it", where=WHERE)


def priced_here(ranks: int, problem: str, hardware: str | None, nodes: int | None) -> str:
    """The name of the machine that a problem is priced for: of the profile, if any, else the problem's own. Raises
    InputError as `require_priced_here` does."""
    profile = None if hardware is None else load_hardware(hardware, nodes)
    require_priced_here(ranks, profile)
    return problem if profile is None else profile.name


def require_cpus(hardware: Hardware) -> None:
    """Raises InputError for a profile of GPUs: processes that exchange over the CPU's runtimes say nothing of them."""
    if any(device.kind != "cpu" for device in hardware.devices):
        raise InputError(f"found GPUs in the profile {hardware.name}, expected CPUs, which measure here", where=WHERE)


def require_few(ranks: int) -> None:
    """Raises InputError for more ranks than this machine measures with."""
    if ranks > MOST_RANKS:
        raise InputError(f"found {ranks} ranks, expected at most {MOST_RANKS} to be measured here", where=WHERE)


def require_memory(needed: float, otherwise: str = "") -> None:
    """Raises InputError, which ends in what to do `otherwise`, where `needed` bytes of all ranks are more than this
    machine has free; ranks on hosts of their own have their own memory."""
    shared = joined_rank() is None or LAB in os.environ
    if shared and needed > (free := psutil.virtual_memory().available):
        found = f"found {format_bytes(free)} free, expected about {format_bytes(round(needed))} to measure"
        raise InputError(found + otherwise, where=WHERE)


@contextmanager
def trial_ranks(world: int) -> Iterator[Ask | None]:
    """What runs a function on `world` ranks: new processes for each call, or those that were started together. There
    the first rank asks; the others get None, after they did all that was asked for."""
    if joined_rank() is None:
        yield partial(launched, world)
        return
    with started_rank() as here:
        if here.rank == 0:
            yield partial(_asked, here)
            _shared(None)
            return
        while (asked := _shared(None)) is not None:
            _run(here, *asked)
        yield None


def launched(world: int, function: Callable[..., Any], args: tuple[Any, ...] = ()) -> list[Any]:
    """As `launch`; Ctrl-C ends the processes at once, even in a search that would only remember it."""
    with raised_at_once():
        return launch(world, function, args)


def end_of(clock: Clock) -> float:
    """When no further program or round begins, on time.monotonic's clock of all processes."""
    return time.monotonic() + SHARE * clock.left_s


def set_threads(world: int) -> None:
    """As many threads as each of `world` ranks has cores."""
    import torch

    torch.set_num_threads(max(1, cores() // world))


def _asked(here: StartedRank, function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    _shared((function, args))
    return _run(here, function, args)


def _run(here: StartedRank, function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    return here.gather(function(here.rank, here.world, *args))


def _shared(value: Any) -> Any:
    """That of the first rank, on all. Raises CheckFailed where it has ended."""
    from torch import distributed

    values = [value]
    try:
        distributed.broadcast_object_list(values, 0)
    except RuntimeError:
        raise CheckFailed("the first rank has ended before it was done") from None
    return values[0]
