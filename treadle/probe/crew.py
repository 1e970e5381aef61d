"""The leader's side of probing: all hosts, and experiments on some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from treadle.planner.errors import CheckFailed
from treadle.probe.member import Message
from treadle.probe.streams import Pair

ANSWER_SECONDS = 60.0
"""How long a host may take beyond what its experiment takes."""


@dataclass(frozen=True)
class CrewHost:
    """`at`: address, port of streams, port of echoes. `facts` is what the host says of itself."""

    name: str
    slots: int
    at: tuple[str, int, int]
    facts: Message


class Crew(Protocol):
    """Hosts that take part, by their places. Both functions raise CheckFailed, naming the host, where it has ended;
    `receive` also where it does not answer within `seconds`."""

    hosts: tuple[CrewHost, ...]

    def send(self, place: int, message: Message) -> None: ...

    def receive(self, place: int, seconds: float) -> Message: ...


class Conductor:
    """Conducts experiments on a crew, one after the other; calls `on_step(number)` after each."""

    def __init__(self, crew: Crew, on_step: Callable[[int], None] = lambda number: None) -> None:
        self.crew, self.on_step = crew, on_step
        self.experiments = 0
        peers = [host.at for host in crew.hosts]
        for place in range(len(crew.hosts)):
            crew.send(place, {"kind": "peers", "place": place, "peers": peers})

    def conduct(self, kind: str, pairs: Sequence[Pair], seconds: float = 0.0, **facts: Any) -> list[Any]:
        """What was found of each of `pairs`, whose hosts begin together; an experiment takes about `seconds`."""
        self.experiments += 1
        own: dict[int, list[tuple[int, int, int]]] = {}
        for number, (src, dst) in enumerate(pairs):
            for host in (src, dst):
                own.setdefault(host, []).append((number, src, dst))
        for host, taking_part in own.items():
            self.crew.send(host, {"kind": kind, "number": self.experiments, "pairs": taking_part, **facts})
        for host in own:
            self.crew.receive(host, ANSWER_SECONDS)
        for host in own:
            self.crew.send(host, {"kind": "go"})
        found: dict[int, Any] = {}
        for host in own:
            answer = self.crew.receive(host, ANSWER_SECONDS + seconds)
            found |= {int(number): value for number, value in answer["found"].items()}
        self.on_step(self.experiments)
        return [found[number] for number in range(len(pairs))]

    def rates(self, pairs: Sequence[Pair]) -> list[float]:
        """Bytes per second of streams that run at once."""
        return self.conduct("rates", pairs, alone=len(pairs) == 1)

    def latency_us(self, pair: Pair) -> float:
        """Half of the median round trip of one byte of a stream."""
        return float(self.conduct("latency", [pair])[0])

    def __enter__(self) -> Conductor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Have every host end; where all went well, wait for it."""
        for place in range(len(self.crew.hosts)):
            with suppress(CheckFailed):
                self.crew.send(place, {"kind": "end"})
        for place in range(len(self.crew.hosts) if kind is None else 0):
            self.crew.receive(place, ANSWER_SECONDS)
