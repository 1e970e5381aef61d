"""A file as the rules of public runtimes look at it, and what a rule answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, cast

from lxml import etree

from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.msccl.runtimes import Runtime
from treadle.codegen.collective.msccl.xml import document
from treadle.codegen.collective.program import CollectiveProgram, Threadblock

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

    def __init__(self, text: str, program: CollectiveProgram) -> None:
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
        return list(self.program.blocks())

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
