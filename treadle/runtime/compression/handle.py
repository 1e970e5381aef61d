"""What `treadle.compress.attach` returns: the exchange of a model's gradients under a plan, with its state."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from treadle.runtime.compression.exchange import StepTime

log = logging.getLogger("treadle.compress")


@dataclass(frozen=True)
class ExchangeStatistics:
    """What this rank did. `times` are those of the last iteration; `residual_norms` are by compression point."""

    iterations: int
    sent_bytes: int
    """In the last iteration, to other ranks."""
    times: tuple[StepTime, ...]
    residual_norms: dict[str, float]


class CompressedExchange(ABC):
    """Gradients of a model, exchanged under a plan until `close`."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Residuals of this rank and the number of iterations, for `torch.save`; each rank saves its own."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of this rank: the next iterations are those of the saved run, bit by bit.

        Residuals that only the state or only the plan has are dropped or start at zero, with one logged line: the plan
        was changed. Raises InputError for a state of another version.
        """

    @abstractmethod
    def statistics(self) -> ExchangeStatistics:
        """What was done so far."""

    @abstractmethod
    def close(self) -> None:
        """Exchange gradients as torch.distributed does from now on. All ranks call it after the same iteration.

        A model of DistributedDataParallel keeps the hook, which then takes plain means: for another plan, attach to a
        new DistributedDataParallel of its module.
        """
