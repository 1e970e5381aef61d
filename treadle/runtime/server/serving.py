"""A running server: several jobs on the cores of one native engine, its events, and how each job ends."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from treadle.host.numa import domain_cpus
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.runtime.nonces import fresh_nonce
from treadle.runtime.server import access
from treadle.runtime.server.access import Access, ServerPlace
from treadle.runtime.server.engine import FINISHED, LATE, LOST, PEER, SNAPSHOT, Engine, NativeEvent
from treadle.runtime.server.job_service import JobService
from treadle.runtime.server.native_job import native_job
from treadle.runtime.server.peers import connect_peers
from treadle.runtime.server.served_job import ServedJob
from treadle.runtime.server.snapshots import JobState, Snapshots
from treadle.runtime.wire.door import Door
from treadle.runtime.wire.greeting import Greeting

EVENTS_SECONDS = 0.1
SPARE_FILES = 512

Say = Callable[[str], None]


@dataclass(frozen=True)
class ServeOptions:
    """`addresses`: hosts of this machine, one for all interfaces or one for each. `peers`: where the other racks'
    servers listen; without, they enter themselves in the same access file."""

    addresses: tuple[str, ...] = ("127.0.0.1",)
    port: int = 0
    rejoin: bool = False
    snapshots: Path | None = None
    every: int = 100
    resume: int | None = None
    peers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class JobEnd:
    """How a job ended: `failed` or not, after which step, and where its state is; `unwritten`: a snapshot of it was
    asked for, but failed."""

    namespace: str
    reason: str
    failed: bool
    steps: int
    step: int
    snapshot: Path | None
    unwritten: bool


class ParameterServer:
    """Serves `jobs`, whose access goes to `files`. A context: outside of it nothing listens and nothing is kept.

    Raises InputError for addresses, folders and files that cannot be used, LimitError where memory or open files do not
    suffice, CheckFailed where a server of another rack does not come.
    """

    def __init__(self, jobs: Sequence[ServedJob], files: Sequence[Path], options: ServeOptions, say: Say) -> None:
        self._options, self._say = options, say
        self._files = files
        self._stack = ExitStack()
        with ExitStack() as stack:
            _allow_files(jobs)
            slots = sorted({_core(job, slot) for job in jobs for slot in job.slots})
            self.cpus = pinned(jobs, slots, say)
            self.engine = Engine(len(slots), self.cpus)
            stack.callback(self.engine.close)
            self._stores = [self._store(job) for job in jobs]
            natives = [self._add(job, slots) for job in jobs]
            hosts = dict.fromkeys(options.addresses)
            self.door = Door(list(hosts), options.port, self._key_of, self._admit, say)
            stack.callback(self.door.close)
            accesses = [self._register(job, path, stack) for job, path in zip(jobs, files, strict=True)]
            self.services = [
                JobService(
                    job,
                    self.engine,
                    native,
                    [slots.index(_core(job, slot)) for slot in job.slots],
                    self._addresses(job),
                    access.key,
                    rejoin=options.rejoin,
                    say=say,
                )
                for job, native, access in zip(jobs, natives, accesses, strict=True)
            ]
            self._by_name = {service.job.namespace: service for service in self.services}
            self._starts = [self._resume(*pair) for pair in zip(self.services, self._stores, strict=True)]
            self._writers: list[threading.Thread | None] = [None] * len(jobs)
            self.door.open()
            for service, access_, path in zip(self.services, accesses, files, strict=True):
                connect_peers(service, access_, path, options.peers)
                service.ready.set()
            self._stack = stack.pop_all()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, stopped: Callable[[], str | None]) -> list[JobEnd]:
        """Serve until every job has ended, or `stopped` gives a reason to end all of them."""
        ends: dict[int, JobEnd] = {}
        while len(ends) < len(self.services):
            began = time.monotonic()
            for event in self.engine.events(EVENTS_SECONDS):
                self._handle(event)
            reason = stopped()
            for number, service in enumerate(self.services):
                service.settle(began)
                if number in ends:
                    continue
                if failed := service.attendance.failed:
                    ends[number] = self._end(number, failed, True)
                elif service.is_done:
                    ends[number] = self._end(number, "all workers have left", False)
                elif reason:
                    ends[number] = self._end(number, reason, False)
        return [ends[number] for number in range(len(self.services))]

    # Start

    def _store(self, job: ServedJob) -> Snapshots | None:
        folder = self._options.snapshots
        return None if folder is None else Snapshots(folder, job, self._say)

    def _add(self, job: ServedJob, slots: Sequence[tuple[int, int]]) -> int:
        cores = [slots.index(_core(job, slot)) for slot in job.slots]
        every = self._options.every if self._options.snapshots else 0
        return self.engine.add(native_job(job, cores, every))

    def _addresses(self, job: ServedJob) -> list[tuple[str, int]]:
        """Where each interface of the job's plan takes streams."""
        hosts, count = self._options.addresses, len(job.decisions.problem.machine.interfaces)
        if len(hosts) not in (1, count):
            raise InputError(
                f"found {len(hosts)} addresses, expected one, or one for each of the "
                f"{many(count, 'interface')} of {job.namespace}'s plan",
                where="--address",
            )
        return [(host, self.door.ports[host]) for host in (hosts * count)[:count]]

    def _register(self, job: ServedJob, path: Path, stack: ExitStack) -> Access:
        host = self._options.addresses[0]
        here = ServerPlace((host, self.door.ports[host]), self.door.local)
        problem = job.decisions.problem
        empty = Access(
            job.namespace,
            fresh_nonce(),
            job.digest,
            (None,) * problem.servers,
            problem.workers if job.decisions.two_level else 0,
        )
        made = access.register(path, empty, job.server, here)
        stack.callback(access.withdraw, path, job.server, here)
        return made

    def _resume(self, service: JobService, store: Snapshots | None) -> int:
        """The step from which a job goes on."""
        found = None if store is None else store.resume(self._options.resume)
        if found is not None:
            state, path = found
            service.load(state)
            self._say(f"{service.job.namespace}: goes on from step {state.version} ({path})")
        return service.step

    def _key_of(self, greeting: Greeting) -> bytes | None:
        service = self._by_name.get(greeting.namespace)
        return None if service is None else service.key_of(greeting)

    def _admit(self, greeting: Greeting, stream: object, key: bytes) -> None:
        self._by_name[greeting.namespace].admit(greeting, stream, key)  # type: ignore[arg-type]

    # Events

    def _handle(self, event: NativeEvent) -> None:
        service = self.services[event.job]
        if event.what == LOST:
            worker = event.worker + service.job.workers[0]
            service.lose(worker, event.text.replace(f"worker {event.worker} ", f"worker {worker} ", 1))
        elif event.what == PEER:
            service.lose_peer(event.worker, event.text)
        elif event.what == LATE:
            service.late(event.worker + service.job.workers[0], event.step)
        elif event.what == SNAPSHOT:
            self._write(event.job, event.step)
        else:
            assert event.what == FINISHED

    def _write(self, number: int, step: int) -> None:
        """A snapshot from the engine's copy, in a thread: training goes on."""
        service, store = self.services[number], self._stores[number]
        assert store is not None

        def write() -> None:
            try:
                store.write(_copied(service, step))
            finally:
                self.engine.release(service.native)

        self._writers[number] = writer = threading.Thread(target=write, name="treadle-snapshot")
        writer.start()

    def _end(self, number: int, text: str, failed: bool) -> JobEnd:
        service, store, writer = self.services[number], self._stores[number], self._writers[number]
        start = self._starts[number]
        kept = "" if store is None else f" and keeps its state in {store.folder}"
        service.end(f"{text}; the server of {service.job.namespace} ends{kept}")
        if writer is not None:
            writer.join()
        step, path = service.step, None
        if store is not None and service.loads:
            path = store.file(step) if store.newest == step else store.write(service.read())
        end = JobEnd(service.job.namespace, text, failed, step - start, step, path, store is not None and path is None)
        self._say(f"{end.namespace}: ended after step {step}: {text}; {_kept(end, store)}")
        return end


def _kept(end: JobEnd, store: Snapshots | None) -> str:
    if end.snapshot is not None:
        return f"its state is in {end.snapshot}"
    if end.steps == 0:
        return "it had no new state"
    if store is None:
        return "no snapshot is kept (see --snapshot)"
    return "its last steps are lost" if store.newest is None else f"its state after step {store.newest} is lost"


def _copied(service: JobService, step: int) -> JobState:
    weights, updates = service.engine.copy(service.native, step, 0)
    states = [service.engine.copy(service.native, step, 1 + each)[0] for each in range(service.job.states)]
    return JobState(step, weights, tuple(states), updates)


def _core(job: ServedJob, slot: int) -> tuple[int, int]:
    """The domain and core of a slot: jobs share those that are the same."""
    found = job.decisions.slots[slot]
    return found.domain, found.core


def pinned(jobs: Sequence[ServedJob], slots: Sequence[tuple[int, int]], say: Say) -> list[int]:
    """The CPU of each core, -1 where none is its own: this machine has fewer than the plan, or workers share them."""
    if any(job.decisions.problem.shared_cores for job in jobs):
        return [-1] * len(slots)
    domains = domain_cpus()
    for domain in sorted({domain for domain, _ in slots}):
        most = max(core for each, core in slots if each == domain) + 1
        have = len(domains[domain]) if domain < len(domains) else 0
        if have < most:
            say(f"cores are not pinned: the plan uses {many(most, 'core')} of domain {domain}, this machine has {have}")
            return [-1] * len(slots)
    return [domains[domain][core] for domain, core in slots]


def _allow_files(jobs: Sequence[ServedJob]) -> None:
    """As many open files as streams need. Raises InputError where the limit is lower."""
    needed = SPARE_FILES + sum(len(job.workers) * (len(job.slots) + 2) for job in jobs)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(f"this server needs {needed} open files, the limit is {hard}; raise it with `ulimit -Hn`")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
