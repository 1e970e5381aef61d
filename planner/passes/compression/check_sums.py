"""What every rank holds after a row of steps, executed with symbols on a grid of nodes and devices.

The tensor is cut into cells, one for each place that dividing collectives can give it to. A rank holds pieces of some
cells; a piece says how often each rank's gradient is in it, as the digit of that rank in a number. Compressing is taken
as lossless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

DIGIT = 16
"""Bits for the count of one rank."""
MOST = 3
"""Nodes and devices of the grid: what a row of steps does to one of three it does to one of any number above."""
Held = dict[tuple[int, int], list[int]]
"""The pieces of a cell, by its place inside the node and between the nodes."""


def wrong_sum(steps: Sequence[str], machines: int, devices: int) -> str | None:
    """In words what a rank holds in the end, where that is not the sum of all gradients; None where every rank does.

    steps: known words in any row.
    """
    machines, devices = min(machines, MOST), min(devices, MOST)
    ranks = [(node, device) for node in range(machines) for device in range(devices)]
    total = sum(1 << DIGIT * number for number in range(len(ranks)))
    cells = [(inside, between) for inside in range(devices) for between in range(machines)]
    held: list[Held] = [{cell: [1 << DIGIT * number] for cell in cells} for number in range(len(ranks))]
    for step in steps:
        word, _, scope = step.partition("@")
        if word == "compress":
            continue
        if word == "decompress":
            held = [{cell: [sum(pieces)] for cell, pieces in mine.items()} for mine in held]
            continue
        for members in _groups(ranks, scope):
            after = _exchanged(word, [held[one] for one in members], _owner(ranks, members, scope))
            for one, mine in zip(members, after, strict=True):
                held[one] = mine
    for number, mine in enumerate(held):
        for cell in cells:
            if mine.get(cell) != [total]:
                return f"rank {number} of {machines}x{devices} holds {_words(mine.get(cell), len(ranks))}"
    return None


def _groups(ranks: Sequence[tuple[int, int]], scope: str) -> list[list[int]]:
    """The ranks that a collective joins, by place."""
    if scope == "flat":
        return [list(range(len(ranks)))]
    by = 0 if scope == "intra" else 1
    return [
        [place for place, rank in enumerate(ranks) if rank[by] == value]
        for value in sorted({rank[by] for rank in ranks})
    ]


def _owner(ranks: Sequence[tuple[int, int]], members: Sequence[int], scope: str) -> Callable[[tuple[int, int]], int]:
    """Which member a dividing collective gives a cell to."""
    node, device = ranks[members[0]]
    places = {ranks[rank]: at for at, rank in enumerate(members)}
    if scope == "flat":
        return lambda cell: places[cell[1], cell[0]]
    if scope == "intra":
        return lambda cell: places[node, cell[0]]
    return lambda cell: places[cell[1], device]


def _exchanged(word: str, held: list[Held], owner: Callable[[tuple[int, int]], int]) -> list[Held]:
    """What the members hold after a collective; the first is the root."""
    if word == "broadcast":
        return [held[0]] * len(held)
    cells = sorted({cell for mine in held for cell in mine})
    joined: Held = {cell: [piece for mine in held for piece in mine.get(cell, [])] for cell in cells}
    if word in ("allreduce", "planned", "reduce-scatter", "reduce"):
        joined = {cell: [sum(pieces)] for cell, pieces in joined.items()}
    if word in ("reduce-scatter", "alltoall"):
        return [{cell: joined[cell] for cell in cells if owner(cell) == at} for at in range(len(held))]
    if word in ("reduce", "gather"):
        return [joined, *({} for _ in held[1:])]
    return [joined] * len(held)


def _words(pieces: list[int] | None, ranks: int) -> str:
    """`nothing of a part`, `a part with the gradients of 2 of 4 ranks`."""
    if not pieces:
        return "nothing of a part"
    if len(pieces) > 1:
        return f"a part in {len(pieces)} pieces"
    counts = [(pieces[0] >> DIGIT * rank) & ((1 << DIGIT) - 1) for rank in range(ranks)]
    if max(counts) > 1:
        return f"a part with the gradient of a rank {max(counts)} times"
    return f"a part with the gradients of {sum(counts)} of {ranks} ranks"
