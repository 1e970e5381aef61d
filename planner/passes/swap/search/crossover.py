"""Two parents' orders and pools, cut and joined (SwapAdvisor, section 4.4)."""

from __future__ import annotations

import numpy as np

from treadle.planner.passes.swap.arrays import Ints
from treadle.planner.passes.swap.search.repair import extended
from treadle.planner.search.compiled import compiled


@compiled
def crossed_order(first: Ints, second: Ints, cut: int) -> Ints:
    """The first `cut` operators of `second`, then the missing ones in the order of `first`.

    Topological where both are: a prefix of a topological order holds all predecessors of its operators.
    """
    child = np.empty_like(first)
    taken = np.zeros(len(first), np.bool_)
    for place in range(cut):
        child[place] = second[place]
        taken[second[place]] = True
    place = cut
    for op in first:
        if not taken[op]:
            child[place] = op
            place += 1
    return child


def crossed_pool(first: tuple[Ints, Ints], second: tuple[Ints, Ints], cut: int) -> tuple[Ints, Ints]:
    """(CLS, CNT_EXT) of the child that takes `cut` sizes of `second` and the rest of `first`; both are (CLS, CNT).

    CLS may need repair, CNT is the average of CNT_EXT over the repaired classes.
    """
    classes = np.concatenate((second[0][:cut], first[0][cut:]))
    return classes, np.concatenate((extended(*second)[:cut], extended(*first)[cut:]))
