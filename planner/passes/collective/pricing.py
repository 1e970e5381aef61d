"""What a plan costs on the runtime that will carry it; the caller supplies the pricing, for it lowers and simulates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

from msgspec.structs import replace

from treadle.planner.documents.collective import Protocol
from treadle.planner.documents.plan import Shots
from treadle.planner.passes.collective.algorithm import CollectiveDecisions


@dataclass(frozen=True)
class Price:
    """`time_us` is that of the program in this protocol and form, None where nothing was simulated;
    `transport` says in the plan's provenance what was compared, or why nothing was."""

    time_us: float | None
    protocol: Protocol
    instances: int
    ordered: bool
    fused: bool
    transport: Mapping[str, Any]

    @property
    def simulated(self) -> bool:
        """Whether the time counts what threadblocks and protocols cost."""
        return "simulated_us" in self.transport

    @property
    def symmetric(self) -> Shots | None:
        """How a runtime over symmetric memory carries the plan, None where its program is run."""
        found: Shots | None = self.transport.get("symmetric")
        return found


def never() -> bool:
    """Prices that take their time."""
    return False


def in_form(decisions: CollectiveDecisions, price: Price | None) -> CollectiveDecisions:
    """In the protocol, instances, order and form of the price, if any."""
    if price is None:
        return decisions
    form = {"protocol": price.protocol, "instances": price.instances, "ordered": price.ordered, "fused": price.fused}
    return replace(decisions, **form)


def unpriced(decisions: CollectiveDecisions) -> Price:
    """Where a limit or Ctrl-C leaves no time for a price."""
    reason = {"by_size": "no time was left to simulate it"}
    return Price(None, decisions.protocol, decisions.instances, False, decisions.fused, reason)


Key = tuple[Protocol, int]
"""Protocol and instances."""


class Programs(Interface):
    """The programs of one plan, in the form that its decisions state, at any size: us of a call with `input_bytes` of
    input on every rank."""

    def time_us(self, key: Key, input_bytes: int) -> float: ...

    def search(self, input_bytes: int) -> Mapping[Key, float]:
        """The times of those that may be the best at this size."""


class Pricing(Interface):
    """The price of decisions, whose own protocol and instances are only a proposal; only what has to be is simulated
    once it is `over`, and of instances only about those of `like`, the price of a similar plan."""

    def __call__(
        self, decisions: CollectiveDecisions, over: Callable[[], bool] = never, like: Price | None = None
    ) -> Price: ...

    def programs(
        self, decisions: CollectiveDecisions, over: Callable[[], bool] = never, symmetric: Shots | None = None
    ) -> Programs | None:
        """What the price is made of, `symmetric` if it says so; None where no program is run."""


def label(protocol: str, instances: int) -> str:
    """`LL128 x 4`."""
    return f"{protocol} x {instances}"
