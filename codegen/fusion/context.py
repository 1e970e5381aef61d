"""What every generator of kernels is given besides its stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treadle.codegen.fusion.algorithms import ProgramFactory
from treadle.codegen.fusion.expression import Scope

Protocol = Literal["Simple", "LL", "LL128"]


@dataclass(frozen=True)
class Context:
    """`arena` is where in each rank's arena the stage may keep what is its own. `slot_bytes` of payload go in a
    message, and `channels` copies of `algorithm` carry a collective. `tile` is the rows and columns of a product that a
    threadblock makes at once, None to choose them by its extents. `chunk` is the rows and columns of a matrix that a
    collective moves at once, None for as many neighbouring elements as a message takes."""

    scope: Scope
    algorithm: ProgramFactory
    arena: int
    protocol: Protocol = "Simple"
    channels: int = 1
    slot_bytes: int = 1 << 19
    tile: tuple[int, int] | None = None
    chunk: tuple[int, int] | None = None
