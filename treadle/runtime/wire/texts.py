"""The texts that libraries of streams are compiled from."""

from __future__ import annotations

from importlib.resources import files

SHARED = "treadle.runtime.wire"


def wire_texts(package: str) -> dict[str, str]:
    """The C++ of a package and what all streams share, by file name."""
    found = [each for name in (SHARED, package) for each in files(name).iterdir()]
    return {each.name: each.read_text(encoding="utf-8") for each in found if each.name.endswith((".h", ".cpp"))}
