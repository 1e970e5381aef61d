"""What machines, cards, ports and cables cost, to compare a cluster with servers to one without."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.scalars import Amount, Count, Document, Name, Positive, PositiveAmount, Record

VERSION = 1


class NetworkPrices(Record, frozen=True, kw_only=True):
    """One kind of network, for each machine on it."""

    card: Amount
    port: Amount
    """On the switch."""
    cable: Amount


class ServerPrices(Document, frozen=True, kw_only=True, tag_field="kind", tag="server-prices"):
    """Amounts are in one currency. `baseline` is the network of workers that share their gradients out among
    themselves, `served` that of workers with a server in their rack."""

    version: Positive
    name: Name
    currency: Name = "USD"
    worker: Amount
    """Without accelerators."""
    accelerator: Amount
    accelerators: Count = 4
    server: Amount
    server_card: Amount
    """For each port of the server."""
    server_ports: Positive = 20
    baseline: NetworkPrices
    served: NetworkPrices
    workers_per_server: Positive
    oversubscription: Positive = 1
    """1, 2 or 3: how many times as much a rack takes from its workers as it sends out."""
    baseline_throughput: PositiveAmount
    """What one worker reaches, in any unit."""
    served_throughput: PositiveAmount
    """The same with a server, before the loss between racks."""
    between_racks_loss: Amount = 0.02

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if self.between_racks_loss >= 1:
            yield "$.between_racks_loss", f"{self.between_racks_loss:g}", "less than 1"
