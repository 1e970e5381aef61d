"""The names that shells offer as values of options."""

from __future__ import annotations

from treadle.planner import resources


def profiles() -> list[str]:
    return [*resources.names("profiles"), "local"]


def sketches() -> list[str]:
    return resources.names("sketches")


def methods() -> list[str]:
    from treadle.planner.passes.collective.planning import METHODS

    return ["auto", *METHODS]
