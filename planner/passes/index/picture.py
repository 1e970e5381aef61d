"""A workload as a picture that a network reads: where reads, changes and keys lie.

The picture has 256 x 256 cells in three channels; a cell is log(1 + count). Rows are ranks of keys in a sample of the
loaded and the inserted ones, so that a few huge outliers take no space from the rest: they spoiled the picture of `fb`
(MAPLE, "Throughput comparison"). Columns of the first two channels are time. Those of the third are the distance to the
next key: how wide a row of it spreads is how hard its keys are to model by a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from treadle.planner.passes.index.operations import DELETE, INSERT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from treadle.planner.passes.index.operations import Workload

SIDE = 256
"""Rows and columns (MAPLE, "Experimental Setup")."""
CHANNELS = 3
MOST_SAMPLED = 1 << 16
"""Keys that the ranks are read from."""
MOST_GAPS = 1 << 20
"""Distances between keys that are looked at."""
COLUMNS_PER_OCTAVE = 4
DIGITS = 3
"""Cells are rounded, so that they are the same whatever the machine's logarithm rounds to."""
LARGEST = 44.0
"""No cell is larger: log(1 + 2^62) is below."""


def picture(workload: Workload) -> NDArray[np.float32]:
    """The picture, [3, 256, 256] as (channel, rank of key, column): reads, changes, distances between keys.

    Lookups and scans are reads; inserts and deletes are changes.
    """
    ops, keys = workload.operations.ops, workload.operations.keys
    bounds = _row_bounds(workload)
    rows = np.searchsorted(bounds, keys, side="right")
    columns = np.arange(len(ops), dtype=np.int64) * SIDE // max(len(ops), 1)
    changes = (ops == INSERT) | (ops == DELETE)
    counts = (
        _counted(rows[~changes], columns[~changes]),
        _counted(rows[changes], columns[changes]),
        _gap_counts(workload.keys, bounds),
    )
    return np.stack([np.round(np.log1p(each), DIGITS) for each in counts]).astype(np.float32)


def totals(drawn: NDArray[np.float32]) -> NDArray[np.float64]:
    """What sums of a picture say, [3]: the share of changes, and the logarithms of operations and of keys, scaled to
    about 1."""
    reads, changes, keys = np.expm1(drawn.astype(np.float64)).sum(axis=(1, 2))
    operations = reads + changes
    return np.array([changes / max(operations, 1.0), np.log1p(operations) / 16 - 0.5, np.log1p(keys) / 16 - 0.5])


def _row_bounds(workload: Workload) -> NDArray[np.uint64]:
    """The keys that divide the rows, ascending, at most 255."""
    operations = workload.operations
    inserted = operations.keys[operations.ops == INSERT]
    every = -(-(len(workload.keys) + len(inserted)) // MOST_SAMPLED) or 1
    sample = np.concatenate([workload.keys[::every], inserted[::every]])
    if not len(sample):
        sample = operations.keys[:MOST_SAMPLED]
    sample.sort()
    return sample[np.arange(1, SIDE) * len(sample) // SIDE] if len(sample) else sample


def _gap_counts(keys: NDArray[np.uint64], bounds: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Keys by rank and by the distance to the next one, in quarters of an octave around the median distance: a line
    models keys as well at any scale."""
    if len(keys) < 2:
        return np.zeros((SIDE, SIDE))
    every = -(-(len(keys) - 1) // MOST_GAPS)
    places = np.arange(0, len(keys) - 1, every)
    gaps = (keys[places + 1] - keys[places]).astype(np.float64)
    octaves = np.log2(np.maximum(gaps, 1.0) / max(float(np.median(gaps)), 1.0))
    columns = np.clip(np.floor(COLUMNS_PER_OCTAVE * octaves + 1e-6) + SIDE // 2, 0, SIDE - 1).astype(np.int64)
    return _counted(np.searchsorted(bounds, keys[places], side="right"), columns) * every


def _counted(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
    counts = np.bincount(rows * SIDE + columns, minlength=SIDE * SIDE)
    return counts.reshape(SIDE, SIDE).astype(np.float64)
