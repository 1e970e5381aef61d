"""What a server does for one job: members join, load and read state, and learn what happens to the others."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import assert_never

import numpy as np

from treadle.planner.errors import CheckFailed, TreadleError
from treadle.runtime.server.control import Control
from treadle.runtime.server.engine import Engine
from treadle.runtime.server.faults import Attendance
from treadle.runtime.server.members import JobMember, tell_all
from treadle.runtime.server.messages import (
    ArenaShared,
    AwaitState,
    Goodbye,
    LoadState,
    Notice,
    ReadState,
    Request,
    RequestRefused,
    ShareArena,
    StateLoaded,
    StateRead,
)
from treadle.runtime.server.served_job import ServedJob
from treadle.runtime.server.snapshots import JobState
from treadle.runtime.wire.control_stream import FULL_SECONDS, ControlStream, Received, close_all, raw, tune
from treadle.runtime.wire.greeting import Greeting

READY_SECONDS = 60.0
"""How long a worker waits for servers of other racks."""
ENDING_SECONDS = 1.0
"""How long one waits for the end of an earlier connection of its number."""


class JobService:
    """One job of a running server. `native` is its number there, `cores[i]` the native core of its slot i, and
    `addresses[i]` where interface i listens."""

    def __init__(
        self,
        job: ServedJob,
        engine: Engine,
        native: int,
        cores: Sequence[int],
        addresses: Sequence[tuple[str, int]],
        nonce: bytes,
        *,
        rejoin: bool,
        say: Callable[[str], None],
    ) -> None:
        self.job, self.engine, self.native, self.cores, self.addresses = job, engine, native, cores, addresses
        self.attendance = Attendance(job.workers, rejoin)
        self.links: dict[int, Control] = {}
        """Control streams to the servers of other racks."""
        self.ready = threading.Event()
        self.stopped = False
        self.loads = 0
        self._loads_before = (0, 0)
        """A version, and how many loads came before those of its workers."""
        self._nonce, self._say = nonce, say
        self._members: dict[int, JobMember] = {}
        self._awaiting: list[tuple[JobMember, int]] = []
        self._sessions = itertools.count(1)
        self._lock = threading.RLock()
        self._peers_left: set[int] = set()
        self._settled = threading.Event()
        self._settled.set()
        self._going: set[int] = set()
        """Workers that are lost or have left, until their streams have ended."""
        self._gone_at = 0.0

    @property
    def step(self) -> int:
        """The version that every chunk has."""
        return self.engine.versions(self.native)[0]

    @property
    def members(self) -> list[JobMember]:
        with self._lock:
            return list(self._members.values())

    @property
    def is_done(self) -> bool:
        """Whether all workers have left after weights were there, in other racks too."""
        left = self.loads > 0 and self.attendance.all_left
        return left and self._peers_left.issuperset(self.job.peers)

    # The door

    def key_of(self, greeting: Greeting) -> bytes | None:
        """The key that a caller of this job must know."""
        if greeting.kind != "stream":
            return self._nonce
        member = self._member_of(greeting)
        return None if member is None else member.key

    def admit(self, greeting: Greeting, stream: socket.socket, key: bytes) -> None:
        """A caller that is proved: a data stream goes to its core; a worker or peer gets threads of its own."""
        if greeting.kind == "stream":
            self._take_stream(greeting, stream)
            return
        member = JobMember(greeting, ControlStream(stream, Request), next(self._sessions), key)
        threading.Thread(target=self._join, args=(member,), name="treadle-join", daemon=True).start()

    def _member_of(self, greeting: Greeting) -> JobMember | None:
        with self._lock:
            return self._members.get(greeting.session)

    def _take_stream(self, greeting: Greeting, stream: socket.socket) -> None:
        member = self._member_of(greeting)
        if member is None or greeting.slot in member.slots or not 0 <= greeting.slot < len(self.cores):
            stream.close()
            return
        tune(stream, FULL_SECONDS)
        member.slots.add(greeting.slot)
        core = self.cores[greeting.slot]
        if member.is_peer:
            self.engine.peer(self.native, member.number, core, stream.detach())
        else:
            self.engine.stream(self.native, self._local(member), core, stream.detach())

    def _join(self, member: JobMember) -> None:
        try:
            if member.is_peer:
                self._check_peer(member)
                notice = None
            else:
                if not self.ready.wait(READY_SECONDS):
                    raise CheckFailed("servers of other racks are not there yet")
                notice = self._admitted(member.number)
        except CheckFailed as error:
            member.tell(RequestRefused(str(error)))
            member.close()
            return
        if notice is not None:
            self._announce(notice)
        job, number = self.job, member.number
        rings = not member.is_peer and job.has_rings(number, member.control.local)
        slots = range(len(job.slots))
        addresses = [self.addresses[0 if member.is_peer else job.interface_of(slot, number)] for slot in slots]
        with self._lock:
            self._members[member.session] = member
            step = self.step
            version, before = self._loads_before
            # Who is late counts the loads of this version as the others do, who were here for each of them.
            loads_seen = before if version == step else self.loads
            layout = job.layout(number, member.session, addresses, rings=rings, step=step, loads=loads_seen)
        member.tell(layout)
        loads = member.is_peer or number == 0
        member.serve(job.state_bytes() if loads else 0, self._answer, self._end)

    def _admitted(self, worker: int) -> Notice | None:
        """Once earlier losses are settled, a worker is here. Raises CheckFailed with the reason to refuse it."""
        until = time.monotonic() + ENDING_SECONDS
        while True:
            self._settled.wait()
            step = self.step + 1
            with self._lock:
                if self._settled.is_set() and not (self.attendance.is_here(worker) and time.monotonic() < until):
                    return self.attendance.join(worker, step)
            time.sleep(0.02)

    def _check_peer(self, member: JobMember) -> None:
        if member.number not in self.job.peers:
            raise CheckFailed(f"the plan has no server {member.number} that exchanges sums with this one")

    # Requests

    def _answer(self, member: JobMember, received: Received) -> None:
        request = received.message
        try:
            match request:
                case LoadState():
                    self._load(member, request, received.body)
                case AwaitState():
                    self._await(member, request.loads)
                case ReadState():
                    self._read(member, request.version)
                case ShareArena():
                    self._share(member, received.descriptors)
                case Goodbye():
                    self._leave(member, request.trained)
                case _:
                    assert_never(request)
        except TreadleError as error:
            member.tell(RequestRefused(str(error)))
        finally:
            if not isinstance(request, ShareArena):
                close_all(received.descriptors)

    def _load(self, member: JobMember, request: LoadState, body: memoryview) -> None:
        job = self.job
        if body.nbytes != job.state_bytes(request.states):
            raise CheckFailed(f"a state of {body.nbytes} bytes, expected {job.state_bytes(request.states)}")
        least, most = self.engine.versions(self.native)
        if least != most:
            raise CheckFailed(f"a state while gradients of step {least + 1} are in flight")
        count = 1 + (job.states if request.states else 0)
        values = np.frombuffer(body, np.float32, count * job.elements).reshape(count, job.elements)
        updates = np.frombuffer(body, np.uint64, offset=values.nbytes)
        states = tuple(values[1:]) or tuple(np.zeros(job.elements, np.float32) for _ in range(job.states))
        self.load(JobState(least, values[0], states, updates))
        if not member.is_peer:
            for link in self.links.values():
                link.load(values[0], list(values[1:]), updates)
        member.tell(StateLoaded(least, self.loads))

    def load(self, state: JobState) -> None:
        """Have the engine take a state, and answer whoever waits for one."""
        self.engine.load(self.native, state.version, state.weights, state.states, state.updates)
        with self._lock:
            if self.loads == 0 or self._loads_before[0] != state.version:
                self._loads_before = state.version, max(self.loads, 1)
            self.loads += 1
            ready = [each for each in self._awaiting if each[1] <= self.loads]
            self._awaiting = [each for each in self._awaiting if each[1] > self.loads]
        for member, _ in ready:
            member.tell(StateLoaded(state.version, self.loads))

    def _await(self, member: JobMember, loads: int) -> None:
        with self._lock:
            if self.loads < loads:
                self._awaiting.append((member, loads))
                return
        member.tell(StateLoaded(self.step, self.loads))

    def _read(self, member: JobMember, version: int | None) -> None:
        state = self.read(version)
        if not member.is_peer:
            state = self._with_peers(state)
        parts = [raw(values) for values in (state.weights, *state.states)]
        member.tell(StateRead(state.version), *parts, raw(state.updates))

    def read(self, version: int | None = None) -> JobState:
        """The state of this server's chunks. Raises CheckFailed for a version that is not kept."""
        asked = self.step if version is None else version
        weights, updates = self.engine.read(self.native, asked, 0)
        states = [self.engine.read(self.native, asked, 1 + each)[0] for each in range(self.job.states)]
        return JobState(asked, weights, tuple(states), updates)

    def _with_peers(self, state: JobState) -> JobState:
        """With what other racks' servers optimize: states are with the owner of a chunk alone."""
        for server, link in self.links.items():
            _, _, states, updates = link.state(state.version)
            chunks = self.job.owners == server
            state.updates[chunks] = updates[chunks]
            elements = self.job.elements_of(chunks)
            for into, values in zip(state.states, states, strict=True):
                into[elements] = values[elements]
        return state

    def _share(self, member: JobMember, descriptors: tuple[int, ...]) -> None:
        job = self.job
        rings = not member.is_peer and job.has_rings(member.number, member.control.local)
        if not rings or not member.control.local or len(descriptors) != 1 + len(self.cores) or member.slots:
            close_all(descriptors)
            raise CheckFailed(f"an arena with {len(descriptors)} descriptors, expected streams or one for each core")
        member.slots.update(range(len(self.cores)))
        first = 0 if job.decisions.two_level else job.slots[0]
        memfd, *bells = descriptors
        self.engine.arena(self.native, self._local(member), first, memfd, bells, self.cores)
        member.tell(ArenaShared(), descriptors=[self.engine.bell(core) for core in self.cores])

    # Ends

    def _leave(self, member: JobMember, trained: bool) -> None:
        if member.is_peer:
            self._peers_left.add(member.number)
        else:
            with self._lock:
                self.attendance.leave(member.number, trained)
                self._going.add(member.number)
                self._settled.clear()
        member.tell(Goodbye())
        if self.attendance.all_left:
            for link in self.links.values():
                threading.Thread(target=link.close, daemon=True).start()

    def _end(self, member: JobMember, reason: str | None) -> None:
        with self._lock:
            known = self._members.pop(member.session, None) is not None
            self._awaiting = [each for each in self._awaiting if each[0] is not member]
        if reason is not None and known:
            if member.is_peer:
                self.lose_peer(member.number, reason)
            else:
                self.lose(member.number, reason)
        member.close()
        if reason is None and not member.is_peer:
            self._drop(member.number, "has left")

    def lose(self, worker: int, reason: str) -> None:
        """A worker is gone: all others get a notice at once, and its core forgets it."""
        if self.stopped:
            return
        step = self.step + 1
        with self._lock:
            notice = self.attendance.lose(worker, step, reason)
            if notice is None:
                return
            self._going.add(worker)
            self._settled.clear()
            its = [each for each in self._members.values() if not each.is_peer and each.number == worker]
        self._announce(notice, but=worker)
        self._drop(worker, f"is lost: {reason}")
        for member in its:
            member.tell(Notice(what="ended", worker=worker, step=notice.step, text=notice.text))
            with self._lock:
                self._members.pop(member.session, None)
            member.close()

    def _drop(self, worker: int, why: str) -> None:
        with suppress(CheckFailed):  # the server has ended meanwhile
            self.engine.drop(self.native, worker - self.job.workers[0], why)
        with self._lock:
            self._gone_at = time.monotonic()
            self._going.discard(worker)

    def settle(self, began: float) -> None:
        """All events were handled that the engine had at `began`: a worker that went before may join again, and no
        event of its end is taken for one of its new connection."""
        with self._lock:
            if not self._going and self._gone_at < began:
                self._settled.set()

    def lose_peer(self, server: int, reason: str) -> None:
        """The server of another rack is gone: the job cannot go on."""
        if self.stopped or server in self._peers_left:
            return
        text = f"the server of rack {server} is lost in step {self.step + 1} ({reason})"
        if self.attendance.fail(text):
            self._announce(Notice(what="lost", step=self.step + 1, text=text))

    def late(self, worker: int, step: int) -> None:
        """A step waits for this worker."""
        notice = self.attendance.late(worker, step)
        if notice is not None:
            self._announce(notice)

    def hear(self, notice: Notice) -> None:
        """A notice from the server of another rack."""
        if self.stopped:
            return
        fatal = notice.what == "ended" or (notice.what == "lost" and not notice.waits)
        if fatal and not self.attendance.fail(notice.text):
            return
        self._say(f"{self.job.namespace}: {notice.text}")
        tell_all([each for each in self.members if not each.is_peer], notice)

    def end(self, text: str) -> None:
        """No step is made any more: all members get a notice why, then streams end; the state stays."""
        self.stopped = True
        members = self.members
        tell_all(members, Notice(what="ended", step=self.step, text=text))
        for worker in range(len(self.job.workers)):
            with suppress(CheckFailed):
                self.engine.drop(self.native, worker, f"is cut off: {text}")
        closing = [threading.Thread(target=member.close) for member in members]
        for each in closing:
            each.start()
        for each in closing:
            each.join()
        for link in self.links.values():
            link.close()

    def _announce(self, notice: Notice, but: int | None = None) -> None:
        self._say(f"{self.job.namespace}: {notice.text}")
        tell_all([each for each in self.members if each.is_peer or each.number != but], notice)

    def _local(self, member: JobMember) -> int:
        return member.number - self.job.workers[0]
