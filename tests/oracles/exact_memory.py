"""An exact dynamic program over stage boundaries: what the best memory plan takes, for a handful of nodes.

Reads the problem as the JSON document that docs/memory-problem.md describes and shares no code with the planner. The
state between stages is the set of stored tensors, a bit mask. A stage tries every set of runs, of runs in place and of
tensors to keep; each run takes its fastest implementation that fits. A run holds, at its moment, what it makes and
what is there before it and still read: by a later run of the stage, by the backward node, or in a later stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

INFINITE = 10**15


@dataclass(frozen=True)
class _Runs:
    """Pairs of what a stage is entered with and the set of its runs, one row for each pair that can be.

    in_place, gone: the nodes that run in place, what they overwrite. cost[row, held]: time of the runs when `held`
    must outlive them; infinite where one of them does not fit.
    """

    entered: np.ndarray
    runs: np.ndarray
    gone: int
    cost: np.ndarray


def optima(document: dict[str, Any]) -> tuple[int | None, int | None]:
    """Least time of any plan within the budget, None if there is no plan, in both readings of what backward reads.

    First: it is there when the stage is entered or made in it. Second: it is kept beyond the stage or made in it.
    """
    fwd, bwd = document["fwd"], document["bwd"]
    every = np.arange(1 << len(fwd))
    weight = sum(((every >> i & 1) * node["out_bytes"] for i, node in enumerate(fwd)), np.zeros_like(every))
    room = document["budget_bytes"] - sum(document["base"].values())
    ahead = (np.zeros_like(every), np.zeros_like(every))  # least time of the stages to come, by what is stored
    tables: dict[int, list[_Runs]] = {}
    for back in reversed(bwd):
        left = room - back["live_grad_bytes"]
        if left not in tables:
            tables[left] = _tables(fwd, weight, left, again=True)
        ahead = tuple(_stage(back, tables[left], weight, left, ahead[way], leaving=way == 1) for way in (0, 1))
    first = _tables(fwd, weight, room, again=False)
    return tuple(_forward_pass(fwd, first, weight, ahead[way]) for way in (0, 1))


def _stage(
    back: Any, tables: list[_Runs], weight: np.ndarray, room: int, ahead: np.ndarray, leaving: bool
) -> np.ndarray:
    """Least time from the start of the stage that ends with `back`, for every set of tensors it is entered with."""
    best = np.full(len(weight), INFINITE)
    kept = np.arange(len(weight))
    for impl in back.get("impls", [{}]):
        needs = _mask(impl.get("needs", ()))
        made = impl.get("workspace_bytes", 0) + (0 if impl.get("grad_inplace") else back["out_grad_bytes"])
        for table in tables:
            rows = (needs & ~(table.entered | table.runs) == 0) & (needs & table.gone == 0)
            keep = kept[(kept & table.gone == 0) & (made + weight[kept | needs] <= room) & (ahead < INFINITE)]
            entered, runs = table.entered[rows, None], table.runs[rows, None]
            total = table.cost[rows][:, keep | needs] + ahead[keep] + impl.get("time_ns", 0)
            refused = keep & ~(entered | runs) != 0
            if leaving:
                refused |= needs & ~(keep | runs) != 0
            if total.size:
                np.minimum.at(best, table.entered[rows], np.where(refused, INFINITE, total).min(axis=1))
    return np.where(weight <= room, best, INFINITE)


def _forward_pass(fwd: list[Any], tables: list[_Runs], weight: np.ndarray, ahead: np.ndarray) -> int | None:
    kept = np.arange(len(weight))
    best = INFINITE
    for table in tables:
        refused = (kept & ~table.runs[:, None] != 0) | (kept & table.gone != 0)
        best = min(best, np.where(refused, INFINITE, table.cost + ahead).min(initial=INFINITE))
    return None if best >= INFINITE else int(best)


def _tables(fwd: list[Any], weight: np.ndarray, room: int, again: bool) -> list[_Runs]:
    """One for each choice of runs in place; `room` is what activations and workspace may take."""
    every = np.arange(len(weight))
    ops = _mask(i for i, node in enumerate(fwd) if node.get("kind", "op") == "op")
    if again:
        entered, runs = (part.ravel() for part in np.meshgrid(every, every, indexing="ij"))
    else:
        entered, runs = np.zeros_like(every), every
    possible = np.ones(len(runs), bool) if again else runs & ops == ops
    for i, node in enumerate(fwd):
        able = _mask(node.get("inputs", ())) & ~(entered | runs) == 0
        if again and not node.get("recomputable", True):
            able = np.zeros_like(able)
        if node.get("creator") is not None:
            able &= runs >> node["creator"] & 1 == 1
        possible &= able | (runs >> i & 1 == 0)
    entered, runs = entered[possible], runs[possible]
    tables = []
    overwriters = [i for i, node in enumerate(fwd) if node.get("inplace_of") is not None]
    for choice in range(1 << len(overwriters)):
        pick = [i for place, i in enumerate(overwriters) if choice >> place & 1]
        rows = runs & _mask(pick) == _mask(pick)
        cost = _cost(fwd, weight, entered[rows], runs[rows], pick, room, again)
        tables.append(_Runs(entered[rows], runs[rows], _mask(fwd[i]["inplace_of"] for i in pick), cost))
    return tables


def _cost(
    fwd: list[Any], weight: np.ndarray, entered: np.ndarray, runs: np.ndarray, pick: list[int], room: int, again: bool
) -> np.ndarray:
    held = np.arange(len(weight))
    total = np.zeros((len(runs), len(weight)), np.int64)
    read = np.zeros_like(runs)  # what the runs from i on read
    for i in reversed(range(len(fwd))):
        node = fwd[i]
        rows = np.flatnonzero(runs >> i & 1)
        read[rows] |= _mask(node.get("inputs", ()))
        behind = (1 << i) - 1
        use = weight[(held | read[rows, None]) & behind] + weight[entered[rows] & ~behind & ~(1 << i)][:, None]
        use += node["out_bytes"]
        saved = 0
        if i in pick:
            use -= fwd[node["inplace_of"]]["out_bytes"]
            saved = node.get("inplace_saves_ns", 0)
        time = np.full(use.shape, INFINITE)
        for impl in node.get("impls", [{}]):
            workspace, takes = impl.get("workspace_bytes", 0), impl.get("time_ns", 0)
            if again:
                workspace = impl.get("recompute_workspace_bytes", workspace)
                takes = impl.get("recompute_time_ns", takes)
            time = np.where(use + workspace <= room, np.minimum(time, takes - saved), time)
        total[rows] += time
    return np.minimum(total, INFINITE)


def _mask(nodes: Iterable[int]) -> int:
    return sum(1 << i for i in set(nodes))
