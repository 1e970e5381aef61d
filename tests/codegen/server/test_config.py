"""Texts of configuration: every chunk once, buffers that do not meet, cores with queues of their own; golden."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from tests.conftest import Golden
from tests.planner.passes.server.server_plans import LAB, PROBLEM, RACKS, SHARDS, by_worker, decided, two_levels
from treadle.codegen.server.config import configuration
from treadle.codegen.targets import generate, target_names_of
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.memory_need import buffer_kinds
from treadle.planner.passes.server.planning import plan_server

PLANS = {
    "key": lambda: decided(policy="key-by-interface"),
    "worker": by_worker,
    "shards": lambda: decided(SHARDS),
    "levels": two_levels,
    "flat": lambda: decided(RACKS, levels="flat"),
    "lab": lambda: decided(LAB),
    "adam": lambda: decided(replace(PROBLEM, optimizer="adam", arrival_order=True)),
}


def made(decisions: ServerDecisions) -> dict[str, Any]:
    """All texts, parsed, by name without `.json`."""
    files = configuration(replace(small(), decisions=decisions)).files
    return {name.removesuffix(".json"): json.loads(text) for name, text in files.items()}


def servers(texts: dict[str, Any]) -> list[dict[str, Any]]:
    return [text for name, text in sorted(texts.items()) if name.startswith("server")]


@pytest.mark.parametrize("name", PLANS)
def test_a_worker_finds_every_chunk_where_a_server_has_it(name: str) -> None:
    decisions = PLANS[name]()
    texts = made(decisions)
    assert len(servers(texts)) == decisions.problem.servers
    slots = len(decisions.slots) // decisions.problem.servers
    found = {}
    for server in servers(texts):
        for number, key, elements, slot, *_ in server["chunks"]:
            found.setdefault(number, []).append((server["server"], key, elements, slot))
    addresses, keys = texts["workers"]["addresses"], texts["workers"]["keys"]
    for index, key in enumerate(keys):
        numbers = range(key["first_chunk"], key["first_chunk"] + len(key["slots"]))
        assert sum(found[number][0][2] for number in numbers) == key["elements"]
        for number, slot in zip(numbers, key["slots"], strict=True):
            there = range(len(servers(texts))) if decisions.two_level else [addresses[slot]["server"]]
            assert [each[0] for each in found[number]] == [*there]
            assert {each[1] for each in found[number]} == {index}
            assert {each[3] for each in found[number]} == {slot % slots}
    assert sorted(found) == [*range(sum(len(key["slots"]) for key in keys))]


@pytest.mark.parametrize("name", PLANS)
def test_buffers_fill_one_block_of_each_domain_and_no_two_meet(name: str) -> None:
    decisions = PLANS[name]()
    kinds = buffer_kinds(decisions.problem, decisions.two_level)
    taken = []
    for server in servers(made(decisions)):
        blocks = {domain["domain"]: domain["block_bytes"] for domain in server["domains"]}
        ends = dict.fromkeys(blocks, 0)
        for _, key, elements, slot, at, received_at, *_ in server["chunks"]:
            domain = server["slots"][slot]["domain"]
            assert at == ends[domain]
            assert at % 64 == 0
            sums = -(-4 * elements // 64) * 64
            travels = -(-elements * (2 if decisions.problem.keys[key].dtype != "float32" else 4) // 64) * 64
            size = {"sums": sums, "travels": travels}
            ends[domain] = at + sum(kind.copies * size[kind.of] for kind in kinds)
            if received_at is not None:
                assert received_at == ends[domain] - kinds[-1].copies * travels
        assert ends == blocks
        taken.append(sum(blocks.values()))
    assert max(taken) == decisions.server_bytes


@pytest.mark.parametrize("name", PLANS)
def test_a_core_and_a_queue_belong_to_one_another_and_to_one_domain(name: str) -> None:
    decisions = PLANS[name]()
    domain_of = {each.name: each.domain for each in decisions.problem.machine.interfaces}
    for server in servers(made(decisions)):
        cores = [(slot["domain"], slot["core"]) for slot in server["slots"]]
        pairs = [pair for slot in server["slots"] for pair in slot["pairs"]]
        assert len(set(cores)) == len({slot["queue"] for slot in server["slots"]}) == len(cores)
        assert sorted(pairs) == [*range(len(server["workers"]) * len(cores))]
        for slot in server["slots"]:
            assert slot["interface"] is None or domain_of[slot["interface"]] == slot["domain"]


@cache
def small(name: str = "tiny") -> Plan[ServerDecisions]:
    machine = replace(PROBLEM.machine, interfaces=PROBLEM.machine.interfaces[1:3])
    problem = replace(PROBLEM, name=name, machine=machine, workers=2)
    return plan_server(problem, options=ServerOptions(chunk_bytes=65536, policy="key-by-interface"))


@pytest.mark.golden
def test_the_texts_are_small_and_stable(golden: Golden) -> None:
    files = generate(small(), "plan.json", target="server-config").files
    assert sorted(files) == ["plan.json", "server-0.json", "workers.json"]
    for name in ("server-0.json", "workers.json"):
        golden(f"server/{name}", files[name])


def test_a_hostile_name_stays_a_text() -> None:
    name = 'x"}\n\\, "cores": 9'
    files = generate(small(name), "plan.json", target="server-config").files
    assert {json.loads(files[each])["job"] for each in ("server-0.json", "workers.json")} == {name}
    assert "server-config" in target_names_of("server")
