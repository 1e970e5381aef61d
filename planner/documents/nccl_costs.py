"""What NCCL's own algorithms take on a machine, as factors to NCCL's model of itself (`planner.machine.nccl`)."""

from __future__ import annotations

from typing import Literal

from treadle.planner.documents.scalars import Positive, PositiveAmount, Record

Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "pat"]
"""As NCCL's tuner plugin spells them."""
Method = Literal[
    "ring LL", "ring LL128", "ring Simple", "tree LL", "tree LL128", "tree Simple", "nvls", "nvls_tree", "pat"
]
"""An algorithm and its protocol; the last three have Simple only."""


class NcclFactors(Record, frozen=True, kw_only=True):
    """How much longer its latency and its bytes take than NCCL's model says."""

    latency: PositiveAmount = 1.0
    bytes: PositiveAmount = 1.0


class NcclLibrary(Record, frozen=True, kw_only=True):
    """The NCCL or RCCL of a machine. What is absent is as NCCL's model has it."""

    channels: Positive | None = None
    """The most that rings and trees take."""
    nvls_channels: Positive | None = None
    methods: dict[Method, NcclFactors] = {}
    """A method without factors, where others have some, takes the largest of all."""
