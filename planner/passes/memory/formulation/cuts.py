"""Valid inequalities that lift the linear relaxation of the 0-1 program.

The relaxation can make a tensor in small parts, stage after stage, each time from the same small part of its inputs.
Seen over several stages together that is no plan. For a window of stages a..1 let

    g_i^a    forward i runs again in one of the stages a..1

which lies between 0 and 1. Then, with b < a the next window or 0 (g_i^0 = 0),

    g_i^a <= g_i^b + sum_{k=b+1..a} r_i^k
    g_i^a <= s_j^a + g_j^a               for every input j of i: it was there when the window began or was made in it
    g_m^a <= g_creator(m)^a              for intermediates
    s_i^{k-1} <= s_i^a + g_i^a           for k <= a
    sum_{l: i in D_kl} dhat_kl <= s_i^a + g_i^a     for k <= a, in both readings of (C5)

hold for every plan. One window over all stages gives most of the effect for next to nothing; more windows help under
tight budgets and are taken while the program is small.
"""

from __future__ import annotations

from treadle.planner.passes.memory.formulation.tables import Formulation, MaybeVar

WINDOWS = 4
"""More of them lift the bound by little and slow the linear relaxation down."""
PAIRS = 40_000
"""Forward nodes times stages times windows, at most, for more than one window."""


def windows(nodes: int, stages: int) -> list[int]:
    """The stages a at which windows begin, ascending: all of K..1, and shares of it while there are rows to spend."""
    count = max(1, min(WINDOWS, stages, PAIRS // max(1, nodes * stages)))
    return sorted({-(-stages * part // count) for part in range(1, count + 1)})


def add_cuts(f: Formulation) -> None:
    """The rows above for all windows."""
    before = 0
    inner: list[MaybeVar] = [None] * len(f.problem.fwd)
    for start in windows(len(f.problem.fwd), f.stages):
        inner = _add_window(f, start, before, inner)
        before = start


def _add_window(f: Formulation, start: int, before: int, inner: list[MaybeVar]) -> list[MaybeVar]:
    """Window start..1, where `inner` holds g of the window before..1; returns its own g."""
    nodes = f.problem.fwd
    entered = f.s[start]
    runs = [[f.r[k][i] for k in range(before + 1, start + 1) if f.r[k][i] is not None] for i in range(len(nodes))]
    again = [f.auxiliary() if runs[i] or inner[i] is not None else None for i in range(len(nodes))]
    for i, g in enumerate(again):
        if g is None:
            continue
        f.at_most(g, [inner[i], *runs[i]])
        creator = nodes[i].creator
        if creator is not None:
            f.at_most(g, [again[creator]])
        for j in sorted({*nodes[i].inputs} - {creator}):
            f.at_most(g, [entered[j], again[j]])
    for k in range(1, start + 1):
        for i, left in enumerate(f.s[k - 1]):
            if left is not None:
                f.at_most(left, [entered[i], again[i]])
        impls = f.problem.bwd[f.stages - k].impls
        for i in sorted({i for way in f.dhat[k] for i in impls[way].needs}):
            choosing = [var for way, var in f.dhat[k].items() if i in impls[way].needs]
            needed = [f.one] if len(choosing) == len(f.dhat[k]) else choosing
            there = [(var, -1) for var in (entered[i], again[i]) if var is not None]
            f.model.add_linear([*((var, 1) for var in needed), *there], ub=0)
    return again
