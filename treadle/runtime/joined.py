"""Processes that another program started, one for each rank: `torchrun`, `treadle lab run`, a batch system.

Their environment has RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from treadle.host.loopback import stay_on_loopback
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.launch import launch
from treadle.runtime.sockets import named_interface

JOIN = timedelta(minutes=2)
GRACE_SECONDS = 1.0
"""Delay before a rank reports the loss of another one, so that the first failure is reported as the cause."""


@dataclass(frozen=True)
class StartedRank:
    """This process among those that were started together. `gather` returns the values of all ranks on all of them."""

    rank: int
    world: int
    gather: Callable[[Any], list[Any]]


def joined_rank() -> tuple[int, int] | None:
    """This process's rank and the number of ranks, None where it was started on its own or as the only one.

    Raises InputError where the environment names a rank that cannot be, or no address.
    """
    if not os.environ.get("RANK") or os.environ.get("WORLD_SIZE", "1").strip() in ("", "1"):
        return None
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise InputError("found nothing, expected what torchrun sets next to RANK and WORLD_SIZE", where=name)
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    _number("MASTER_PORT")
    if rank >= world:
        raise InputError(f"found {rank}, expected a number below {world}, which is WORLD_SIZE", where="RANK")
    return rank, world


def _number(name: str) -> int:
    text = os.environ[name].strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        raise InputError(f"found {text!r}, expected a whole number", where=name)
    return int(text)


def common_store(rank: int, world: int) -> Any:
    """PyTorch's store at MASTER_ADDR, which all ranks have reached. Raises InputError where they do not."""
    from torch.distributed import DistError
    from torch.distributed.rendezvous import rendezvous

    place = f"{os.environ['MASTER_ADDR']} port {os.environ['MASTER_PORT']}"
    try:
        return next(rendezvous("env://", rank, world, timeout=JOIN))[0]
    except (DistError, ValueError, RuntimeError) as error:
        how = "is in use or not on this host" if "EADDR" in str(error) else f"has not brought {world} ranks together"
        raise InputError(f"{place} {how}", where="MASTER_ADDR") from None


def run_ranks(
    world: int, function: Callable[..., Any], args: tuple[Any, ...] = (), timeout: float | None = None
) -> list[Any]:
    """Results of `function(rank, world, *args)` by rank: of processes that were started together, else of new ones.

    Raises InputError where another number was started, and what `launch` raises.
    """
    here = joined_rank()
    if here is None:
        return launch(world, function, args, timeout)
    if here[1] != world:
        raise InputError(f"found {here[1]} processes, expected {world}", where="WORLD_SIZE")
    return run_joined(function, args)


def run_joined(function: Callable[..., Any], args: tuple[Any, ...] = ()) -> list[Any]:
    """Results of `function(rank, world, *args)` of all ranks that were started together, by rank, on each of them."""
    import torch

    torch.set_num_threads(1)
    with started_rank() as here:
        return here.gather(function(here.rank, here.world, *args))


@contextmanager
def started_rank() -> Iterator[StartedRank]:
    """The ranks of the environment as a gloo group, until the block ends; not before all others have come to its end.

    Raises InputError where they do not meet, CheckFailed where another rank has ended.
    """
    from torch import distributed

    here = joined_rank()
    if here is None:
        raise InputError("found nothing, expected a number", where="RANK")
    rank, world = here
    stay_on_loopback()
    named_interface()  # refuses one that is not there in a line of its own
    store = common_store(rank, world)
    try:
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    except (ValueError, RuntimeError) as error:
        text = str(error).splitlines()[0]
        raise InputError(f"the ranks that RANK and WORLD_SIZE announce cannot be joined: {text}") from None

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * world
        try:
            distributed.all_gather_object(values, value)
        except RuntimeError:
            time.sleep(GRACE_SECONDS)
            raise CheckFailed("another rank has ended before it was done") from None
        return values

    try:
        yield StartedRank(rank, world, gather)
        gather(None)
    finally:
        distributed.destroy_process_group()
