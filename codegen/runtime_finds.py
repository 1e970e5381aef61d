"""Where a file meets a rule of a public runtime: one generator per rule, which yields every such place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, cast

from lxml import etree

from codegen import check_program
from codegen.msccl_xml import document
from codegen.program import RECEIVING, SENDING, Program, Step, Threadblock
from codegen.protocols import PROTOCOLS
from codegen.runtimes import COMMON_REQUIRED, Runtime

REQUIRED = {
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"),
}
"""Attributes that every runtime insists on, by element."""


MSCCL_MAX_BYTES = 1 << 27
"""What microsoft/msccl takes for a missing maxBytes."""


class Spot(NamedTuple):
    """Where a rule applies (`line` 0 is the whole file) and what was found there."""

    line: int
    found: str


def line_of(element: etree._Element) -> int:
    return cast("int | None", element.sourceline) or 0


class Subject:
    """A file as the rules look at it: the text, its elements and the program it means."""

    def __init__(self, text: str, program: Program) -> None:
        self.text, self.program = text, program
        self.algo = document(text, "")
        self.line = line_of(self.algo)

    @cached_property
    def plain(self) -> str:
        """The text with comments blanked out, so that lines still count."""
        return re.sub(r"<!--.*?-->", lambda match: re.sub(r"[^\n]", " ", match.group()), self.text, flags=re.DOTALL)

    def line_at(self, position: int) -> int:
        return self.plain.count("\n", 0, position) + 1

    @cached_property
    def blocks(self) -> list[tuple[int, int, Threadblock]]:
        return [
            (rank, index, block)
            for rank, ranked in enumerate(self.program.ranks)
            for index, block in enumerate(ranked.threadblocks)
        ]

    @cached_property
    def missing(self) -> Counter[tuple[str, str, int]]:
        """(element, attribute) that some runtime may want and that is not there, with the first line and how often."""
        found: Counter[tuple[str, str]] = Counter()
        first: dict[tuple[str, str], int] = {}
        for tag, names in REQUIRED.items():
            for element in self.algo.iter(tag):
                for name in names:
                    if name not in element.attrib:
                        found[tag, name] += 1
                        first.setdefault((tag, name), line_of(element))
        return Counter({(*key, first[key]): count for key, count in found.items()})

    @cached_property
    def needs_copies(self) -> bool:
        """Whether the result is right with the local copies before the first step, and wrong without."""
        program = self.program
        bare = replace(program, ranks=tuple(replace(ranked, copies=()) for ranked in program.ranks))
        return not check_program.check(program) and bool(check_program.check(bare))

    @property
    def multiplier(self) -> int:
        """A call's bytes are count * type size * this."""
        gathers = self.program.collective in ("allgather", "reducescatter", "alltoall")
        return len(self.program.ranks) if gathers else 1


Find = Callable[[Subject, Runtime], Iterator[Spot]]


# The text.

_TAG = re.compile(r"<[^>]*>")
_READABLE = re.compile(r'<(?:/[^\s/>]+|[^\s/>=]+(?: +(?:[^\s=/>]+="[^"]*")?)* */?)>')
_PAIR = re.compile(r' ( *)([^\s=/>]+)="([^"]*)"')


def declaration(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    at = subject.plain.find("<?")
    if at >= 0:
        yield Spot(subject.line_at(at), f"found {subject.plain[at : at + 20].splitlines()[0]}...")


def unreadable_tag(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for match in _TAG.finditer(subject.plain):
        tag = match.group()
        if not tag.startswith(("<?", "<!")) and _READABLE.fullmatch(tag) is None:
            yield Spot(subject.line_at(match.start()), f"found {' '.join(tag.split())[:40]}")


def stray_text(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    """What stands between elements; comments are left out with the blanks around them."""
    text = _TAG.sub(lambda match: "\n" * match.group().count("\n"), subject.plain)
    for number, line in enumerate(text.split("\n"), 1):
        strange = line.strip(" \r\n")
        if strange:
            yield Spot(number, "found a tab" if not strange.strip() else f"found {strange[:20]!r}")


def late_attribute(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    """Every blank more than one counts as an attribute without a name; those past the limit overwrite one another."""
    needed = {*runtime.required, *(name for names in REQUIRED.values() for name in names)}
    for match in _TAG.finditer(subject.plain):
        tag = match.group()
        if tag.count("=") <= runtime.attributes and "  " not in tag:
            continue
        place = 0
        for pair in _PAIR.finditer(tag):
            place += len(pair.group(1)) + 1
            if place > runtime.attributes and pair.group(2) in needed:
                yield Spot(subject.line_at(match.start()), f"found {pair.group(2)} in place {place}")


def long_token(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for match in _TAG.finditer(subject.plain):
        if len(match.group()) <= runtime.token:
            continue
        for pair in _PAIR.finditer(match.group()):
            longest = max(pair.group(2), pair.group(3), key=len)
            if len(longest) > runtime.token:
                yield Spot(subject.line_at(match.start()), f"found {len(longest)} characters at {pair.group(2)[:20]}")


def many_nodes(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for rank, ranked in enumerate(subject.program.ranks):
        own = sum(1 + len(block.steps) for block in ranked.threadblocks)
        kept = 1 + len(subject.program.ranks) + own
        if kept >= runtime.nodes:
            yield Spot(ranked.line, f"gpu {rank} comes to {kept}")


def many_children(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    if len(subject.program.ranks) > runtime.children:
        yield Spot(subject.line, f"found {len(subject.program.ranks)} <gpu> in <algo>")
    for rank, ranked in enumerate(subject.program.ranks):
        if len(ranked.threadblocks) > runtime.children:
            yield Spot(ranked.line, f"found {len(ranked.threadblocks)} <tb> in gpu {rank}")


def unknown_element(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    known = {"algo": {"gpu"}, "gpu": {"tb", "copy"}, "tb": {"step", "op"}}
    for element in subject.algo.iter():
        for child in element:
            if child.tag not in known.get(str(element.tag), set()):
                yield Spot(line_of(child), f"found <{child.tag}> in <{element.tag}>")


# The head.


def missing_attribute(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    for name in runtime.required:
        if name not in subject.algo.attrib:
            yield Spot(subject.line, f"<algo> has no {name}")
    for (tag, name, line), count in subject.missing.items():
        yield Spot(line, f"<{tag}> has no {name}" + (f", {count} times" if count > 1 else ""))


def compact_dialect(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    ops = [line_of(op) for op in subject.algo.iter("op")]
    if ops:
        yield Spot(ops[0], f"found {len(ops)} <op>")


def collective_name(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    name = subject.algo.get("coll", "")
    if name not in runtime.collectives:
        yield Spot(subject.line, f"found {name}")


def inverted_range(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    low, high = int(subject.algo.get("minBytes", "0")), int(subject.algo.get("maxBytes", str(MSCCL_MAX_BYTES)))
    if low > high:
        yield Spot(subject.line, f"found {low} to {high}")


def never_in_range(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    program = subject.program
    low, written = program.min_bytes, program.max_bytes
    high = written
    if runtime.name == "msccl":
        written = int(subject.algo.get("maxBytes", str(MSCCL_MAX_BYTES)))
        if low > written:
            return  # refused
        high = written - 1
    elif written == 0:
        return
    step = max(program.chunks_per_loop, subject.multiplier)
    if high // step * step < max(1, low):
        yield Spot(subject.line, f"found {low} to {written} bytes, nchunksperloop {program.chunks_per_loop}")


def no_mode(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    if not subject.program.inplace and not subject.program.outofplace:
        yield Spot(subject.line, "found inplace 0, outofplace 0")


def send_recv_in_place(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    if subject.program.collective in ("send", "recv") and not subject.program.outofplace:
        yield Spot(subject.line, f"found {subject.program.collective} with outofplace 0")


def odd_threads(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    text = subject.algo.get("nthreads")
    if text is not None and (not text.isdigit() or int(text) % 32):
        yield Spot(subject.line, f"found nthreads {text}")


def many_channels(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    if subject.program.channels > runtime.channels:
        yield Spot(subject.line, f"found nchannels {subject.program.channels}")


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


def _each(subject: Subject) -> Iterator[tuple[str, Threadblock, Step]]:
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


def _awaited(subject: Subject) -> Iterator[tuple[int, int, int, Step, tuple[int, int]]]:
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


# Calls.


def byte_range(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    low = subject.program.min_bytes
    if runtime.name == "msccl":
        written = subject.algo.get("maxBytes")
        yield Spot(
            subject.line, f"runs from {low} to below {written or f'{MSCCL_MAX_BYTES} (no maxBytes: the default)'}"
        )
    elif low or subject.program.max_bytes:
        high = subject.program.max_bytes
        yield Spot(subject.line, f"runs from {low} bytes" + (f" to {high}" if high else ""))


def indivisible(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    if subject.program.chunks_per_loop > 1:
        found = f"nchunksperloop {subject.program.chunks_per_loop}"
        yield Spot(subject.line, found + (f", times {subject.multiplier} ranks" if subject.multiplier > 1 else ""))


def one_mode(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    program = subject.program
    if program.inplace != program.outofplace:
        yield Spot(subject.line, f"runs {'in place' if program.inplace else 'out of place'} only")


def msccl_mode(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    yield Spot(subject.line, f"runs {'in place' if subject.program.inplace else 'out of place'} only")


def reducing(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    if any(step.type in ("re", "ra", "rrs", "rrc", "rrcs") for _, _, step in subject.program.steps()):
        yield Spot(0, "the file reduces")


def rank_count(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    yield Spot(subject.line, f"ngpus {len(subject.program.ranks)}")


def always(words: str) -> Find:
    def find(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
        yield Spot(0, words)

    return find


def available_channels(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    if subject.program.channels > 1:
        yield Spot(subject.line, f"nchannels {subject.program.channels}")


def resident(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    most = max(len(ranked.threadblocks) for ranked in subject.program.ranks)
    if most > 1:
        yield Spot(0, f"up to {most} threadblocks")


def many_slices(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    slot = PROTOCOLS[subject.program.protocol].slot_bytes
    limit = slot * runtime.slices * subject.program.chunks_per_loop
    if 0 < subject.program.max_bytes <= limit or limit > 1 << 46:
        return
    yield Spot(subject.line, f"from {limit} bytes on")


def redop(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    if "redop" in subject.algo.attrib:
        yield Spot(subject.line, f"found redop {subject.algo.get('redop')}")


def unread_attribute(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    known = {"name", "redop", *COMMON_REQUIRED, "minBytes", "maxBytes"}
    known |= {"nthreads"} if runtime.name == "msccl" else {"outofplace"}
    for name in sorted({str(name) for name in subject.algo.attrib} - known):
        yield Spot(subject.line, f"found {name}")
