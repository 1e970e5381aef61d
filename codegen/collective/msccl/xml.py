"""MSCCL XML: the interchange format of collective programs (microsoft/msccl, RCCL, msccl-executor-nccl, TACCL).

`emit` writes what RCCL and msccl-executor-nccl require: `outofplace`, `minBytes` and `maxBytes` are always there, one
blank before each attribute, all ten attributes of a step. `parse` reads the four dialects: microsoft/msccl's without
`outofplace`, RCCL's, TACCL's with `<copy>` and `redop`, and the compact one of msccl-tools, `<op step type buf off>`
with what is 1 or absent left out. What only some runtime insists on is no error here but a rule of `runtime_rules`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal, cast, get_args

from lxml import etree

from treadle.codegen.collective.program import BlockStep, Buffer, CollectiveProgram, RankProgram, StepType, Threadblock
from treadle.planner.documents.collective import MAX_PLACES
from treadle.planner.documents.hardware import MAX_RANKS
from treadle.planner.documents.nearest import meant
from treadle.planner.errors import InputError

Dialect = Literal["rccl", "executor", "msccl"]

COLLECTIVES = (
    *("allgather", "allreduce", "alltoall", "alltoallv", "broadcast", "custom", "gather", "recv", "reduce"),
    *("reducescatter", "scatter", "send", "sendrecv"),
)
PROTOCOLS = ("Simple", "LL", "LL128")
REDUCTIONS = ("nop", "sum", "prod", "max", "min")
MAX_CHUNKS = 2 * MAX_PLACES
"""Chunks of one buffer over all ranks that a checker can follow one by one; instances cut planned chunks further."""
MAX_MOVED = 8 * MAX_CHUNKS
"""Chunks that all steps together may move."""

NO_LIMIT = 10**17
"""What microsoft/msccl needs for maxBytes where the others write 0 for no limit."""

_SPELLED: dict[Dialect, dict[str, str]] = {
    "rccl": {"sendrecv": "custom"},
    "executor": {"sendrecv": "custom"},
    "msccl": {
        "reducescatter": "reduce_scatter",
        **dict.fromkeys(("alltoallv", "gather", "scatter", "sendrecv", "send", "recv"), "custom"),
    },
}
"""Collectives that a dialect calls otherwise, or does not know."""

_NUMBER = re.compile(r"-?[0-9]{1,18}")


def emit(program: CollectiveProgram, dialect: Dialect = "rccl") -> str:
    """The XML text of `program`. microsoft/msccl spells reducescatter `reduce_scatter`, and takes a maxBytes of 0 for
    0 and every other one as the first count that is too large; what a dialect does not know is `custom`, for which
    microsoft/msccl wants buffers of one size; msccl-executor-nccl reads what RCCL reads."""
    collective = _SPELLED[dialect].get(program.collective, program.collective)
    if dialect == "msccl" and collective == "custom":
        program = _even(program)
    most = program.max_bytes
    if dialect == "msccl":
        most = most + 1 if most else NO_LIMIT
    algo = etree.Element(
        "algo",
        name=program.name,
        proto=program.protocol,
        nchannels=str(program.channels),
        nchunksperloop=str(program.chunks_per_loop),
        ngpus=str(len(program.ranks)),
        coll=collective,
        inplace=str(int(program.inplace)),
        outofplace=str(int(program.outofplace)),
        minBytes=str(program.min_bytes),
        maxBytes=str(most),
    )
    if program.root is not None:
        algo.set("root", str(program.root))
    for rank, ranked in enumerate(program.ranks):
        gpu = etree.SubElement(
            algo,
            "gpu",
            id=str(rank),
            i_chunks=str(ranked.input_chunks),
            o_chunks=str(ranked.output_chunks),
            s_chunks=str(ranked.scratch_chunks),
        )
        for source, target in ranked.copies:
            etree.SubElement(gpu, "copy", i_off=str(source), o_off=str(target))
        for index, block in enumerate(ranked.threadblocks):
            tb = etree.SubElement(
                gpu, "tb", id=str(index), send=_peer(block.send), recv=_peer(block.recv), chan=str(block.channel)
            )
            for position, step in enumerate(block.steps):
                etree.SubElement(tb, "step", _attributes(position, step))
    return etree.tostring(algo, pretty_print=True, encoding="unicode")


def _even(program: CollectiveProgram) -> CollectiveProgram:
    """All buffers as large as the largest, which the call's bytes are then counted in; what is new is never used."""
    loop = max(program.chunks_per_loop, *(max(rank.input_chunks, rank.output_chunks) for rank in program.ranks))
    old = program.chunks_per_loop
    ranks = tuple(
        replace(rank, input_chunks=loop if rank.input_chunks else 0, output_chunks=loop if rank.output_chunks else 0)
        for rank in program.ranks
    )
    low, high = program.min_bytes * loop // old, (program.max_bytes + 1) * loop // old - 1 if program.max_bytes else 0
    return replace(program, ranks=ranks, chunks_per_loop=loop, min_bytes=low, max_bytes=high)


def _peer(rank: int | None) -> str:
    return "-1" if rank is None else str(rank)


def _attributes(position: int, step: BlockStep) -> dict[str, str]:
    source = step.src or ("i", -1)
    target = step.dst or ("o", -1)
    depends = step.depends or (-1, -1)
    return {
        "s": str(position),
        "type": step.type,
        "srcbuf": source[0],
        "srcoff": str(source[1]),
        "dstbuf": target[0],
        "dstoff": str(target[1]),
        "cnt": str(step.count),
        "depid": str(depends[0]),
        "deps": str(depends[1]),
        "hasdep": str(int(step.awaited)),
    }


def parse(text: str, where: str) -> CollectiveProgram:
    """Read MSCCL XML; `where` is how errors call the file.

    Raises InputError `FILE: line N: /algo/gpu[0]/tb[1]/step[3]/@type: found X, expected Y` for every defect of form:
    what a program means is left to `check_program`.
    """
    root = document(text, where)
    algo = _Element(root, "/algo", where)
    if root.tag != "algo":
        raise algo.error(f"found <{root.tag}>, expected <algo>")
    ranks = algo.number("ngpus", 1, MAX_RANKS)
    collective = algo.word("coll")
    if collective == "reduce_scatter":
        collective = "reducescatter"
    if collective not in COLLECTIVES:
        raise algo.error(f"found {collective!r}, {meant(collective, COLLECTIVES)}", "coll")
    protocol = algo.word("proto", "Simple")
    if protocol not in PROTOCOLS:
        raise algo.error(f"found {protocol!r}, {meant(protocol, PROTOCOLS)}", "proto")
    reduction = algo.word("redop", "nop")
    if reduction not in REDUCTIONS:
        raise algo.error(f"found {reduction!r}, {meant(reduction, REDUCTIONS)}", "redop")
    inplace = algo.flag("inplace", 0)
    gpus = algo.children("gpu", "id")
    if len(gpus) != ranks:
        raise algo.error(f"found {ranks} for {len(gpus)} <gpu> elements, expected the number of them", "ngpus")
    most = MAX_CHUNKS // ranks
    programs = tuple(_rank(gpu, most) for gpu in gpus)
    compact = next(root.iter("op"), None) is not None
    largest = max(max(rank.input_chunks, rank.output_chunks) for rank in programs)
    limit = algo.number("maxBytes", 0, default=0)
    program = CollectiveProgram(
        name=algo.word("name", ""),
        collective=collective,
        ranks=programs,
        chunks_per_loop=algo.number("nchunksperloop", 1, most, default=max(1, largest) if compact else None),
        channels=algo.number("nchannels", 1),
        protocol=protocol,
        inplace=inplace,
        outofplace=algo.flag("outofplace", int(not inplace)),
        min_bytes=algo.number("minBytes", 0, default=0),
        max_bytes=limit if limit < NO_LIMIT else 0,
        root=None if "root" not in root.attrib else algo.number("root", 0, ranks - 1),
    )
    moved = 0
    for place, _, step in program.steps():
        moved += step.count if step.type != "nop" else 0
        if moved > MAX_MOVED:
            spot = f"line {step.line}: gpu {place.rank} tb {place.threadblock} step {place.step}/@cnt"
            message = f"found {moved} chunks moved up to here, expected at most {MAX_MOVED} by all steps together"
            raise InputError(message, where=where, path=spot)
    return program


def document(text: str, where: str) -> etree._Element:
    """The root element of an XML text, without comments. Raises InputError for broken XML and declared types."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError("found a document type declaration, expected plain MSCCL XML", where=where)
    parser = etree.XMLParser(
        encoding="utf-8", resolve_entities=False, no_network=True, huge_tree=True, remove_comments=True, remove_pis=True
    )
    try:
        return etree.fromstring(text.strip().encode(), parser)
    except etree.XMLSyntaxError as error:
        message = " ".join(str(error.msg).split())
        raise InputError(f"found broken XML ({message}), expected a whole document", where=where) from error


def _rank(gpu: _Element, most: int) -> RankProgram:
    copies = tuple((copy.number("i_off", 0), copy.number("o_off", 0)) for copy in gpu.children("copy"))
    return RankProgram(
        input_chunks=gpu.number("i_chunks", 0, most),
        output_chunks=gpu.number("o_chunks", 0, most),
        scratch_chunks=gpu.number("s_chunks", 0, most),
        threadblocks=tuple(_threadblock(block) for block in gpu.children("tb", "id")),
        copies=copies,
        line=gpu.line,
    )


def _threadblock(block: _Element) -> Threadblock:
    steps = block.children("step")
    compact = not steps
    number, steps = ("step", block.children("op")) if compact else ("s", steps)
    for position, step in enumerate(steps):
        if step.number(number, 0) != position:
            raise step.error(f"found {step.number(number, 0)}, expected {position}: steps in order from 0", number)
    send, recv = block.number("send", -1), block.number("recv", -1)
    return Threadblock(
        send=None if send < 0 else send,
        recv=None if recv < 0 else recv,
        channel=block.number("chan", 0),
        steps=tuple(_op(step) if compact else _step(step) for step in steps),
        line=block.line,
    )


def _type(step: _Element) -> StepType:
    kind = step.word("type")
    if kind not in get_args(StepType):
        raise step.error(f"found {kind!r}, {meant(kind, get_args(StepType))}", "type")
    return cast(StepType, kind)


def _depends(step: _Element, default: int | None = None) -> tuple[int, int] | None:
    block, position = step.number("depid", -1, default=default), step.number("deps", -1, default=default)
    if (block < 0) != (position < 0):
        raise step.error(f"found {position} with depid {block}, expected both or neither to be -1", "deps")
    return None if block < 0 else (block, position)


def _step(step: _Element) -> BlockStep:
    return BlockStep(
        type=_type(step),
        src=_operand(step, "srcbuf", "srcoff"),
        dst=_operand(step, "dstbuf", "dstoff"),
        count=step.number("cnt", 0),
        depends=_depends(step),
        awaited=step.flag("hasdep"),
        line=step.line,
    )


def _op(op: _Element) -> BlockStep:
    """A step of the compact dialect. Its one operand is where a send reads and all others write; a receive that adds
    or passes on works in that place as well, and a local step does not say where it reads."""
    kind = _type(op)
    if kind in ("cpy", "re", "ra"):
        raise op.error(f"found {kind} in the compact dialect, which does not say where it reads; write <step>", "type")
    place = None if kind == "nop" else _operand(op, "buf", "off")
    return BlockStep(
        type=kind,
        src=None if kind == "r" else place,
        dst=None if kind == "s" else place,
        count=op.number("cnt", 0, default=0 if kind == "nop" else 1),
        depends=_depends(op, -1),
        awaited=op.flag("hasdep", 0),
        line=op.line,
    )


def _operand(step: _Element, name: str, place: str) -> tuple[Buffer, int] | None:
    buffer, offset = step.word(name), step.number(place, -1)
    if buffer not in get_args(Buffer):
        raise step.error(f"found {buffer!r}, expected one of i, o, s", name)
    return None if offset < 0 else (cast(Buffer, buffer), offset)


class _Element:
    """An XML element that knows its place, so that every complaint can name it."""

    def __init__(self, element: etree._Element, path: str, where: str) -> None:
        self.element, self.path, self.where = element, path, where
        self.line = cast("int | None", element.sourceline) or 0

    def error(self, message: str, attribute: str = "") -> InputError:
        path = f"{self.path}/@{attribute}" if attribute else self.path
        return InputError(message, where=self.where, path=f"line {self.line}: {path}")

    def children(self, tag: str, identity: str = "") -> list[_Element]:
        """Children called `tag`; with `identity`, sorted by that attribute, which must count from 0 without holes."""
        found = [
            _Element(child, f"{self.path}/{tag}[{index}]", self.where)
            for index, child in enumerate(self.element.iterchildren(tag))
        ]
        if not identity:
            return found
        places: dict[int, _Element] = {}
        for child in found:
            number = child.number(identity, 0)
            if number in places:
                raise child.error(f"found {number} a second time, expected each once", identity)
            if number >= len(found):
                raise child.error(f"found {number}, expected 0 to {len(found) - 1} without holes", identity)
            places[number] = child
        return [places[number] for number in range(len(found))]

    def word(self, attribute: str, default: str | None = None) -> str:
        value = self.element.get(attribute, default)
        if value is None:
            raise self.error("found nothing, expected this required attribute", attribute)
        return str(value)

    def number(self, attribute: str, least: int, most: int | None = None, *, default: int | None = None) -> int:
        text = self.word(attribute, None if default is None else str(default))
        expected = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
        if _NUMBER.fullmatch(text) is None:
            raise self.error(f"found {text!r}, expected {expected}", attribute)
        value = int(text)
        if value < least or (most is not None and value > most):
            raise self.error(f"found {value}, expected {expected}", attribute)
        return value

    def flag(self, attribute: str, default: int | None = None) -> bool:
        return self.number(attribute, 0, 1, default=default) == 1
