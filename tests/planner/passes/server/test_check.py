"""The checker accepts what the planner decides, and refuses each kind of corruption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.server.agreement import disagreements, plan_of
from tests.planner.passes.server.server_plans import LAB, PROBLEM, RACKS, SHARDS, by_worker, decided, two_levels
from treadle.planner.errors import InputError
from treadle.planner.passes.server.check import check
from treadle.planner.passes.server.decisions import CoreSlot, NetworkCosts, PartLoad, RackSides, ServerDecisions
from treadle.planner.passes.server.room import PASS
from treadle.planner.passes.server.same_map import with_problem

Change = Callable[[ServerDecisions], ServerDecisions]


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_planner_checker_bound_and_timeline_agree_on_random_problems(first: int) -> None:
    """`tests.planner.passes.server.agreement` is the same on as many as you like."""
    for seed in range(first, first + 15):
        assert disagreements(plan_of(seed)) == []


def field(**changes: Any) -> Change:
    return lambda plan: replace(plan, **changes)


def problem(**changes: Any) -> Change:
    return lambda plan: replace(plan, problem=replace(plan.problem, **changes))


def machine(**changes: Any) -> Change:
    return lambda plan: problem(machine=replace(plan.problem.machine, **changes))(plan)


def work(**changes: int) -> Change:
    return lambda plan: machine(work=replace(plan.problem.machine.work, **changes))(plan)


def item(name: str, number: int, **changes: Any) -> Change:
    """The plan with other fields of one slot, level or part."""

    def changed(plan: ServerDecisions) -> ServerDecisions:
        items = [*getattr(plan, name)]
        items[number] = replace(items[number], **changes)
        return replace(plan, **{name: tuple(items)})

    return changed


def part(name: str, **more: int) -> Change:
    """The plan that states more of one part than it has."""

    def changed(plan: ServerDecisions) -> ServerDecisions:
        number = next(n for n, each in enumerate(plan.parts) if each.part == name)
        more_of = {key: getattr(plan.parts[number], key) + by for key, by in more.items()}
        return item("parts", number, **more_of)(plan)

    return changed


def places(*rows: tuple[int, ...]) -> Change:
    return field(places=rows)


def without(name: str, number: int) -> Change:
    return lambda plan: replace(plan, **{name: (*getattr(plan, name)[:number], *getattr(plan, name)[number + 1 :])})


def costs(**changes: float) -> Change:
    return lambda plan: replace(plan, costs=replace(plan.costs or NetworkCosts(baseline=1.0, served=1.0), **changes))


GOOD: dict[str, Callable[[], ServerDecisions]] = {
    "key": lambda: decided(policy="key-by-interface"),
    "worker": by_worker,
    "shards": lambda: decided(SHARDS, policy="key-by-interface"),
    "flat": lambda: decided(RACKS, policy="key-by-interface", levels="flat"),
    "levels": two_levels,
    "lab": lambda: decided(LAB),
    "wide": lambda: decided(engine="wide", aggregator="bypass"),
    "asynchronous": lambda: decided(replace(PROBLEM, synchronous=False)),
}
KEYS = ((0, 2, 1, 3), (3, 0, 2, 3), (1, 3))
"""The places of most of these plans."""

CORRUPTIONS: dict[str, tuple[str, Change, str]] = {
    "a chunk on a core that is not there": (
        "key", places((0, 2, 1, 4), *KEYS[1:]), "places[0][3]: found 4, expected a slot below 4",
    ),
    "a chunk too few": ("key", places((0, 2, 1), *KEYS[1:]), "places[0]: found 3 chunks, expected 4 of 32768 bytes"),
    "a chunk too many": ("key", places(*KEYS[:2], (1, 3, 3)), "places[2]: found 3 chunks, expected 2 of 32768 bytes"),
    "a key without chunks": ("key", places(*KEYS[:2]), "places: found 2 keys, expected 3, those of the problem"),
    "chunks of a size that lines of the cache do not divide": (
        "key", field(chunk_bytes=32770), "chunk_bytes: found 32770, expected a multiple of 64",
    ),
    "chunks of another size": ("key", field(chunk_bytes=65536), "places[0]: found 4 chunks, expected 2 of 65536 bytes"),
    "a core less": ("key", without("slots", 3), "slots: found 3 cores, expected 4"),
    "a core in another domain than its card": (
        "key", item("slots", 1, domain=1), "slots[1].domain: found 1, expected 0",
    ),
    "a core that two slots share": ("key", item("slots", 1, core=0), "slots[1].core: found 0, expected 1"),
    "connections of a core on another card": (
        "key", item("slots", 1, interface=0), "slots[1].interface: found 0, expected 1",
    ),
    "a core of another server": ("shards", item("slots", 4, server=0), "slots[4].server: found 0, expected 1"),
    "cores of one policy under the other": (
        "key", field(policy="worker-by-interface"), "slots[0].interface: found 0, expected none",
    ),
    "workers without an interface": (
        "worker", field(worker_interfaces=()), "worker_interfaces: found 0 workers, expected 6 with policy worker-by",
    ),
    "interfaces of workers where chunks have them": (
        "key", field(worker_interfaces=(0,) * 6), "worker_interfaces: found 6 workers, expected 0 with policy key-by",
    ),
    "a worker on a card that is not there": (
        "worker", field(worker_interfaces=(0, 2, 1, 3, 0, 4)), "worker_interfaces[5]: found 4, expected an interface",
    ),
    "most workers on one card": (
        "worker", field(worker_interfaces=(0, 2, 0, 0, 0, 2)), "found 4 workers on one interface and 0 on another",
    ),
    "workers of one domain only": (
        "worker", field(worker_interfaces=(0, 1, 0, 1, 2, 3)), "parts[1].load: found 244004, expected 488008",
    ),
    "two levels of one rack": ("key", field(two_level=True), "two_level: found true, expected false, since all"),
    "two levels with the figures of one": ("flat", field(two_level=True), "parts[0].load: found 196608, expected"),
    "an unknown level": ("key", without("levels", 2), "levels: found server, domain, core, expected server, domain,"),
    "a level with other bins": ("key", item("levels", 1, bins=3), "levels[1].bins: found 3, expected 2, of server 0"),
    "a level that is more even than it is": (
        "key", item("levels", 1, most_bytes=122_002), "levels[1].most_bytes: found 122002, expected 131072",
    ),
    "a level of another parent": ("key", item("levels", 2, total_bytes=131_072), "levels[2].total_bytes: found 131072"),
    "a spread called optimal that is not": (
        "key",
        lambda plan: item("levels", 1, optimal=True)(decided(uneven(), policy="key-by-interface", chunk_bytes=4096)),
        "levels[1].optimal: found true, expected false, since server 0 can be spread with less",
    ),
    "a part that is missing": ("key", without("parts", 8), "parts: found interface eth0, interface eth1"),
    "a part that nobody knows": (
        "key", lambda plan: replace(plan, parts=(*plan.parts, PartLoad(part="fan", time_ns=1))), "computation, fan,",
    ),
    "parts in another order": ("key", lambda plan: replace(plan, parts=plan.parts[::-1]), "parts: found computation,"),
    "less on a card": ("key", part("interface eth2", load=-64), "parts[2].load: found 393152, expected 393216 of"),
    "a faster card": ("key", part("slot eth1", rate=1), "parts[5].rate: found 1500000001, expected 1500000000"),
    "less on the bridge": ("key", part("bridge", load=-1), "parts[8].load: found 2928047, expected 2928048 of bridge"),
    "nothing between domains": ("worker", without("parts", 9), "bridge, between domains, memory"),
    "memory of the other aggregator": (
        "key", field(aggregator="bypass"), "parts[9].load: found 3176933, expected 8540140 of memory",
    ),
    "a faster core": ("key", part("core 1.1", time_ns=-5), "parts[13].time_ns: found 92000, expected 92005 of core"),
    "less on the cores that all share": ("lab", part("shared cores", time_ns=-1), "expected 360563 of shared cores"),
    "less between racks": ("levels", part("rack link", load=-4), "expected 344004 of rack link"),
    "gradients between racks without values": (
        "flat", part("rack link", load=-366_006, time_ns=-732_012), "expected 732012 of rack link",
    ),
    "a faster worker": ("key", part("worker link", time_ns=-1), "time_ns: found 244003, expected 244004 of worker"),
    "another fill": ("key", field(fill_ns=1), "fill_ns: found 1, expected "),
    "no fill": ("key", lambda plan: replace(plan, time_ns=plan.time_ns - plan.fill_ns), "time_ns: found 488008, exp"),
    "another time": ("key", field(time_ns=17), "time_ns: found 17, expected 651857"),
    "the time of two levels at once": (
        "levels", lambda plan: replace(plan, time_ns=plan.fill_ns + 688_008), "expected 1109048",
    ),
    "the time of the other engine": ("wide", field(engine="tall"), "time_ns: found "),
    "another step": ("key", field(iteration_ns=1_143_856), "iteration_ns: found 1143856, expected 1143857"),
    "a step that hides nothing": (
        "key", lambda plan: replace(plan, iteration_ns=plan.time_ns + 1_000_000), "iteration_ns: found 1651857",
    ),
    "a step that waits where workers do not": (
        "asynchronous", field(iteration_ns=1_143_857), "iteration_ns: found 1143857, expected 1000000",
    ),
    "more workers than are carried": ("key", field(most_workers=13), "most_workers: found 13, expected fewer workers"),
    "fewer workers than are carried": ("key", field(most_workers=11), "most_workers: found 11, expected at least 12"),
    "any number of workers": ("key", field(most_workers=None), "most_workers: found none, expected fewer workers"),
    "workers that no rack has": ("levels", field(most_workers=19), "most_workers: found 19, expected a multiple of 2"),
    "less memory than buffers take": ("key", field(server_bytes=1000), "server_bytes: found 1000, expected 3873024"),
    "more memory than there is": ("key", machine(memory_bytes=1 << 20), "server_bytes: found 3873024, expected at"),
    "sides of one rack": (
        "key", field(racks=RackSides(flat=1.0, two_level=2.0)), "racks: found figures, expected nothing",
    ),
    "no sides of two racks": ("flat", field(racks=None), "racks: found nothing, expected figures"),
    "another side": (
        "flat", lambda plan: item_of(plan, "racks", flat=1.0), "racks.flat: found 1.0, expected 3145728.0",
    ),
    "costs without prices": ("key", problem(prices=None), "costs: found figures, expected nothing"),
    "better throughput for the money": ("key", costs(served=99.0), "costs.served: found 99.0, expected "),
    "more workers than in the figures": ("key", problem(workers=7), "parts[0].load: found 393216, expected "),
    "another optimizer": ("key", problem(optimizer="adam"), "server_bytes: found 3873024, expected "),
    "gradients in the order of arrival": ("key", problem(arrival_order=True), "server_bytes: found 3873024, expected "),
    "slower cores": ("key", work(add_ns_per_MB=90_000), "parts[10].time_ns: found 116625, expected "),
    "dearer messages": ("key", work(message_ns=501), "parts[10].time_ns: found 116625, expected "),
    "a longer way": ("key", problem(latency_ns=30_000), "fill_ns: found "),
    "a server on a worker's machine": ("key", problem(mode="cc"), "parts[0].load: found 393216, expected 327680"),
    "a card that is gone": ("key", lambda plan: machine(interfaces=cards(plan)[:3])(plan), "slots: found 4 cores, exp"),
    "a card in the other domain": (
        "key",
        lambda plan: machine(interfaces=(*cards(plan)[:3], replace(cards(plan)[3], domain=0)))(plan),
        "slots[3].domain: found 1, expected 0",
    ),
    "an unsound problem": ("key", machine(domains=(1, 4)), "problem.machine.domains[0]: found 1 cores, expected at le"),
}  # fmt: skip


def cards(plan: ServerDecisions) -> tuple[Any, ...]:
    return plan.problem.machine.interfaces


def item_of(plan: ServerDecisions, name: str, **changes: float) -> ServerDecisions:
    return replace(plan, **{name: replace(getattr(plan, name), **changes)})


def uneven() -> Any:
    """Keys of which longest-first makes 7 and 5 KiB in two domains, while 6 and 6 are possible."""
    sizes = (3, 3, 2, 2, 2)
    keys = tuple(replace(PROBLEM.keys[0], name=f"k{n}", elements=size * 256) for n, size in enumerate(sizes))
    interfaces = tuple(replace(each, domain=number) for number, each in enumerate(cards(decided())[:2]))
    return replace(PROBLEM, keys=keys, machine=replace(PROBLEM.machine, interfaces=interfaces))


@pytest.mark.parametrize("name", GOOD)
def test_the_plans_that_are_corrupted_are_good(name: str) -> None:
    assert check(GOOD[name]()) == []


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_plan_is_refused(name: str) -> None:
    of, change, message = CORRUPTIONS[name]
    findings = check(change(GOOD[of]()))
    assert any(line.startswith("$.decisions.") and message in line for line in findings), findings


UNEVEN = {
    "all chunks on one core": (((0,) * 4, (0,) * 4, (0,) * 2), "found 244004 bytes in the fullest domain of server 0"),
    "one domain too full": (((0, 2, 1, 3), (3, 0, 0, 3), (1, 3)), "found 163840 bytes in the fullest domain"),
    "chunks that wander within a domain": (
        ((0, 2, 0, 3), *KEYS[1:]),
        "found 98304 bytes in the fullest interface of server 0, domain 0, expected at most 65536",
    ),
    "chunks dealt out in turn": (((0, 1, 2, 3), (0, 1, 2, 3), (0, 1)), "found 171076 bytes in the fullest domain"),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_a_map_less_even_than_longest_first_may_run_but_is_no_plan_of_ours(name: str) -> None:
    """Its figures are those of its problem, as if links had changed since."""
    rows, message = UNEVEN[name]
    plan = with_problem(places(*rows)(GOOD["key"]()), PROBLEM)
    assert PASS.check(plan) == []
    assert any(message in line for line in check(plan)), check(plan)
    assert PASS.findings(plan) == check(plan)


def test_the_figures_of_a_map_at_other_rates_pass_the_check() -> None:
    slower = replace(PROBLEM, machine=replace(PROBLEM.machine, bridge_rate=1_000_000_000))
    plan = with_problem(GOOD["key"](), slower)
    assert plan.places == GOOD["key"]().places
    assert plan.time_ns > GOOD["key"]().time_ns
    assert check(plan) == []
    with pytest.raises(InputError, match="keys, workers, servers or cards are others than in the plan"):
        with_problem(plan, replace(slower, workers=7))


@pytest.mark.parametrize("name", ["key", "worker", "levels", "lab"])
def test_every_figure_of_every_part_is_counted_again(name: str) -> None:
    plan = GOOD[name]()
    for number, each in enumerate(plan.parts):
        for figure in ("load", "rate", "time_ns"):
            stated = getattr(each, figure)
            changed = item("parts", number, **{figure: 1 if stated is None else stated + 1})(plan)
            assert [line.split(":")[0] for line in check(changed)] == [f"$.decisions.parts[{number}].{figure}"]


def test_a_slot_is_one_core_of_one_domain() -> None:
    """No two slots of a server are the same core, and each is in the domain of its card."""
    plan = GOOD["shards"]()
    found = {(slot.server, slot.domain, slot.core) for slot in plan.slots}
    assert len(found) == len(plan.slots)
    assert all(slot.domain == cards(plan)[slot.interface or 0].domain for slot in plan.slots)
    assert CoreSlot(server=5, domain=1, core=1, interface=3) == plan.slots[-1]
