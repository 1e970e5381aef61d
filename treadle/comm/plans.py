"""The plans of a process group of the backend `treadle`: from which folder, and the same on all ranks."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _world

from treadle.codegen.emit import text_digest
from treadle.comm.framework_groups import framework_backend
from treadle.comm.library import load_fitting, programs
from treadle.comm.planned import PlannedGroup
from treadle.comm.tally import log
from treadle.planner.errors import InputError, TreadleError

VARIABLE = "TREADLE_PLANS"


@dataclass(frozen=True)
class GroupOptions:
    """For `pg_options`: `plans` is a folder that `treadle generate` wrote, or a folder of such folders, for groups of
    any number of ranks. None: as in the group of all ranks, else what TREADLE_PLANS names, else no plans."""

    plans: Path | str | None = None


def options_of(given: Any, world: GroupOptions | None) -> GroupOptions:
    """Those of a new group. `world` are those of the group of all ranks, if it has any."""
    if given is not None and not isinstance(given, GroupOptions):
        raise InputError(f"found pg_options of {type(given).__name__}, expected treadle.comm.GroupOptions")
    for options in (given, world):
        if options is not None and options.plans is not None:
            return options
    return GroupOptions(os.environ.get(VARIABLE) or None)


def planned_group(options: GroupOptions, common: Any, *, first: bool) -> PlannedGroup | None:
    """The plans for the ranks of a new group, or None.

    `common` is what torch.distributed gives to a backend. Raises InputError on all ranks alike.
    """
    rank, ranks = common.group_rank, common.group_size
    own = common.global_ranks_in_group or range(ranks)
    problem, found = None, None
    if options.plans is not None:
        try:
            found = load_fitting(options.plans, ranks)
        except TreadleError as error:
            problem = str(error)
    mine = None if found is None else text_digest(repr(programs(found)))
    _agree(common.store, rank, ranks, problem, mine, str(options.plans))
    if found is None:
        if first:
            log.warning(f"backend treadle: found no folder of plans, expected one in {VARIABLE} or in pg_options="
                        "treadle.comm.GroupOptions(plans=DIR); torch.distributed's own collectives run")  # fmt: skip
        return None
    if not found.algorithms:
        if ranks > 1:
            log.warning(f"{options.plans}: no plan is for {ranks} ranks; torch.distributed's own collectives run on "
                        f"ranks {', '.join(map(str, own))}")  # fmt: skip
        return None

    def connect(backend: str) -> ProcessGroup:
        store = PrefixStore(f"treadle/{next(numbers)}/", common.store)
        group = ProcessGroup(store, rank, ranks)
        framework_backend(backend, store, rank, ranks, common.timeout).register(group)
        _world.pg_group_ranks[group] = {each: place for place, each in enumerate(own)}
        return group

    numbers = count()
    return PlannedGroup(
        rank,
        found,
        found.alone(),
        connect,
        lambda group: _world.pg_group_ranks.pop(group, None),
        timeout=common.timeout.total_seconds(),
    )


def _agree(store: Any, rank: int, ranks: int, problem: str | None, mine: str | None, where: str) -> None:
    """Raise InputError on all ranks when one has a problem or other programs than rank 0.

    By the store: no group stands yet in which the ranks could exchange messages. Rank 0 compares for all.
    """
    store.set(f"treadle/{rank}", json.dumps([problem, mine]))
    if rank == 0:
        facts = [json.loads(store.get(f"treadle/{each}")) for each in range(ranks)]
        failed = [f"rank {each}: {found}" for each, (found, _) in enumerate(facts) if found is not None]
        other = [each for each, (_, digest) in enumerate(facts) if digest != facts[0][1]]
        expected = f"{where}: rank {other[0]} found other algorithms than rank 0, expected the same" if other else ""
        store.set("treadle/all", failed[0] if failed else expected)
    if verdict := store.get("treadle/all").decode():
        raise InputError(verdict)
