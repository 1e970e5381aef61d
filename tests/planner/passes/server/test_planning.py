"""Plans of servers: what is decided, when there is none, and what would make them faster."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from tests.planner.passes.server.pbox import pbox, served
from treadle.planner.documents import store
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.server.advice import advice
from treadle.planner.passes.server.balance import bottleneck
from treadle.planner.passes.server.changes import with_interfaces
from treadle.planner.passes.server.decided import ServerOptions, best_of, decisions_of
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.planning import plan_server
from treadle.planner.passes.server.problem import CoreWork, Engine, Mode, ServerProblem
from treadle.planner.passes.server.timeline_of import exchange_of
from treadle.planner.passes.server.what_if import answers_to, question_of
from treadle.planner.search.clock import Clock

WORK = CoreWork(
    receive_ns_per_MB=100_000,
    add_ns_per_MB=150_000,
    optimize_ns_per_MB=400_000,
    send_ns_per_MB=90_000,
    message_ns=2_000,
)
KEYS = tuple(ServerKey(name=f"k{place}", elements=size) for place, size in enumerate((400_000, 90_000, 2_000_001)))


def worked(**fields: object) -> ServerProblem:
    """A problem in which cores and messages take time."""
    return replace(served(10_000_000, replace(pbox(4), work=WORK)), **{"keys": KEYS, **fields})


def decided(problem: ServerProblem, **options: object) -> ServerDecisions:
    given = ServerOptions(**options)  # type: ignore[arg-type]
    return decisions_of(best_of(problem, given), given)


def test_equal_problems_have_equal_plans() -> None:
    first, second = (store.dumps(plan_server(worked())) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("mode", ["ncc", "cs"])
@pytest.mark.parametrize("engine", ["tall", "wide"])
def test_the_work_of_a_plan_grows_with_its_keys_and_not_with_their_square(
    mode: Mode, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[ServerKey | None]()

    def counted(key: ServerKey) -> int:
        seen.append(key)
        return 4 * key.elements

    monkeypatch.setattr(ServerKey, "bytes", property(counted))
    servers = 8 if mode == "cs" else 1
    for count in (100, 200):
        keys = tuple(ServerKey(name=f"k{place}", elements=64) for place in range(count))
        plan = plan_server(
            worked(keys=keys, mode=mode, servers=servers), options=ServerOptions(engine=engine, chunk_bytes=4096)
        )
        exchange_of(plan.decisions)
        seen.append(None)
    middle = seen.index(None)
    assert len(seen) - middle < 2.1 * middle


def test_the_size_of_chunks_is_the_one_that_takes_least() -> None:
    plan = plan_server(worked())
    chosen = plan.decisions.chunk_bytes
    times = {size: decided(worked(), chunk_bytes=size).time_ns for size in (chosen // 2, chosen, 2 * chosen)}
    assert min(times, key=lambda size: times[size]) == chosen
    assert 4096 < chosen < 4 << 20


def test_without_a_price_of_messages_chunks_are_those_of_the_paper() -> None:
    assert decided(served(10_000_000), policy=None).chunk_bytes == 32 * 1024


def test_a_plan_says_how_far_it_is_from_the_bound() -> None:
    plan = plan_server(served(46_800_000))
    assert plan.certificate.gap < 0.002
    assert "load of its bridge" in plan.certificate.argument


def test_a_server_without_enough_memory_has_no_plan() -> None:
    needed = decided(worked()).server_bytes
    enough = replace(worked(), machine=replace(worked().machine, memory_bytes=needed))
    assert plan_server(enough).decisions.server_bytes == needed
    short = replace(enough, machine=replace(enough.machine, memory_bytes=needed - 1))
    with pytest.raises(InfeasibleError, match=f"{needed} bytes of memory, pbox has {needed - 1}"):
        plan_server(short)


def test_memory_that_is_short_for_two_levels_may_suffice_for_one() -> None:
    problem = worked(racks=2, servers=2, core_rate=10**8)
    flat, two = (decided(problem, levels=levels) for levels in ("flat", "two-level"))
    assert two.time_ns < flat.time_ns
    assert two.server_bytes > flat.server_bytes
    short = replace(problem, machine=replace(problem.machine, memory_bytes=two.server_bytes - 1))
    assert plan_server(short).decisions.two_level is False


def test_what_a_server_keeps_of_each_weight() -> None:
    """Sum, two weights, two of each state, and a copy of weight and state: 9 with one state; gradients of 8 workers
    that come early are kept, but not those that are added as they come, nor those that stay in workers' memory."""
    problem = served(64 * 40_000)
    size = problem.bytes
    assert decided(problem).server_bytes == (1 + 2 + 2 + 2) * size + 8 * size
    assert decided(replace(problem, arrival_order=True)).server_bytes == 7 * size
    assert decided(replace(problem, carrier="shared", optimizer="adam")).server_bytes == (1 + 2 + 4 + 3) * size


def test_lamb_has_its_norms_on_one_server() -> None:
    plan_server(worked(optimizer="lamb"))
    with pytest.raises(InputError, match="one server, since its norms"):
        plan_server(worked(optimizer="lamb", mode="ncs", servers=2))
    with pytest.raises(InputError, match="one server, since its norms"):
        plan_server(worked(optimizer="lamb", racks=2, servers=2, core_rate=10**9))


def test_levels_are_those_of_racks() -> None:
    with pytest.raises(InputError, match="expected several racks"):
        plan_server(worked(), options=ServerOptions(levels="two-level"))


def test_no_time_left_is_a_plan_of_the_first_candidate() -> None:
    plan = plan_server(worked(), clock=Clock.of(1e-9))
    assert plan.provenance.limit_fired
    assert plan.decisions.chunk_bytes == 32768


def test_a_step_hides_what_is_ready_early_and_asynchronous_ones_hide_all() -> None:
    ready = tuple(replace(key, ready_ns=place * 10**6) for place, key in enumerate(KEYS))
    late = decided(worked(keys=ready))
    assert late.time_ns < late.iteration_ns < late.time_ns + 2 * 10**6
    assert decided(worked(keys=ready, compute_ns=10**8)).iteration_ns == 10**8
    assert decided(worked()).iteration_ns == late.time_ns
    assert decided(worked(keys=ready, synchronous=False)).iteration_ns == late.time_ns


def test_lock_step_begins_when_a_key_has_come_and_adds_up_with_the_network() -> None:
    """One key: the network takes t, adding and optimizing c. Tall takes the longer of both, wide their sum."""
    work = CoreWork(add_ns_per_MB=50_000, optimize_ns_per_MB=100_000)
    problem = worked(keys=KEYS[2:], machine=replace(pbox(4), work=work))
    tall, wide = (decided(problem, engine=engine, chunk_bytes=64 * 1024) for engine in ("tall", "wide"))
    slowest = max(part.time_ns for part in tall.parts if part.load is not None and part.part != "memory")
    team = -(-problem.bytes * (8 * 50_000 + 100_000) // (4 << 20))
    assert wide.time_ns - wide.fill_ns == slowest + team
    assert tall.time_ns < wide.time_ns


def test_exact_maps_are_proved_and_never_slower() -> None:
    sizes = (5, 5, 4, 4, 3, 3, 3)
    keys = tuple(ServerKey(name=f"k{place}", elements=16 * size) for place, size in enumerate(sizes))
    cards = tuple(replace(card, domain=0) for card in pbox(3).interfaces)
    machine = replace(pbox(3), domains=(14,), interfaces=cards)
    problem = replace(served(12, machine), keys=keys)
    options = ServerOptions(policy="key-by-interface")
    greedy = best_of(problem, options).times.time_ns
    exact = best_of(problem, options, Clock())
    loads = {load.level: load for load in exact.chunk_map.levels}
    assert (loads["interface"].most_bytes, loads["interface"].optimal) == (9 * 64, True)
    assert exact.times.time_ns < greedy
    assert plan_server(problem, options=options).decisions.time_ns == exact.times.time_ns


def test_advice_is_what_its_changes_are_predicted_to_take() -> None:
    slow = decided(served(53_150_000, pbox(2)), aggregator="bypass", chunk_bytes=1 << 22)
    found = {each.change: each for each in advice(slow)}
    assert {"add a card to domain 0", "chunks of 2 MiB"} <= {*found}
    more = replace(slow.problem, machine=with_interfaces(slow.problem.machine, 3))
    again = decided(more, aggregator="bypass", chunk_bytes=1 << 22, policy="key-by-interface")
    card = found["add a card to domain 0"]
    assert (card.time_ns, card.gain) == (again.time_ns, slow.time_ns / again.time_ns)
    assert [each.time_ns for each in advice(slow)] == sorted(each.time_ns for each in found.values())


def test_advice_for_memory_and_for_domains() -> None:
    box = decided(served(531_500_000), aggregator="bypass")
    assert advice(box)[0].change == "cached aggregation"
    assert advice(box)[0].gain == pytest.approx(75.27 / 40.14, rel=1e-3)
    machine = pbox(4, bridge_rate=None, between_rate=5 * 10**9)
    apart = decided(served(53_150_000, machine), policy="worker-by-interface")
    assert bottleneck(apart).part == "between domains"  # type: ignore[union-attr]
    assert "keys by interface" in {each.change for each in advice(apart)}
    lone = replace(machine, interfaces=machine.interfaces[1:3])  # one card on each processor
    joined = advice(decided(served(53_150_000, lone), policy="worker-by-interface"))
    assert joined[0].change in ("move ib1 to domain 1", "move ib2 to domain 0")


def test_throughput_grows_with_cards_up_to_the_bridge() -> None:
    problem, options = served(531_500_000, compute_ns=121_000_000), ServerOptions()
    answers = answers_to(question_of("interfaces=4..10"), problem, options)
    assert [answer.value for answer in answers] == [4, 5, 6, 7, 8, 9, 10]
    slowest = [bottleneck(answer.decisions).part.split(" ")[0] for answer in answers]  # type: ignore[union-attr]
    assert slowest == ["interface", "interface", *["bridge"] * 5]
    assert [round(answer.exchanges_per_s) for answer in answers] == [51, 64, 75, 75, 75, 75, 75]


@pytest.mark.parametrize(
    ("question", "reaches"),
    [
        ("bridge=60,80", (56.5, 75.3)),
        ("memory=60,80", (52.0, 69.4)),
        ("cores=1,2", (75.3, 75.3)),
        ("workers=1,8", (12.8, 75.3)),
        ("chunk=32K..64K", (75.3, 75.3)),
    ],
)
def test_other_amounts_of_every_part_are_answered(question: str, reaches: tuple[float, ...]) -> None:
    answers = answers_to(question_of(question), served(531_500_000), ServerOptions())
    assert tuple(answer.exchanges_per_s for answer in answers) == pytest.approx(reaches, abs=0.06)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("cards=4", "interfaces"),
        ("interfaces", "interfaces=4..10"),
        ("interfaces=10..4", "the smaller end first"),
        ("interfaces=0", "at least 1"),
        ("chunk=1..2", "at least 64"),
        ("interfaces=29", "cores for 28 interfaces"),
        ("cores=4", "14 cores"),
    ],
)
def test_questions_without_an_answer_are_refused(question: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        answers_to(question_of(question), served(1_000_000), ServerOptions())


def test_amounts_without_a_plan_are_left_out_where_they_are_said() -> None:
    machine = pbox(memory_bytes=decided(served(1_000_000, workers=4)).server_bytes)
    refused: list[str] = []
    asked = question_of("workers=2..8")
    answers = answers_to(asked, served(1_000_000, machine), ServerOptions(), on_refused=refused.append)
    assert [answer.value for answer in answers] == [2, 3, 4]
    assert [line.split(":")[0] for line in refused] == [f"no plan with workers={each}" for each in (5, 6, 7, 8)]
    with pytest.raises(InfeasibleError):
        answers_to(asked, served(1_000_000, machine), ServerOptions())


def test_options_of_a_plan_make_it_again() -> None:
    from treadle.planner.passes.server.advice import options_of

    first = decided(worked(racks=2, servers=2, core_rate=10**9))
    again = decided(first.problem, **vars(changed(options_of(first))))
    assert again == first
