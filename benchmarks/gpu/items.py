"""The list of checks, and what each returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.common import Table


class Item(NamedTuple):
    """A check and the seconds that it may take on a card. A name MODULE.WORD is `check(dry, WORD)` of that module."""

    name: str
    seconds: int


@dataclass(frozen=True)
class Outcome:
    """What a check found, in some words, and the tables that it measured."""

    figure: str
    tables: tuple[Table, ...] = ()


class Kernel(NamedTuple):
    """A library that a check needs; `build` compiles it for nvcc's -arch, None for that of the card. `shared`: many
    programs run on its text; a dry run compiles it for several architectures, the others for one."""

    name: str
    build: Callable[[str | None], object]
    shared: bool = False


ITEMS = (
    Item("compile", 180),
    Item("collective.Simple", 45),
    Item("collective.LL", 45),
    Item("collective.LL128", 45),
    Item("symmetric", 45),
    Item("throughput", 60),
    Item("fusion", 90),
    Item("memory", 90),
    Item("swap", 60),
    Item("operators", 45),
    Item("compression", 45),
    Item("sparse", 45),
    Item("server", 45),
    Item("checkpoint", 45),
)
