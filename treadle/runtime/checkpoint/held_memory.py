"""An agent's memory and its door, as the agent uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from treadle.runtime.checkpoint.agent_job import AgentJob
from treadle.runtime.checkpoint.holder import Holder
from treadle.runtime.checkpoint.memory import StateOf


class HeldMemory:
    """The memory of one machine, which other machines reach at `host`."""

    def __init__(self, holder: Holder, machine: int, devices: int, host: str) -> None:
        self._holder, self._machine, self._devices = holder, machine, devices
        self.address, self.local = (host, holder.ports[host]), holder.local

    def offers(self) -> dict[int, list[int]]:
        held = self._holder.memory.versions()
        found = {}
        for machine in sorted({state.machine for state in held}):
            devices = [held.get(StateOf(machine, device), ()) for device in range(self._devices)]
            common = set.intersection(*({each.version for each in versions} for versions in devices))
            found[machine] = sorted(common, reverse=True)
        return found

    def forget(self, above: int | None) -> None:
        self._holder.memory.forget(above)

    def is_sound(self, version: int) -> bool:
        if version not in self.offers().get(self._machine, ()):
            return False
        return not self._holder.memory.verify(version, self._machine)

    def fetch(self, address: tuple[str, int], source: int, version: int) -> None:
        self._holder.fetch(address, source, self._machine, version)

    def reports(self) -> list[str]:
        return self._holder.memory.reports()

    def announce(self, epoch: int, peers: Mapping[int, tuple[str, int]], *, ready: bool) -> None:
        self._holder.announce(epoch, peers, ready=ready)


@contextmanager
def held_memory(
    job: AgentJob, machine: int, host: str, port: int, most_bytes: int | None, say: Callable[[str], None]
) -> Iterator[HeldMemory]:
    """Take the memory of a machine, and listen at `host`. Raises LimitError where there is too little memory,
    InputError where it cannot listen, MissingBackendError without g++."""
    problem = job.decisions.problem
    with Holder(
        job.hosted(machine),
        problem.devices,
        problem.state_bytes,
        namespace=job.name,
        nonce=job.key,
        addresses=(host,),
        port=port,
        most_bytes=most_bytes,
        say=say,
    ) as holder:
        yield HeldMemory(holder, machine, problem.devices, host)
