"""Ordered maps of C++ behind the C functions of the learned index."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks.common import progress
from treadle.codegen.index.header import library_texts
from treadle.planner.errors import CheckFailed
from treadle.runtime.index.library import Library, load_library

HERE = Path(__file__).parent
PEERS = {"B+tree": "btree_map.hpp", "std::map": "std_map.hpp"}
NOTE = "B+tree: absl::btree_map, nodes of 256 bytes"


@cache
def peers() -> dict[str, Library]:
    """The compiled peers by name; without Abseil only std::map, and progress says so."""
    found = {}
    for name, file in PEERS.items():
        texts = {"treadle_index.hpp": (HERE / file).read_text(), "ordered_map.h": (HERE / "ordered_map.h").read_text()}
        try:
            found[name] = load_library({**library_texts(), **texts})
        except CheckFailed as error:
            if not any("absl/" in finding for finding in error.findings):
                raise
            progress(f"{name} is left out: Abseil is not installed (apt-get install libabsl-dev)")
    return found
