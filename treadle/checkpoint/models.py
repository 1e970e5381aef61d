"""`treadle.checkpoint.attach`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel

from treadle.checkpoint.connected import RankMemory
from treadle.checkpoint.gpu import on_gpu
from treadle.checkpoint.layout import CALLER
from treadle.checkpoint.messages import count_messages
from treadle.checkpoint.persistent import INTERVAL_NS, PersistentSaves, require_writable
from treadle.checkpoint.resume import resume
from treadle.checkpoint.states import Stateful, TrainingStates
from treadle.checkpoint.training import Checkpoints
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.runtime.agreement import agreed, require_same
from treadle.runtime.sources import sound_decisions

log = logging.getLogger("treadle.checkpoint")
AGENT = "TREADLE_CHECKPOINT_AGENT"


def attach(
    model: nn.Module,
    optimizer: optim.Optimizer,
    plan: Plan[Any] | Path | str,
    *,
    agent: str | os.PathLike[str] | None = None,
    persistent: str | os.PathLike[str] | None = None,
    also: Mapping[str, Stateful] | None = None,
) -> Checkpoints:
    """Keep the states of a training in the memory of machines under a plan, and go on from the newest that is there.

    `plan` is a plan, its file, or a folder that was generated from it; its machines times devices are the ranks,
    numbered machine by machine. `agent` is the access file of this machine's `treadle checkpoint agent`, by default
    that of the environment variable TREADLE_CHECKPOINT_AGENT. In the folder `persistent`, which all ranks share, states
    are saved as well, by torch.distributed.checkpoint at the plan's interval. One of both must be given. `also` has
    what else must go on from where it was: schedulers, samplers, data loaders that have `state_dict`.

    The states of the checkpoint that all ranks agree on are loaded into `model`, `optimizer`, `also` and the generators
    of random numbers: from this machine's memory, else from another holder's, else those of the previous version, else
    those on storage; what was passed over is in `resumed` of what is returned. Then iterations go

        for step in checkpoints.steps(total):
            loss(model, next(batches)).backward()
            optimizer.step()

    or call `checkpoints.begin()` first. Losses are those of an uninterrupted training, bit by bit, with one exception:
    DistributedDataParallel builds its buckets anew after its first iteration. In a process that was started again the
    first iteration therefore adds the gradients of more than two ranks in another order, so that last bits may differ;
    `find_unused_parameters=True` leaves the buckets as they are.

    Pieces move between the messages of a model of DistributedDataParallel or of `fully_shard`, at once with any other
    one, and `optimizer.step` waits for the last of them.

    All ranks call it together, after init_process_group where there are several. Raises InputError, on all ranks alike,
    for another kind of plan or number of ranks, for states that are larger than the plan's and where the folder cannot
    be written; CheckFailed for a plan that fails its check, where the agent cannot be reached, and where what is kept
    is of another model.
    """
    together = distributed.is_initialized()

    def checked() -> tuple[CheckpointDecisions, TrainingStates]:
        decisions = sound_decisions(plan, CALLER, CheckpointDecisions)
        require_ranks(decisions)
        if agent is None and persistent is None and not os.environ.get(AGENT):
            raise InputError(f"found no agent and no folder; give agent=, persistent= or {AGENT}", where=CALLER)
        if persistent is not None:
            require_writable(Path(persistent))
        return decisions, TrainingStates(model, optimizer, also or {})

    decisions, states = agreed(checked) if together else checked()
    group = None
    if together:
        require_same(decisions, "plan")
        group = distributed.new_group(backend="gloo")
    rank = distributed.get_rank() if together else 0
    access = agent or os.environ.get(AGENT)
    memory = None
    if access:

        def joined() -> RankMemory:
            if states.device.type == "cuda":
                return on_gpu(access, decisions, rank, states.device)
            return RankMemory(access, decisions, rank)

        memory = agreed(joined) if together else joined()
    saves = None
    if persistent is not None:
        planned = decisions.problem.persistent
        interval_ns = INTERVAL_NS if planned is None else planned.interval_ns
        saves = PersistentSaves(Path(persistent), interval_ns, states)
    resumed = resume(states, memory, saves, group)
    if resumed.step and rank == 0 and rebuilds_buckets(model):
        log.warning("the first loss after this one may differ in its last bits from that of an uninterrupted training")
    found = Checkpoints(states, decisions, memory, saves, resumed, group)
    found.start([count_messages(model, found.count)])
    return found


def rebuilds_buckets(model: nn.Module) -> bool:
    """Whether the first iteration of this process adds the gradients of ranks in another order than those that follow:
    two ranks have only one."""
    if not isinstance(model, DistributedDataParallel) or distributed.get_world_size(model.process_group) <= 2:
        return False
    return model.static_graph or not model.find_unused_parameters


def require_ranks(decisions: CheckpointDecisions) -> None:
    """Raises InputError where the plan is for another number of ranks."""
    problem = decisions.problem
    world = distributed.get_world_size() if distributed.is_initialized() else 1
    if world != problem.machines * problem.devices:
        planned = f"{many(problem.machines, 'machine')} with {many(problem.devices, 'device')} each"
        raise InputError(f"found {many(world, 'rank')}, the plan is for {planned}", where=CALLER)
