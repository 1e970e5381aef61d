"""Streams of a GPU on which the steps of groups run; none on a CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


class StepStreams(ABC):
    """The steps of a group run one after the other, on the stream of the place or scope of each."""

    @abstractmethod
    def begin(self, group: int) -> None:
        """The gradients of `group` were written on the current stream."""

    @abstractmethod
    def on(self, place: str, group: int) -> AbstractContextManager[None]:
        """The stream of `place`, after what `group` did before."""

    @abstractmethod
    def join(self) -> None:
        """Later work of the current stream comes after what all groups did."""


class HostOnly(StepStreams):
    def begin(self, group: int) -> None:
        pass

    def on(self, place: str, group: int) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        pass


class CudaStreams(StepStreams):
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.streams: dict[str, Any] = {}
        self.events: dict[int, Any] = {}

    def begin(self, group: int) -> None:
        self.events[group] = torch.cuda.current_stream(self.device).record_event()

    @contextmanager
    def on(self, place: str, group: int) -> Iterator[None]:
        stream = self.streams.get(place)
        if stream is None:
            stream = self.streams[place] = torch.cuda.Stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            stream.wait_event(self.events[group])
            yield
            self.events[group] = stream.record_event()

    def join(self) -> None:
        current = torch.cuda.current_stream(self.device)
        for event in self.events.values():
            current.wait_event(event)
