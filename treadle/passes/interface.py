"""What a pass does on this machine: one record beside that of the planner.

A room is `treadle/passes/<name>/`: `command.py` is its `treadle plan <name>`, `room.py` has one subclass of `Room` as
`ROOM`. `treadle.planner.passes` lists the names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import Decisions
from treadle.planner.errors import InputError
from treadle.planner.passes.interface import Inputs

D = TypeVar("D", bound=Decisions)
DEFAULT_SIZES = "0,1,1000,65537,1000003"
"""Element counts with which a collective runs."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `treadle run`, as they were given."""

    backend: str
    world: int | None
    sizes: str | None
    dtypes: str | None
    ops: str
    repeats: int
    timeout: float | None
    steps: int
    as_json: bool

    def require_world(self, allowed: tuple[int | None, ...], why: str) -> None:
        """Raises InputError for `--world` with another number."""
        if self.world not in allowed:
            expected = "none" if allowed == (None,) else str(allowed[-1])
            raise InputError(f"found {self.world}, expected {expected}: {why}", where="--world")


class Room(ABC, Generic[D]):
    """What the commands do with plans of one pass."""

    def check_prediction(self, plan: Plan[D], found: Inputs) -> list[str]:
        """What is wrong with a prediction that was made by code outside the planner, in the light of the inputs."""
        return []

    @abstractmethod
    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        """Execute the artefacts in `folder`, compare them with what PyTorch does, and print the comparison.

        Raises InputError for options that do not go with them, CheckFailed where a promise was broken.
        """


AnyRoom = Room[Any]
