"""Learns to predict the throughput of a learned index from measured traces, by PyTorch on one thread.

The classifier sees throughput in classes (MAPLE, "Throughput Prediction Model"). What a plan needs is the order within
a trace, so the loss has three parts: cross entropy with classes that blur into their neighbours, the error of the
expected logarithm of throughput, and that of its difference from the mean of the trace.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn

from treadle.planner.documents.index_model import (
    PICTURE,
    TOTALS,
    ConvolutionLayer,
    DenseLayer,
    IndexNetwork,
    ParameterBuckets,
    Weights,
)
from treadle.planner.passes.index.baseline import MeasuredTrace
from treadle.planner.passes.index.picture import totals

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES = 32
NETWORKS = 3
EPOCHS = 130
TRACES_A_BATCH = 4
RATE, DECAY = 2e-3, 1e-2
CHANNELS = ((8, 8, 8), (16, 4, 2), (24, 3, 2))
"""Outputs, side and stride of each convolution."""
EMBEDDING, HIDDEN, DROPPED = 32, 64, 0.1
BLUR = 1.0
"""Standard deviation of a class's share, in classes."""
BY_EXPECTED, BY_DIFFERENCE = 1.0, 4.0
"""Weights of the second and third part of the loss; the first has 1."""
OUTLYING = 0.2
"""Errors of the logarithm of throughput above which a run counts as disturbed."""


class TrainedNetworks(NamedTuple):
    edges: tuple[float, ...]
    centres: tuple[float, ...]
    networks: tuple[IndexNetwork, ...]


def trained_networks(
    traces: Sequence[MeasuredTrace],
    parameters: Sequence[ParameterBuckets],
    *,
    seed: int,
    networks: int | None = None,
    epochs: int | None = None,
    on_epoch: Callable[[int, int], None] = lambda done, of: None,
) -> TrainedNetworks:
    """Networks that differ by their seeds. The same traces and seed give the same weights on one machine.

    `on_epoch` gets epochs that are done and all of them.
    """
    networks, epochs = networks or NETWORKS, epochs or EPOCHS
    edges, centres = quantile_classes(np.concatenate([each.log_throughput for each in traces]))
    found = []
    with _one_thread():
        data = _Data(traces, edges)
        for member in range(networks):
            network = _Network([each.count for each in parameters], len(centres), seed + member)
            for epoch in _trained(network, data, torch.tensor(centres, dtype=torch.float32), epochs, seed + member):
                on_epoch(member * epochs + epoch, networks * epochs)
            found.append(network.document())
    return TrainedNetworks(tuple(edges), tuple(centres), tuple(found))


def quantile_classes(logs: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    """The bounds between up to 32 classes of equal counts, and the mean of each class."""
    quantiles = np.quantile(logs, np.linspace(0, 1, CLASSES + 1)[1:-1])
    edges = sorted({float(f"{each:.9g}") for each in quantiles})
    members = np.searchsorted(edges, logs, side="right")
    # Where many runs are equal, a class may be without members; its mean is the bound.
    centres = [
        float(logs[members == each].mean()) if (members == each).any() else edges[max(each - 1, 0)]
        for each in range(len(edges) + 1)
    ]
    return edges, [float(f"{each:.9g}") for each in centres]


class _Data:
    """Traces as tensors."""

    def __init__(self, traces: Sequence[MeasuredTrace], edges: Sequence[float]) -> None:
        self.pictures = torch.from_numpy(np.stack([each.picture for each in traces]))
        self.totals = torch.from_numpy(np.stack([totals(each.picture) for each in traces]).astype(np.float32))
        self.buckets = [torch.from_numpy(each.buckets) for each in traces]
        self.logs = [torch.from_numpy(each.log_throughput.astype(np.float32)) for each in traces]
        self.classes = [torch.from_numpy(np.searchsorted(edges, each.log_throughput, side="right")) for each in traces]


class _Network(nn.Module):
    """The network of `IndexNetwork`."""

    def __init__(self, buckets: Sequence[int], classes: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inputs, self.convolutions = PICTURE[0], nn.ModuleList()
            for outputs, side, stride in CHANNELS:
                self.convolutions.append(nn.Conv2d(inputs, outputs, side, stride))
                inputs = outputs
            self.trace = nn.Linear(2 * inputs + TOTALS, EMBEDDING)
            self.embeddings = nn.ModuleList(nn.Embedding(count, EMBEDDING) for count in buckets)
            widths = (2 * EMBEDDING, HIDDEN, HIDDEN, classes)
            self.classifier = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(
        self,
        pictures: torch.Tensor,
        sums: torch.Tensor,
        trace_of: torch.Tensor,
        buckets: torch.Tensor,
        dice: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Logits, [n, classes], of pictures [traces, 3, 256, 256], their totals, and for each row its trace and
        buckets; in training some units of embeddings are dropped by `dice`."""
        cells = pictures
        for layer in self.convolutions:
            cells = torch.relu(layer(cells))
        seen = torch.cat([cells.mean(dim=(2, 3)), cells.amax(dim=(2, 3)), sums], dim=1)
        traces = torch.relu(self.trace(seen))
        if dice is not None:
            traces = traces * (torch.rand(traces.shape, generator=dice) >= DROPPED) / (1 - DROPPED)
        parts = torch.stack([table(buckets[:, place]) for place, table in enumerate(self.embeddings)]).sum(0)
        rows = torch.cat([traces[trace_of], parts], dim=1)
        for layer in self.classifier[:-1]:
            rows = torch.relu(layer(rows))
        logits: torch.Tensor = self.classifier[-1](rows)
        return logits

    def document(self) -> IndexNetwork:
        """The weights."""
        return IndexNetwork(
            convolutions=tuple(
                ConvolutionLayer(stride=stride, weights=_weights(layer.weight), bias=_weights(layer.bias))
                for layer, (_, _, stride) in zip(self.convolutions, CHANNELS, strict=True)
            ),
            trace=DenseLayer(weights=_weights(self.trace.weight), bias=_weights(self.trace.bias)),
            embeddings=tuple(_weights(each.weight) for each in self.embeddings),
            classifier=tuple(
                DenseLayer(weights=_weights(each.weight), bias=_weights(each.bias)) for each in self.classifier
            ),
        )


def _weights(tensor: object) -> Weights:
    assert isinstance(tensor, torch.Tensor)
    values = tensor.detach().numpy().astype("<f4")
    return Weights(shape=values.shape, data=base64.b64encode(values.tobytes()).decode())


def _trained(network: _Network, data: _Data, centres: torch.Tensor, epochs: int, seed: int) -> Iterator[int]:
    """Train, and yield the number of each epoch that is done."""
    dice = torch.Generator().manual_seed(seed)
    count = len(data.buckets)
    steps = epochs * -(-count // TRACES_A_BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for epoch in range(epochs):
        for batch in torch.randperm(count, generator=dice).split(TRACES_A_BATCH):
            optimizer.zero_grad()
            _loss(network, data, batch.tolist(), centres, dice).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        yield epoch + 1


def _loss(
    network: _Network, data: _Data, batch: list[int], centres: torch.Tensor, dice: torch.Generator
) -> torch.Tensor:
    sizes = [len(data.logs[each]) for each in batch]
    trace_of = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(sizes))
    logs = torch.cat([data.logs[each] for each in batch])
    classes = torch.cat([data.classes[each] for each in batch])
    pictures = _varied(data.pictures[batch], dice)
    buckets = torch.cat([data.buckets[each] for each in batch])
    logits = network(pictures, data.totals[batch], trace_of, buckets, dice)
    expected = torch.softmax(logits, dim=1) @ centres
    off = expected - logs
    level = torch.zeros(len(batch)).index_add(0, trace_of, off) / torch.tensor(sizes)
    entropy = nn.functional.cross_entropy(logits, _blurred(classes, len(centres)))
    loss: torch.Tensor = entropy + BY_EXPECTED * _error(off) + BY_DIFFERENCE * _error(off - level[trace_of])
    return loss


def _error(off: torch.Tensor) -> torch.Tensor:
    """The mean error: squared where it is small, else proportional, since a disturbed run may be far off."""
    return nn.functional.smooth_l1_loss(off, torch.zeros_like(off), beta=OUTLYING)


def _blurred(classes: torch.Tensor, count: int) -> torch.Tensor:
    """Shares of classes, [n, count]: most in the own one, some in its neighbours."""
    apart = torch.arange(count)[None] - classes[:, None]
    return torch.softmax(-0.5 * (apart / BLUR) ** 2, dim=1)


def _varied(pictures: torch.Tensor, dice: torch.Generator) -> torch.Tensor:
    """Pictures of traces that take as long: time bins in another order, and in one of two cases ranks from the other
    end."""
    order = torch.randperm(pictures.shape[3], generator=dice)
    varied = torch.cat([pictures[:, :2][..., order], pictures[:, 2:]], dim=1)
    return varied.flip(2) if torch.rand((), generator=dice) < 0.5 else varied


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one order, so that a seed gives the same weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
