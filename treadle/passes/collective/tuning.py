"""Protocol and instances of a collective plan, by the simulated time of the program that it becomes.

A plan is priced for the runtime that will execute it: for GPUs by `simulate_xml`; for GPUs of several nodes whose
profile has the costs of grouped messages, by which `treadle.comm` runs programs there, by `simulate_rounds`; for CPUs
whose profile has the costs of the CPU runtime by `simulate_cpu`; else by links and ports alone. The middle two have no
protocols. Where a runtime over symmetric memory does a direct plan in less time than its program takes, the price is
that, and says so. What switches do is priced by `simulate_switched`, without choices.

Simple, LL and LL128 are simulated with 1, 2, 4, ... instances (`treadle.codegen.collective.simulate_xml`). A protocol
gets more instances as long as doubling them gains GAIN and it takes at most BEHIND times as long as the best one with
the same number; a program has at most BLOCKS threadblocks on each device, unless even one instance needs more. Of times
that differ by no more than GAIN the one with the fewest instances is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from msgspec.structs import replace

from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import RECEIVING, SENDING, CollectiveProgram
from treadle.codegen.collective.rounds import most_of, rounds_of
from treadle.codegen.collective.simulate_cpu import simulate_cpu
from treadle.codegen.collective.simulate_program import simulate_program
from treadle.codegen.collective.simulate_rounds import simulate_rounds
from treadle.codegen.collective.simulate_switched import simulate_switched
from treadle.codegen.collective.simulate_xml import simulate_xml
from treadle.planner.documents.collective import Protocol
from treadle.planner.documents.hardware import TEARING, Hardware
from treadle.planner.documents.plan import Shots, TransportChoice
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.direct import symmetric_us
from treadle.planner.passes.collective.pricing import Key, Price, Pricing, Programs, label, never

FORWARDING = RECEIVING & SENDING
IN_SWITCH: Key = ("Simple", 1)
"""What a plan says of the work of switches; neither protocol nor instances mean anything to them."""
MULTIMEM = "kernels with multimem loads and stores"
PROTOCOLS: tuple[Protocol, ...] = ("Simple", "LL", "LL128")
GAIN = 0.05
BEHIND = 2.0
BLOCKS = 64
"""What RCCL takes, and every device holds at once."""
CHANNELS = 32
"""What every runtime takes: each instance has a channel of its own."""
SEARCHED_TRANSFERS = 8192
"""Plans with more are simulated in one protocol and number of instances, those of the rules by size."""
Carrier = Literal["kernels", "groups", "cpu"]
"""What runs programs: kernels on GPUs, grouped messages between GPUs of several nodes, the CPU runtime."""
FEW_TRANSFERS = 4096
"""Plans for the CPU runtime or for grouped messages with more are not simulated."""
INSTANCES: dict[Carrier, tuple[int, ...]] = {"groups": (1,), "cpu": (1, 2)}
"""A rank of the CPU runtime has one thread, whatever the instances: more of them only overlap messages. Grouped
messages are joined again."""
MOST_TRANSFERS = 32_768
"""Plans with more are not simulated."""
MOST_STEPS = 25_000
"""Programs with more are not simulated, unless with one instance."""
SIMULATED = 15_000
"""Messages that a simulation runs, roughly; the rest is carried on."""


@dataclass(frozen=True)
class Tuner:
    """One plan's decisions on one machine. `protocols` and `counts` are what may be chosen."""

    decisions: CollectiveDecisions
    hardware: Hardware
    protocols: tuple[Protocol, ...]
    counts: tuple[int, ...]
    programs: dict[Key, CollectiveProgram] = field(default_factory=dict)
    times: dict[tuple[Key, int], float] = field(default_factory=dict)
    over: Callable[[], bool] = never
    """When it says so, a search is content with what it has."""

    def time_us(self, key: Key, input_bytes: int) -> float:
        """Simulated us of a call with `input_bytes` of input on every rank."""
        if (key, input_bytes) not in self.times:
            program = self.program(key)
            whole = program.chunks_per_loop * self.decisions.chunk_bytes / key[1]
            size = max(1, round(whole * input_bytes / self.decisions.input_bytes))
            match carrier_of(self.hardware):
                case "cpu":
                    time = simulate_cpu(program, self.hardware, size).time_us
                case "groups":
                    time = simulate_rounds(program, self.hardware, size).time_us
                case "kernels":
                    time = simulate_xml(program, self.hardware, size, SIMULATED).time_us
            self.times[key, input_bytes] = round(time, 3)
        return self.times[key, input_bytes]

    def program(self, key: Key) -> CollectiveProgram:
        """LL and LL128 share their steps."""
        protocol, instances = key
        form: Key = ("Simple" if protocol == "Simple" else "LL", instances)
        if form not in self.programs:
            self.programs[form] = lower(replace(self.decisions, protocol=form[0], instances=instances))
        return dataclasses.replace(self.programs[form], protocol=protocol)

    def search(self, input_bytes: int) -> dict[Key, float]:
        """Simulated us by protocol and instances, for those that the rules above reach."""
        found: dict[Key, float] = {}
        alive, before = list(self.protocols), dict.fromkeys(self.protocols, inf)
        for count in self.counts:
            if not alive or (found and self._too_large(alive[0], count)):
                break
            now: dict[Protocol, float] = {}
            for protocol in alive:
                if found and self.over():
                    return found
                now[protocol] = found[protocol, count] = self.time_us((protocol, count), input_bytes)
            least = min(now.values())
            alive = [
                protocol
                for protocol in alive
                if now[protocol] <= BEHIND * least and now[protocol] <= (1 - GAIN) * before[protocol]
            ]
            before = now
        return found

    def chosen(self, input_bytes: int) -> Key:
        """Protocol and instances for calls with `input_bytes`."""
        return best(self.search(input_bytes))

    def in_turn_us(self, key: Key, input_bytes: int) -> float | None:
        """`time_us` of the program whose messages through one port wait for each other, None without any."""
        decisions = replace(self.decisions, protocol=key[0], instances=key[1])
        return time_in_turn(decisions, lambda other: _alone(other, self.hardware, key, input_bytes))

    def fuses(self, key: Key) -> bool:
        """Whether some threadblock of the program sends on in one step what it receives."""
        ranks = self.program(key).ranks
        return any(step.type in FORWARDING for rank in ranks for block in rank.threadblocks for step in block.steps)

    def apart(self) -> Tuner:
        """The same where receiving and sending threadblocks are two."""
        decisions = replace(self.decisions, fused=False)
        return Tuner(decisions, self.hardware, self.protocols, self.counts, over=self.over)

    def _too_large(self, protocol: Protocol, count: int) -> bool:
        """Whether `count` instances are more than a program may have; judged by the one with the fewest."""
        ranks = self.program((protocol, self.counts[0])).ranks
        factor = count // self.counts[0]
        blocks = max(len(rank.threadblocks) for rank in ranks)
        steps = sum(len(block.steps) for rank in ranks for block in rank.threadblocks)
        return blocks * factor > BLOCKS or steps * factor > MOST_STEPS


def best(times: Mapping[Key, float]) -> Key:
    """The fewest instances within GAIN of the least time, and of these protocols the first."""
    least = min(times.values())
    near = [key for key, time in times.items() if time <= (1 + GAIN) * least]
    return min(near, key=lambda key: (key[1], PROTOCOLS.index(key[0])))


def tuner(
    decisions: CollectiveDecisions,
    hardware: Hardware,
    protocol: str | None,
    instances: int | None,
    over: Callable[[], bool] = never,
) -> Tuner | str:
    """What chooses protocol and instances where they are None or "auto", or why nothing is simulated."""
    torn = any(link.kind in TEARING for link in decisions.links)
    allowed = tuple(name for name in PROTOCOLS if not (torn and name == "LL128"))
    protocols = tuple(name for name in allowed if protocol in (None, "auto", name))
    if not protocols:
        return f"links of this machine do not carry {protocol}"
    carrier = carrier_of(hardware)
    if carrier == "kernels" and all(device.kind == "cpu" for device in hardware.devices):
        return "protocols are those of GPUs"
    most = MOST_TRANSFERS if carrier == "kernels" else FEW_TRANSFERS
    if len(decisions.transfers) > most:
        return f"{len(decisions.transfers)} transfers, more than the {most} that are simulated"
    counts = (instances,) if instances else tuple(2**power for power in range(CHANNELS.bit_length()))
    if carrier != "kernels":
        protocols, counts = protocols[:1], (instances,) if instances else INSTANCES[carrier]
    elif len(decisions.transfers) > SEARCHED_TRANSFERS:
        protocols, counts = (decisions.protocol,), (decisions.instances,)
    made = Tuner(decisions, hardware, protocols, counts, over=over)
    try:
        made.time_us((protocols[0], counts[0]), decisions.input_bytes)
    except (InputError, CheckFailed) as error:
        return str(error)
    return made


def carrier_of(hardware: Hardware) -> Carrier:
    """What will run programs for these devices, at costs that the profile has."""
    kinds = {device.kind for device in hardware.devices}
    if hardware.transports.cpu is not None and kinds == {"cpu"}:
        return "cpu"
    return (
        "groups" if hardware.transports.nccl is not None and kinds == {"gpu"} and hardware.all_nodes > 1 else "kernels"
    )


def on_cpu(hardware: Hardware) -> bool:
    """Whether the CPU runtime will run programs for these devices, at costs that the profile has."""
    return carrier_of(hardware) == "cpu"


def pricing(hardware: Hardware, protocol: str | None, instances: int | None) -> Pricing:
    """Prices on `hardware`, with `protocol` and `instances` where they are given."""
    return SimulatedPrices(hardware, protocol, instances)


@dataclass(frozen=True)
class SimulatedPrices:
    """Prices decisions by the simulated time of their program, in the protocol, instances and form that make it least;
    where those are not simulated, as they stand, by the time of the program on links and ports. Messages through one
    port wait for each other where that takes less time."""

    hardware: Hardware
    protocol: str | None
    instances: int | None

    def __call__(
        self, decisions: CollectiveDecisions, over: Callable[[], bool] = never, like: Price | None = None
    ) -> Price:
        if decisions.switched:
            time = SwitchPrograms(decisions, self.hardware).time_us(IN_SWITCH, decisions.input_bytes)
            name = label(*IN_SWITCH)
            alone: dict[str, object] = {
                "chosen": name,
                "simulated_us": {name: time},
                "runtime": _switch_runtimes(decisions),
            }
            least = self._least(time, decisions, alone)
            return _price(least, *IN_SWITCH, False, decisions.fused, alone)
        found = tuner(decisions, self.hardware, self.protocol, self.instances, over)
        if isinstance(found, str):
            return _on_links(decisions, found)
        if like is not None:
            few = tuple(count for count in found.counts if like.instances <= 2 * count <= 4 * like.instances)
            found = dataclasses.replace(found, counts=few)
        size = decisions.input_bytes
        times = found.search(size)
        kernels = carrier_of(self.hardware) == "kernels"
        searched = len(decisions.transfers) <= SEARCHED_TRANSFERS
        if searched and kernels and found.fuses(best(times)) and not over():
            apart = found.apart()
            other = apart.search(size)
            if other[best(other)] < times[best(times)]:
                found, times = apart, other
        chosen = best(times)
        time = times[chosen]
        turns = searched and (like is None or like.ordered) and kernels
        in_turn = found.in_turn_us(chosen, size) if turns and not over() else None
        ordered = in_turn is not None and in_turn < time
        compared: dict[str, object] = {
            "chosen": label(*chosen),
            "simulated_us": {label(*key): time for key, time in times.items()},
        }
        if carrier_of(self.hardware) == "groups":
            compared["groups"] = _groups(found.program(chosen), self.hardware)
        least = self._least(min(time, in_turn or time), decisions, compared)
        return _price(least, *chosen, ordered, found.decisions.fused, compared)

    def _least(self, time_us: float, decisions: CollectiveDecisions, compared: dict[str, object]) -> float:
        """`time_us`, or what it takes over symmetric memory if that is less; `compared` then says so."""
        shots = symmetric_us(decisions, self.hardware, decisions.input_bytes)
        quick, quickest_us = min(shots.items(), key=lambda each: each[1], default=(None, inf))
        if quickest_us < time_us:
            compared |= {"symmetric": quick, "symmetric_us": shots}
        return min(time_us, quickest_us)

    def programs(
        self, decisions: CollectiveDecisions, over: Callable[[], bool] = never, symmetric: Shots | None = None
    ) -> Programs | None:
        if symmetric is not None:
            return OverSymmetricMemory(decisions, self.hardware, symmetric)
        if decisions.switched:
            return SwitchPrograms(decisions, self.hardware)
        found = tuner(decisions, self.hardware, self.protocol, self.instances, over)
        if not isinstance(found, str):
            return found
        return None if len(decisions.transfers) > MOST_TRANSFERS else OnLinks(decisions)


@dataclass(frozen=True)
class OverSymmetricMemory:
    """One plan as a runtime over symmetric memory carries it, which has no protocols."""

    decisions: CollectiveDecisions
    hardware: Hardware
    symmetric: Shots

    def time_us(self, key: Key, input_bytes: int) -> float:
        """us of a call with `input_bytes` of input on every rank, infinite where the profile has no costs of it."""
        return symmetric_us(self.decisions, self.hardware, input_bytes).get(self.symmetric, inf)

    def search(self, input_bytes: int) -> dict[Key, float]:
        """The one that was chosen."""
        key = self.decisions.protocol, self.decisions.instances
        return {key: self.time_us(key, input_bytes)}


@dataclass(frozen=True)
class SwitchPrograms:
    """The one program of what switches do."""

    decisions: CollectiveDecisions
    hardware: Hardware

    def time_us(self, key: Key, input_bytes: int) -> float:
        """Simulated us of a call with `input_bytes` of input on every rank."""
        return round(simulate_switched(self.decisions, self.hardware, input_bytes), 3)

    def search(self, input_bytes: int) -> dict[Key, float]:
        """The one program."""
        return {IN_SWITCH: self.time_us(IN_SWITCH, input_bytes)}


@dataclass(frozen=True)
class OnLinks:
    """One plan's programs where links and ports alone count."""

    decisions: CollectiveDecisions
    lowered: dict[Key, CollectiveProgram] = field(default_factory=dict)

    def time_us(self, key: Key, input_bytes: int) -> float:
        """us of a call with `input_bytes` of input on every rank."""
        decisions = replace(self.decisions, protocol=key[0], instances=key[1])
        if key not in self.lowered:
            self.lowered[key] = lower(decisions)
        links = tuple(
            replace(link, beta_ns=round(link.beta_ns * input_bytes / decisions.input_bytes)) for link in decisions.links
        )
        return simulate_program(self.lowered[key], replace(decisions, links=links)).schedule.makespan / 1000

    def search(self, input_bytes: int) -> dict[Key, float]:
        """The one program of the decisions."""
        key = self.decisions.protocol, self.decisions.instances
        return {key: self.time_us(key, input_bytes)}


def _switch_runtimes(decisions: CollectiveDecisions) -> str:
    """What runs the work of switches: MSCCL++'s executor has no reduction that only one rank gets."""
    return MULTIMEM if decisions.collective == "reducescatter" else f"MSCCL++ plan or {MULTIMEM}"


def _groups(program: CollectiveProgram, hardware: Hardware) -> dict[str, float]:
    """What grouped messages cost a plan, whatever its links: the rounds and messages of the rank with the most, and the
    time of a group before its first byte."""
    assert hardware.transports.nccl is not None
    rounds, messages = most_of(rounds_of(program, inplace=not program.outofplace))
    return {"rounds": rounds, "messages": messages, "group_us": hardware.transports.nccl.group_us}


def _on_links(decisions: CollectiveDecisions, reason: str) -> Price:
    if len(decisions.transfers) > MOST_TRANSFERS:
        return Price(None, decisions.protocol, decisions.instances, False, decisions.fused, {"by_size": reason})
    time = links_us(decisions)
    in_turn = time_in_turn(decisions, links_us)
    ordered = in_turn is not None and in_turn < time
    least = min(time, in_turn or time)
    return _price(least, decisions.protocol, decisions.instances, ordered, decisions.fused, {"by_size": reason})


def _price(
    time_us: float, protocol: Protocol, instances: int, ordered: bool, fused: bool, transport: Mapping[str, object]
) -> Price:
    return Price(time_us, protocol, instances, ordered, fused, {**transport, "program_us": time_us})


def links_us(decisions: CollectiveDecisions) -> float:
    """The time of the program on links and ports alone, in us."""
    return simulate_program(lower(decisions), decisions).schedule.makespan / 1000


def program_us(decisions: CollectiveDecisions, hardware: Hardware, transport: TransportChoice) -> float:
    """The time of the program of a plan whose provenance says `transport`, in us, simulated again."""
    if transport.symmetric is not None:
        return symmetric_us(decisions, hardware, decisions.input_bytes).get(transport.symmetric, inf)
    if decisions.switched:
        return SwitchPrograms(decisions, hardware).time_us(IN_SWITCH, decisions.input_bytes)
    if transport.by_size is not None:
        return links_us(decisions)
    return _alone(decisions, hardware, (decisions.protocol, decisions.instances), decisions.input_bytes)


def _alone(decisions: CollectiveDecisions, hardware: Hardware, key: Key, input_bytes: int) -> float:
    return Tuner(decisions, hardware, key[:1], key[1:]).time_us(key, input_bytes)


def time_in_turn(decisions: CollectiveDecisions, time_us: Callable[[CollectiveDecisions], float]) -> float | None:
    """The time when messages through one port wait for each other; None where no port has several links of one rank,
    and where the program would be none."""
    if not any(len({src for src, _ in port.links}) < len(port.links) for port in decisions.ports):
        return None
    ordered = replace(decisions, ordered=True)
    try:
        program = lower(ordered)
        return None if check_program.check(program, expected=expected_outputs(ordered)) else time_us(ordered)
    except (InputError, CheckFailed):
        return None
