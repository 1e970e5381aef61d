"""Attempts in parallel, each in a process of its own, until all have ended, the caller stops them, or the deadline
passes. The caller does so on Ctrl-C and SIGTERM.

A round holds at most one attempt that looks for plans; the other only proves. The order of the plans of one attempt
depends only on its inputs, so equal inputs give equal plans unless the deadline or a signal ended an attempt.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, assert_never

import msgspec

from treadle.planner import errors
from treadle.planner.endings import ending
from treadle.planner.errors import TreadleError
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search.attempts import Answer, Attempt, MemoryOptions
from treadle.planner.passes.memory.search.race_child import AttemptRequest, Better, Done, Failure, Message, Proved
from treadle.planner.search.bound import Bound

GRACE_S = 6.0
"""Seconds in which an attempt has to answer after SIGINT; more than the grace of the child itself."""
LAST_S, LAST = 1.0, 0.1
"""SIGINT is sent this many seconds before the deadline, or this share of the time, whichever is less."""


@dataclass
class Runner:
    """The process of one attempt and its messages so far."""

    job: Attempt
    process: subprocess.Popen[bytes]
    complaints: IO[bytes]
    buffer: bytearray = field(default_factory=bytearray)
    bound: Bound | None = None
    answer: Answer | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None

    def messages(self, chunk: bytes) -> list[Message]:
        self.buffer += chunk
        found = []
        while len(self.buffer) >= 8 and len(self.buffer) >= 8 + (length := struct.unpack("<Q", self.buffer[:8])[0]):
            found.append(msgspec.msgpack.decode(bytes(self.buffer[8 : 8 + length]), type=Message))
            del self.buffer[: 8 + length]
        return found


def race(
    jobs: Sequence[Attempt],
    problem: MemoryProblem,
    start: RecomputeSchedule | None,
    options: MemoryOptions,
    *,
    stop: threading.Event,
    deadline: float,
    on_better: Callable[[int, RecomputeSchedule], None],
    on_bound: Callable[[Bound], None],
    on_answer: Callable[[int, Answer], None],
    over: Callable[[], bool],
    tick: Callable[[], None],
) -> bool:
    """Run `jobs`; the callbacks get an attempt's place in the list and its result. True if the deadline ended them.

    over: called after each message; once it returns true, the other attempts are ended without an answer. deadline: on
    time.monotonic's clock; attempts get SIGINT just before, and are killed then. `tick` is called about ten times a
    second. Raises what an attempt raised.
    """
    began = time.monotonic()
    interrupt_at = deadline - min(LAST_S, LAST * (deadline - began))
    with ExitStack() as stack:
        runners = [_start(job, problem, start, options, stack) for job in jobs]
        selector = stack.enter_context(selectors.DefaultSelector())
        for place, runner in enumerate(runners):
            assert runner.process.stdout is not None
            selector.register(runner.process.stdout, selectors.EVENT_READ, place)
        end = math.inf
        overdue = asked = False
        while not all(runner.done for runner in runners):
            for key, _ in selector.select(0.1):
                runner = runners[key.data]
                chunk = os.read(key.fd, 1 << 20)
                if not chunk:
                    selector.unregister(key.fileobj)
                    if not runner.done:
                        runner.answer = _cut_off(runner, asked)
                        on_answer(key.data, runner.answer)
                for message in runner.messages(chunk):
                    match message:
                        case Better(schedule):
                            on_better(key.data, schedule)
                        case Proved(bound):
                            runner.bound = bound
                            on_bound(bound)
                        case Done(answer):
                            runner.answer = answer
                            on_answer(key.data, answer)
                        case Failure(kind, text):
                            raise _error(kind, f"{runner.job.method}: {text}")
                        case _:
                            assert_never(message)
                    if over():
                        return overdue
            tick()
            now = time.monotonic()
            overdue = overdue or (not asked and now > interrupt_at)
            if not asked and (overdue or stop.is_set()):
                asked, end = True, min(deadline, now + GRACE_S)
                for runner in runners:
                    with suppress(ProcessLookupError):
                        runner.process.send_signal(signal.SIGINT)
            if now > end:
                for runner in runners:
                    runner.process.kill()
        return overdue


def _start(
    job: Attempt, problem: MemoryProblem, start: RecomputeSchedule | None, options: MemoryOptions, stack: ExitStack
) -> Runner:
    complaints = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "treadle.planner.passes.memory.search.race_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        start_new_session=True,  # Ctrl-C on the terminal must not reach it
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    stack.callback(_end, process)
    assert process.stdin is not None
    text = msgspec.msgpack.encode(AttemptRequest(job, problem, start, options))
    # A pipe holds 64 KiB: the parent must not block on a child that is slow to start.
    threading.Thread(target=_ask, args=(process.stdin, struct.pack("<Q", len(text)) + text), daemon=True).start()
    return Runner(job, process, complaints)


def _ask(stream: IO[bytes], text: bytes) -> None:
    with suppress(BrokenPipeError, ValueError):  # the child has ended; its last output explains why
        stream.write(text)
        stream.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process; the solvers that it started end when their pipes close."""
    assert process.stdin is not None
    assert process.stdout is not None
    if process.poll() is None:
        process.kill()
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    process.wait()


def _cut_off(runner: Runner, asked: bool) -> Answer:
    """The answer of an attempt that ended without one; a bound that it sent still holds."""
    if asked:
        return Answer(bound=runner.bound)
    code = runner.process.wait()
    runner.complaints.seek(0)
    tail = runner.complaints.read()[-2000:].decode(errors="replace").strip().splitlines()
    reason = f"its process {ending(code)}" + (f": {tail[-1]}" if tail else "")
    return Answer(bound=runner.bound, failure=f"{runner.job.method}: {reason}")


def _error(kind: str, message: str) -> Exception:
    found = getattr(errors, kind, None) if kind else None
    if isinstance(found, type) and issubclass(found, TreadleError):
        return found(message)
    return RuntimeError(message)
