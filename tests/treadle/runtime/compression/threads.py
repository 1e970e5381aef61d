"""Ranks as threads, and the collectives of compression plans over arrays that they share."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import torch
from torch import Tensor

from treadle.planner.documents.compression_costs import Routine, Scope
from treadle.runtime.compression.group_run import Grid


class Shared:
    """All groups of a grid of threads."""

    def __init__(self, machines: int, devices: int) -> None:
        ranks = range(machines * devices)
        self.grids = [Grid(rank, machines, devices) for rank in ranks]
        teams: dict[object, list[int]] = {}
        for grid in self.grids:
            for scope in ("flat", "intra", "inter"):
                teams.setdefault(self.team(scope, grid.rank), []).append(grid.rank)
        self.barriers = {team: Barrier(len(members)) for team, members in teams.items()}
        self.teams = teams
        self.brought: dict[object, dict[int, Tensor]] = {team: {} for team in teams}

    def team(self, scope: str, rank: int) -> object:
        node, local = divmod(rank, self.grids[0].devices)
        return {"flat": "flat", "intra": ("intra", node), "inter": ("inter", local)}[scope]

    def call(self, rank: int, word: Routine, scope: Scope, source: Tensor, out: Tensor | None) -> Tensor | None:
        team = self.team(scope, rank)
        members, barrier = self.teams[team], self.barriers[team]
        self.brought[team][rank] = source.clone()
        barrier.wait()
        brought, place = [self.brought[team][each] for each in members], members.index(rank)
        got: Tensor | None = {
            "allreduce": lambda: torch.stack(brought).sum(0),
            "planned": lambda: torch.stack(brought).sum(0),
            "reduce-scatter": lambda: torch.stack(brought).sum(0).chunk(len(members))[place],
            "allgather": lambda: torch.cat(brought),
            "alltoall": lambda: torch.cat([each.chunk(len(members))[place] for each in brought]),
            "reduce": lambda: torch.stack(brought).sum(0) if place == 0 else None,
            "gather": lambda: torch.cat(brought) if place == 0 else None,
            "broadcast": lambda: brought[0],
        }[word]()
        barrier.wait()
        if got is None or out is None:
            assert got is None
            return None
        return out.copy_(got)

    def run(self, work: Callable[[Grid], Any]) -> list[Any]:
        """What each rank's thread returns."""
        results: list[Any] = [None] * len(self.grids)

        def one(grid: Grid) -> None:
            try:
                results[grid.rank] = work(grid)
            except BaseException as error:
                results[grid.rank] = error
                for barrier in self.barriers.values():
                    barrier.abort()

        threads = [Thread(target=one, args=(grid,)) for grid in self.grids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results
