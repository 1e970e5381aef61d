"""What `torch.cuda` has of streams and events, on the CPU: work runs at once, and streams know what they waited for.

A node of a stream may rely on what is in `seen` when it starts: what its stream ran before, and what the events that
the stream waited for had seen. What is not in there would run whenever a GPU likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Api:
    def __init__(self) -> None:
        self.issued: list[tuple[Stream, frozenset[int]]] = []
        """Stream of each piece of work, and what has certainly ended before it starts."""
        self.synchronized = self.ticks = 0
        self.reserved = 100
        api = self

        class CountedStream(Stream):
            def synchronize(self) -> None:
                api.synchronized += 1

        self.main = CountedStream(None)

    def Stream(self, device: Any) -> Stream:
        return Stream(device)

    def Event(self, enable_timing: bool = False) -> Event:
        return Event(self)

    def current_stream(self, device: Any) -> Stream:
        return self.main

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.issued.append((stream, frozenset(stream.seen)))
        yield
        stream.seen.add(len(self.issued) - 1)

    def memory_stats(self, device: Any) -> dict[str, int]:
        return {"reserved_bytes.all.current": self.reserved}


class Stream:
    def __init__(self, device: Any) -> None:
        self.seen: set[int] = set()

    def wait_stream(self, other: Stream) -> None:
        self.seen |= other.seen

    def wait_event(self, event: Event) -> None:
        assert event.seen is not None, "waits for an event that is not recorded yet"
        self.seen |= event.seen


class Event:
    def __init__(self, api: Api) -> None:
        self.api = api
        self.seen: frozenset[int] | None = None
        self.time = 0

    def record(self, stream: Stream) -> None:
        self.api.ticks += 1
        self.seen, self.time = frozenset(stream.seen), self.api.ticks

    def elapsed_time(self, other: Event) -> float:
        return float(other.time - self.time)
