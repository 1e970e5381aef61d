"""Where the text, the head and the calls of a file meet a rule of a public runtime: one generator per rule, which
yields every such place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from treadle.codegen.collective.msccl.runtimes import COMMON_REQUIRED, Runtime
from treadle.codegen.collective.msccl.subject import MSCCL_MAX_BYTES, REQUIRED, Find, Spot, Subject, line_of
from treadle.codegen.collective.protocols import PROTOCOLS

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


def whole_lines(subject: Subject, runtime: Runtime) -> Iterator[Spot]:
    if subject.program.protocol == "LL128":
        yield Spot(subject.line, "proto LL128")


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
