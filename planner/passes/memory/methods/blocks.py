"""Options of one segment: for each number of bytes kept the least time found, and the bytes in use.

They come from local search (`local_search.py`) on the segment in isolation, over a grid of bytes kept and bytes in use.
Only options remain that no other one beats in every respect.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.passes.memory.methods.lifetimes import Lifetime, Lifetimes
from treadle.planner.passes.memory.methods.local_search import evict, local_search, whole_plans
from treadle.planner.passes.memory.methods.segments import Segment


@dataclass(frozen=True)
class Option:
    """A plan of a segment: `keep` bytes from forward to backward pass, `forward` and `backward` the most in use in
    each, kept ones included. `lives` and `choices` are those of the sub-problem, `lives` of its own nodes only."""

    keep: int
    forward: int
    backward: int
    time_ns: int
    lives: tuple[tuple[Lifetime, ...], ...]
    choices: tuple[int, ...]

    def beats(self, other: Option) -> bool:
        return (
            self.keep <= other.keep
            and self.forward <= other.forward
            and self.backward <= other.backward
            and self.time_ns <= other.time_ns
        )


GATE = 1
"""The stage that ends with the gate."""
ENDLESS = 2**60


def options(segment: Segment, levels: int, rounds: int) -> list[Option]:
    """Options of a segment at about `levels` numbers of kept bytes and 3 limits of bytes in use, fastest first."""
    free = segment.sub_problem(ENDLESS, ENDLESS)
    found: list[Option] = []
    for whole in whole_plans(free):
        top = _option(segment, whole)
        if top is None:
            continue
        found.append(top)
        least = segment.wanted_bytes
        for level in range(levels):
            keep = least + (top.keep - least) * level // levels
            most = ENDLESS
            for _ in range(3):
                option = _best(segment, whole, keep, most, rounds)
                if option is None:
                    break
                found.append(option)
                most = max(option.forward, option.backward) * 7 // 8
    found.sort(key=lambda option: (option.time_ns, option.keep, option.backward, option.forward))
    front: list[Option] = []
    for option in found:
        if not any(other.beats(option) for other in front):
            front.append(option)
    return front


def _best(segment: Segment, start: Lifetimes, keep: int, most: int, rounds: int) -> Option | None:
    """The fastest plan found that keeps at most `keep` bytes and uses at most `most`."""
    problem = segment.sub_problem(keep, most)
    lives = Lifetimes(problem, start.schedule())
    if not evict(lives, most):
        return None
    local_search(lives, most, rounds)
    return _option(segment, lives)


def _option(segment: Segment, lives: Lifetimes) -> Option | None:
    """The plan as an option; None if it runs something for later segments at the gate instead of keeping it."""
    given = len(segment.inputs)
    own = tuple(lives.lives[given:])
    if any(life.start == GATE for found in own for life in found):
        return None
    measured = Lifetimes(segment.sub_problem(ENDLESS, ENDLESS), lives.schedule())
    measured.worst()
    return Option(
        keep=int(measured.entering[GATE]),
        forward=int(measured.peak[0]),
        backward=int(max(measured.peak[GATE + 1 :], default=0)),
        time_ns=measured.time_ns,
        lives=own,
        choices=tuple(lives.way[GATE:]),
    )
