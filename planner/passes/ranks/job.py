"""The section of a job file on the order of its hosts."""

from __future__ import annotations

from typing import Literal

from treadle.planner.documents.scalars import Name, Record


class RanksJob(Record, frozen=True, kw_only=True):
    """The hosts of the job are put in the order in which its exchange of gradients is predicted to take least time."""

    costs: Name
    """What was measured between the hosts, one for each node of the job: a cost matrix next to the job file."""
    collective: Literal["ring", "halving-doubling", "tree", "double-tree", "nccl-ring", "nccl-tree"] = "ring"
    """What the library does that exchanges the gradients."""
