"""`treadle.server.attach`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel

from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.problem import OptimizerName
from treadle.runtime.agreement import agreed
from treadle.runtime.server.messages import JobLayout
from treadle.runtime.server.served_job import ServedJob
from treadle.runtime.server.worker import Worker
from treadle.server.ddp import push_buckets
from treadle.server.optimizers import CALLER, name_of
from treadle.server.parameters import served_parameters, trained_parameters
from treadle.server.training import ServedTraining


def attach(
    model: nn.Module,
    optimizer: optim.Optimizer,
    address: str | os.PathLike[str],
    *,
    worker: int | None = None,
    rejoin: bool = False,
    plan: Plan[Any] | Path | str | None = None,
) -> ServedTraining:
    """Train `model` with its parameters on the servers at `address` from now on.

    `address` is the access file that `treadle serve` wrote, or NAMESPACE@HOST:PORT with the nonce in
    TREADLE_SERVER_NONCE. `worker` is the number of this process among those of the job, by default its rank: of
    torch.distributed, else that of the environment variable RANK. A model of DistributedDataParallel sends gradients
    while its backward pass goes on, any other one in `optimizer.step`, which waits for the new weights in both cases.
    They are those of a step of `optimizer` with the mean of all workers' gradients, added in the order of the
    workers. Names of the plan's keys are those of the parameters inside the model.

    The weights and states of worker 0 go to the servers first, and its weights to all workers. With `rejoin` those of
    the servers are taken instead: a lost worker goes on at their step, or a whole job from their snapshot. Servers of
    another plan than `plan` are refused, if it is given.

    Raises InputError, for DistributedDataParallel on all ranks alike, for an optimizer other than torch.optim.SGD,
    Adam, AdamW and treadle.server.Lamb, for options and types that servers lack, and for parameters or workers other
    than the plan's; CheckFailed where a server cannot be reached or refuses.
    """

    connections: list[Worker] = []

    def joined() -> ServedTraining:
        name, found = name_of(optimizer), trained_parameters(model, optimizer)
        connections.append(connection := Worker(address, number_of(model, worker)))
        require_job(connection.layout, name, model)
        require_start(connection, rejoin)
        if plan is not None:
            require_plan(connection.layout, plan)
        return ServedTraining(model, optimizer, connection, served_parameters(connection, found))

    try:
        if isinstance(model, DistributedDataParallel):
            require_free(model)
            training = agreed(joined)
            training.start()
            push_buckets(model, training)
        else:
            training = joined()
            training.start()
    except BaseException:
        for connection in connections:  # also where another rank was refused
            connection.close(trained=False)
        raise
    return training


def number_of(model: nn.Module, worker: int | None) -> int:
    """The number of this worker. Raises InputError where it is not known."""
    if isinstance(model, DistributedDataParallel):
        rank = distributed.get_rank()
        if worker not in (None, rank):
            raise InputError(f"found worker {worker}, expected {rank}, the rank", where=CALLER)
        return rank
    if worker is not None:
        return worker
    if distributed.is_initialized():
        return distributed.get_rank()
    if (text := os.environ.get("RANK", "")).isdigit():
        return int(text)
    raise InputError("found no number of this worker; give worker=", where=CALLER)


def require_job(layout: JobLayout, name: OptimizerName, model: nn.Module) -> None:
    """Raises InputError for servers with another optimizer, or another number of workers than ranks."""
    if layout.optimizer != name:
        raise InputError(
            f"found the optimizer {name}, the servers have {layout.optimizer}; plan for {name}", where=CALLER
        )
    if isinstance(model, DistributedDataParallel) and distributed.get_world_size() != layout.workers:
        found = f"found {many(distributed.get_world_size(), 'rank')}"
        raise InputError(f"{found}, expected the {many(layout.workers, 'worker')} of the plan", where=CALLER)


def require_plan(layout: JobLayout, plan: Plan[Any] | Path | str) -> None:
    """Raises InputError where the servers run another plan."""
    given, where = (plan, CALLER) if isinstance(plan, Plan) else (store.load(plan, Plan), str(plan))
    decisions = require_pass(given, ServerDecisions, where).decisions
    if ServedJob("", decisions, 0).digest != layout.plan:
        raise InputError("found another plan on the servers; serve this one", where=where)


def require_start(worker: Worker, rejoin: bool) -> None:
    """Raises InputError where the servers have weights already and `rejoin` does not ask for them."""
    has_begun = worker.layout.step > 0 or worker.worker == 0
    if worker.loads and has_begun and not rejoin:
        found = f"found weights of step {worker.layout.step} on the servers"
        raise InputError(f"{found}; attach with rejoin=True to go on from them", where=CALLER)


def require_free(model: DistributedDataParallel) -> None:
    """Raises InputError where a model cannot take a communication hook."""
    if not distributed.is_initialized():
        raise InputError("call torch.distributed.init_process_group first", where=CALLER)
    if model._comm_hooks:
        raise InputError("found a communication hook, expected a model without one; wrap its module anew", where=CALLER)
    ranks, world = distributed.get_world_size(model.process_group), distributed.get_world_size()
    if ranks != world:
        raise InputError(f"found a group of {ranks} ranks, expected one of all {world}", where=CALLER)
