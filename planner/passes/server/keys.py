"""Keys: the parameters of a model in the order in which their gradients are ready."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record

VERSION = 1
KeyType = Literal["float32", "float16", "bfloat16"]
"""Numbers of a key as they travel; sums, weights and states are float32 on the server."""
TYPE_BYTES: dict[KeyType, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
TYPE_NUMBERS: dict[KeyType, int] = {"float32": 0, "float16": 1, "bfloat16": 2}
"""As compiled texts know them."""


class ServerKey(Record, frozen=True, kw_only=True):
    """One parameter."""

    name: Name
    elements: Positive
    dtype: KeyType = "float32"
    ready_ns: Count = 0
    """When its gradient is ready, from the begin of the step."""

    @property
    def bytes(self) -> int:
        return self.elements * TYPE_BYTES[self.dtype]


class ServerKeys(Document, frozen=True, kw_only=True, tag_field="kind", tag="server-keys"):
    """A model, written by hand; keys are listed as they become ready."""

    version: Positive
    name: Name
    keys: tuple[ServerKey, ...]
    compute_ns: Count = 0
    """Forward and backward pass of a batch."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        yield from key_problems(self.keys)


def key_problems(keys: tuple[ServerKey, ...]) -> Iterator[tuple[str, str, str]]:
    """What is wrong with keys: none, a name twice, one that is ready before the key in front of it."""
    if not keys:
        yield "$.keys", "none", "at least one key"
    seen: set[str] = set()
    for place, key in enumerate(keys):
        if key.name in seen:
            yield f"$.keys[{place}].name", f"second {key.name!r}", "names that occur once"
        seen.add(key.name)
        if place and key.ready_ns < keys[place - 1].ready_ns:
            yield f"$.keys[{place}].ready_ns", str(key.ready_ns), f"at least {keys[place - 1].ready_ns}, as listed"
