"""The public MSCCL runtimes: the numbers and names in which they differ.

Evidence: RCCL of October 2024, msccl-executor-nccl of December 2024 (`src/include/msccl/{msccl_parser,msccl_struct}.h`,
`src/misc/msccl/msccl_parser.cc`), microsoft/msccl 0.7.4 (`src/include/msccl.h`, `src/graph/{topo.cc,xml.h}`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Name = Literal["msccl", "rccl", "executor"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """The numbers in which the runtimes differ. `blocks_per_channel` counts those that send, and those that receive."""

    name: Name
    title: str
    steps: int
    blocks: int
    channels: int
    collectives: tuple[str, ...]
    types: tuple[str, ...]
    required: tuple[str, ...]
    """Attributes of <algo>."""
    failure: str
    """What a refused file does."""
    blocks_per_channel: int = 32
    count: int = 71
    nodes: int = 4096
    children: int = 1024
    attributes: int = 16
    token: int = 254
    awaited_block: int = 127
    fused_reductions: int = 16
    slices: int = 65536


_TYPES = ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")
COMMON_REQUIRED = ("nchunksperloop", "nchannels", "ngpus", "proto", "coll", "inplace")


RUNTIMES: dict[Name, Runtime] = {
    "msccl": Runtime(
        name="msccl",
        title="microsoft/msccl 0.7.4",
        steps=256,
        blocks=216,
        channels=32,
        collectives=("allgather", "allreduce", "alltoall", "broadcast", "custom", "reduce", "reduce_scatter"),
        types=(*_TYPES, "ra"),
        required=("name", *COMMON_REQUIRED),
        failure="warns and leaves the file out",
    ),
    "rccl": Runtime(
        name="rccl",
        title="RCCL of October 2024",
        steps=64,
        blocks=64,
        channels=128,
        collectives=(
            *("allgather", "allreduce", "alltoall", "alltoallv", "broadcast", "gather", "recv", "reduce"),
            *("reducescatter", "scatter", "send"),
        ),
        types=_TYPES,
        required=(*COMMON_REQUIRED, "outofplace", "minBytes", "maxBytes"),
        failure="fails the communicator's init, for all files, or the first call that selects the file",
    ),
}
RUNTIMES["executor"] = replace(
    RUNTIMES["rccl"], name="executor", title="msccl-executor-nccl of December 2024", blocks=1024, channels=32
)
