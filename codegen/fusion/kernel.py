"""What generators hand over: the text of kernels, and the tensors that they read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treadle.planner.machine.dtypes import Dtype
from treadle.planner.passes.fusion.layouts import Layout

Stream = Literal["compute", "communication"]
Role = Literal["input", "state", "output", "temporary"]

ANY = 0
"""As many threadblocks as the machine runs well."""


@dataclass(frozen=True)
class KernelText:
    """One kernel: `TREADLE_KERNEL name(TREADLE_TASK task)` and what it needs above it, inside namespace treadle.

    `blocks` is the exact number of threadblocks of one rank, or ANY where the kernel works with every number. The
    kernel keeps `arena_bytes` in each rank's arena, from the offset it was generated for. `about` is a line for
    readers: its stage of the schedule and its operations.
    """

    name: str
    text: str
    blocks: int
    stream: Stream
    about: str
    arena_bytes: int = 0


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory: `elements` on every rank, the capacity where ranks hold parts of different sizes. Inputs are
    only read, states are written as well (an Update's target), outputs and temporaries are written first."""

    name: str
    dtype: Dtype
    elements: int
    role: Role
    layout: Layout
