"""The exchange of a job's gradients by collective programs: a message for each, whose sum is divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.job.part import RankStep


def average(messages: Sequence[Sequence[str]], folders: Sequence[str] | None, step: RankStep) -> None:
    """Average the gradients of each message, named by their parameters, with the artefacts in its folder; without
    folders everything is done but the exchange."""
    import torch

    from treadle.runtime.collective.messages import load_executor

    parameters = dict(step.model.named_parameters())
    programs = [None] * len(messages) if folders is None else [load_executor(f, step.rank) for f in folders]

    def exchange() -> None:
        for names, allreduce in zip(messages, programs, strict=True):
            held = [parameters[name] for name in names if parameters[name].grad is not None]
            flat = torch.cat([parameter.grad.reshape(-1) for parameter in held if parameter.grad is not None])
            for parameter in held:  # the message takes over their memory
                parameter.grad = None
            summed = (flat if allreduce is None else allreduce(flat)).div_(step.world)
            for parameter, part in zip(held, summed.split([each.numel() for each in held]), strict=True):
                parameter.grad = part.view_as(parameter)

    step.exchanges.append(exchange)
