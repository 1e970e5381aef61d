"""Holder sets as lists of holders: whose set each is, and who sends to whom in which round.

Sets of which each machine is in as many as a set has machines are the rows of a regular bipartite graph, which is a sum
of perfect matchings (König, Über Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre). One gives each
machine a set that it is in; those of what is left are the rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def in_rounds(machines: Sequence[int], sets: Sequence[Iterable[int]]) -> dict[int, tuple[int, ...]]:
    """The holders of each of `machines`, itself first; machine i sends to its r-th holder in round r.

    sets: one for each machine, in any order; each machine is in as many as a set has machines.
    """
    place = {machine: number for number, machine in enumerate(machines)}
    members = np.zeros((len(sets), len(machines)), dtype=np.int8)
    for number, holders in enumerate(sets):
        members[number, [place[holder] for holder in holders]] = 1
    owned = members[np.argsort(_matching(members))]  # the set of machine i is row i
    owned[np.diag_indices(len(machines))] = 0
    held = [[machine] for machine in machines]
    while owned.any():
        round_of = _matching(owned)
        owned[np.arange(len(machines)), round_of] = 0
        for number, holder in enumerate(round_of):
            held[number].append(machines[holder])
    return dict(zip(machines, map(tuple, held), strict=True))


def _matching(rows: NDArray[np.int8]) -> NDArray[np.intp]:
    """A column for each row, all different, where `rows` is not 0."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return np.asarray(maximum_bipartite_matching(csr_matrix(rows), perm_type="column"), dtype=np.intp)
