"""MSCCL++ execution plans as documents (microsoft/mscclpp: `src/core/executor/execution_plan.cc`, DSL 0.9).

One file holds the programs of all ranks. A threadblock's operations run in order; they copy and reduce between local
buffers and the registered buffers of other ranks, and synchronise by signals on channels (between ranks), by
semaphores and barriers (between threadblocks of a rank) and by `nop` (between the threads of a block). With protocol
LL data travels in scratch as packets that carry a flag, and needs no signals.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from treadle.planner.errors import InputError

BufferType = Literal["i", "o", "s"]
ChannelType = Literal["memory", "port", "switch"]
PointChannel = Literal["memory", "port"]
Reduction = Literal["sum", "min", "max"]
OpName = Literal[
    "nop", "barrier", "put", "pws", "pwsf", "get", "copy", "signal", "wait", "flush", "rlxsignal", "rlxwait",
    "re", "res", "rre", "rres", "ppkt", "rppkt", "respkt", "cpkt", "upkt", "repkt", "recpkt", "recspkt",
    "glres", "gstore", "gstorepkt", "sem_acquire", "sem_release", "pipeline",
]  # fmt: skip

MAX_OPS = 64
"""Operations of one threadblock, those inside a pipeline counted."""
MAX_CHANNELS = 16
"""Channels, and remote buffers, of one type that a threadblock can name."""
MAX_CHANNELS_PER_OP = 8
MAX_SEMAPHORES = 16
MAX_BARRIERS = 16
MAX_BYTES = 2**64 - 1
"""`max_message_size` of a plan without a limit."""

Natural = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Some = Annotated[int, Meta(ge=1, le=2**32 - 1)]


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Chunks(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`size` chunks from `index`: of a local buffer (`type`), of the threadblock's remote buffer number `buffer_id`,
    or of all ranks behind its switch channel number `switch_channel_id`."""

    type: BufferType | None = None
    buffer_id: Natural | None = None
    switch_channel_id: Natural | None = None
    index: Natural
    size: Some


class Share(_Part, frozen=True):
    """This threadblock does part `tb_id` of `tbg_size` equal parts of the operation."""

    tb_id: Natural
    tbg_size: Some


class Iterations(_Part, frozen=True):
    unit_size: Some
    num_chunks: Some


class PlanOperation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One operation; `channel_ids` count within the threadblock's channels of that type."""

    name: OpName
    src_buff: tuple[Chunks, ...] = ()
    dst_buff: tuple[Chunks, ...] = ()
    channel_ids: tuple[Natural, ...] = ()
    channel_type: ChannelType | Literal["none"] | None = None
    reduce_op: Reduction | None = None
    barrier_id: Natural | None = None
    num_threadblocks: Some | None = None
    semaphore_ids: tuple[Natural, ...] = ()
    tbg_info: Share | None = None
    iter_context: Iterations | None = None
    ops: tuple[PlanOperation, ...] = ()
    buff: BufferType | tuple[Chunks, ...] | None = None
    """Which buffers a pipeline is about; the runtime does not read it."""


class RankGroup(_Part, frozen=True):
    size: Some
    ranks: tuple[Natural, ...]


class MemoryChannels(_Part, frozen=True, tag_field="channel_type", tag="memory"):
    """Channels of one type, one for each rank named; the k-th to a rank meets that rank's k-th to this one."""

    connected_to: tuple[Natural, ...]


class PortChannels(_Part, frozen=True, tag_field="channel_type", tag="port"):
    connected_to: tuple[Natural, ...]


class SwitchChannels(_Part, frozen=True, tag_field="channel_type", tag="switch"):
    """One multicast channel over `buffer_type` of every rank of a group, for each group."""

    buffer_type: BufferType
    rank_groups: tuple[RankGroup, ...]


class BlockChannels(_Part, frozen=True, omit_defaults=True):
    channel_type: ChannelType
    channel_ids: tuple[Natural, ...]
    buff: BufferType | None = None
    """The buffer that the channels are for; the channels themselves say it too."""


class BlockBuffers(_Part, frozen=True):
    access_channel_type: PointChannel
    remote_buffer_ids: tuple[Natural, ...]


class ThreadblockPlan(_Part, frozen=True):
    id: Natural
    ops: tuple[PlanOperation, ...]
    channels: tuple[BlockChannels, ...] = ()
    remote_buffer_refs: tuple[BlockBuffers, ...] = ()


class RemoteBuffer(_Part, frozen=True):
    rank: Natural
    type: BufferType
    access_channel_types: tuple[PointChannel, ...]


class Semaphore(_Part, frozen=True):
    init_value: Natural


class Gpu(_Part, frozen=True):
    id: Natural
    input_chunks: Natural
    output_chunks: Natural
    scratch_chunks: Natural
    threadblocks: tuple[ThreadblockPlan, ...]
    channels: tuple[MemoryChannels | PortChannels | SwitchChannels, ...] = ()
    remote_buffers: tuple[RemoteBuffer, ...] = ()
    semaphores: tuple[Semaphore, ...] = ()


class ExecutionPlan(_Part, frozen=True):
    name: str
    collective: str
    protocol: Literal["Simple", "LL"]
    inplace: bool
    reuse_resources: bool = False
    gpus: tuple[Gpu, ...] = ()
    num_threads_per_block: Some = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: Some = 16
    min_message_size: Annotated[int, Meta(ge=0)] = 0
    max_message_size: Annotated[int, Meta(ge=0)] = MAX_BYTES


def dumps(plan: ExecutionPlan) -> str:
    """The JSON text, laid out as MSCCL++ does."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"


def loads(text: str, where: str) -> ExecutionPlan:
    """Read a plan; `where` is how errors call the file. Raises InputError for everything that is not its form."""
    try:
        return msgspec.json.decode(text, type=ExecutionPlan)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"found no MSCCL++ execution plan: {error}", where=where) from error


def is_plan(text: str) -> bool:
    """Whether JSON text looks like an execution plan rather than one of treadle's documents."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):  # nested too deeply: not a plan
        return False
    return "kind" not in fields and {"gpus", "protocol"} <= set(fields)
