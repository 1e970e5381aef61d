"""The process of one attempt of a race; `race.py` starts it with `python -m`.

stdin: one length-prefixed `AttemptRequest`; end of file means that the parent has ended, and ends this process at once.
stdout: length-prefixed messages: `Better` plans and bounds as they are found, then the `Answer`, or a `Failure`.
After SIGINT or SIGTERM a running solve answers at once with what is known. Methods between solves are killed a moment
later, since what they found has been sent already.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import time
import traceback
from typing import BinaryIO

import msgspec

from treadle.planner.errors import LimitError, TreadleError
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search.attempts import Answer, Attempt, MemoryOptions, attempt
from treadle.planner.search.bound import Bound
from treadle.planner.solver.interrupt import stop_on_signals

GRACE_S = 3.0
"""Seconds that a method may run after SIGINT or SIGTERM."""


class AttemptRequest(msgspec.Struct, frozen=True):
    """The one message to the process."""

    job: Attempt
    problem: MemoryProblem
    start: RecomputeSchedule | None
    options: MemoryOptions


class Better(msgspec.Struct, frozen=True, tag=True):
    """A plan, while the search continues."""

    schedule: RecomputeSchedule


class Proved(msgspec.Struct, frozen=True, tag=True):
    """A bound, while the search continues."""

    bound: Bound


class Done(msgspec.Struct, frozen=True, tag=True):
    """The attempt has ended."""

    answer: Answer


class Failure(msgspec.Struct, frozen=True, tag=True):
    """`kind` is the name of an error in treadle.planner.errors, or empty for one inside treadle with its traceback."""

    kind: str
    message: str


Message = Better | Proved | Done | Failure


def receive(stream: BinaryIO) -> bytes:
    """A message: its length in eight bytes, then its bytes."""
    (length,) = struct.unpack("<Q", stream.read(8))
    return stream.read(length)


def main() -> None:
    """Read a request from stdin, make the attempt, write messages to stdout."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background has it ignored
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a solver prints from C must not mix with the messages
    request = msgspec.msgpack.decode(receive(source), type=AttemptRequest)
    lock = threading.Lock()

    def send(message: Message) -> None:
        text = msgspec.msgpack.encode(message)
        with lock:
            sink.write(struct.pack("<Q", len(text)) + text)
            sink.flush()

    def watch_parent() -> None:
        source.read(1)
        os._exit(1)

    threading.Thread(target=watch_parent, daemon=True).start()
    with stop_on_signals() as stop:

        def watch_stop() -> None:
            stop.wait()
            time.sleep(GRACE_S)
            with lock:
                os._exit(0)

        threading.Thread(target=watch_stop, daemon=True).start()
        try:
            answer = attempt(
                request.job,
                request.problem,
                request.start,
                request.options,
                lambda schedule: send(Better(schedule)),
                lambda bound: send(Proved(bound)),
            )
            send(Done(answer))
        except LimitError as error:
            send(Done(Answer(failure=str(error))))
        except TreadleError as error:
            send(Failure(type(error).__name__, str(error)))
        except Exception:
            send(Failure("", traceback.format_exc()))
    os._exit(0)


if __name__ == "__main__":
    main()
