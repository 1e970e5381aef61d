"""How arrays are evaluated: on how many workers, by what, and when without being asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal

from treadle.planner.passes.tiling.decisions import AskedMethod


@dataclass(frozen=True)
class ArraySettings:
    """`engine`: NumPy on whole arrays, or a planned tiling run by the interpreter of tiles on `workers`, a number or
    the shape of a mesh. `limit`:
    a graph of that many operations is evaluated at once. `cache`: evaluation keeps what the user still has a name for.
    `fuse_maps`, `fuse_folds`: maps run together with the maps and folds that read them."""

    engine: Literal["numpy", "tiles"] = "numpy"
    workers: int | tuple[int, ...] = 1
    method: AskedMethod = "sweep"
    limit: int = 10_000
    cache: bool = True
    fuse_maps: bool = False
    fuse_folds: bool = False


_DEFAULT = ArraySettings()
CURRENT: ContextVar[ArraySettings] = ContextVar("settings", default=_DEFAULT)
CAPTURING: ContextVar[bool] = ContextVar("capturing", default=False)


@contextmanager
def using(**changed: Any) -> Iterator[ArraySettings]:
    """Evaluate arrays inside the block by changed `ArraySettings`; with more than one worker, by tiles.

    >>> with using(workers=4):
    ...     print(x @ y)
    """
    if changed.get("workers", 1) != 1:
        changed = {"engine": "tiles", **changed}
    mark = CURRENT.set(replace(CURRENT.get(), **changed))
    try:
        yield CURRENT.get()
    finally:
        CURRENT.reset(mark)
