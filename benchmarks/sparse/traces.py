"""Synthetic gradients of the models of "Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training".

The paper publishes sizes and densities (table 3.1) and a few points of its curves, but no index sets. Here a batch
looks rows up at random, row i in proportion to i ** -exponent, and rows are numbered by how often they occur. Exponent
and lookups are solved for the density of one participant and for one more published point of each model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
BLOCK = 256
"""Elements of a block of OmniReduce."""
UP_TO = 128
PARTICIPANTS = tuple(1 << power for power in range(UP_TO.bit_length()))


@dataclass(frozen=True)
class Model:
    """An embedding of `rows` rows of `width` elements, and an MLP. A batch makes `lookups` lookups."""

    name: str
    rows: int
    width: int
    dense_elements: int
    density: float
    """Published, of one participant."""
    exponent: float
    lookups: float
    point: str
    """What the exponent is solved for."""

    @cached_property
    def rates(self) -> Numbers:
        """Lookups of each row [rows] in a batch, as expected."""
        popularity = np.arange(1, self.rows + 1, dtype=np.float64) ** -self.exponent
        return self.lookups * popularity / popularity.sum()

    def present(self, participants: int = 1) -> Numbers:
        """The chance of each row [rows] to be non-zero in the sum of as many participants: lookups are independent."""
        return -np.expm1(-participants * self.rates)

    def growth(self, participants: int) -> float:
        """Densification: the density of the sum over that of one participant."""
        return float(self.present(participants).sum() / self.present().sum())

    def skewness(self, parts: int, participants: int = 1) -> float:
        """The density of the fullest of `parts` even ranges over that of the whole."""
        present = self.present(participants)
        return fullest(present, parts) * parts / float(present.sum())

    def index_sets(self, count: int, seed: int) -> Iterator[NDArray[np.int64]]:
        """Rows of as many batches."""
        random = np.random.default_rng(seed)
        for _ in range(count):
            yield np.flatnonzero(random.random(self.rows) < self.present())


def fullest(present: Numbers, parts: int) -> float:
    """The most rows in one of `parts` even ranges."""
    edges = [part * len(present) // parts for part in range(parts)]
    return float(np.add.reduceat(present, edges).max())


LSTM = Model("LSTM", 793_471, 512, 20_000_000, 0.0113, 1.847, 10_915_718, "skewness for 128 parts: above 70")
DEEPFM = Model("DeepFM", 3_343_750, 64, 68_000_000, 0.0280, 1.066, 374_288, "assumed to densify as NMT does")
NMT = Model("NMT", 218_750, 512, 31_000_000, 0.0247, 1.138, 22_406.8, "density in the sum of 128: 61.5 %")
BERT = Model("BERT", 30_522, 768, 86_000_000, 0.0106, 1.027, 547.18, "density in the sum of 128: 40.8 %")
MODELS = (LSTM, DEEPFM, NMT, BERT)
"""Table 3.1. Widths are assumed but BERT's and LSTM's; rows make up the published number of parameters."""


TOPICS, SPREAD, KEPT = 64, 0.8, 10


def drifting(model: Model, iterations: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows of one batch at each iteration, ascending, where what the text is about changes.

    Rates of each of TOPICS even ranges of rows are multiplied by exp(z), where z is a random walk that is drawn back
    to 0: its deviation is SPREAD, and after KEPT iterations 1/e of it is left. Chosen so that cut points wander about
    as much as published.
    """
    random = np.random.default_rng(seed)
    topic = np.arange(model.rows) * TOPICS // model.rows
    z, kept = random.normal(0, SPREAD, TOPICS), np.exp(-1 / KEPT)
    for _ in range(iterations):
        present = -np.expm1(-model.rates * np.exp(z - SPREAD**2 / 2)[topic])
        yield np.flatnonzero(random.random(model.rows) < present)
        z = z * kept + random.normal(0, SPREAD * np.sqrt(1 - kept**2), TOPICS)
