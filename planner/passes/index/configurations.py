"""How the leaves of a learned index are built, and the configurations that are compared.

All leaves of one index have the same kind and parameters (MAPLE, "Selecting MAPLE parameters").
"""

from __future__ import annotations

from itertools import product
from typing import Annotated

from msgspec import Meta

from treadle.planner.documents.scalars import PositiveAmount, Record

FragmentKeys = Annotated[int, Meta(ge=4, le=1 << 16)]
Fragments = Annotated[int, Meta(ge=1, le=1 << 16)]


class GappedArray(Record, frozen=True, kw_only=True, tag_field="leaves", tag="gapped-array"):
    """Sorted keys with gaps. A leaf is rebuilt where an insert finds its average of search iterations or of shifts
    above what its model expects and above these."""

    most_search: PositiveAmount
    """Msi: iterations of the exponential search, on average."""
    most_shifts: PositiveAmount
    """Msh: keys that one insert moves, on average."""


class FragmentedLog(Record, frozen=True, kw_only=True, tag_field="leaves", tag="fragmented-log"):
    """Fragments of keys in the order of arrival; a linear model names the fragment of a key."""

    fragment_keys: FragmentKeys
    """mf_size: most keys of one fragment."""
    most_fragments: Fragments
    """Mnf: most fragments of one leaf."""
    new_fragments: Fragments
    """nf: fragments of a new leaf."""


IndexConfiguration = GappedArray | FragmentedLog


def name_of_leaves(of: IndexConfiguration) -> str:
    """`gapped array 4/32` (searches/shifts) or `fragmented log 64/128/8` (keys/most fragments/new ones)."""
    if isinstance(of, GappedArray):
        return f"gapped array {of.most_search:g}/{of.most_shifts:g}"
    return f"fragmented log {of.fragment_keys}/{of.most_fragments}/{of.new_fragments}"


def grid() -> tuple[IndexConfiguration, ...]:
    """All configurations that the evaluator ranks, gapped arrays first."""
    gapped = (GappedArray(most_search=i, most_shifts=h) for i, h in product((1, 2, 4, 8), (2, 8, 32, 128)))
    logs = (
        FragmentedLog(fragment_keys=keys, most_fragments=most, new_fragments=new)
        for keys, most, new in product((16, 32, 64, 128, 256, 512), (8, 32, 128, 512, 2048), (2, 8, 32))
        if new <= most
    )
    return (*gapped, *logs)
