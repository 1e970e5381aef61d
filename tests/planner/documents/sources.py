"""The origin of every number of a hardware profile."""

from __future__ import annotations

from treadle.planner.documents.hardware import Hardware


def source_of(hardware: Hardware, path: str) -> str | None:
    """Where the number at `path` (`devices[0].count`) comes from: the entry of `sources` with the longest prefix."""
    while path:
        if path in hardware.sources:
            return hardware.sources[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return None
