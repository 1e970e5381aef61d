"""A model that ranks configurations of a learned index by a picture of the workload, learned on one machine.

Networks are convolutions over the picture, an embedding for each bucket of each parameter, and a classifier over
classes of throughput (MAPLE, "Throughput Prediction Model"). Several networks of one model vote by the mean.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from treadle.planner.documents.scalars import Amount, Count, Document, Name, Positive, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VERSION = 1
Size = Annotated[int, Meta(ge=1, le=4096)]
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
Correlation = Annotated[float, Meta(ge=-1, le=1)]
MOST_WEIGHTS = 1 << 20
"""Weights of one tensor."""
PICTURE = (3, 256, 256)
"""Channels, rows and columns of what the first convolution reads."""
MOST_CELLS = 1 << 25
"""Numbers that one convolution reads or writes."""
TOTALS = 3
"""Sums of the picture that the embedding of a trace is made from too."""
Problem = tuple[str, str, str]


class Weights(Record, frozen=True, kw_only=True):
    """A tensor of float32, the last dimension contiguous."""

    shape: Annotated[tuple[Size, ...], Meta(min_length=1, max_length=4)]
    data: str
    """Little-endian bytes in base64."""

    @property
    def count(self) -> int:
        """How many weights the shape has."""
        return math.prod(self.shape)

    def array(self) -> NDArray[np.float64]:
        """The weights as float64, in which every machine's sums agree to more digits than are kept."""
        import numpy as np

        raw = np.frombuffer(base64.b64decode(self.data), dtype="<f4")
        return raw.astype(np.float64).reshape(self.shape)

    def problems_at(self, path: str, *, shape: tuple[int | None, ...]) -> Iterator[Problem]:
        """Problems with these weights, which must have `shape`; None stands for any size."""
        if len(self.shape) != len(shape) or any(
            want not in (None, size) for want, size in zip(shape, self.shape, strict=True)
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            yield f"{path}.shape", str(list(self.shape)), f"[{wanted}]"
        elif self.count > MOST_WEIGHTS:
            yield f"{path}.shape", f"{self.count} weights", f"at most {MOST_WEIGHTS}"
        else:
            yield from self._problems_of_data(f"{path}.data")

    def _problems_of_data(self, path: str) -> Iterator[Problem]:
        try:
            data = base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            yield path, "a text that is not base64", "float32 in base64"
            return
        if len(data) != 4 * self.count:
            yield path, f"{len(data)} bytes", f"the {4 * self.count} of {self.count} weights"
            return
        import numpy as np

        if not np.isfinite(np.frombuffer(data, dtype="<f4")).all():
            yield path, "a weight that is not finite", "finite weights"


class ConvolutionLayer(Record, frozen=True, kw_only=True):
    """Squares of weights, [outputs, inputs, side, side], moved by `stride` without padding; then max(0, x)."""

    stride: Size
    weights: Weights
    bias: Weights


class DenseLayer(Record, frozen=True, kw_only=True):
    """[outputs, inputs] and [outputs]."""

    weights: Weights
    bias: Weights

    def problems_at(self, path: str, inputs: int, outputs: int | None = None) -> Iterator[Problem]:
        """Problems with this layer, which must have these many inputs and outputs."""
        yield from self.weights.problems_at(f"{path}.weights", shape=(outputs, inputs))
        yield from self.bias.problems_at(f"{path}.bias", shape=(self.weights.shape[0],))


class ParameterBuckets(Record, frozen=True, kw_only=True):
    """The buckets of one parameter: a value falls into the nearest by ratio. The bucket before the first is for
    configurations that lack the parameter."""

    name: Name
    values: Annotated[tuple[Annotated[float, Meta(gt=0, le=1e30)], ...], Meta(min_length=1, max_length=1024)]

    @property
    def count(self) -> int:
        """Buckets, with the one for configurations that lack the parameter."""
        return len(self.values) + 1


class IndexNetwork(Record, frozen=True, kw_only=True):
    """One network. The mean and the largest of each output of the last convolution, and the totals of the picture, give
    the embedding of a trace; embeddings of the parameters' buckets are added up and set after it."""

    convolutions: Annotated[tuple[ConvolutionLayer, ...], Meta(min_length=1, max_length=8)]
    trace: DenseLayer
    embeddings: tuple[Weights, ...]
    """For each parameter [buckets, size of an embedding]."""
    classifier: Annotated[tuple[DenseLayer, ...], Meta(min_length=1, max_length=8)]

    def problems_at(self, path: str, parameters: tuple[ParameterBuckets, ...], classes: int) -> Iterator[Problem]:
        """Everything in which a layer does not fit the one before."""
        (inputs, *sides), place = PICTURE, f"{path}.convolutions"
        for number, layer in enumerate(self.convolutions):
            at, kernel = f"{place}[{number}]", layer.weights.shape[-1]
            yield from layer.weights.problems_at(f"{at}.weights", shape=(None, inputs, kernel, kernel))
            yield from layer.bias.problems_at(f"{at}.bias", shape=(layer.weights.shape[0],))
            if kernel > min(sides):
                yield f"{at}.weights.shape", f"a side of {kernel}", f"at most the {min(sides)} that are left"
                return
            sides = [(side - kernel) // layer.stride + 1 for side in sides]
            cells = math.prod(sides) * max(layer.weights.shape[0], inputs * kernel**2)
            if cells > MOST_CELLS:
                yield f"{at}.stride", f"a convolution of {cells} numbers", f"at most {MOST_CELLS}"
                return
            inputs = layer.weights.shape[0]
        yield from self.trace.problems_at(f"{path}.trace", 2 * inputs + TOTALS)
        if len(self.embeddings) != len(parameters):
            yield f"{path}.embeddings", str(len(self.embeddings)), f"one for each of {len(parameters)} parameters"
            return
        size = self.embeddings[0].shape[-1]
        for number, (each, buckets) in enumerate(zip(self.embeddings, parameters, strict=True)):
            yield from each.problems_at(f"{path}.embeddings[{number}]", shape=(buckets.count, size))
        width = self.trace.weights.shape[0] + size
        for number, dense in enumerate(self.classifier):
            last = number == len(self.classifier) - 1
            yield from dense.problems_at(f"{path}.classifier[{number}]", width, classes if last else None)
            width = dense.weights.shape[0]


class IndexBaseline(Record, frozen=True, kw_only=True):
    """What is compared with: an if-else on the share of inserts. `ranked[i]` is the order for shares of at least
    `thresholds[i - 1]` and below `thresholds[i]`."""

    thresholds: tuple[Annotated[float, Meta(ge=0, le=1)], ...]
    ranked: Annotated[tuple[tuple[tuple[Count, ...], ...], ...], Meta(min_length=1, max_length=16)]
    """Configurations as the bucket of each parameter, best on average first."""

    def problems_at(self, path: str, parameters: tuple[ParameterBuckets, ...]) -> Iterator[Problem]:
        """Thresholds out of order, and buckets that there are not."""
        if list(self.thresholds) != sorted(set(self.thresholds)):
            yield f"{path}.thresholds", str(list(self.thresholds)), "ascending shares"
        if len(self.ranked) != len(self.thresholds) + 1:
            yield f"{path}.ranked", str(len(self.ranked)), f"{len(self.thresholds) + 1}, one more than thresholds"
        for side, order in enumerate(self.ranked):
            at = f"{path}.ranked[{side}]"
            if not order:
                yield at, "none", "at least one configuration"
            if len(set(order)) != len(order):
                yield at, "a configuration twice", "configurations that occur once"
            for number, each in enumerate(order):
                if len(each) != len(parameters) or any(
                    bucket >= buckets.count for bucket, buckets in zip(each, parameters, strict=True)
                ):
                    yield f"{at}[{number}]", str(list(each)), "one bucket of each parameter"


class IndexTraining(Record, frozen=True, kw_only=True):
    """What the model was learned from."""

    traces: Positive
    runs: Positive
    """Measured pairs of a trace and a configuration."""
    seed: Count
    families: tuple[Name, ...]
    """Key distributions; the others were kept for validation."""
    repeat_spread: Amount
    """Median relative difference of two measurements of the same run."""
    repeated: Count = 0
    """Runs that were measured twice to find that out."""


class RankingScore(Record, frozen=True, kw_only=True):
    """How good a ranking is, the mean of traces. Regret is the share of the best throughput that is lost."""

    top_1: Annotated[float, Meta(ge=0, le=1)]
    """Share of traces whose fastest configuration was ranked first."""
    regret_1: Annotated[float, Meta(ge=0, le=1)]
    regret_3: Annotated[float, Meta(ge=0, le=1)]
    regret_10: Annotated[float, Meta(ge=0, le=1)]
    """With the fastest of the first 1, 3 and 10."""
    rank_correlation: Correlation
    """Spearman's, within a trace."""


class FamilyScore(Record, frozen=True, kw_only=True):
    """Scores on traces of one family that was not learned from, next to those of the baseline."""

    family: Name
    traces: Positive
    configurations: Positive
    """Measured on each trace."""
    model: RankingScore
    baseline: RankingScore


class IndexModel(Document, frozen=True, kw_only=True, tag_field="kind", tag="index-model"):
    """Throughputs are natural logarithms of operations per second."""

    version: Positive
    name: Name
    machine: Name
    """The only one that it is valid for."""
    edges: tuple[Finite, ...]
    """What lies between classes of throughput, ascending: quantiles of the measured runs."""
    centres: Annotated[tuple[Finite, ...], Meta(min_length=2, max_length=1024)]
    """The mean of each class."""
    parameters: Annotated[tuple[ParameterBuckets, ...], Meta(min_length=1, max_length=64)]
    networks: Annotated[tuple[IndexNetwork, ...], Meta(min_length=1, max_length=16)]
    baseline: IndexBaseline
    training: IndexTraining
    validation: tuple[FamilyScore, ...] = ()

    def problems(self) -> Iterator[Problem]:
        if any(after <= before for before, after in zip(self.edges, self.edges[1:], strict=False)):
            yield "$.edges", "edges out of order", "ascending ones"
        if len(self.edges) != len(self.centres) - 1:
            yield "$.edges", str(len(self.edges)), f"{len(self.centres) - 1}, one less than centres"
        if max(map(abs, self.centres)) > 100:
            yield "$.centres", "a throughput of over e^100", "natural logarithms of operations per second"
        seen: set[str] = set()
        for place, each in enumerate(self.parameters):
            if each.name in seen:
                yield f"$.parameters[{place}].name", f"second {each.name!r}", "names that occur once"
            seen.add(each.name)
            if list(each.values) != sorted(set(each.values)):
                yield f"$.parameters[{place}].values", "values out of order", "ascending ones"
        for place, network in enumerate(self.networks):
            yield from network.problems_at(f"$.networks[{place}]", self.parameters, len(self.centres))
        yield from self.baseline.problems_at("$.baseline", self.parameters)
