"""Means of gradients by a server in a process of its own next to rank 0, for the training of a job."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from treadle.job.part import RankStep

LOGS = "server"
"""Folder next to the plan with the access file and what the server writes."""


def exchange_by(plan: str, step: RankStep) -> None:
    """Replace every gradient by its mean over the ranks, through a server that rank 0 starts for the plan in the file
    `plan`; it ends when the ranks do. All ranks call it."""
    import numpy as np
    import torch
    from torch import distributed

    from treadle.runtime.server.started import started_servers
    from treadle.runtime.server.worker import ServerState, Worker

    server, access = ExitStack(), [""]
    if step.rank == 0:
        folder = Path(plan).parent / LOGS
        folder.mkdir(exist_ok=True)
        access = [str(server.enter_context(started_servers(Path(plan), 1, folder))[0])]
    distributed.broadcast_object_list(access, 0)
    worker = Worker(access[0], step.rank)
    keys = worker.layout.keys
    if step.rank == 0:
        zeros = np.zeros(sum(key.elements for key in keys), np.float32)
        worker.load(ServerState(zeros, [], np.zeros(len(keys), np.uint64)))
    else:
        worker.await_first_load()
    parameters = dict(step.model.named_parameters())
    taken = [parameters[key.name] for key in keys]
    gradients, means = (
        [torch.from_numpy(area(key)).view(each.dtype).view(each.shape) for key, each in enumerate(taken)]
        for area in (worker.gradient, worker.value)
    )

    def exchange() -> None:
        for key, parameter in enumerate(taken):
            if parameter.grad is not None:
                gradients[key].copy_(parameter.grad)
            worker.push_pull(key, empty=parameter.grad is None)
        worker.finish()
        for key, parameter in enumerate(taken):
            if parameter.grad is not None:
                parameter.grad.copy_(means[key])

    def kept(owner: ExitStack = server) -> list[Tensor]:
        """Until the process ends, what ends the server stays with them."""
        return [*gradients, *means]

    step.exchanges.append(exchange)
    step.kept.append(kept)
