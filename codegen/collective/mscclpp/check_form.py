"""The form of MSCCL++ execution plans: limits of the runtime, what operations name, and where threads need a `nop`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.codegen.collective.mscclpp.document import (
    MAX_BARRIERS,
    MAX_CHANNELS,
    MAX_CHANNELS_PER_OP,
    MAX_OPS,
    MAX_SEMAPHORES,
    Chunks,
    ExecutionPlan,
    Gpu,
    PlanOperation,
    ThreadblockPlan,
)
from treadle.codegen.collective.mscclpp.tables import (
    PAIRWISE,
    SHAPES,
    Flat,
    ResolvedPlan,
    buffers_of,
    flattened,
    ids_of,
    letters,
    operands_of,
    peers_of,
    switches_of,
)

MAX_UNITS = 2**22
"""Units of chunks, and tokens of semaphores, that the checker follows."""

SYNCHRONISING = frozenset({"signal", "wait", "rlxsignal", "rlxwait"})


def form_findings(plan: ExecutionPlan) -> list[str]:
    """Everything the runtime would refuse, or read beyond its tables for."""
    return [*_gpus(plan)] or [*_blocks(plan)] or [*_operations(plan)] or [*_work(plan)] or [*_overlays(plan)]


def _gpus(plan: ExecutionPlan) -> Iterator[str]:
    ranks = len(plan.gpus)
    if not ranks:
        yield "the plan has no gpus"
    for number, gpu in enumerate(plan.gpus):
        spot = f"gpu {gpu.id}"
        if gpu.id != number:
            yield f"{spot}: expected gpu {number} here; the runtime takes them by position"
        for name, count in (("input_chunks", gpu.input_chunks), ("output_chunks", gpu.output_chunks)):
            if not count:
                yield f"{spot}: {name} is 0, the runtime divides by it"
        for kind in ("memory", "port"):
            for peer in peers_of(gpu, kind):
                if peer >= ranks or peer == number:
                    yield f"{spot}: {kind} channel to gpu {peer}, expected another gpu below {ranks}"
            for peer, count in sorted(Counter(peers_of(gpu, kind)).items()):
                back = peers_of(plan.gpus[peer], kind).count(number) if peer < ranks else count
                if back != count:
                    yield f"{spot}: {count} {kind} channels to gpu {peer}, which has {back} to gpu {number}"
        for remote in gpu.remote_buffers:
            if remote.rank >= ranks or remote.rank == number:
                yield f"{spot}: remote buffer of gpu {remote.rank}, expected another gpu below {ranks}"
        for _, members in switches_of(gpu):
            if number not in members or max(members) >= ranks:
                yield f"{spot}: switch channel over gpus {list(members)}, expected gpus below {ranks} with this one"
        if len(gpu.semaphores) > MAX_SEMAPHORES:
            yield f"{spot}: {len(gpu.semaphores)} semaphores, expected at most {MAX_SEMAPHORES}"
    for number, gpu in enumerate(plan.gpus):
        if plan.collective in ("allgather", "reducescatter") and gpu.id == number:
            whole, part = gpu.output_chunks, gpu.input_chunks
            if plan.collective == "reducescatter":
                whole, part = part, whole
            if whole != part * ranks:
                yield f"gpu {number}: {part} and {whole} chunks, expected {ranks} times as many after {plan.collective}"


def _blocks(plan: ExecutionPlan) -> Iterator[str]:
    for gpu in plan.gpus:
        counts = {kind: len(peers_of(gpu, kind)) for kind in ("memory", "port")}
        counts["switch"] = len(switches_of(gpu))
        for number, block in enumerate(gpu.threadblocks):
            spot = f"gpu {gpu.id} tb {block.id}"
            if block.id != number:
                yield f"{spot}: expected tb {number} here; the runtime takes them by position"
            length = len(block.ops) + sum(len(op.ops) for op in block.ops)
            if length > MAX_OPS:
                yield f"{spot}: {length} operations, expected at most {MAX_OPS}"
            for kind, count in counts.items():
                ids = ids_of(block, kind)
                if len(ids) > MAX_CHANNELS:
                    yield f"{spot}: {len(ids)} {kind} channels, expected at most {MAX_CHANNELS}"
                if ids and max(ids) >= count:
                    yield f"{spot}: {kind} channel {max(ids)}, the gpu has {count}"
            for kind in ("memory", "port"):
                buffers = buffers_of(block, kind)
                if len(buffers) > MAX_CHANNELS:
                    yield f"{spot}: {len(buffers)} remote buffers on {kind} channels, expected at most {MAX_CHANNELS}"
                for buffer in buffers:
                    if buffer >= len(gpu.remote_buffers):
                        yield f"{spot}: remote buffer {buffer}, the gpu has {len(gpu.remote_buffers)}"
                    elif kind not in gpu.remote_buffers[buffer].access_channel_types:
                        yield f"{spot}: remote buffer {buffer} is not for {kind} channels"


def _operations(plan: ExecutionPlan) -> Iterator[str]:
    for gpu in plan.gpus:
        for block in gpu.threadblocks:
            for op, spot in flattened(gpu, block):
                for problem in _operation(plan, gpu, block, op):
                    yield f"{spot}: {op.name} {problem}"
            for number, op in enumerate(block.ops):
                if op.name == "pipeline":
                    for problem in _pipeline(plan, gpu, op):
                        yield f"gpu {gpu.id} tb {block.id} op {number}: {problem}"


def _pipeline(plan: ExecutionPlan, gpu: Gpu, op: PlanOperation) -> Iterator[str]:
    """The runtime gives each iteration its part of plain data, and all of the packets."""
    if op.iter_context is None:
        yield "a pipeline without iter_context"
        return
    if any(inner.name == "pipeline" for inner in op.ops):
        yield "a pipeline in a pipeline, which the runtime does not open"
    packets = [inner.name for inner in op.ops if set("PQT") & set("".join(SHAPES.get(inner.name, ("", ""))))]
    largest = -(-plan.max_message_size // gpu.input_chunks) * op.iter_context.num_chunks
    if packets and largest > op.iter_context.unit_size:
        yield (
            f"{packets[0]} moves all of its packets in every iteration of the pipeline, expected messages of one "
            "iteration (max_message_size)"
        )


def _operation(plan: ExecutionPlan, gpu: Gpu, block: ThreadblockPlan, op: PlanOperation) -> Iterator[str]:
    ids = ids_of(block, op.channel_type)
    if len(op.channel_ids) > MAX_CHANNELS_PER_OP:
        yield f"names {len(op.channel_ids)} channels, expected at most {MAX_CHANNELS_PER_OP}"
    if op.channel_ids and max(op.channel_ids) >= len(ids):
        yield f"names channel {max(op.channel_ids)}, the threadblock has {len(ids)} {op.channel_type} channels"
    if len(set(op.channel_ids)) < len(op.channel_ids) and op.name in SYNCHRONISING:
        yield "names a channel twice"
    if op.name in (*SYNCHRONISING, "flush") and not op.channel_ids:
        yield "names no channel"
    if op.name in ("flush", "pws", "pwsf") and op.channel_type != "port":
        yield "is for port channels only"
    if op.name in ("sem_acquire", "sem_release"):
        if not op.semaphore_ids:
            yield "names no semaphore"
        for semaphore in op.semaphore_ids:
            if semaphore >= len(gpu.semaphores):
                yield f"names semaphore {semaphore}, the gpu has {len(gpu.semaphores)}"
    if op.name == "barrier":
        if op.barrier_id is None or op.barrier_id >= MAX_BARRIERS:
            yield f"names barrier {op.barrier_id}, expected one below {MAX_BARRIERS}"
        if op.num_threadblocks is None or op.num_threadblocks > len(gpu.threadblocks):
            yield f"is for {op.num_threadblocks} threadblocks, the gpu has {len(gpu.threadblocks)}"
    if op.tbg_info is not None and op.tbg_info.tb_id >= op.tbg_info.tbg_size:
        yield f"is part {op.tbg_info.tb_id} of {op.tbg_info.tbg_size}"
    if op.tbg_info is not None and op.tbg_info.tbg_size > len(gpu.threadblocks):
        yield f"is for a group of {op.tbg_info.tbg_size} threadblocks, the gpu has {len(gpu.threadblocks)}"
    if op.name in SHAPES:
        yield from _operands(plan, gpu, block, op)


def _operands(plan: ExecutionPlan, gpu: Gpu, block: ThreadblockPlan, op: PlanOperation) -> Iterator[str]:
    sources, targets = SHAPES[op.name]
    given = letters(sources, len(op.src_buff)), letters(targets, len(op.dst_buff))
    if not given[0] or not given[1] or (op.name in PAIRWISE and len(op.src_buff) != len(op.dst_buff)):
        yield f"has {len(op.src_buff)} sources and {len(op.dst_buff)} destinations"
        return
    if len({chunks.size for chunks in (*op.src_buff, *op.dst_buff)}) > 1:
        yield "has operands of different sizes"
    remote = any(letter in "RQ" for letter in given[0] + given[1])
    if remote and op.channel_type not in ("memory", "port"):
        yield "reaches another gpu, expected a memory or port channel type"
        return
    if op.channel_type == "port":
        if op.name not in ("put", "pws", "pwsf", "ppkt", "rppkt"):
            yield "cannot go through a port channel, which only puts"
        elif len(op.channel_ids) != len(op.dst_buff):
            yield f"names {len(op.channel_ids)} port channels for {len(op.dst_buff)} destinations"
    if plan.protocol != "LL" and any(letter in "PQT" for letter in given[0] + given[1]):
        yield "moves packets, expected protocol LL"
    for chunks, letter in zip((*op.src_buff, *op.dst_buff), given[0] + given[1], strict=True):
        yield from _chunks(plan, gpu, block, op, chunks, letter)


def _chunks(
    plan: ExecutionPlan, gpu: Gpu, block: ThreadblockPlan, op: PlanOperation, chunks: Chunks, letter: str
) -> Iterator[str]:
    named = [chunks.type, chunks.buffer_id, chunks.switch_channel_id]
    if sum(name is not None for name in named) != 1:
        yield "has an operand that is not exactly one of local, remote and switch"
        return
    wanted = 0 if letter in "LP" else 1 if letter in "RQ" else 2
    if named[wanted] is None:
        yield f"has an operand that is not {('local', 'remote', 'on a switch')[wanted]}"
        return
    owners, buffer = [gpu], str(chunks.type)
    if chunks.buffer_id is not None:
        buffers = buffers_of(block, op.channel_type)
        if chunks.buffer_id >= len(buffers):
            yield f"names remote buffer {chunks.buffer_id}, the threadblock has {len(buffers)}"
            return
        found = gpu.remote_buffers[buffers[chunks.buffer_id]]
        owners, buffer = [plan.gpus[found.rank]], found.type
    if chunks.switch_channel_id is not None:
        ids = ids_of(block, "switch")
        if chunks.switch_channel_id >= len(ids):
            yield f"names switch channel {chunks.switch_channel_id}, the threadblock has {len(ids)}"
            return
        buffer, ranks = switches_of(gpu)[ids[chunks.switch_channel_id]]
        owners = [plan.gpus[rank] for rank in ranks]
    if letter in "PQT" and buffer != "s":
        yield f"has packets in buffer {buffer}, expected scratch"
    for owner in owners:
        plain = 2 if plan.protocol == "LL" and letter not in "PQT" else 1
        room = {"i": owner.input_chunks, "o": owner.output_chunks, "s": plain * owner.scratch_chunks}[buffer]
        if chunks.index + chunks.size > room:
            last = chunks.index + chunks.size - 1
            yield f"reaches chunk {last} of buffer {buffer} of gpu {owner.id}, which has {room}"


def _work(plan: ExecutionPlan) -> Iterator[str]:
    """Numbers so large that no program of use has them would keep the checker busy for hours."""
    tables = ResolvedPlan(plan)
    chunks = sum(gpu.input_chunks + gpu.output_chunks for gpu in plan.gpus)
    chunks += sum(chunks.size for block in tables.blocks for flat in block for chunks, *_ in flat.parts)
    tokens = sum(semaphore.init_value for gpu in plan.gpus for semaphore in gpu.semaphores)
    if (work := chunks * tables.units + tokens) > MAX_UNITS:
        yield f"the plan has {work} parts of chunks and tokens to follow, expected at most {MAX_UNITS}"


def _overlays(plan: ExecutionPlan) -> Iterator[str]:
    """A packet takes the room of two chunks; plain data in scratch must stay clear of packets."""
    if plan.protocol != "LL":
        return
    packets: set[tuple[int, int]] = set()
    plain: dict[tuple[int, int], str] = {}
    tables = ResolvedPlan(plan)
    for block in tables.blocks:
        for flat in block:
            for operand in operands_of(flat, tables.units):
                found = {(operand.rank, unit // tables.units) for unit in operand.units}
                if operand.packets:
                    packets |= found
                elif operand.buffer == "s":
                    plain.update((chunk, flat.spot) for chunk in found)
    for (rank, unit), spot in sorted(plain.items()):
        if (rank, unit // 2) in packets:
            yield f"{spot}: plain data in scratch chunk {unit} of gpu {rank} lies over packet {unit // 2}"


def nop_findings(plan: ExecutionPlan) -> list[str]:
    """Where threads of a block may run ahead of each other: one thread signals and waits, all move data.

    Data before a signal needs a nop between, and data after a wait, and data on the same chunks. Operations on packets
    all deal the elements of a range out to the threads alike, so two of them keep each element in order where their
    ranges begin at the same place.
    """
    tables = ResolvedPlan(plan)
    return [finding for block in tables.blocks for finding in _nops(block, tables.units)]


@dataclass(frozen=True, slots=True)
class _Access:
    """`begin`: where the range of a packet operation begins; absent for others, which deal out differently."""

    written: bool
    begin: int | None
    spot: str

    def meets(self, other: _Access) -> bool:
        """Whether different threads may be at one element at the same time."""
        return (self.written or other.written) and (self.begin is None or self.begin != other.begin)


def _nops(block: Sequence[Flat], units: int) -> Iterator[str]:
    used: dict[tuple[str, int], list[_Access]] = defaultdict(list)
    moved = waited = ""
    for flat in block:
        name, spot = flat.op.name, flat.spot
        if name in ("nop", "barrier"):
            used.clear()
            moved = waited = ""
        elif name in ("wait", "rlxwait", "sem_acquire", "flush"):
            waited = spot
        elif name in ("signal", "rlxsignal", "sem_release"):
            if moved:
                yield f"{spot}: {name} while other threads may still be at {moved}; a nop is missing"
        else:
            operands = operands_of(flat, units)
            plain = [part for part in operands if not part.packets]
            by_element = len(plain) < len(operands) and flat.op.channel_type != "port"
            if waited and plain:
                yield f"{spot}: {name} by threads that have not seen {waited}; a nop is missing"
            accesses = [
                ((part.buffer, unit), _Access(part.written, part.units.start if by_element else None, spot))
                for part in plain
                if part.rank == flat.rank
                for unit in part.units
            ]
            shared = [before for key, access in accesses for before in used[key] if access.meets(before)]
            if shared:
                where = shared[0].spot
                yield f"{spot}: {name} on chunks that other threads may still be at in {where}; a nop is missing"
            for key, access in accesses:
                used[key].append(access)
            moved = spot
