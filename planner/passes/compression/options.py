"""What can be done with a group of gradients: the tree of options of Espresso, generated from its grammar.

An option is a row of steps. `compress@device` and `decompress@host` name a place; a collective names its routine and
its scope, `flat`, `intra` or `inter`. A decompress adds up all payloads that a rank holds. Of a pair of steps in one
scope the first (reduce-scatter, alltoall, reduce, gather) divides a tensor, the second (allgather, broadcast) puts it
together. An allgather without a first step gives every rank the payloads of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

Option = tuple[str, ...]
SECOND = {"reduce-scatter": "allgather", "alltoall": "allgather", "reduce": "broadcast", "gather": "broadcast"}
RAW_FIRST, PAYLOAD_FIRST = ("reduce-scatter", "reduce"), ("alltoall", "gather")


@cache
def options(places: tuple[str, ...], hierarchical: bool) -> tuple[Option, ...]:
    """All options of the tree: 63 flat and 4,278 hierarchical ones with two places, 12 and 162 with one."""
    return _hierarchical(places) if hierarchical else _flat(places)


@cache
def summed(places: tuple[str, ...], hierarchical: bool) -> tuple[Option, ...]:
    """Options outside the tree, for compressors whose payloads can be added up by an allreduce."""
    before, after = (("reduce-scatter@intra",), ("allgather@intra",)) if hierarchical else ((), ())
    middle = "allreduce@inter" if hierarchical else "allreduce@flat"
    return tuple((*before, *_in(one), middle, *_out(other), *after) for one in places for other in places)


@cache
def compressions(option: Option) -> int:
    """How often it encodes."""
    return sum(step.startswith("compress@") for step in option)


def _in(place: str) -> Option:
    return (f"compress@{place}",)


def _out(place: str) -> Option:
    return (f"decompress@{place}",)


def _joined(*parts: Sequence[Option]) -> tuple[Option, ...]:
    return tuple(sum(chosen, ()) for chosen in product(*parts))


def _flat(places: tuple[str, ...]) -> tuple[Option, ...]:
    def one(step: str) -> list[Option]:
        return [(f"{step}@flat",)]

    compress, decompress = [_in(p) for p in places], [_out(p) for p in places]
    found: list[Option] = [("allreduce@flat",)]
    for first in RAW_FIRST:
        second = one(SECOND[first])
        found += _joined(one(first), second)
        found += _joined(one(first), compress, second, decompress)
    found += _joined(compress, one("allgather"), decompress)
    for first in PAYLOAD_FIRST:
        second = one(SECOND[first])
        found += _joined(compress, one(first), second, decompress)
        found += _joined(compress, one(first), decompress, second)
        found += _joined(compress, one(first), decompress, compress, second, decompress)
    return tuple(found)


def _hierarchical(places: tuple[str, ...]) -> tuple[Option, ...]:
    """The symbols are those of the grammar: T1 to T5 are what may follow within and after the step between nodes."""
    compress, decompress = [_in(p) for p in places], [_out(p) for p in places]

    def at(step: str, scope: str) -> list[Option]:
        return [(f"{step}@{scope}",)]

    found: list[Option] = []
    for first in (*RAW_FIRST, *PAYLOAD_FIRST):
        last = at(SECOND[first], "intra")
        t1 = (*last, *_joined(compress, last, decompress))
        t2 = (*_joined(last, decompress), *_joined(decompress, t1))

        def t5(second: list[Option], t1: Sequence[Option] = t1, t2: Sequence[Option] = t2) -> tuple[Option, ...]:
            return (*_joined(second, t1), *_joined(compress, second, t2))

        packed = [*_joined(at("allgather", "inter"), t2)]
        for between in PAYLOAD_FIRST:
            second = at(SECOND[between], "inter")
            packed += _joined(at(between, "inter"), (*_joined(second, t2), *_joined(decompress, t5(second))))
        t3 = [*_joined(at("allreduce", "inter"), t1)]
        for between in RAW_FIRST:
            t3 += _joined(at(between, "inter"), t5(at(SECOND[between], "inter")))
        t3 += _joined(compress, packed)
        if first in RAW_FIRST:
            found += _joined(at(first, "intra"), t3)
        else:
            found += _joined(compress, at(first, "intra"), (*packed, *_joined(decompress, t3)))
    return tuple(found)
