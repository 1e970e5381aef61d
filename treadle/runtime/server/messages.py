"""Messages on the control streams between servers and workers, and between the servers of racks.

A server's first message is JobLayout or RequestRefused. Afterwards it answers each request, in order, and sends
notices at any time. All servers of a job describe the same chunks; each takes part in those that its own slots handle.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.planner.passes.server.keys import KeyType
from treadle.planner.passes.server.problem import OptimizerName

VERSION = 1


class LayoutKey(Struct, frozen=True, array_like=True):
    name: str
    elements: int
    dtype: KeyType
    group: int
    """Which settings of the optimizer are its own."""


class JobLayout(Struct, frozen=True, kw_only=True, tag=True):
    """What a worker needs to push and pull. `places[k][c]` is the slot of chunk c of key k among those of all servers;
    this one has `slots`, in the order of its native cores, and takes streams of slot `slots[i]` at `addresses[i]`."""

    version: int = VERSION
    plan: str
    """Digest of the decisions, which is the same on all servers of a job."""
    server: int
    servers: int
    rack: int
    slot_servers: tuple[int, ...]
    """The server of each slot."""
    slots: tuple[int, ...]
    addresses: tuple[tuple[str, int], ...]
    rings: bool
    """Whether data goes through an arena, over an AF_UNIX control stream, instead of streams."""
    session: int
    workers: int
    racks: int
    two_level: bool
    """Whether a worker reaches the server of its own rack alone, which handles every chunk."""
    keys: tuple[LayoutKey, ...]
    chunk_bytes: int
    places: tuple[tuple[int, ...], ...]
    optimizer: OptimizerName
    synchronous: bool
    groups: int
    step: int
    """The version of the weights from which the worker goes on."""
    loads: int
    """How often weights were loaded, from a snapshot too; as long as 0, LoadState of worker 0 is awaited."""


class RequestRefused(Struct, frozen=True, tag=True):
    """Why the server does not do what was asked; nothing of it is done."""

    reason: str


class LoadState(Struct, frozen=True, kw_only=True, tag=True):
    """Weights and states of the optimizer, while no push is in flight. Body: float32 weights of all elements in the
    order of keys, then each state likewise where `states`, then the number of updates of each chunk as uint64."""

    states: bool


class StateLoaded(Struct, frozen=True, tag=True):
    """The server has the state of this version, loaded for the `loads`-th time."""

    version: int
    loads: int


class AwaitState(Struct, frozen=True, tag=True):
    """Answered with StateLoaded as soon as weights were loaded so often."""

    loads: int


class ReadState(Struct, frozen=True, kw_only=True, tag=True):
    """Answered with StateRead. `version`: the latest complete one where None."""

    version: int | None = None


class StateRead(Struct, frozen=True, tag=True):
    """Body as of LoadState with states; elements of chunks on other servers are 0."""

    version: int


class ShareArena(Struct, frozen=True, tag=True):
    """With the descriptors of the arena's memfd and of the worker's eventfd for each slot of the server."""


class ArenaShared(Struct, frozen=True, tag=True):
    """With the descriptors of the server's eventfd for each of its slots."""


class Goodbye(Struct, frozen=True, tag=True):
    """The worker is done: its end is not a loss. Answered with Goodbye. One that has not `trained` may still come."""

    trained: bool = True


class Notice(Struct, frozen=True, kw_only=True, tag=True):
    """What happened to the job. After `lost` with `waits` the step goes on once the worker is back; after `ended`, and
    after `lost` otherwise, the server ends and the job has failed."""

    what: Literal["lost", "rejoined", "late", "ended"]
    text: str
    worker: int | None = None
    step: int | None = None
    waits: bool = False


Answer = JobLayout | RequestRefused | StateLoaded | StateRead | ArenaShared | Goodbye
Request = LoadState | AwaitState | ReadState | ShareArena | Goodbye
