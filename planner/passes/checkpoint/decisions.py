"""What the checkpoint pass decides: who holds whose state, which piece travels in which idle span, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from treadle.planner.documents.scalars import Amount, Count, Decisions, Positive, Rank, Record
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, Variant

Placing = Literal["groups", "groups and ring", "ring", "searched"]
Policy = Literal["memory", "persistent", "persistent, often"]
"""Checkpoints in memory; on storage at the user's interval; on storage one after the other."""


class StatePiece(Record, frozen=True, kw_only=True):
    """Bytes of the state of every device, which all devices send at once: each to the `copy`-th holder of its machine
    (from 1), in the order of the list."""

    span: Count
    copy: Positive
    offset: Count
    bytes: Positive
    buffer: Count


class OwnPiece(Record, frozen=True, kw_only=True):
    """Bytes that a device copies to its own host while a message of the training runs, or with None after them all."""

    message: Count | None
    offset: Count
    bytes: Positive


class Survival(Record, frozen=True, kw_only=True):
    """How likely a copy of every state is left when `lost` machines (or failure domains) are lost at once, each set of
    them alike: `kept` of `sets`, or without counts an estimate with its 99 % interval."""

    lost: Positive
    of: Literal["machines", "domains"]
    probability: Amount
    kept: Count | None = None
    sets: Positive | None = None
    low: Amount | None = None
    high: Amount | None = None


class PolicyWaste(Record, frozen=True, kw_only=True):
    """What a policy costs: a checkpoint, how far apart they are, what a failure wastes in the mean, and which share of
    the time trains."""

    policy: Policy
    checkpoint_ns: Count
    interval_ns: Count
    software_ns: Count
    hardware_ns: Count
    ratio: Amount


class CheckpointDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="checkpoint"):
    """`holders[i]` are the machines that hold the state of machine i, itself first. Times in ns."""

    problem: CheckpointProblem
    placement: Placing
    holders: tuple[tuple[Rank, ...], ...]
    variant: Variant
    pieces: tuple[StatePiece, ...]
    own: tuple[OwnPiece, ...]
    every: Positive
    """Iterations between checkpoints."""
    overflow_ns: Count
    """By how much an iteration with a checkpoint is longer."""
    checkpoint_ns: Count
    """From the begin of an iteration until all machines have the checkpoint whole."""
    survival: tuple[Survival, ...]
    waste: tuple[PolicyWaste, ...]
    host_bytes: Count
    """Memory that the fullest machine takes: two versions of all that it holds."""
    time_ns: Count
    """An iteration with its share of checkpoints and of what failures waste."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        for path, found, expected in self.problem.problems():
            yield path.replace("$", "$.decisions.problem", 1), found, expected
        if len(self.holders) != self.problem.machines:
            yield "$.decisions.holders", f"{len(self.holders)} machines", f"{self.problem.machines}"
        for place, held in enumerate(self.holders):
            for number, holder in enumerate(held):
                if holder >= self.problem.machines:
                    yield f"$.decisions.holders[{place}][{number}]", str(holder), f"below {self.problem.machines}"
