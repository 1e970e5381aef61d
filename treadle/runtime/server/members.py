"""Who is connected to a job: workers, and the servers of other racks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from treadle.planner.errors import CheckFailed
from treadle.runtime.server.messages import Goodbye, Notice
from treadle.runtime.wire.control_stream import ControlStream, Received
from treadle.runtime.wire.greeting import Greeting

SEND_SECONDS = 30
"""A member that takes nothing of a message for so long is lost."""
FLUSH_SECONDS = 2.0

Answerer = Callable[["JobMember", Received], None]
Ender = Callable[["JobMember", str | None], None]
"""Is called with the reason why a member's stream has ended; None after a goodbye."""


class JobMember:
    """One control stream, with a thread that receives and one that sends, so that no member waits for another."""

    def __init__(self, greeting: Greeting, control: ControlStream, session: int, key: bytes) -> None:
        self.number, self.is_peer = greeting.number, greeting.kind == "peer"
        self.control, self.session, self.key = control, session, key
        self.slots: set[int] = set()
        """Those that have a data stream."""
        self._letters: queue.SimpleQueue[tuple[msgspec.Struct, Sequence[memoryview], Sequence[int]] | None] = (
            queue.SimpleQueue()
        )
        self._sender = threading.Thread(target=self._send, name="treadle-member-send", daemon=True)
        self._sender.start()

    def serve(self, most_body: int, answer: Answerer, end: Ender) -> None:
        """In a thread: `answer` each request until the stream ends, then call `end`."""

        def listen() -> None:
            reason: str | None = "its connection ended"
            try:
                while True:
                    received = self.control.receive(lambda: most_body)
                    if isinstance(received.message, Goodbye):
                        reason = None
                    answer(self, received)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    reason = reason and "its host does not answer"
            except CheckFailed as error:
                reason = f"it sent {error}"
            end(self, reason)

        threading.Thread(target=listen, name="treadle-member", daemon=True).start()

    def tell(self, message: msgspec.Struct, *parts: memoryview, descriptors: Sequence[int] = ()) -> None:
        """Send without waiting for it."""
        self._letters.put((message, parts, descriptors))

    def close(self) -> None:
        """End the stream behind what is to be sent, but wait no more than FLUSH_SECONDS for that."""
        self._letters.put(None)
        if threading.current_thread() is not self._sender:
            self._sender.join(FLUSH_SECONDS)
        self.control.close()

    def _send(self) -> None:
        try:
            while letter := self._letters.get():
                message, parts, descriptors = letter
                self.control.send(message, *parts, descriptors=descriptors, seconds=SEND_SECONDS)
        except OSError:
            self.control.close()


def tell_all(members: Sequence[JobMember], notice: Notice) -> None:
    for member in members:
        member.tell(notice)


def words(error: Any) -> str:
    """An error as a reason for the other end."""
    return (getattr(error, "strerror", None) or str(error)) if isinstance(error, OSError) else str(error)
