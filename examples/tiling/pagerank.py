"""PageRank: the share of visits of each page, by powers of the matrix of links."""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle.array as ta


def ranked(links: Any, iterations: int, damping: float) -> Any:
    """`links[i, j]` is whether page j links to page i. A page without links leads everywhere."""
    pages = links.shape[0]
    out = np.sum(links, axis=0)
    shares = np.where(out > 0, links / np.maximum(out, 1.0), 1.0 / pages)
    ranks = np.ones_like(out) / pages
    for _ in range(iterations):
        ranks = (1 - damping) / pages + damping * (shares @ ranks)
    return ranks


def program(pages: int = 400, density: float = 0.02, iterations: int = 10, damping: float = 0.85) -> ta.Array:
    links = (ta.uniform((pages, pages), seed=1) < density).astype(float)
    made: ta.Array = ranked(links, iterations, damping)
    return made
