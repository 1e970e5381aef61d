"""Whether the residual of a compression point diverges, from a norm now and then.

A compressor that leaves at most the share 1 - delta of the square of a vector's norm leaves no residual of more than
2 sqrt(1 - delta) / delta times the largest gradient (Karimireddy et al., Error Feedback Fixes SignSGD and other
Gradient Compression Schemes, lemma 3). A larger residual means that payloads lose what the next ones do not make up
for. Where the run itself diverges, gradients grow with the residual and the bound with them; there the residual grows
geometrically. Gradients that stay as large as they are fill a residual at most in proportion to the number of steps,
and those of a warm-up with its square, so that of half the steps is then a quarter of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import isfinite, sqrt

import torch
from torch import Tensor

from treadle.planner.machine.compressors import Compressor

EVERY = 10
"""Encodings from one measurement to the next. A measurement reads two vectors, an encoding at least three."""
WINDOW = 200
"""Measurements whose first half the last one is compared with: in 2,000 steps a GradScaler doubles its scale once."""
LEAST = 4
"""Measurements before growth is judged."""
GROWTH = 4.0
PATIENCE = 2
"""Measurements in a row that have to agree."""
DELTA = 0.02
"""The delta of compressors without a ratio. Signs have |v|_1^2 / (n |v|_2^2): 0.64 where v is normally distributed,
less where few elements are large."""


@dataclass
class Divergence:
    """The norms of one compression point. `most` is how many times the largest gradient a residual may be."""

    most: float
    encodings: int = 0
    largest: float = 0.0
    residuals: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    agreed: int = 0
    measured: Tensor | None = None

    def encoded(self, gradient: Tensor, residual: Tensor) -> tuple[float, float] | None:
        """Count an encoding; the norms of gradient and residual once they show that the residual diverges.

        Norms are read EVERY encodings after they were asked for, so that no GPU is waited for.
        """
        self.encodings += 1
        if self.encodings % EVERY:
            return None
        before, norms = self.measured, [torch.linalg.vector_norm(each) for each in (gradient, residual)]
        self.measured = torch.stack(norms).to("cpu", non_blocking=True)
        if before is None:
            return None
        gradient_norm, residual_norm = before.tolist()
        return (gradient_norm, residual_norm) if self.diverges(gradient_norm, residual_norm) else None

    def diverges(self, gradient: float, residual: float) -> bool:
        """Take the norms of the next measurement; whether PATIENCE in a row are too large or have grown too fast."""
        if not isfinite(gradient + residual) or not residual:
            return False
        self.largest = max(self.largest, gradient)
        self.residuals.append(residual)
        earlier = max(list(self.residuals)[: (len(self.residuals) + 1) // 2])
        grows = len(self.residuals) >= LEAST and residual > GROWTH * earlier
        self.agreed = self.agreed + 1 if grows or residual > self.most * self.largest else 0
        return self.agreed >= PATIENCE


def most_of(found: Compressor, momentum: float) -> float:
    """The bound of lemma 3 over the largest gradient; at least 1, for compressors that lose hardly anything. With
    momentum, below 1, `dgc` adds up velocities, which are up to 1 / (1 - momentum) times a gradient."""
    delta = found.parameter if found.algorithm.parameter == "ratio" else DELTA
    velocity = 1 / (1 - momentum) if found.algorithm.name == "dgc" and momentum < 1 else 1.0
    return max(1.0, velocity * 2 * sqrt(1 - delta) / delta)
