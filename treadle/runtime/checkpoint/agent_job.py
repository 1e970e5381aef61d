"""The job that agents serve: what its plan decided, and what all of them must agree on."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import cached_property

import msgspec

from treadle.codegen.emit import text_digest
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.runtime.checkpoint.keys import JobKeys, JobPlacement, read, written
from treadle.runtime.checkpoint.store import ABSENT, KeyStore, compare_and_put


@dataclass(frozen=True)
class AgentJob:
    name: str
    """Letters, digits, '.', '_' and '-'."""
    nonce: str
    decisions: CheckpointDecisions

    @cached_property
    def digest(self) -> str:
        """The same on all agents of the plan, and on ranks to which it was pickled: JSON leaves a default out, but only
        where it is the very object."""
        read = msgspec.json.decode(msgspec.json.encode(self.decisions), type=CheckpointDecisions)
        return text_digest(repr(read))

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.nonce)

    @property
    def placement(self) -> JobPlacement:
        nonce = hmac.digest(self.key, b"placement" + self.name.encode(), "sha256").hex()
        return JobPlacement(plan=self.digest, nonce=nonce, holders=[list(each) for each in self.decisions.holders])

    def hosted(self, machine: int) -> tuple[int, ...]:
        """The machines whose states a machine holds, itself first."""
        others = (each for each, held in enumerate(self.decisions.holders) if machine in held and each != machine)
        return (machine, *others)


def agree(store: KeyStore, keys: JobKeys, placement: JobPlacement) -> None:
    """Enter what all agents must agree on, or compare it with what others have entered; a job without live agents may
    be another one from now on. Raises CheckFailed where it differs, StoreAway."""
    while True:
        entry = store.get(keys.placement)
        found = read(entry.value, JobPlacement, keys.placement) if entry else None
        if found == placement:
            return
        if found and store.get_prefix(keys.health):
            if found.plan == placement.plan:
                what = "has another nonce; give this one the file of the others, --nonce, or another name"
            else:
                what = "runs another plan; end all its agents first, or give this one another name"
            raise CheckFailed(f"the job of {keys.placement} {what}: JOB=PLAN")
        if compare_and_put(store, keys.placement, entry.revision if entry else ABSENT, written(placement)):
            return
