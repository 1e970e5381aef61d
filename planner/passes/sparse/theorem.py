"""Which of the two schemes that can be optimal has fewer bytes: balanced parts, or sums along a hierarchy.

With little overlap between participants every one must receive nearly all entries once, which incremental sums of whole
gradients along a hierarchy do; with overlap balanced parts receive a common index least often (Zen, lemmas 3.1 to 3.5).
Where the one becomes the other follows from both volumes, for any n: balanced parts are ahead where
(n - 1)/n (1 + U(n)/U(1)) is less than the sum of U(2^i)/U(1) over the stages i of the hierarchy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Favours = Literal["hierarchy", "balanced", "tie"]


def favours(unions: Sequence[int]) -> Favours:
    """Which has fewer bytes. unions: non-zero units in the sums of 1 to n participants."""
    n = len(unions)
    if n == 1:
        return "tie"
    balanced = (n - 1) * (unions[0] + unions[-1])
    hierarchy = n * sum(unions[min(n, 1 << stage) - 1] for stage in range((n - 1).bit_length()))
    if balanced == hierarchy:
        return "tie"
    return "balanced" if balanced < hierarchy else "hierarchy"


def densification(unions: Sequence[int]) -> float:
    """How many times the units of one participant the sum of all has."""
    return unions[-1] / unions[0] if unions[0] else 1.0


def overlap_of(unions: Sequence[int]) -> str:
    """The case of the theorem in two words: how much participants have in common."""
    if len(unions) <= 2:
        return f"{len(unions)} node{'s' * (len(unions) > 1)}"
    if unions[-1] == unions[0]:
        return "full overlap"
    return {"hierarchy": "little overlap", "balanced": "partial overlap", "tie": "a tie"}[favours(unions)]


def case_of(unions: Sequence[int]) -> str:
    """Which case holds, in words."""
    n, found, overlap = len(unions), favours(unions), overlap_of(unions)
    if n == 1:
        return "a single node has nothing to exchange"
    grown = f"{overlap}: the sum of {n} has {densification(unions):.3g} times the units of one"
    if found == "tie":
        return f"{grown}, so balanced parts have as many bytes as sums along a hierarchy"
    if n == 2:
        return f"{grown}, and sums along a hierarchy have fewer bytes than balanced parts at any overlap"
    if found == "hierarchy":
        return f"{grown}, so sums along a hierarchy have fewer bytes than balanced parts"
    return f"{grown}, so balanced parts have fewer bytes than sums along a hierarchy"
