"""What a learned model predicts of every configuration of an index for one workload, by numpy.

All sums are of float64 and results have four digits, so that machines agree (MAPLE, "Throughput Prediction Model").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from treadle.planner.documents.index_model import ConvolutionLayer, DenseLayer, IndexModel, IndexNetwork
from treadle.planner.passes.index.buckets import buckets_of
from treadle.planner.passes.index.picture import picture, totals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from treadle.planner.passes.index.configurations import IndexConfiguration
    from treadle.planner.passes.index.operations import Workload

DIGITS = 4


def predicted_ns(model: IndexModel, workload: Workload, configurations: Sequence[IndexConfiguration]) -> list[float]:
    """What all operations of `workload` take with each configuration, in ns, rounded to four digits."""
    drawn = picture(workload)
    chosen = np.array([buckets_of(model.parameters, each) for each in configurations])
    per_second = np.exp(log_throughputs(model, drawn, chosen))
    return [float(f"{len(workload.operations.ops) * 1e9 / each:.{DIGITS}g}") for each in per_second]


def log_throughputs(model: IndexModel, drawn: NDArray[np.float32], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """The expected logarithm of operations per second of each configuration, [n], for a picture and the buckets of the
    configurations' parameters, [n, parameters]."""
    centres = np.array(model.centres)
    return np.asarray(np.mean([shares(each, drawn, chosen) @ centres for each in model.networks], axis=0))


def shares(network: IndexNetwork, drawn: NDArray[np.float32], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """The probability of each class, [n, classes]."""
    trace = _embedded(network, drawn)
    parts = sum(table.array()[chosen[:, place]] for place, table in enumerate(network.embeddings))
    rows = np.concatenate([np.broadcast_to(trace, (len(chosen), len(trace))), parts], axis=1)
    for layer in network.classifier[:-1]:
        rows = np.maximum(_dense(layer, rows), 0)
    scores = _dense(network.classifier[-1], rows)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _embedded(network: IndexNetwork, drawn: NDArray[np.float32]) -> NDArray[np.float64]:
    cells = drawn.astype(np.float64)
    for layer in network.convolutions:
        cells = np.maximum(_convolved(layer, cells), 0)
    seen = np.concatenate([cells.mean(axis=(1, 2)), cells.max(axis=(1, 2)), totals(drawn)])
    return np.asarray(np.maximum(_dense(network.trace, seen[None])[0], 0))


def _convolved(layer: ConvolutionLayer, cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """[inputs, rows, columns] to [outputs, rows, columns]."""
    weights = layer.weights.array()
    windows = np.lib.stride_tricks.sliding_window_view(cells, weights.shape[2:], axis=(1, 2))
    windows = windows[:, :: layer.stride, :: layer.stride]
    return np.tensordot(weights, windows, axes=((1, 2, 3), (0, 3, 4))) + layer.bias.array()[:, None, None]


def _dense(layer: DenseLayer, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows @ layer.weights.array().T + layer.bias.array()
