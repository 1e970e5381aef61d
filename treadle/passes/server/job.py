"""The server pass in a job: means of gradients by a server next to rank 0, in place of an allreduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from treadle.job.part import (
    JobInputs,
    JobPart,
    JobPlan,
    PartPrediction,
    PartReport,
    RankStep,
    TrainingComparison,
    Unplanned,
    WantedDocument,
)
from treadle.planner.documents.hardware import Hardware, Network
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.documents.server_parts import Carrier, ServerParts
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.passes import require_pass
from treadle.planner.passes.interface import Inputs
from treadle.planner.passes.server.balance import bottleneck
from treadle.planner.passes.server.decisions import PartLoad, ServerDecisions
from treadle.planner.passes.server.job import ServerJob
from treadle.planner.search.clock import Clock
from treadle.report.page import Card
from treadle.runtime.server.averaging import exchange_by

if TYPE_CHECKING:
    from treadle.job.kept import CostCache
    from treadle.job.train import TrainingTask
    from treadle.planner.solver import Progress

NAME = "server"
FILE = f"{NAME}.plan.json"
PARTS = "parts"
MEMORY = Network(kind="memory", alpha_us=0, beta_us_per_MB=1)


@dataclass(frozen=True)
class ServerPart(JobPart):
    job: ServerJob

    def wants(self, hardware: Hardware) -> Mapping[str, WantedDocument]:
        return {PARTS: WantedDocument(self.job.parts, ServerParts)}

    def recorded(self, task: TrainingTask, hardware: Hardware, say: Callable[[str], None]) -> Inputs:
        return {} if self.job.parts is not None else {PARTS: _parts_of(hardware)}

    def with_measured(
        self, trace: Trace, hardware: Hardware, others: Inputs, say: Callable[[str], None], cache: CostCache
    ) -> tuple[Hardware, Inputs]:
        if self.job.parts is not None:
            return hardware, others
        from treadle.passes.server.job_costs import measured_parts

        parts = _given(others)
        measured = measured_parts(parts, _carrier(hardware), trace, hardware.ranks, say, cache)
        return hardware, {**others, PARTS: measured}

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        return [JobPlan(NAME, f"a server of {many(given.hardware.ranks, 'rank')}", partial(_plan, given))]

    def unplanned(self, trace: Trace) -> Unplanned:
        return Unplanned(_take_means)

    def training(self, given: JobInputs, out: Path) -> Callable[[RankStep], None]:
        return partial(exchange_by, str(out / FILE))

    def prediction(self, plans: Mapping[str, Plan]) -> PartPrediction:
        decisions = _decisions(plans)
        kept = 2 * decisions.problem.bytes
        return PartPrediction(exchange_ms=decisions.time_ns / 1e6, exchange_bytes=kept, kept_bytes=kept)

    def report(self, plans: Mapping[str, Plan], peak: int | None, measured: TrainingComparison | None) -> PartReport:
        decisions = _decisions(plans)
        planned = format_time(decisions.time_ns)
        value, known = planned, "predicted"
        if measured is not None:
            value = f"{format_time(round(measured.planned.step.exchange_s * 1e9))}, measured with copies in and out"
            known = f"predicted without them {planned}"
        slowest, chunks = bottleneck(decisions), sum(map(len, decisions.places))
        details = (
            _bottleneck_card(slowest),
            Card(
                "exchange of gradients",
                value,
                None,
                f"{known}, by a server with {many(len(decisions.slots), 'core')} and {many(chunks, 'chunk')}, "
                f"which takes {format_bytes(decisions.server_bytes)}",
            ),
        )
        return PartReport(details=details)


def _bottleneck_card(slowest: PartLoad | None) -> Card:
    label = "bottleneck of the exchange"
    if slowest is None:
        return Card(label, "none", None, "no part has a rate or a cost")
    return Card(label, slowest.part, None, f"predicted to be busy for {format_time(slowest.time_ns)} of a step")


def _plan(given: JobInputs, clock: Clock | None, on_progress: Callable[[Progress], None]) -> Plan:
    from treadle.planner.passes.server.extract import ServerSetup, problem_of
    from treadle.planner.passes.server.planning import plan_server

    parts, hardware = _given(given.others), given.hardware
    documents = {"trace": given.trace, "hardware": hardware, PARTS: parts}
    setup = ServerSetup(
        workers=hardware.ranks,
        mode="cc",
        carrier=_carrier(hardware),
        optimizer="mean",
        shared_cores=hardware.host.cpu_cores if hardware.network is None else None,
    )
    return plan_server(
        problem_of(given.trace, parts, hardware=hardware, setup=setup),
        clock=clock,
        inputs={role: InputRef(file=f"{role}.json", digest=digest(document)) for role, document in documents.items()},
        on_progress=on_progress,
    )


def _given(others: Inputs) -> ServerParts:
    parts = others[PARTS]
    assert isinstance(parts, ServerParts)
    return parts


def _carrier(hardware: Hardware) -> Carrier:
    return "shared" if hardware.network is None else "tcp"


def _parts_of(hardware: Hardware) -> ServerParts:
    """The first node as a server. Ranks of one node share its memory, which stands for an interface."""
    from treadle.planner.passes.server.extract import parts_of

    if hardware.network is not None:
        return parts_of(hardware)
    return parts_of(
        replace(hardware, network=MEMORY, host=replace(hardware.host, cpu_cores=hardware.host.cpu_cores or 1))
    )


def _decisions(plans: Mapping[str, Plan]) -> ServerDecisions:
    return require_pass(plans[NAME], ServerDecisions, FILE).decisions


def _take_means(step: RankStep) -> None:
    """Copies and divides as an exchange does, which no plan prices."""

    def exchange() -> None:
        for parameter in step.model.parameters():
            if parameter.grad is not None:
                parameter.grad.copy_(parameter.grad.clone().div_(step.world))

    step.exchanges.append(exchange)
