"""Where threadblocks and steps of a file meet a rule of a public runtime: one generator per rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from treadle.codegen.collective.msccl.runtimes import Runtime
from treadle.codegen.collective.msccl.subject import Spot, Subject
from treadle.codegen.collective.program import RECEIVING, SENDING, BlockStep, Threadblock

# Ranks and threadblocks.


def buffer_sizes(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    program = subject.program
    ranks, loop = len(program.ranks), program.chunks_per_loop
    inputs = ranks if program.collective == "allgather" else 1
    outputs = ranks if program.collective == "reducescatter" else 1
    for rank, ranked in enumerate(program.ranks):
        for word, size in (("i", ranked.input_chunks * inputs), ("o", ranked.output_chunks * outputs)):
            if size not in (0, loop):
                yield Spot(ranked.line, f"gpu {rank}: {word}_chunks comes to {size}, nchunksperloop is {loop}")


def many_blocks(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, ranked in enumerate(subject.program.ranks):
        if len(ranked.threadblocks) > runtime.blocks:
            yield Spot(ranked.line, f"gpu {rank} has {len(ranked.threadblocks)}")


def blocks_per_channel(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, ranked in enumerate(subject.program.ranks):
        used: Counter[tuple[str, int]] = Counter()
        for block in ranked.threadblocks:
            used["send", block.channel] += block.send is not None
            used["receive", block.channel] += block.recv is not None
        for (word, channel), count in sorted(used.items()):
            if count > runtime.blocks_per_channel:
                yield Spot(ranked.line, f"gpu {rank}: {count} threadblocks {word} on channel {channel}")


def channel_above(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, index, block in subject.blocks:
        if block.channel > runtime.channels:
            yield Spot(block.line, f"gpu {rank} tb {index}: found {block.channel}")


def channel_at_end(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, index, block in subject.blocks:
        if block.channel == runtime.channels:
            yield Spot(block.line, f"gpu {rank} tb {index}: found {block.channel}")


def peer_above(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, index, block in subject.blocks:
        for word, peer in (("send", block.send), ("recv", block.recv)):
            if peer is not None and peer >= len(subject.program.ranks):
                yield Spot(block.line, f"gpu {rank} tb {index}: {word} {peer}")


def peer_itself(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, index, block in subject.blocks:
        if rank in (block.send, block.recv):
            yield Spot(block.line, f"gpu {rank} tb {index}")


# Steps.


def many_steps(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, index, block in subject.blocks:
        if len(block.steps) > runtime.steps:
            yield Spot(block.line, f"gpu {rank} tb {index} has {len(block.steps)}")


def _where(rank: int, index: int, at: int) -> str:
    return f"gpu {rank} tb {index} step {at}"


def _each(subject: Subject) -> Iterator[tuple[str, Threadblock, BlockStep]]:
    for rank, index, block in subject.blocks:
        for at, step in enumerate(block.steps):
            yield _where(rank, index, at), block, step


def unknown_type(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for where, _, step in _each(subject):
        if step.type not in runtime.types:
            yield Spot(step.line, f"{where}: {step.type}")


def large_count(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for where, _, step in _each(subject):
        if step.type != "nop" and step.count > runtime.count:
            yield Spot(step.line, f"{where}: {step.count}")


def peerless(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for where, block, step in _each(subject):
        if (step.type in SENDING and block.send is None) or (step.type in RECEIVING and block.recv is None):
            yield Spot(step.line, f"{where}: {step.type}")


_CHECKED = {
    "src": frozenset({"s", "rrs", "rrcs", "cpy", "re", "ra"}),
    "dst": frozenset({"r", "rcs", "rrcs", "cpy", "re", "ra"}),
}


def _offsets(subject: Subject, runtime: Runtime, overrun: bool) -> Iterator[Spot]:
    """Operands that start behind their buffer and are looked at, or that only reach or are not looked at."""
    for rank, index, block in subject.blocks:
        ranked = subject.program.ranks[rank]
        sizes = {"i": ranked.input_chunks, "o": ranked.output_chunks, "s": ranked.scratch_chunks}
        for at, step in enumerate(block.steps):
            for side, operand in (("src", step.src), ("dst", step.dst)):
                if operand is None:
                    continue
                used = operand in step.reads or operand == step.writes
                seen = step.type in _CHECKED[side] and operand[1] >= sizes[operand[0]]
                over = used and operand[1] + step.count > sizes[operand[0]] and not seen
                if over if overrun else seen:
                    found = f"{side}off {operand[1]} cnt {step.count} of {sizes[operand[0]]} {operand[0]} chunks"
                    yield Spot(step.line, f"{_where(rank, index, at)}: {found}")


def offset_behind(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    return _offsets(subject, runtime, overrun=False)


def overrun(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    return _offsets(subject, runtime, overrun=True)


def broken_chain(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, index, block in subject.blocks:
        pending = 0
        for at, step in enumerate(block.steps):
            pending += step.depends is not None
            if step.type == "nop":
                continue
            if pending and step.depends is None and not _continues(block, at, runtime):
                yield Spot(step.line, _where(rank, index, at))
            pending = 0


def _continues(block: Threadblock, at: int, runtime: Runtime) -> bool:
    """Whether the runtime joins the step at `at` to the reduction before it."""
    step, before = block.steps[at], block.steps[at - 1] if at else None
    return (
        before is not None
        and step.type == before.type == "re"
        and step.depends is None
        and not before.awaited
        and (step.dst, step.src and step.src[0]) == (before.dst, before.src and before.src[0])
    )


def fused_counts(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, index, block in subject.blocks:
        for at in range(1, len(block.steps)):
            if _continues(block, at, runtime) and block.steps[at].count != block.steps[at - 1].count:
                found = f"cnt {block.steps[at - 1].count}, then {block.steps[at].count}"
                yield Spot(block.steps[at].line, f"{_where(rank, index, at)}: {found}")


def _awaited(subject: Subject) -> Iterator[tuple[int, int, int, BlockStep, tuple[int, int]]]:
    for rank, index, block in subject.blocks:
        for at, step in enumerate(block.steps):
            if step.depends is not None:
                yield rank, index, at, step, step.depends


def high_block(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, index, at, step, depends in _awaited(subject):
        if depends[0] > runtime.awaited_block:
            yield Spot(step.line, f"{_where(rank, index, at)}: waits for tb {depends[0]}")


def silent_step(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    """No step from the awaited one on raises the flag: a nop raises none, whatever its hasdep."""
    for rank, index, at, step, (block, position) in _awaited(subject):
        blocks = subject.program.ranks[rank].threadblocks
        later = blocks[block].steps[position:] if block < len(blocks) else ()
        if not any(other.awaited and other.type != "nop" for other in later):
            yield Spot(step.line, f"{_where(rank, index, at)}: waits for tb {block} step {position}")


def needed_copies(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    program = subject.program
    lines = [ranked.line for ranked in program.ranks if ranked.copies]
    if lines and subject.needs_copies:
        yield Spot(lines[0], f"found {sum(len(ranked.copies) for ranked in program.ranks)}, which the result needs")


def idle_copies(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    program = subject.program
    lines = [ranked.line for ranked in program.ranks if ranked.copies]
    if lines and not subject.needs_copies:
        yield Spot(lines[0], f"found {sum(len(ranked.copies) for ranked in program.ranks)}, in place they do nothing")
