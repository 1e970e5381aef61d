"""Server plans in the light of their inputs: what changed since, the same map at today's rates, the bound derived
again, and how two plans differ."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from tests.planner.passes.server.server_plans import PROBLEM, RACKS, by_worker, decided
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import Document
from treadle.planner.documents.server_parts import ServerCosts, ServerDomain, ServerInterface, ServerParts
from treadle.planner.errors import InputError
from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.extract import ServerSetup, problem_of
from treadle.planner.passes.server.keys import ServerKeys
from treadle.planner.passes.server.planning import plan_server
from treadle.planner.passes.server.room import PASS

KEYS = ServerKeys(version=1, name="three", keys=PROBLEM.keys, compute_ns=1_000_000)
PARTS = ServerParts(
    version=1,
    name="two cards",
    domains=(ServerDomain(cores=2), ServerDomain(cores=2)),
    interfaces=tuple(ServerInterface(name=name, domain=domain, link_gbps=10) for domain, name in enumerate("ab")),
    bridge_GBps=4,
    costs={"tcp": ServerCosts(add_us_per_MB=80)},
)


@cache
def planned() -> Plan[ServerDecisions]:
    problem = problem_of(KEYS, PARTS, setup=ServerSetup(workers=3, optimizer="nesterov"))
    digest = "sha256:" + 64 * "0"
    inputs = {role: InputRef(file=f"{role}.yaml", digest=digest) for role in ("keys", "parts")}
    return plan_server(problem, options=ServerOptions(policy="key-by-interface"), inputs=inputs)


def found(**changes: object) -> dict[str, Document]:
    return {"keys": KEYS, "parts": replace(PARTS, **changes)}


def test_inputs_that_say_the_same_are_no_finding_and_others_name_what_changed() -> None:
    assert PASS.check_inputs(planned(), found()) == []
    assert PASS.check_inputs(planned(), {"keys": KEYS}) == []
    changed = PASS.check_inputs(planned(), found(bridge_GBps=2))
    assert changed == ["$.decisions.problem.machine: not what the inputs say now; plan again"]
    shorter = {**found(), "keys": replace(KEYS, keys=KEYS.keys[:2])}
    assert PASS.check_inputs(planned(), shorter)[0].startswith("$.decisions.problem.keys: not what the inputs say now")


def test_the_map_is_priced_at_the_rates_of_today() -> None:
    assert PASS.today(planned(), {"keys": KEYS}) is None
    now = PASS.today(planned(), found(bridge_GBps=1))
    assert now is not None
    assert now.places == planned().decisions.places
    assert now.time_ns > planned().decisions.time_ns
    assert PASS.findings(now) == []
    with pytest.raises(InputError, match="keys, workers, servers or cards are others than in the plan; plan again"):
        PASS.today(planned(), found(interfaces=PARTS.interfaces[:1]))


def test_a_bound_that_the_problem_does_not_prove_is_a_finding() -> None:
    plan = planned()
    bound = int(plan.certificate.lower_bound)
    assert PASS.rebound(plan, {}) == ([], bound)
    false = replace(plan, certificate=replace(plan.certificate, lower_bound=bound + 1.0))
    assert PASS.rebound(false, {}).findings == [
        f"certificate: lower bound {bound + 1} ns, the problem proves only {bound} ns"
    ]


def test_a_plan_is_described_by_its_keys_servers_and_workers() -> None:
    assert PASS.describe(planned().decisions) == "server plan of 3 keys on 1 server for 3 workers"


def test_differences_are_said_in_words_of_the_pass() -> None:
    before, after = decided(policy="key-by-interface"), by_worker()
    said = {str(change) for change in PASS.differences(before, after)}
    assert "policy: key-by-interface -> worker-by-interface" in said
    assert any(line.startswith("time: 651.857 us -> 895.861 us (+") for line in said)
    racks = [str(change) for change in PASS.differences(before, decided(RACKS, levels="two-level"))]
    assert "bottleneck: bridge -> rack link" in racks
    assert any(line.startswith("map: ") and line.endswith(" of 10 on other cores") for line in racks)
    assert PASS.differences(before, before) == []
