"""Keys of synthetic families, some after the datasets of SOSD, and workloads on them (MAPLE, "Datasets and workloads").

All keys are drawn with NumPy's PCG64 from an explicit seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes.index.operations import INSERT, LOOKUP, Keys, Operations, Workload, payloads_of
from treadle.planner.passes.index.problem import DrawnWorkload, Family

MOST = 1 << 29
"""Keys, and operations, of the largest workload that is drawn; the paper's have 210 million keys."""
OUTLIERS = 20

_Draw = Callable[[np.random.Generator, int], Keys]
_Reals = NDArray[np.float64]


def family_keys(family: Family, count: int, seed: int) -> Keys:
    """`count` different keys of a family, ascending. Raises InputError for more than MOST."""
    if count > MOST:
        raise InputError(f"found {count} keys of family {family}, expected at most {MOST}")
    return _FAMILIES[family](_generator(seed, 0), count)


def drawn(of: DrawnWorkload) -> Workload:
    """The workload that `of` describes: exactly its share of inserts, in a random order.

    Raises InputError for a workload that looks up keys where none was ever there, and for one of more than MOST.
    """
    if of.operations > MOST:
        raise InputError(f"found {of.operations} operations, expected at most {MOST}")
    inserts = round(of.operations * of.insert_share)
    if not of.bulk and not inserts:
        raise InputError(f"found no key to be loaded or inserted for {many(of.operations, 'lookup')}")
    ops = np.full(of.operations, LOOKUP, np.uint8)
    ops[:inserts] = INSERT
    _generator(of.seed, 1).shuffle(ops)
    if not of.bulk:  # the first operation finds no key to look up
        place = int(np.argmax(ops == INSERT))
        ops[0], ops[place] = ops[place], ops[0]
    return workload_of(of.family, of.bulk, ops, of.seed, of.skew)


def workload_of(family: Family, bulk: int, ops: NDArray[np.uint8], seed: int, skew: float = 0.0) -> Workload:
    """`bulk` loaded keys, and inserts and lookups in the given order, of which the first is no lookup where none is
    loaded.

    Inserts take the keys that are not loaded, in a random order. The rank of a key in Zipf's law is its place in the
    random order in which keys arrive, loaded ones first; a lookup draws from the keys that are there at that moment.
    """
    there = bulk + np.cumsum(ops, dtype=np.int64)  # INSERT is 1 and LOOKUP 0
    arrived = family_keys(family, int(there[-1]), seed)
    random = _generator(seed, 2)
    random.shuffle(arrived)
    looked_up = ops == LOOKUP
    ranks = there - 1
    ranks[looked_up] = _ranks(random.random(int(looked_up.sum())), there[looked_up], skew)
    keys = arrived[ranks]
    loaded = np.sort(arrived[:bulk])
    payloads = payloads_of(keys)
    payloads[looked_up] = 0
    return Workload(loaded, payloads_of(loaded), Operations(ops, keys, payloads))


def _ranks(random: _Reals, count: NDArray[np.int64], skew: float) -> NDArray[np.int64]:
    """For each number in [0, 1), a rank below its count, in Zipf's law: the integral of x^-skew from 1 to count + 1 is
    cut in shares."""
    if not skew:
        ranks = random * count
    elif abs(skew - 1) < 1e-6:
        ranks = (count + 1.0) ** random - 1
    else:
        most = (count + 1.0) ** (1 - skew) - 1
        ranks = (1 + random * most) ** (1 / (1 - skew)) - 1
    return np.minimum(ranks.astype(np.int64), count - 1)


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, stream]))


# Families by how far the next key is


def _summed(gaps: Callable[[np.random.Generator, int], _Reals]) -> _Draw:
    """Keys whose gaps are drawn; at least 1, so that they differ, and below 2^63 / MOST on average."""

    def draw(random: np.random.Generator, count: int) -> Keys:
        whole = np.maximum(gaps(random, count), 1.0).astype(np.uint64)
        return np.cumsum(whole, dtype=np.uint64)

    return draw


def _books(random: np.random.Generator, count: int) -> _Reals:
    """Log-normal gaps round a mean that changes smoothly: popularity falls off."""
    place = np.linspace(0, 1, count)
    return np.exp(random.normal(14 + 3 * np.sin(3 * np.pi * place) * place, 1.0, count))


def _bursts(random: np.random.Generator, count: int) -> _Reals:
    """Timestamps in ns: about 64 events some us apart, then a pause of about 10 ms, sometimes far longer."""
    inside = random.exponential(2e3, count)
    return np.where(random.random(count) < 1 / 64, np.minimum(random.lognormal(16, 2, count), 1e13), inside)


def _steps(random: np.random.Generator, count: int) -> _Reals:
    """64 pieces in which keys are equally far apart, from 1 to 2^30."""
    return np.floor(2 ** random.uniform(0, 30, 64))[np.arange(count) * 64 // max(count, 1)]


def _zipf(random: np.random.Generator, count: int) -> _Reals:
    """Gaps in Zipf's law of exponent 2, at most 2^40."""
    return np.minimum(1 / (1 - random.random(count)), 2.0**40)


def _sequence(random: np.random.Generator, count: int) -> _Reals:
    """Consecutive numbers, such as of rows of a table."""
    return np.ones(count)


# Families by where keys are


def _different(draw: _Draw) -> _Draw:
    """Keys drawn until enough of them differ, less a random choice of the surplus."""

    def distinct(random: np.random.Generator, count: int) -> Keys:
        keys: Keys = np.empty(0, np.uint64)
        while len(keys) < count:
            missing = count - len(keys)
            keys = np.sort(np.concatenate([keys, draw(random, missing + missing // 64 + 8)]))
            keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
        keep = np.ones(len(keys), bool)
        keep[random.choice(len(keys), len(keys) - count, replace=False)] = False
        return keys[keep]

    return distinct


def _below(most: int) -> _Draw:
    return lambda random, count: random.integers(0, most, count, np.uint64)


def _osm(random: np.random.Generator, count: int) -> Keys:
    """Points in clusters of all sizes, each by the number of its cell along a space-filling curve (Morton order)."""
    clusters = 2000
    weights = 1 / np.arange(1.0, clusters + 1)
    which = random.choice(clusters, count, p=weights / weights.sum())
    spread = np.exp(random.normal(-6, 1.5, clusters))
    axes: list[Keys] = []
    for centre in random.random((2, clusters)):
        place = centre[which] + random.normal(0, 1, count) * spread[which]
        axes.append(_spaced((np.mod(place, 1.0) * (1 << 31)).astype(np.uint64)))
    return axes[0] | axes[1] << np.uint64(1)


def _spaced(numbers: Keys) -> Keys:
    """32 bits of each number, a zero between them."""
    for shift, mask in (
        (16, 0x0000FFFF0000FFFF),
        (8, 0x00FF00FF00FF00FF),
        (4, 0x0F0F0F0F0F0F0F0F),
        (2, 0x3333333333333333),
        (1, 0x5555555555555555),
    ):
        numbers = (numbers | numbers << np.uint64(shift)) & np.uint64(mask)
    return numbers


def _fb(random: np.random.Generator, count: int) -> Keys:
    """Ids of users below 2^36, and a few above 2^64 - 2^56, which flatten a line through all keys."""
    far = min(OUTLIERS, count // 2)
    above = _different(_below(1 << 56))(random, far)
    return np.concatenate([_different(_below(1 << 36))(random, count - far), above + np.uint64(0xFF << 56)])


def _normal(random: np.random.Generator, count: int) -> Keys:
    places: _Reals = np.clip(random.normal(2.0**63, 2.0**60, count), 0, 2.0**63.999)
    return places.astype(np.uint64)


def _lognormal(random: np.random.Generator, count: int) -> Keys:
    places: _Reals = np.minimum(random.lognormal(0, 2, count) * 2.0**40, 2.0**63.999)
    return places.astype(np.uint64)


def _exponential(random: np.random.Generator, count: int) -> Keys:
    """As many keys between any two powers of two, where there are that many numbers: the worst case of fragments
    (MAPLE, "Memory contribution")."""
    left, keys = count, []
    for bit in range(64):
        first, size = (1 << bit, 1 << bit) if bit else (1, 1)
        share = min(left // (64 - bit), size)
        if share > size // 2:
            offsets = np.sort(random.permutation(size)[:share]).astype(np.uint64)
        else:
            offsets = _different(_below(size))(random, share)
        keys.append(offsets + np.uint64(first))
        left -= share
    return np.concatenate(keys)


_FAMILIES: dict[Family, _Draw] = {
    "books": _summed(_books),
    "osm": _different(_osm),
    "fb": _fb,
    "uniform": _different(_below(1 << 64)),
    "normal": _different(_normal),
    "lognormal": _different(_lognormal),
    "sequence": _summed(_sequence),
    "bursts": _summed(_bursts),
    "steps": _summed(_steps),
    "zipf": _summed(_zipf),
    "exponential": _exponential,
}
