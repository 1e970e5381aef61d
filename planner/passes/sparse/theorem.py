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


def overlap(unions: Sequence[int]) -> float:
    """How much participants have in common: 0 where all their units are distinct, 1 where they are the same."""
    n, own, union = len(unions), unions[0], unions[-1]
    return 1.0 if n == 1 or not own else (n * own - union) / ((n - 1) * own)
