"""Prices of links and ports from the concurrent flow problem of an alltoall, a linear program.

One unit goes from every rank to every other. By source s (one of the first `shift` ranks; the others are rotations):

    x[s,l] >= 0    units of s over link l
    t              time

    minimise t
    C1  sum_in x[s,.] - sum_out x[s,.] = 1              at every rank but s
    C2  sum of cost(l) * (x[s,l] and its rotations) <= t      for every link, and for the links of every port, which
                                                              may have a cost of its own

The duals of C2 are prices at which every unit pays least on its path and all together pay for t: whatever the solver's
accuracy, prices give a bound (see `universal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from treadle.planner.passes.collective.throughput import Flow

GRAIN = 2**30
"""Prices are whole multiples of 1 / GRAIN of all of them together."""


def dual_prices(flow: Flow, cost: Sequence[Fraction], shift: int) -> tuple[list[int], list[int]]:
    """(by link, by port): whole prices; all zero where the program has no solution."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    n, links, ports = flow.ranks, len(flow.links), len(flow.ports)
    number = {edge: i for i, edge in enumerate(flow.links)}
    unit = float(min(cost))
    weigh = [float(c) / unit for c in cost]
    sources = range(shift)
    columns = shift * links + 1
    rows, cols, data, right = [], [], [], []
    row = 0
    balance: dict[tuple[int, int], int] = {}
    for s in sources:
        for rank in range(n):
            if rank != s:
                balance[s, rank] = row
                right.append(1.0)
                row += 1
    for s in sources:
        for i, (src, dst) in enumerate(flow.links):
            for rank, sign in ((dst, 1.0), (src, -1.0)):
                if rank != s:
                    rows.append(balance[s, rank])
                    cols.append(s * links + i)
                    data.append(sign)
    equal = coo_array((data, (rows, cols)), shape=(row, columns))
    # A resource of the first orbit stands for its rotations: x[s, l] loads the link that l becomes when turned back.
    stand = [(min(_turned(edge, turn, n) for turn in range(0, n, shift))) for edge in flow.links]
    kinds = {edge: k for k, edge in enumerate(sorted(set(stand)))}
    by_port: dict[frozenset[int], int] = {}
    kind_of_port = []
    for port in flow.ports:
        members = frozenset(kinds[stand[i]] for i in port)
        kind_of_port.append(by_port.setdefault(members, len(kinds) + len(by_port)))
    count = len(kinds) + len(by_port)
    rows, cols, data = [], [], []
    for i, edge in enumerate(flow.links):
        held = {kind_of_port[p]: float(flow.busy(p, cost[i])) / unit for p in flow.passed(i)}
        for s in sources:
            for resource, weight in {kinds[stand[i]]: weigh[i], **held}.items():
                rows.append(resource)
                cols.append(s * links + number[edge])
                data.append(weight)
    for resource in range(count):
        rows.append(resource)
        cols.append(columns - 1)
        data.append(-1.0)
    load = coo_array((data, (rows, cols)), shape=(count, columns))
    goal = np.zeros(columns)
    goal[-1] = 1.0
    found = linprog(goal, A_ub=load.tocsr(), b_ub=np.zeros(count), A_eq=equal.tocsr(), b_eq=right, method="highs")  # type: ignore[call-overload]
    if found.status != 0:
        return [0] * links, [0] * ports
    price = np.maximum(-found.ineqlin.marginals, 0)
    whole = [round(float(p) * GRAIN) for p in price]
    # The price of an orbit is paid at each of its members.
    return [whole[kinds[edge]] for edge in stand], [whole[kind] for kind in kind_of_port]


def _turned(edge: tuple[int, int], turn: int, ranks: int) -> tuple[int, int]:
    return (edge[0] + turn) % ranks, (edge[1] + turn) % ranks
