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
        assert len({(each.numel(), each.dtype) for each in brought}) == 1, f"{word} {scope} meets another collective"
        got: Tensor | None
        match word:
            case "allreduce" | "planned":
                got = torch.stack(brought).sum(0)
            case "reduce":
                got = torch.stack(brought).sum(0) if place == 0 else None
            case "reduce-scatter":
                got = torch.stack(brought).sum(0).chunk(len(members))[place]
            case "allgather":
                got = torch.cat(brought)
            case "gather":
                got = torch.cat(brought) if place == 0 else None
            case "alltoall":
                got = torch.cat([each.chunk(len(members))[place] for each in brought])
            case "broadcast":
                got = brought[0]
        barrier.wait()
        return out.copy_(got) if got is not None and out is not None else None

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
