"""Ranks that measure what a planner asks for: processes of this machine, or those that a launcher started together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psutil

from treadle.host.cores import cores
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import CheckFailed, InputError
from treadle.probe.local import cpu_model
from treadle.runtime.joined import StartedRank, joined_rank, started_rank
from treadle.runtime.launch import launch

WHERE = "--measure"
MOST_RANKS = 16
"""Processes of one machine."""
LAB, SCALE = "TREADLE_LAB_HOST", "TREADLE_LAB_SCALE"
Ask = Callable[[Callable[..., Any], tuple[Any, ...]], list[Any]]
"""Results of `function(rank, world, *args)` by rank."""


def require_priced_here(ranks: int, hardware: Hardware | None) -> None:
    """Raises InputError where times of the ranks that this process can reach are none of the machine that the plan is
    priced for: processes of one machine have not the links of a cluster, and a lab in slow motion does not slow the
    work down with them. `hardware` is None where a problem written by hand states its links."""
    if hardware is not None and any(device.kind != "cpu" for device in hardware.devices):
        raise InputError("found GPUs in the profile, expected CPUs: plans are measured over gloo", where=WHERE)
    here = joined_rank()
    if here is not None:
        if here[1] != ranks:
            raise InputError(f"found {here[1]} processes, expected the {ranks} of the profile", where="WORLD_SIZE")
        if (scale := os.environ.get(SCALE, "1")) != "1":
            found = f"found a lab in slow motion, --scale {scale}, expected --scale 1"
            raise InputError(f"{found}: work is not slowed down with the links", where=WHERE)
        return
    if ranks > MOST_RANKS:
        raise InputError(f"found {ranks} ranks, expected at most {MOST_RANKS} to be measured here", where=WHERE)
    if hardware is None:
        return
    if hardware.nodes > 1:
        found = f"found {hardware.nodes} nodes in the profile, expected this machine"
        raise InputError(f"{found}; `treadle lab run PROFILE -- treadle plan ...` measures on their links", where=WHERE)
    if models := {device.model for device in hardware.devices} - {cpu_model()}:
        found = f"found a profile of {min(models)}, expected one of this machine, {cpu_model()}"
        raise InputError(f"{found}; `treadle profile measure -o FILE` writes it", where=WHERE)


def require_memory(needed: int, otherwise: str = "") -> None:
    """Raises InputError, which ends in what to do `otherwise`, where `needed` bytes of all ranks are more than this
    machine has free; ranks on hosts of their own have their own memory."""
    shared = joined_rank() is None or LAB in os.environ
    if shared and needed > (free := psutil.virtual_memory().available):
        found = f"found {format_bytes(free)} free, expected about {format_bytes(needed)} to measure"
        raise InputError(found + otherwise, where=WHERE)


@contextmanager
def trial_ranks(world: int) -> Iterator[Ask | None]:
    """What runs a function on `world` ranks: new processes for each call, or those that were started together. There
    the first rank asks; the others get None, after they did all that was asked for."""
    if joined_rank() is None:
        yield partial(launch, world)
        return
    with started_rank() as here:
        if here.rank == 0:
            yield partial(_asked, here)
            _shared(None)
            return
        while (asked := _shared(None)) is not None:
            _run(here, *asked)
        yield None


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
