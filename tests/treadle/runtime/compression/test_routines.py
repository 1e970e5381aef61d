"""Every routine in every scope, over gloo, against what all ranks brought."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from treadle.planner.documents.compression_costs import Routine, Scope
from treadle.runtime.compression.routines import ROUTINES, SUMS, result_elements, run
from treadle.runtime.launch import launch
from treadle.runtime.scope_groups import scope_groups

ELEMENTS, DEVICES, WORLD = 12, 2, 4
SCOPES: tuple[Scope, ...] = ("flat", "intra", "inter")
MEMBERS = {
    "flat": lambda rank: [0, 1, 2, 3],
    "intra": lambda rank: [rank // DEVICES * DEVICES + local for local in range(DEVICES)],
    "inter": lambda rank: [rank % DEVICES, rank % DEVICES + DEVICES],
}


def brought(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Whole numbers, which differ by rank and place and have exact sums."""
    return (torch.arange(ELEMENTS) + 20 * rank).to(dtype)


def expected(routine: Routine, members: list[int], rank: int, dtype: torch.dtype) -> list[float] | None:
    rows = [brought(member, dtype) for member in members]
    place, total = members.index(rank), torch.stack(rows).double().sum(0)
    length = ELEMENTS // len(members)
    found = {
        "allreduce": total,
        "reduce-scatter": total[place * length : (place + 1) * length],
        "allgather": torch.cat(rows),
        "alltoall": torch.cat([row[place * length : (place + 1) * length] for row in rows]),
        "reduce": total if place == 0 else None,
        "broadcast": rows[0],
        "gather": torch.cat(rows) if place == 0 else None,
    }[routine]
    return None if found is None else found.double().tolist()


def mistakes(rank: int) -> list[Any]:
    """What differs from the expected results."""
    groups = scope_groups(DEVICES)
    wrong = []
    for scope in SCOPES:
        members = MEMBERS[scope](rank)
        for routine in ROUTINES:
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8):
                if dtype == torch.uint8 and routine in SUMS:
                    continue
                source = brought(rank, dtype)
                wanted = expected(routine, members, rank, dtype)
                room = torch.empty(result_elements(routine, ELEMENTS, len(members)), dtype=dtype)
                for out in (None, room):
                    found = run(routine, groups.of(scope), source, out)
                    given = None if found is None else found.double().tolist()
                    if given != wanted or not torch.equal(source, brought(rank, dtype)):
                        wrong.append((scope, routine, dtype, given, wanted))
                if routine in ("allreduce", "broadcast"):
                    run(routine, groups.of(scope), source, source)
                    if source.double().tolist() != wanted:
                        wrong.append((scope, routine, dtype, "in place"))
    return wrong


def refusals() -> list[str]:
    group, found = scope_groups(DEVICES).flat, []
    for routine, source in (("allreduce", torch.zeros(4, dtype=torch.uint8)), ("alltoall", torch.zeros(3))):
        with pytest.raises(ValueError) as error:
            run(routine, group, source)
        found.append(str(error.value))
    with pytest.raises(ValueError) as error:
        scope_groups(3)
    return [*found, str(error.value)]


def tried(rank: int, world: int) -> tuple[list[Any], list[str]]:
    return mistakes(rank), refusals()


def test_each_routine_gives_its_result_in_each_scope_and_refuses_what_has_none() -> None:
    refused = [
        "allreduce of bytes adds up no values: view the payload as what it holds",
        "alltoall of 3 elements among 4 ranks",
        "4 ranks are no nodes of 3",
    ]
    assert launch(WORLD, tried, timeout=120) == [([], refused)] * WORLD


def test_a_rank_without_others_has_its_result_at_once() -> None:
    source, out = torch.arange(4.0), torch.empty(4)
    assert run("allgather", None, source) is source
    assert run("reduce-scatter", None, source, out) is out
    assert out.tolist() == source.tolist()
