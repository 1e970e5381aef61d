"""What the kernels of sparse gradients cost on one kind of machine, per item that they touch."""

from __future__ import annotations

from treadle.planner.documents.scalars import Amount, Document, Name, Positive, Record

VERSION = 1


class SparseWork(Record, frozen=True, kw_only=True):
    """Times in ns. A value is one float32, an entry a unit with its values: work on it takes the rate for an entry and,
    for each of its values, that for a value."""

    scan_per_value: Amount = 0.0
    """Look for non-zero units in a dense gradient."""
    coalesce_per_entry: Amount = 0.0
    coalesce_per_value: Amount = 0.0
    """Add up the entries of a COO gradient that have the same index."""
    hash_per_index: Amount = 0.0
    """Insert an index into the hash memory."""
    extract_per_word: Amount = 0.0
    """Read the hash memory back."""
    gather_per_entry: Amount = 0.0
    gather_per_value: Amount = 0.0
    """Collect the values of a part into its message."""
    add_per_entry: Amount = 0.0
    add_per_value: Amount = 0.0
    """Add a received entry up at its owner. Dense messages have values, and no entries."""
    bitmap_per_unit: Amount = 0.0
    """Write or read the bitmap of a part, by the units that it covers."""
    write_per_entry: Amount = 0.0
    write_per_value: Amount = 0.0
    """Write the entries of the sum into the gradient; values of a dense gradient are also the zeros between them."""
    call: Amount = 0.0
    """Begin one round of messages, beyond what its links take."""


class SparseCosts(Document, frozen=True, kw_only=True, tag_field="kind", tag="sparse-costs"):
    """Costs on the machine `name`."""

    version: Positive
    name: Name
    work: SparseWork
    sources: dict[str, str] = {}
    """Where each number comes from, by path prefix without `$.`."""
