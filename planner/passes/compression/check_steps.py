"""Which rows of steps a group may go through: what may follow what, from Espresso's rules of valid connections
(section 4.3.1), written as an automaton and not as the tree of its options.

A tensor is raw or packed, which a compress and a decompress change. Its collectives are a whole one, or a first and a
second one of all ranks; or a first one inside nodes, such collectives between nodes, and the second one inside nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NEXT = {
    "start": {("whole", "flat"): "end", ("first", "flat"): "divided", ("first", "intra"): "inside"},
    "divided": {("second", "flat"): "end"},
    "inside": {("whole", "inter"): "back", ("first", "inter"): "between"},
    "between": {("second", "inter"): "back"},
    "back": {("second", "intra"): "end"},
    "sums": {("second", "intra"): "end"},
    "end": {},
}
"""The collectives that may come after others, and where each leads; `sums` is `back` after an allreduce of payloads."""
FIRST = {False: ("reduce-scatter", "reduce"), True: ("alltoall", "gather")}
"""First collectives of a raw and of a packed tensor."""
SECOND = {"reduce-scatter": "allgather", "alltoall": "allgather", "reduce": "broadcast", "gather": "broadcast"}


class StepsSoFar(NamedTuple):
    """What a row of steps has led to. `opened` are the first collectives without their second, by scope."""

    at: str = "start"
    packed: bool = False
    last: str = ""
    opened: tuple[tuple[str, str], ...] = ()


def following(now: StepsSoFar, *, summable: bool, planned: bool) -> dict[str, StepsSoFar]:
    """The steps that may come next, without the places of compressors. `summable`: its payloads can be all-reduced."""
    found = {}
    if not now.packed and now.at not in ("end", "sums"):
        found["compress"] = now._replace(packed=True, last="compress")
    if now.packed and now.last != "compress":
        found["decompress"] = now._replace(packed=False, last="decompress")
    if now.packed and now.last == "allreduce":
        return found
    for (part, scope), then in NEXT[now.at].items():
        if part == "first":
            for word in FIRST[now.packed]:
                found[f"{word}@{scope}"] = StepsSoFar(then, now.packed, word, (*now.opened, (scope, word)))
        elif part == "second":
            word = SECOND[dict(now.opened)[scope]]
            found[f"{word}@{scope}"] = StepsSoFar(then, now.packed, word, now.opened[:-1])
        else:
            word = "allgather" if now.packed else "allreduce"
            found[f"{word}@{scope}"] = now._replace(at=then, last=word)
            if planned and not now.packed and scope == "flat":
                found["planned@flat"] = now._replace(at=then, last="planned")
            if summable and now.last == "compress" and now.opened in ((), (("intra", "reduce-scatter"),)):
                found[f"allreduce@{scope}"] = now._replace(at="end" if then == "end" else "sums", last="allreduce")
    return found


def misstep(steps: Sequence[str], *, summable: bool, planned: bool) -> tuple[int, str, str] | None:
    """(place, found, expected) of the first step that may not come there, None for a row that may be executed."""
    now = StepsSoFar()
    for place, step in enumerate(steps):
        word, _, where = step.partition("@")
        known = following(now, summable=summable, planned=planned)
        key = word if word in ("compress", "decompress") and where in ("device", "host") else step
        if key not in known or (key == step and not where):
            return place, step, " or ".join(known) or "no further step"
        now = known[key]
    if now.at != "end" or now.packed:
        return len(steps), "no further step", " or ".join(following(now, summable=summable, planned=planned))
    return None
