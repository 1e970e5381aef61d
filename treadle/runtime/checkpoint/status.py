"""How the checkpoints of a job are, from what its agents have written to the store."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.errors import InputError
from treadle.runtime.checkpoint.health import JobView, job_view
from treadle.runtime.checkpoint.keys import Heartbeat, JobKeys, JobPlacement, StandbyClaim, read
from treadle.runtime.checkpoint.store import KeyStore


@dataclass(frozen=True)
class MachineStatus:
    """`heartbeat` is None for a machine without an agent; `copies` counts the agents that have a whole version of its
    state."""

    machine: int
    holders: tuple[int, ...]
    heartbeat: Heartbeat | None
    copies: int

    @property
    def newest(self) -> int | None:
        """The newest version of its own state that its agent has whole."""
        return max(self.heartbeat.offers.get(self.machine, ()), default=None) if self.heartbeat else None


@dataclass(frozen=True)
class JobStatus:
    view: JobView
    machines: tuple[MachineStatus, ...]
    standby: tuple[StandbyClaim, ...]

    @property
    def degraded(self) -> tuple[MachineStatus, ...]:
        """Those whose state has fewer copies than planned until the next checkpoint is complete: they were in a memory
        that is lost. None before the first checkpoint."""
        if not any(each.copies for each in self.machines):
            return ()
        return tuple(each for each in self.machines if each.copies < len(each.holders))


def job_status(store: KeyStore, job: str) -> JobStatus:
    """Raises InputError for a job that the store does not know, StoreAway."""
    keys = JobKeys(job)
    entry = store.get(keys.placement)
    if entry is None:
        raise InputError("found no job of this name in the store", where=job)
    view, placement = job_view(store, keys), read(entry.value, JobPlacement, keys.placement)
    machines = [
        MachineStatus(
            machine,
            tuple(held),
            view.heartbeats.get(machine),
            sum(bool(_offered(view.heartbeats.get(holder), machine)) for holder in held),
        )
        for machine, held in enumerate(placement.holders)
    ]
    spares = store.get_prefix(keys.standby)
    return JobStatus(view, tuple(machines), tuple(read(each.value, StandbyClaim, key) for key, each in spares.items()))


def _offered(beat: Heartbeat | None, machine: int) -> list[int]:
    return beat.offers.get(machine, []) if beat else []
