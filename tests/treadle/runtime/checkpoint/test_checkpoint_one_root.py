"""Agents with the embedded store: machine 0 is root, and what it loses is lost for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.treadle.runtime.checkpoint.etcds import free_ports
from tests.treadle.runtime.checkpoint.stand_ins import StandInMemory, opened
from treadle.runtime.checkpoint.agent import CheckpointAgent
from treadle.runtime.checkpoint.health import job_view
from treadle.runtime.checkpoint.keys import JobKeys
from treadle.runtime.checkpoint.member import AgentContext
from treadle.runtime.checkpoint.store import KeyStore, open_store

KEYS = JobKeys("toy")
HOLDERS = ((0, 1), (1, 0))


def until(holds: Callable[[], object]) -> None:
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def epoch_of(store: KeyStore) -> tuple[int, bool] | None:
    epoch = job_view(store, KEYS).epoch
    return (epoch.number, epoch.settled) if epoch else None


def test_machine_0_is_root_and_recovers_others() -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    memories: dict[int, StandInMemory] = {}
    said: list[str] = []

    def start(machine: int) -> Callable[[], None]:
        """What ends the agent."""
        context = AgentContext(
            store=open_store(address, serve=machine == 0),
            keys=KEYS,
            holders=HOLDERS,
            machine=machine,
            period=0.05,
            timeout=0.5,
            host="test",
            opened=lambda number: opened(StandInMemory(number, HOLDERS[number], memories)),
            has_memory=lambda number, memory: None,
            say=said.append,
        )
        ended = threading.Event()
        thread = threading.Thread(target=CheckpointAgent(context).run, args=(ended.is_set,))
        thread.start()

        def end() -> None:
            ended.set()
            thread.join()

        return end

    root = start(0)
    watched = open_store(address, serve=False)
    other = start(1)
    try:
        until(lambda: len(memories) == 2 and all(memory.is_ready for memory in memories.values()))
        for memory in list(memories.values()):
            memory.complete(7)
        until(lambda: job_view(watched, KEYS).heartbeats[1].offers == {0: [7], 1: [7]})
    finally:
        other()
    again = start(1)
    try:
        until(lambda: epoch_of(watched) == (2, True))
        root_claim = job_view(watched, KEYS).root
        assert root_claim
        assert root_claim.machine == 0
        assert memories[1].held == {1: [7], 0: []}
    finally:
        again()
        root()
        watched.close()
