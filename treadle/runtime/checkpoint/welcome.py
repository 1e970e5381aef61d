"""The welcome of an agent to a rank of its own host: the job, the other agents, and what its memory holds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class HeldVersion(msgspec.Struct, frozen=True):
    """A whole version of the state of one device: its bytes and the CRC-32C over all of them."""

    version: int
    bytes: int
    sum: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """`machine` is the agent's; `hosted` are the machines whose states it holds, itself first, and for each a
    descriptor of the memory of this rank's device comes with the message, in this order. `peers` are the agents of the
    other machines. Until it is `ready`, the agent still fetches what a machine that was lost held; no descriptors come
    then."""

    machine: int
    devices: int
    state_bytes: int
    epoch: int
    ready: bool
    hosted: tuple[int, ...]
    peers: Mapping[int, tuple[str, int]]
    own: tuple[HeldVersion, ...]
    """Whole versions of this rank's own state."""
