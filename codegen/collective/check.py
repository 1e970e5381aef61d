"""The independent checker of collective programs, ours and other people's MSCCL XML.

Three layers, each relying on the one before: the form of every step; the matching of sends and receives and the absence
of deadlock on bounded FIFOs; and, for calls out of place and in place, a symbolic execution in which a chunk is the
multiset of contributions summed into it, together with a search for data races under the happens-before order of
threadblocks, dependences and messages. Shares no code with `lower`.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.codegen.collective import order
from treadle.codegen.collective.program import (
    BUFFER_NAMES,
    READING,
    RECEIVING,
    SENDING,
    WRITING,
    BlockStep,
    Buffer,
    CollectiveProgram,
    Place,
    RankProgram,
    Threadblock,
)
from treadle.codegen.collective.protocols import PROTOCOLS, piece_chunks
from treadle.codegen.collective.symbolic import UNSPECIFIED, ExpectedOutputs, SymbolicExecution, wrong_results

MAX_NAMED = 20
"""Findings of one kind that are spelled out; the rest are counted."""


def check(
    program: CollectiveProgram, *, fifo_depth: int | None = None, expected: ExpectedOutputs | None = None
) -> list[str]:
    """What is wrong with `program`, one sentence each naming `gpu G tb T step S (line N)`; empty when it is right.

    `fifo_depth` is how many messages a connection holds, by default what the program's protocol gives it in the public
    runtimes (2 for Simple, 8 for LL and LL128). The search for deadlocks is repeated with steps cut into the messages
    that the largest size of the program makes of them. `expected` are the required outputs, by default those of the
    collective; custom, alltoallv, sendrecv, send and recv have none, and everything else is still checked.
    """
    depth = PROTOCOLS[program.protocol].slots if fifo_depth is None else fifo_depth
    findings = [*_sizes(program), *_blocks(program), *_steps(program)]
    if findings:
        return shortened(findings)
    findings = [*_pairs(program)]
    if findings:
        return shortened(findings)
    run = order.run(program, depth)
    if run.stuck:
        return shortened(_deadlock(program, run, _slots(depth)))
    findings = _large(program, depth)
    if findings:
        return shortened(findings)
    modes = [(False, "out of place"), (True, "in place")]
    if program.outofplace != program.inplace:
        modes = [mode for mode in modes if mode[0] == program.inplace]
    for inplace, name in modes:
        suffix = f" (called {name})" if len(modes) > 1 else ""
        replay = SymbolicExecution(program, inplace)
        races = replay.follow(run.sequence)
        wrong = list(wrong_results(program, replay, MAX_NAMED, expected))
        findings += [text + suffix for text in shortened(races) + shortened(wrong)]
    return findings


def smallest_piece(program: CollectiveProgram) -> int:
    """The fewest chunks that a message of several is cut into, at the program's largest size (0 is without limit)."""
    if not program.max_bytes:
        return 1
    return piece_chunks(-(-program.max_bytes // program.chunks_per_loop), PROTOCOLS[program.protocol].slot_bytes)


def _large(program: CollectiveProgram, depth: int) -> list[str]:
    """Deadlocks of calls whose chunks are so large that steps of several are cut into more messages than slots."""
    largest = max((step.count for _, _, step in program.steps()), default=0)
    stuck = None
    piece = smallest_piece(program)
    while piece < largest:
        run = order.run(program, depth, piece)
        if not run.stuck:
            break
        stuck, piece = stuck or run, piece + 1
    if stuck is None:
        return []
    most = program.chunks_per_loop * (PROTOCOLS[program.protocol].slot_bytes // piece)
    return _deadlock(program, stuck, f"{_slots(depth)} in calls of more than {most} bytes (set maxBytes to that)")


def _slots(depth: int) -> str:
    return f"{depth} message {'slot' if depth == 1 else 'slots'} per connection"


def shortened(findings: list[str]) -> list[str]:
    """The first MAX_NAMED findings, and how many more there are."""
    hidden = len(findings) - MAX_NAMED
    return findings if hidden <= 0 else [*findings[:MAX_NAMED], f"and {hidden} more findings like these"]


def _line(part: BlockStep | Threadblock | RankProgram) -> str:
    return f" (line {part.line})" if part.line else ""


# Form.


def _sizes(program: CollectiveProgram) -> Iterator[str]:
    """Buffer sizes against nchunksperloop; an in-place program may leave out the buffer that the other contains."""
    loop, ranks = program.chunks_per_loop, len(program.ranks)
    if not program.inplace and not program.outofplace:
        yield "algo: neither in place nor out of place, so no call can use it"
    if program.collective in UNSPECIFIED:
        return
    if program.collective in ("allgather", "reducescatter", "alltoall") and loop % ranks:
        yield f"algo: nchunksperloop {loop} is no multiple of the {ranks} ranks, as {program.collective} needs"
        return
    part = program.part_chunks
    if program.collective in ("gather", "scatter") and loop not in (part, part * ranks):
        yield f"algo: nchunksperloop {loop}, expected one rank's {part} chunks or the {part * ranks} of all"
    wanted = {
        "allgather": (part, loop),
        "reducescatter": (loop, part),
        "gather": (part, part * ranks),
        "scatter": (part * ranks, part),
    }.get(program.collective, (loop, loop))
    contained = "i" if program.collective in ("allgather", "gather") else "o"
    one_sided = {"broadcast": "i", "reduce": "o", "gather": "o", "scatter": "i"}.get(program.collective)
    for rank, ranked in enumerate(program.ranks):
        found = {"i": ranked.input_chunks, "o": ranked.output_chunks}
        for buffer, size in zip("io", wanted, strict=True):
            omitted = program.inplace and not program.outofplace and buffer == contained and found[buffer] == 0
            unused = found[buffer] == 0 and (buffer == one_sided or program.collective in ("broadcast", "reduce"))
            if found[buffer] != size and not omitted and not unused:
                yield f"gpu {rank}{_line(ranked)}: {buffer}_chunks is {found[buffer]}, expected {size}"


def _blocks(program: CollectiveProgram) -> Iterator[str]:
    ranks = len(program.ranks)
    for rank, ranked in enumerate(program.ranks):
        owners: dict[tuple[str, int, int], int] = {}
        for index, block in enumerate(ranked.threadblocks):
            spot = f"gpu {rank} tb {index}{_line(block)}"
            if block.channel >= program.channels:
                yield f"{spot}: channel {block.channel}, expected one below nchannels {program.channels}"
            for word, peer in (("send", block.send), ("recv", block.recv)):
                if peer is None:
                    continue
                if peer == rank:
                    yield f"{spot}: {word} peer is its own gpu"
                elif peer >= ranks:
                    yield f"{spot}: {word} peer {peer}, expected a gpu below {ranks}"
                first = owners.setdefault((word, peer, block.channel), index)
                if first != index:
                    yield (
                        f"{spot}: second threadblock with {word} peer {peer} on channel {block.channel}, "
                        f"tb {first} already has that connection"
                    )
        for source, target in ranked.copies:
            if source >= ranked.input_chunks or target >= ranked.output_chunks:
                yield f"gpu {rank}{_line(ranked)}: copy of input chunk {source} to output chunk {target} out of bounds"


def _steps(program: CollectiveProgram) -> Iterator[str]:
    for place, block, step in program.steps():
        ranked = program.ranks[place.rank]
        sizes: dict[Buffer, int] = {"i": ranked.input_chunks, "o": ranked.output_chunks, "s": ranked.scratch_chunks}
        for problem in _step(ranked, sizes, place, block, step):
            yield f"{program.spot(place)}: {problem}"


def _step(
    ranked: RankProgram, sizes: dict[Buffer, int], place: Place, block: Threadblock, step: BlockStep
) -> Iterator[str]:
    if step.type in SENDING and block.send is None:
        yield f"type {step.type} in a threadblock without a send peer"
    if step.type in RECEIVING and block.recv is None:
        yield f"type {step.type} in a threadblock without a recv peer"
    if step.type != "nop" and step.count < 1:
        yield f"type {step.type} moves {step.count} chunks, expected at least 1"
    if (step.type in READING or step.type == "ra") and step.src is None:
        yield f"type {step.type} has no source (srcoff -1)"
    if step.type in WRITING and step.dst is None:
        yield f"type {step.type} has no destination (dstoff -1)"
    for operand in (*step.reads, step.writes):
        if operand is not None and operand[1] + step.count > sizes[operand[0]]:
            last = operand[1] + step.count - 1
            yield (
                f"type {step.type} reaches {BUFFER_NAMES[operand[0]]} chunk {last}, "
                f"the buffer has {sizes[operand[0]]} chunks"
            )
    if step.type in ("cpy", "re") and step.src is not None and step.dst is not None and step.src[0] == step.dst[0]:
        distance = abs(step.src[1] - step.dst[1])
        if 0 < distance < step.count or (distance == 0 and step.type == "re"):
            yield f"type {step.type} has a source that overlaps its destination"
    if step.type == "nop" and step.depends is None:
        yield "type nop waits for nothing"
    after = block.steps[place.step + 1] if place.step + 1 < len(block.steps) else None
    if step.type == "nop" and after is not None and after.depends is None:
        yield "type nop before a step without a dependence; the public runtimes refuse the file"
    if step.depends is not None:
        yield from _dependence(ranked, place, step.depends)


def _dependence(ranked: RankProgram, place: Place, depends: tuple[int, int]) -> Iterator[str]:
    block, position = depends
    if block >= len(ranked.threadblocks):
        yield f"waits for tb {block}, the gpu has {len(ranked.threadblocks)} threadblocks"
    elif position >= len(ranked.threadblocks[block].steps):
        yield f"waits for tb {block} step {position}, that threadblock has {len(ranked.threadblocks[block].steps)}"
    elif block == place.threadblock and position >= place.step:
        yield f"waits for step {position} of its own threadblock, which never comes before it"
    elif not ranked.threadblocks[block].steps[position].awaited:
        yield f"waits for tb {block} step {position}, which never says it is done (hasdep 0)"


# Messages and deadlock.


def _pairs(program: CollectiveProgram) -> Iterator[str]:
    """The k-th send of a connection must meet a k-th receive of the same number of chunks."""

    def count(place: Place) -> int:
        return program.step(place).count

    for link, ends in order.connections(program).items():
        name = f"gpu {link.src} to gpu {link.dst} on channel {link.channel}"
        for number, (sent, received) in enumerate(zip(ends.sends, ends.receives, strict=False)):
            if count(sent) != count(received):
                yield (
                    f"{program.spot(received)}: receives {count(received)} chunks, but message {number} from {name} "
                    f"has {count(sent)} ({program.spot(sent)})"
                )
        for place in ends.sends[len(ends.receives) :]:
            yield f"{program.spot(place)}: message from {name} is never received, it stays in flight"
        for place in ends.receives[len(ends.sends) :]:
            yield f"{program.spot(place)}: receives from {name} what is never sent"


def _deadlock(program: CollectiveProgram, run: order.ExecutionOrder, slots: str) -> list[str]:
    """Why each stuck threadblock cannot go on, the members of a cycle of dependences first."""
    named = {(place.rank, place.threadblock): place for place in run.stuck}
    ends, ran = order.connections(program), set(run.sequence)
    waits: dict[tuple[int, int], tuple[int, int]] = {}
    reasons: dict[tuple[int, int], str] = {}
    for (key, place), obstacle in zip(named.items(), run.obstacles, strict=True):
        block = program.ranks[place.rank].threadblocks[place.threadblock]
        step = block.steps[place.step]
        received, sent = order.incoming(place, block, step), order.outgoing(place, block, step)
        if obstacle == "dependence" and step.depends is not None:
            waits[key] = (place.rank, step.depends[0])
            reasons[key] = f"waits for tb {step.depends[0]} step {step.depends[1]}"
        elif obstacle == "message" and received is not None:
            sender = ends[received].sends[ends[received].receives.index(place)]
            waits[key] = (sender.rank, sender.threadblock)
            reasons[key] = f"waits for a message of {program.spot(sender)}"
        elif sent is not None:
            oldest = next(end for end in ends[sent].receives if end not in ran)
            waits[key] = (oldest.rank, oldest.threadblock)
            reasons[key] = f"waits for room on its connection, until {program.spot(oldest)} receives"
    cycle = _cycle(waits)
    local = all(waits[key][0] == key[0] for key in cycle)
    kind = "cyclic dependence" if local else f"deadlock with {slots}"
    return [
        f"{program.spot(named[key])}: {kind if key in cycle else 'stuck behind a deadlock'}: {reasons[key]}"
        for key in [*cycle, *(key for key in reasons if key not in cycle)]
    ]


def _cycle(waits: dict[tuple[int, int], tuple[int, int]]) -> list[tuple[int, int]]:
    """A cycle of `waits`, in which every key has one successor."""
    for start in waits:
        path: list[tuple[int, int]] = []
        at = start
        while at in waits and at not in path:
            path.append(at)
            at = waits[at]
        if at in path:
            return path[path.index(at) :]
    return []
