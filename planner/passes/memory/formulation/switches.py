"""The forms that the 0-1 program of a memory problem can take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DependencySet = Literal["entering", "leaving"]


@dataclass(frozen=True)
class Switches:
    """Each one keeps every optimum or improves it; the first five are trims T1 to T5 of `checkpoint.py`."""

    no_idle_rows: bool = True
    useful_only: bool = True
    useful_feeds: bool = True
    """Needs `useful_only`: only then is every run outside the useful sets impossible."""
    no_dominated: bool = True
    chains: bool = True
    cuts: bool = True
    """Add valid inequalities that lift the bound of the linear relaxation."""
    local: Literal["exact", "long", "superset"] = "exact"
    """How (M-run) counts what a run holds for later ones. Only "superset", as in MONeT, can lose the best plan."""
    literal_products: bool = False
    """Write the union of kept and needed tensors with one product for each implementation, as in MONeT."""
    integral: bool = False
    """Only integer variables and coefficients, as CP-SAT takes them: no chains, times in ns."""
