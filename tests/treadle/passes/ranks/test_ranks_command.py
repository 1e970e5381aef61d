"""`treadle plan ranks`: what it prints and writes, plans laid on hosts, and one line for what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.planner.passes.ranks.instances import planted, racks, ranks_problem
from treadle.cli.main import run
from treadle.passes.ranks.hops import hops_of
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostHost, CostMatrix, PairRate
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, LinkCost, Port, SwitchStep, Transfer
from treadle.planner.passes.ranks.problem import PlanHop

pytestmark = pytest.mark.usefixtures("few_steps")

Change = Callable[[CostMatrix], CostMatrix]
ALLGATHER = ["plan", "collective", "allgather", "--hardware", "hosts-2x2", "--nodes", "4", "--size", "1MiB"]
COSTS = ["plan", "ranks", "--costs", "costs.json", "-o", "plan.json"]


def matrix(count: int = 8, slots: int = 1) -> CostMatrix:
    """Two racks to which the hosts were dealt out at random, measured just now."""
    found = planted(count, 2, 7)
    return CostMatrix(
        version=1,
        name="two racks",
        hosts=tuple(CostHost(name=f"node-{place}", slots=slots) for place in range(count)),
        latency_us=tuple(tuple(cost / 10 for cost in row) for row in found),
        rates=tuple(PairRate(i, j, 1e11 / found[i][j]) for i in range(count) for j in range(count) if i < j),
        measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


@pytest.fixture
def files(here: Path) -> Path:
    store.save(matrix(), here / "costs.json")
    return here


def test_hosts_are_ordered_for_a_ring_and_the_gain_is_against_three_orders(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COSTS) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for line in (
        "hosts        8, 1 rank each",
        "collective   ring of 64 MiB",
        "as handed out",
        "in the median of random orders",
        "in the worst order found",
        "for an allreduce",
        "proved optimal: ",
        "order        node-",
    ):
        assert line in printed.out
    decisions = store.load("plan.json", Plan).decisions
    across = {decisions.problem.latency_ns[a][b] > 35_000 for a, b in pairs(decisions.order)}
    assert sorted(across) == [False, True]
    assert sum(decisions.problem.latency_ns[a][b] > 35_000 for a, b in pairs(decisions.order)) == 2
    assert run(["check", "--fresh", "plan.json"]) == 0
    assert "accepted (order of 8 hosts for ring; optimal; inputs costs checked)" in capsys.readouterr().out
    assert run(["simulate", "plan.json"]) == 0
    said = capsys.readouterr().out
    assert "14 x node-" in said
    simulated, planned = (words.split()[0] for words in said.partition(": ")[2].split(", ")[:2])
    assert simulated == planned


def pairs(order: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(order[place - 1], order[place]) for place in range(len(order))]


def test_facts_for_programs_are_those_of_the_plan(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COSTS, "--objective", "bottleneck", "--size", "1MiB", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    decisions = store.load("plan.json", Plan).decisions
    assert facts["objective"] == "bottleneck"
    assert facts["size_bytes"] == decisions.problem.size_bytes == 2**20
    assert facts["cost_ns"] == decisions.cost_ns <= facts["original_ns"] <= facts["worst_ns"]
    assert facts["order"] == [f"node-{host}" for host in decisions.order]
    assert facts["time_ns"] == decisions.time_ns
    assert facts["time_ns"] <= 2 * 7 * facts["cost_ns"], "fewer hops share an uplink than were measured"


def test_old_costs_are_pointed_out(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(replace(matrix(4), measured_at="2024-02-01T12:00:00Z"), "costs.json")
    assert run(COSTS) == 0
    assert "costs.json was measured " in capsys.readouterr().err


def test_a_size_that_changes_nothing_is_pointed_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(replace(matrix(), rates=()), here / "costs.json")
    assert run([*COSTS, "--size", "1MiB"]) == 0
    assert "costs.json has latencies only: costs do not depend on --size" in capsys.readouterr().err


def test_a_collective_plan_is_laid_on_hosts_with_their_ranks_together(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.save(matrix(4, slots=2), "costs.json")
    made = [*ALLGATHER, "--method", "ring"]
    assert run([*made, "-o", "ring.json"]) == 0
    capsys.readouterr()
    laid = [*COSTS, "--collective", "ring.json"]
    assert run(laid) == 0
    assert "hosts        4, 2 ranks each" in capsys.readouterr().out
    plan = store.load("plan.json", Plan)
    assert plan.inputs.keys() == {"costs", "plan"}
    assert plan.decisions.problem.size_bytes == 2**20
    assert plan.prediction.time_us == plan.decisions.cost_ns / 1000
    assert run(["check", "--fresh", "plan.json"]) == 0
    assert "inputs costs, plan checked" in capsys.readouterr().out
    assert run([*made, "-o", "ring.json", "--instances", "2"]) == 0
    assert run(["check", "--fresh", "plan.json"]) == 1
    store.save(matrix(3, slots=2), "costs.json")
    capsys.readouterr()
    assert run(laid) == 2
    expected = "found a plan of 8 ranks, expected 6, 2 on each of 3 hosts; an order of its ranks would split a host"
    assert expected in capsys.readouterr().err


def decisions(ports: tuple[Port, ...] = ()) -> CollectiveDecisions:
    """Rank 0 sends two chunks as one message to rank 1 of its host and one to rank 2, rank 1 then sends to rank 3."""
    return CollectiveDecisions(
        collective="allgather",
        ranks=4,
        chunkup=2,
        chunk_bytes=10,
        input_bytes=20,
        links=(LinkCost(0, 1, "pcie", 5, 5), LinkCost(0, 2, "net", 5, 5), LinkCost(1, 3, "net", 5, 5)),
        ports=ports,
        transfers=(
            Transfer(0, 0, 1, 0, 15, 0),
            Transfer(1, 0, 1, 0, 15, 0),
            Transfer(0, 0, 2, 15, 25, 0),
            Transfer(1, 1, 3, 15, 25, 0),
            Transfer(0, 1, 3, 30, 40, 1),
        ),
        makespan_ns=40,
    )


def test_messages_wait_for_their_chunks_their_link_and_ports_of_their_ranks() -> None:
    free = (PlanHop(0, 0, 20), PlanHop(0, 1, 10), PlanHop(0, 1, 10, (0,)), PlanHop(0, 1, 10, (0, 2)))
    assert hops_of(decisions(), 2, 2, "plan") == free
    nic = Port(name="nic of rank 0", links=((0, 1), (0, 2)))
    assert hops_of(decisions((nic,)), 2, 2, "plan")[1] == PlanHop(0, 1, 10, (0,))
    wide = replace(nic, beta_ns=4)  # the messages of 10 ns that it carries at once are two
    assert hops_of(decisions((wide,)), 2, 2, "plan") == free
    host = Port(name="nic of host 0", links=((0, 2), (1, 3)))
    assert hops_of(decisions((host,)), 2, 2, "plan")[2:] == (PlanHop(0, 1, 10, (0, 1)), PlanHop(0, 1, 10, (0, 2)))
    uplink = Port(name="uplink of both", links=((0, 2), (1, 3)))
    assert hops_of(decisions((uplink,)), 4, 1, "plan") == hops_of(decisions(), 4, 1, "plan")


def test_sums_made_in_switches_have_no_hops() -> None:
    switched = replace(decisions(), transfers=(), switched=(SwitchStep(0, 0, "reduce", "nvls", 0, 5),))
    with pytest.raises(InputError, match="found a plan whose sums are made in switches"):
        hops_of(switched, 2, 2, "plan")


def test_a_problem_by_hand_names_its_collective(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(ranks_problem(racks(6, 2), "ring"), "problem.json")
    assert run(["plan", "ranks", "--problem", "problem.json", "-o", "plan.json"]) == 0
    assert "collective   ring, latencies only" in capsys.readouterr().out
    assert run(["check", "--fresh", "plan.json"]) == 0
    assert run(["plan", "ranks", "--problem", "problem.json", "--size", "1MiB", "-o", "plan.json"]) == 2
    assert "--problem names its collective" in capsys.readouterr().err


def latency(row: int, column: int, us: float | None) -> Change:
    def change(costs: CostMatrix) -> CostMatrix:
        rows = [list(each) for each in costs.latency_us]
        rows[row][column] = us
        return replace(costs, latency_us=tuple(map(tuple, rows)))

    return change


def same(costs: CostMatrix) -> CostMatrix:
    return costs


def twice(costs: CostMatrix) -> CostMatrix:
    return replace(costs, hosts=(*costs.hosts[:7], costs.hosts[0]))


def nothing(costs: CostMatrix) -> CostMatrix:
    return replace(costs, rates=(), latency_us=((0.0,) * 8,) * 8)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (latency(1, 0, 99), [], "node-0 - node-1), expected a symmetric matrix; mend it with --repair max or"),
        (latency(1, 0, None), [], "found one direction only of 1 pair of hosts (node-0 - node-1)"),
        (nothing, [], "costs.json: found no cost between any two hosts"),
        (twice, [], "$.hosts[7].name: found 'node-0' again"),
        (
            lambda each: replace(each, hosts=(*each.hosts[:7], CostHost(name="big", slots=4))),
            [],
            "$.hosts[7].slots: found 4 on big and 1 on node-0, expected as many on every host",
        ),
        (same, ["--collective", "rin"], "--collective: found 'rin', did you mean 'ring'?"),
        (same, ["--collective", "costs.json"], "costs.json: $.kind: found 'cost-matrix' (text), expected"),
        (same, ["--factors", "2,4"], "--factors: found factors for ring, expected them for bcube only"),
        (
            same,
            ["--collective", "bcube", "--factors", "3,3"],
            "--factors: found 3 * 3, expected numbers above 1 whose product is 8",
        ),
        (same, ["--collective", "bcube", "--factors", "4,x"], "expected whole numbers above 1 such as"),
        (
            lambda each: matrix(7),
            ["--collective", "bcube"],
            "found 7 hosts, which groups of at most 4 do not divide, expected factors such as --factors 7",
        ),
        (
            lambda each: replace(each, rates=(PairRate(0, 1, 1e3),)),
            [],
            "problem of costs.json: $.size_bytes: found 67108864 bytes, which take a pair",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], change: Change, options: list[str], message: str
) -> None:
    store.write_text("costs.json", store.dumps(change(matrix())))
    assert run([*COSTS, *options]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not Path("plan.json").exists()


def test_uneven_directions_are_mended_when_asked(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(latency(1, 0, None)(latency(3, 2, 90)(matrix(4))), "costs.json")
    for how, ns in (("max", 90_000), ("mean", 65_000)):
        assert run([*COSTS, "--repair", how]) == 0
        found = store.load("plan.json", Plan).decisions.problem.latency_ns
        assert found[2][3] == found[3][2] == pytest.approx(ns, rel=0.05)
        assert run(["check", "--fresh", "plan.json"]) == 0
