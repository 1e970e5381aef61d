"""The names that shells offer as values of options."""

from __future__ import annotations

from collections.abc import Callable

from treadle.planner import resources


def profiles() -> list[str]:
    return [*resources.names("profiles"), "local"]


def shipped(folder: str) -> Callable[[], list[str]]:
    """A function that offers the names of the documents in a folder that ships with the tool."""

    def offered() -> list[str]:
        return resources.names(folder)

    return offered


sketches = shipped("sketches")


def methods() -> list[str]:
    from treadle.planner.passes.collective.planning import METHODS

    return ["auto", *METHODS]
