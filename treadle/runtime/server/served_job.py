"""One job as one of its servers sees it: its workers, slots and chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.server.chunking import Ints, chunk_elements
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.problem import STATES
from treadle.runtime.server.messages import JobLayout, LayoutKey


@dataclass(frozen=True)
class ServedJob:
    """Server number `server` of the plan, for workers of this namespace."""

    namespace: str
    decisions: ServerDecisions
    server: int

    @cached_property
    def digest(self) -> str:
        """The same on all servers of the plan."""
        return hashlib.sha256(msgspec.json.encode(self.decisions)).hexdigest()

    @property
    def rack(self) -> int:
        return self.server if self.decisions.problem.racks > 1 else 0

    @property
    def peers(self) -> tuple[int, ...]:
        """The servers of other racks that this one exchanges sums and values with."""
        if not self.decisions.two_level:
            return ()
        return tuple(each for each in range(self.decisions.problem.servers) if each != self.server)

    @property
    def workers(self) -> range:
        """The numbers of its own workers."""
        return self.decisions.workers_of(self.server)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Its own, of those of all servers."""
        return tuple(place for place, slot in enumerate(self.decisions.slots) if slot.server == self.server)

    @property
    def elements(self) -> int:
        return sum(key.elements for key in self.decisions.problem.keys)

    @property
    def states(self) -> int:
        return STATES[self.decisions.problem.optimizer]

    @cached_property
    def chunk_keys(self) -> Ints:
        return np.repeat(np.arange(len(self.decisions.places)), [len(places) for places in self.decisions.places])

    @cached_property
    def chunk_elements(self) -> Ints:
        return chunk_elements(self.decisions.problem.keys, self.decisions.chunk_bytes)[0]

    @cached_property
    def owners(self) -> Ints:
        """The server of each chunk's slot."""
        servers = np.array([slot.server for slot in self.decisions.slots], np.int64)
        return servers[self._chunk_places]

    @cached_property
    def own_slots(self) -> Ints:
        """Which of its own slots handles each chunk, counted from 0; -1 for chunks of other servers. Where there are
        two levels, that in the place of the owner's slot among the owner's."""
        among = np.zeros(len(self.decisions.slots), np.int64)
        count: dict[int, int] = {}
        for place, slot in enumerate(self.decisions.slots):
            among[place] = count.setdefault(slot.server, 0)
            count[slot.server] += 1
        found = among[self._chunk_places]
        return found if self.decisions.two_level else np.where(self.owners == self.server, found, -1)

    @cached_property
    def _chunk_places(self) -> Ints:
        return np.array([slot for places in self.decisions.places for slot in places], np.int64)

    def elements_of(self, chunks: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which elements of the model lie in these chunks."""
        return np.repeat(chunks, self.chunk_elements)

    def state_bytes(self, states: bool = True) -> int:
        """The body of a message with the state of the whole model."""
        return 4 * self.elements * (1 + (self.states if states else 0)) + 8 * len(self.chunk_elements)

    def has_rings(self, worker: int, local: bool) -> bool:
        """Whether a worker shares an arena; `local`: whether it is on this host."""
        problem = self.decisions.problem
        beside = (problem.mode == "cc" and worker == 0) or (problem.mode == "cs" and worker == self.server)
        return problem.carrier == "shared" or (beside and local)

    def interface_of(self, slot: int, worker: int) -> int:
        """Which interface's address a worker's stream of slot `slots[slot]` has."""
        interface = self.decisions.slots[self.slots[slot]].interface
        return self.decisions.worker_interfaces[worker] if interface is None else interface

    def layout(
        self, number: int, session: int, addresses: Sequence[tuple[str, int]], *, rings: bool, step: int, loads: int
    ) -> JobLayout:
        """The first message to member `number`; `addresses` are those of its streams."""
        decisions, problem = self.decisions, self.decisions.problem
        keys = enumerate(problem.keys)
        return JobLayout(
            plan=self.digest,
            server=self.server,
            servers=problem.servers,
            rack=self.rack,
            slot_servers=tuple(slot.server for slot in decisions.slots),
            slots=self.slots,
            addresses=tuple(addresses),
            rings=rings,
            session=session,
            workers=problem.workers,
            racks=problem.racks,
            two_level=decisions.two_level,
            keys=tuple(LayoutKey(key.name, key.elements, key.dtype, group) for group, key in keys),
            chunk_bytes=decisions.chunk_bytes,
            places=decisions.places,
            optimizer=problem.optimizer,
            synchronous=problem.synchronous,
            groups=len(problem.keys),
            step=step,
            loads=loads,
        )
