"""One agent of a job as a process runs it: its store, its memory, its access file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treadle.runtime.checkpoint import access
from treadle.runtime.checkpoint.access import AgentAccess
from treadle.runtime.checkpoint.agent import AgentEnd, CheckpointAgent
from treadle.runtime.checkpoint.agent_job import AgentJob, agree
from treadle.runtime.checkpoint.held_memory import held_memory
from treadle.runtime.checkpoint.keys import JobKeys
from treadle.runtime.checkpoint.member import AgentContext
from treadle.runtime.checkpoint.recovering import AgentMemory
from treadle.runtime.checkpoint.store import KeyStore, StoreAway, open_store, parsed
from treadle.runtime.sockets import address_towards

START_SECONDS = 60.0
"""How long an agent waits for a store that is not there when it starts."""


@dataclass(frozen=True)
class AgentOptions:
    """`machine` None: it stands by. `address` None: the one from which the store is reached. Times in seconds."""

    store: str
    machine: int | None
    memory_bytes: int | None
    access: Path
    address: str | None
    port: int
    period: float
    timeout: float


def run_agent(
    job: AgentJob,
    options: AgentOptions,
    ready: Callable[[int, AgentMemory], None],
    say: Callable[[str], None],
    stopped: Callable[[], object],
) -> AgentEnd:
    """Serve until `stopped`; `ready` is called once there is memory. Raises CheckFailed where another agent is the
    machine, or the job in the store is another one; StoreAway where no store comes; LimitError for too little memory;
    InputError where it cannot listen, or the access file is that of another agent that runs."""
    access.require_free(options.access)
    host = options.address or _own_address(options.store)
    keys, about = JobKeys(job.name), [AgentAccess(job.name, job.nonce, job.digest)]
    store = _joined(job, keys, options, say, stopped)
    if store is None:
        return AgentEnd(None, 0)

    def has_memory(machine: int, memory: AgentMemory) -> None:
        about.append(AgentAccess(job.name, job.nonce, job.digest, machine, memory.local, memory.address))
        access.write(options.access, about[-1])
        ready(machine, memory)

    context = AgentContext(
        store=store,
        keys=keys,
        holders=job.decisions.holders,
        machine=options.machine,
        period=options.period,
        timeout=options.timeout,
        host=host,
        opened=lambda machine: held_memory(job, machine, host, options.port, options.memory_bytes, say),
        has_memory=has_memory,
        say=say,
    )
    access.write(options.access, about[-1])
    try:
        return CheckpointAgent(context).run(stopped)
    finally:
        access.withdraw(options.access, about[-1])


def _joined(
    job: AgentJob, keys: JobKeys, options: AgentOptions, say: Callable[[str], None], stopped: Callable[[], object]
) -> KeyStore | None:
    """The store, once it answers; None where the agent was stopped before."""
    until, said = time.monotonic() + START_SECONDS, False
    store: KeyStore | None = None
    while not stopped():
        try:
            store = store or open_store(options.store, serve=options.machine == 0)
            agree(store, keys, job.placement)
            return store
        except StoreAway as away:
            if time.monotonic() > until:
                raise
            if not said:
                say(f"{away}; waits for it")
            said = True
            time.sleep(min(options.period, 0.5))
    return None


def _own_address(store: str) -> str:
    """The address of this host from which the store is reached."""
    _, places = parsed(store)
    try:
        return address_towards(*places[0])
    except OSError:
        return "127.0.0.1"
