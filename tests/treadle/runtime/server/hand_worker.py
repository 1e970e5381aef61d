"""Workers that speak the server's frames by hand, over socket pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from socket import AF_UNIX, SOCK_STREAM, socket, socketpair
from time import monotonic, sleep
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.treadle.runtime.server.stand_in import Frame, read_frame
from treadle.planner.passes.server.problem import SETTINGS_NUMBERS
from treadle.runtime.server.engine import FINISHED, Engine, NativeEvent, NativeJob

PUSH, PUSH_PULL, PULL, VALUE, SETTINGS, FAILED = range(1, 7)
EMPTY = 1
SECONDS = 20.0
Floats = NDArray[np.float32]


def settings_of(lr: float = 0.5, **more: float) -> NDArray[np.float64]:
    """One group, in the order that the kernels know."""
    names = (
        "lr",
        "momentum",
        "dampening",
        "weight_decay",
        "beta1",
        "beta2",
        "eps",
        "maximize",
        "nesterov",
        "decoupled",
    )
    found = np.zeros((1, SETTINGS_NUMBERS))
    for name, value in {"lr": lr, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, **more}.items():
        found[0, names.index(name)] = value
    return found


def job_of(workers: int, chunks: Sequence[int], slots: Sequence[int], **more: Any) -> NativeJob:
    """One key of chunks of so and so many elements, unless `chunk_keys` says more."""
    keys = more.setdefault("chunk_keys", [0] * len(chunks))
    count = max(keys) + 1
    first = {"key_types": ["float32"] * count, "key_groups": [0] * count, "settings": settings_of(), "optimizer": "sgd"}
    return NativeJob("job", workers, chunks, slots=slots, **{**first, **more})


class Served:
    """A job on an engine of its own, and its workers' streams by worker and slot."""

    def __init__(self, engine: Engine, number: int, job: NativeJob) -> None:
        self.engine, self.number, self.job = engine, number, job
        self.chunks, self.slots = np.asarray(job.chunk_elements), np.asarray(job.slots)
        self.streams: dict[tuple[int, int], socket] = {}

    def connect(self, worker: int) -> None:
        for slot in range(self.engine.cores):
            near, far = socketpair(AF_UNIX, SOCK_STREAM)
            near.settimeout(SECONDS)
            self.streams[worker, slot] = near
            self.engine.stream(self.number, worker, slot, far.detach())

    def send(self, worker: int, chunk: int, op: int, step: int, body: bytes = b"", flags: int = 0) -> None:
        slot = 0 if op == SETTINGS else int(self.slots[chunk])
        self.streams[worker, slot].sendall(Frame(op, flags, chunk, step, body).packed())

    def push(self, worker: int, chunk: int, step: int, gradient: ArrayLike, op: int = PUSH_PULL) -> None:
        self.send(
            worker, chunk, op, step, np.broadcast_to(np.asarray(gradient, np.float32), self.chunks[chunk]).tobytes()
        )

    def settings(self, worker: int, step: int, numbers: NDArray[np.float64]) -> None:
        for slot in range(self.engine.cores):
            self.streams[worker, slot].sendall(Frame(SETTINGS, 0, len(numbers), step, numbers.tobytes()).packed())

    def value(self, worker: int, chunk: int) -> tuple[int, Floats]:
        """The next frame for a worker, which is the value of this chunk: its version and numbers."""
        frame = read_frame(self.streams[worker, int(self.slots[chunk])])
        assert (frame.op, frame.chunk) == (VALUE, chunk), frame
        return frame.step, np.frombuffer(frame.body, np.float32)

    def push_all(self, step: int, gradients: Sequence[Floats]) -> None:
        """All chunks of all workers, whose gradients are [elements]."""
        for chunk, end in enumerate(np.cumsum(self.chunks)):
            for worker, gradient in enumerate(gradients):
                self.push(worker, chunk, step, gradient[end - self.chunks[chunk] : end])

    def values(self, step: int) -> list[Floats]:
        """What each worker has once all chunks have come, in whatever order."""
        ends = np.cumsum(self.chunks)
        found = [np.zeros(int(self.chunks.sum()), np.float32) for _ in range(self.job.workers)]
        for worker, values in enumerate(found):
            for slot in self.slots:
                frame = read_frame(self.streams[worker, int(slot)])
                assert (frame.op, frame.step) == (VALUE, step), frame
                end = ends[frame.chunk]
                values[end - self.chunks[frame.chunk] : end] = np.frombuffer(frame.body, np.float32)
        return found

    def exchange(self, step: int, gradients: Sequence[Floats]) -> list[Floats]:
        self.push_all(step, gradients)
        return self.values(step)

    def log(self, act: int) -> NDArray[Any]:
        found = self.engine.log(self.number, 1 << 12)
        chosen: NDArray[Any] = found[found["act"] == act]
        return chosen

    def until_frames(self, count: int) -> None:
        """Until all cores have had this many frames."""
        until(lambda: sum(self.engine.counts(core)["frames_in"] for core in range(self.engine.cores)) >= count)

    def event(self, what: int) -> NativeEvent:
        """The next event of this kind; others are passed over."""
        end = monotonic() + SECONDS
        while monotonic() < end:
            for each in self.engine.events(0.2):
                if each.what == what:
                    return each
        raise AssertionError(f"no event {what}")

    def others(self) -> list[NativeEvent]:
        """What has happened but for finished versions."""
        return [each for each in self.engine.events() if each.what != FINISHED]


def until(done: Callable[[], bool]) -> None:
    end = monotonic() + SECONDS
    while not done():
        assert monotonic() < end
        sleep(0.001)


@contextmanager
def served(
    job: NativeJob, cores: int = 1, weights: ArrayLike = 0.0, engine: Engine | None = None, *, streams: bool = True
) -> Iterator[Served]:
    own = engine or Engine(cores)
    found = Served(own, own.add(job), job)
    try:
        elements = int(found.chunks.sum())
        own.load(found.number, 0, np.broadcast_to(np.asarray(weights, np.float32), elements).copy())
        for worker in range(job.workers if streams else 0):
            found.connect(worker)
        yield found
    finally:
        for stream in found.streams.values():
            stream.close()
        if engine is None:
            own.close()
