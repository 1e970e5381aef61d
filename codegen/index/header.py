"""The learned index as one C++ header, and its C functions: the parts below `templates/index`, put together."""

from __future__ import annotations

from treadle.codegen.templates import template
from treadle.planner import resources
from treadle.planner.passes.index.configurations import GappedArray, IndexConfiguration, name_of_leaves

HEADER = "treadle_index.hpp"
C_FUNCTIONS = "treadle_index_c.cpp"
FOLDER = "index"
PARTS = (
    "settings.h", "memory.h", "model.h", "scan.h", "bitmap.h", "data_node.h", "gapped_array.h", "fragmented_log.h",
    "leaves.h", "inner_node.h", "build.h", "split.h", "index.h", "iterator.h", "check.h",
)  # fmt: skip
"""In the order in which they need each other."""

DEFAULT = GappedArray(most_search=4, most_shifts=32)
"""Leaves of a header without a plan."""


def header_text(configuration: IndexConfiguration | None = None) -> str:
    """C++17 without other dependencies; `treadle::default_settings()` has this configuration."""
    chosen = configuration or DEFAULT
    parts = [_part(name) for name in PARTS]
    return template(f"{FOLDER}/header.hpp.j2").render(
        name=name_of_leaves(chosen), leaves=_leaves(chosen), numbers=_numbers(chosen), parts=parts
    )


def library_texts(configuration: IndexConfiguration | None = None) -> dict[str, str]:
    """The header, and the C functions that other languages load."""
    return {HEADER: header_text(configuration), C_FUNCTIONS: _part(C_FUNCTIONS)}


def _part(name: str) -> str:
    return (resources.folder("templates") / FOLDER / name).read_text(encoding="utf-8")


def _leaves(of: IndexConfiguration) -> str:
    return "gapped_array" if isinstance(of, GappedArray) else "fragmented_log"


def _numbers(of: IndexConfiguration) -> str:
    """Msi, Msh, mf_size, Mnf, nf as C++ literals; those of the other kind are never read."""
    if isinstance(of, GappedArray):
        return f"{float(of.most_search)!r}, {float(of.most_shifts)!r}, 64, 64, 8"
    return f"4.0, 32.0, {int(of.fragment_keys)}, {int(of.most_fragments)}, {int(of.new_fragments)}"
