"""The checker accepts what real users run and rejects what would hang, race or compute something else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from tests.codegen.collective.algorithms import Move, decide, exchange_allreduce, random_algorithm, ring_allreduce
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.mscclpp import check as check_mscclpp
from treadle.codegen.collective.mscclpp import document as mscclpp_plan
from treadle.codegen.collective.mscclpp.document import ExecutionPlan
from treadle.codegen.collective.mscclpp.lower import emit
from treadle.planner.errors import InputError

Document = dict[str, Any]


def test_every_real_plan_is_accepted(data_dir) -> None:
    for path in sorted((data_dir / "msccl" / "mscclpp-plans").glob("*.json")):
        assert check_mscclpp.check(mscclpp_plan.loads(path.read_text(), path.name)) == [], path.name


def test_a_large_plan_is_accepted() -> None:
    assert check_mscclpp.check(emit(lower(ring_allreduce(24)))) == []


FAR = [(a, b) for a in range(4) for b in range(4) if a // 2 != b // 2]

PLANS: dict[str, ExecutionPlan] = {
    "ring": emit(lower(ring_allreduce(4))),
    "ring in place over ports": emit(lower(ring_allreduce(4), inplace=True), far=FAR),
    "swap": emit(lower(exchange_allreduce(4, 1), inplace=True, fuse=False)),
    "packets": emit(lower(structs.replace(ring_allreduce(4), protocol="LL"))),
    "packets over ports": emit(lower(structs.replace(ring_allreduce(4), protocol="LL")), far=FAR),
    "trees": emit(lower(random_algorithm("allreduce", 4, 1, 1, seed=6), fuse=False)),
}
"""Rings have one threadblock per rank; swaps and trees have several, with slots, credits and semaphores."""


def changed(plan: ExecutionPlan, change: Callable[[Document], object]) -> list[str]:
    document = copy.deepcopy(json.loads(mscclpp_plan.dumps(plan)))
    change(document)
    return check_mscclpp.check(mscclpp_plan.loads(json.dumps(document), "broken.json"))


def ops(document: Document, *names: str) -> Iterator[tuple[list[Document], int]]:
    """Operations of these names from rank 1 on: the list they stand in, and where."""
    for gpu in (*document["gpus"][1:], document["gpus"][0]):
        for block in gpu["threadblocks"]:
            for place, op in enumerate(block["ops"]):
                if op["name"] in names:
                    yield block["ops"], place


def drop(*names: str, last: bool = False) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        found = list(ops(document, *names))
        where, place = found[-1 if last else 0]
        del where[place]

    return change


def alter(*names: str, **fields: object) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        where, place = next(ops(document, *names))
        where[place].update(fields)

    return change


def operand(side: str, number: int, /, *names: str, **fields: object) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        where, place = next(ops(document, *names))
        where[place][side][number].update(fields)

    return change


def shift(side: str, number: int, by: int, *names: str) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        where, place = next(ops(document, *names))
        chunks = where[place][side][number]
        chunks["index"] = (chunks["index"] + by) % 4

    return change


def before_data(document: Document) -> None:
    """The nop between a wait and what it waits for goes."""
    for where, place in ops(document, "wait"):
        if where[place + 1]["name"] == "nop":
            del where[place + 1]
            return


def after_data(document: Document) -> None:
    for where, place in ops(document, "signal"):
        if where[place - 1]["name"] == "nop":
            del where[place - 1]
            return


def twice(*names: str) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        where, place = next(ops(document, *names))
        where.insert(place, copy.deepcopy(where[place]))

    return change


def swapped(*names: str) -> Callable[[Document], None]:
    """An operation with the next of these names in its threadblock."""

    def change(document: Document) -> None:
        found = list(ops(document, *names))
        (where, first), (_, second) = found[0], found[1]
        where[first], where[second] = where[second], where[first]

    return change


def gpu(**fields: object) -> Callable[[Document], None]:
    return lambda document: document["gpus"][1].update(fields)


def top(**fields: object) -> Callable[[Document], None]:
    return lambda document: document.update(fields)


def block(**fields: object) -> Callable[[Document], None]:
    return lambda document: document["gpus"][1]["threadblocks"][0].update(fields)


def begin_unasked(document: Document) -> None:
    """No rank signals that its kernel has begun, and none waits for that signal."""
    for each in document["gpus"]:
        for part in each["threadblocks"]:
            part["ops"] = [op for op in part["ops"] if op["name"] not in ("rlxsignal", "rlxwait")]


def credits_unasked(document: Document) -> None:
    """No slot is released: signals that only a wait for room receives are removed, and these waits too."""
    for each in document["gpus"]:
        for part in each["threadblocks"]:
            sends = {number for op in part["ops"] if op["name"] == "rlxwait" for number in op["channel_ids"]}
            for op in part["ops"]:
                if op["name"] == "signal":
                    op["channel_ids"] = [number for number in op["channel_ids"] if number in sends]
                if op["name"] == "wait":
                    op["channel_ids"] = [number for number in op["channel_ids"] if number not in sends]
            part["ops"] = [op for op in part["ops"] if op["name"] not in ("signal", "wait") or op["channel_ids"]]


MUTATIONS: dict[str, tuple[str, Callable[[Document], object], str]] = {
    "a wait is gone": ("ring", drop("wait"), "tb 0"),
    "a signal is gone": ("ring", drop("signal"), "deadlock: waits for a signal of gpu"),
    "the last wait is gone": ("ring", drop("wait", last=True), "never waited for"),
    "a signal too many": ("ring", twice("signal"), "gpu"),
    "no nop after a wait": ("ring", before_data, "by threads that have not seen gpu 1 tb 0 op"),
    "no nop before a signal": ("ring", after_data, "while other threads may still be at gpu 1 tb 0 op"),
    "a signal without a fence": ("ring", alter("signal", name="rlxsignal"), "data race: reads"),
    "a wait without a fence": ("ring", alter("wait", name="rlxwait"), "data race: reads"),
    "no wait until the others have begun": ("ring", begin_unasked, "which may not have begun the call"),
    "no credits": ("swap", credits_unasked, "data race: reads scratch chunk"),
    "a put to another place": ("ring", shift("dst_buff", 0, 1, "put"), "gpu"),
    "a put from another place": ("ring", shift("src_buff", 0, 1, "put"), "expected the sum of 4 parts"),
    "a sum with another chunk": ("ring", shift("src_buff", 0, 1, "res"), "expected the sum of 4 parts"),
    "a sum that is a copy": (
        "swap",
        lambda document: [
            where[place].update(name="copy", src_buff=where[place]["src_buff"][1:])
            for where, place in [next(ops(document, "re"))]
        ],
        "expected the sum of 4 parts",
    ),
    "another operation order": ("swap", swapped("put", "put"), "gpu"),
    "a put twice": ("ring", twice("res"), "gpu"),
    "another remote buffer": ("ring", operand("dst_buff", 0, "put", buffer_id=0), "gpu"),
    "a remote buffer that is not there": ("ring", operand("dst_buff", 0, "put", buffer_id=9), "names remote buffer 9"),
    "beyond the buffer": ("ring", operand("src_buff", 0, "put", index=4), "reaches chunk 4 of buffer i of gpu 1"),
    "sizes that differ": ("ring", operand("src_buff", 0, "put", size=2, index=0), "operands of different sizes"),
    "too little scratch": ("ring", gpu(scratch_chunks=1), "reaches chunk 1 of buffer s of gpu 1, which has 1"),
    "a channel that is not there": ("ring", alter("wait", channel_ids=[7]), "names channel 7"),
    "another channel": (
        "ring",
        lambda document: document["gpus"][1]["threadblocks"][0]["channels"][0]["channel_ids"].reverse(),
        "deadlock",
    ),
    "a peer that is not there": (
        "ring",
        lambda document: document["gpus"][1]["channels"][0].update(connected_to=[0, 4]),
        "memory channel to gpu 4, expected another gpu below 4",
    ),
    "a channel that the other end does not have": (
        "packets",
        lambda document: document["gpus"][1]["channels"][0]["connected_to"].append(3),
        "gpu 1: 1 memory channels to gpu 3, which has 0 to gpu 1",
    ),
    "a group of more threadblocks than there are": (
        "packets",
        alter("ppkt", tbg_info={"tb_id": 0, "tbg_size": 10_000_000}),
        "is for a group of 10000000 threadblocks, the gpu has 1",
    ),
    "a part beyond its group": ("packets", alter("ppkt", tbg_info={"tb_id": 1, "tbg_size": 1}), "is part 1 of 1"),
    "endless chunks": ("ring", gpu(input_chunks=4_000_000_000), "to follow, expected at most"),
    "endless tokens": ("ring", gpu(semaphores=[{"init_value": 4_000_000_000}]), "to follow, expected at most"),
    "too many operations": ("ring", block(ops=[{"name": "nop"}] * 65), "65 operations, expected at most 64"),
    "too many channels": (
        "ring",
        block(channels=[{"channel_type": "memory", "channel_ids": [0] * 17}]),
        "17 memory channels, expected at most 16",
    ),
    "too many semaphores": (
        "ring",
        gpu(semaphores=[{"init_value": 0}] * 17),
        "17 semaphores, expected at most 16",
    ),
    "a semaphore without a release": ("trees", drop("sem_release"), "waits for semaphore"),
    "a semaphore without an acquire": ("trees", drop("sem_acquire"), "gpu"),
    "a semaphore that starts open": (
        "trees",
        lambda document: document["gpus"][1]["semaphores"][0].update(init_value=1),
        "data race",
    ),
    "gpus out of order": ("ring", gpu(id=2), "gpu 2: expected gpu 1 here"),
    "no input": ("ring", gpu(input_chunks=0), "input_chunks is 0, the runtime divides by it"),
    "another collective": ("ring", top(collective="reducescatter"), "after reducescatter"),
    "a sum over a port": ("ring in place over ports", alter("put", name="res"), "gpu"),
    "no flush": ("ring in place over ports", drop("flush", last=True), "a flush is missing"),
    "a packet that is not written": ("packets", drop("ppkt"), "waits for a packet of scratch chunk"),
    "a packet that is not read": ("packets", drop("upkt"), "expected the sum of 4 parts"),
    "a packet written twice": ("packets", twice("rppkt"), "a second time in one call"),
    "packets at the wrong place": ("packets", shift("dst_buff", 0, 1, "rppkt"), "gpu"),
    "single scratch": ("packets", top(use_double_scratch_buffer=False), "which may not have begun the call"),
    "packets with protocol Simple": ("packets", top(protocol="Simple"), "moves packets, expected protocol LL"),
    "plain data over packets": ("packets", operand("dst_buff", 0, "respkt", type="s", index=0), "lies over packet 0"),
    "a packet put over a port from plain data": (
        "packets over ports",
        lambda document: [where.pop(place) for where, place in [next(ops(document, "cpkt", "recpkt"))]],
        "waits for a packet",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_plans_are_rejected(name: str) -> None:
    source, change, said = MUTATIONS[name]
    findings = changed(PLANS[source], change)
    assert findings, "the broken plan was accepted"
    assert any(said in finding for finding in findings), findings


def test_the_plans_that_are_broken_here_are_right() -> None:
    for name, plan in PLANS.items():
        assert check_mscclpp.check(plan) == [], name


def test_a_sender_two_calls_ahead_is_found() -> None:
    plan = emit(lower(structs.replace(decide("broadcast", 2, [Move((0,), 0, 1)], root=0), protocol="LL")))
    assert check_mscclpp.check(plan) == []
    findings = changed(plan, begin_unasked)
    assert findings == [
        "gpu 0 tb 1 op 0: no message of gpu 1 reaches gpu 0, so it may be two calls ahead and overwrite packets that "
        "were not read"
    ]


def test_barriers_join_threadblocks() -> None:
    """Two threadblocks: one copies, the other passes it on after a barrier of both."""
    plan = structs.replace(PLANS["ring"], collective="custom", gpus=PLANS["ring"].gpus[:1])
    document = json.loads(mscclpp_plan.dumps(plan))
    barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}

    def copy_of(source: str, target: str) -> Document:
        ends = [{"type": kind, "index": 0, "size": 1} for kind in (source, target)]
        return {"name": "copy", "src_buff": ends[:1], "dst_buff": ends[1:]}

    blocks = [{"id": 0, "ops": [copy_of("i", "s"), barrier]}, {"id": 1, "ops": [barrier, copy_of("s", "o")]}]
    for part in blocks:
        part |= {"channels": [], "remote_buffer_refs": []}
    document["gpus"][0] |= {"threadblocks": blocks, "channels": [], "remote_buffers": [], "scratch_chunks": 1}

    def verdict() -> list[str]:
        return check_mscclpp.check(mscclpp_plan.loads(json.dumps(document), "barrier.json"))

    assert verdict() == []
    blocks[1]["ops"].reverse()
    assert "reads scratch chunk 0 of gpu 0" in verdict()[0]
    del blocks[1]["ops"][1]
    assert "deadlock: waits at barrier 0, where 1 of 2 are" in verdict()[0]


def chunk(index: int, size: int = 1, **place: object) -> Document:
    return {**place, "index": index, "size": size}


def unfused_packets() -> Document:
    """An allreduce of two ranks as the DSL writes it without fusion: a sum of packets, then packets of the sum.

    Each rank sums 2 of 4 chunks; packets 0-1 of scratch carry parts, 2-3 sums.
    """

    def gpu(rank: int) -> Document:
        mine, theirs = 2 * rank, 2 - 2 * rank
        ops = [
            {"name": "ppkt", "channel_type": "memory", "src_buff": [chunk(theirs, 2, type="i")],
             "dst_buff": [chunk(0, 2, buffer_id=0)]},
            {"name": "repkt", "src_buff": [chunk(mine, 2, type="i"), chunk(0, 2, type="s")],
             "dst_buff": [chunk(mine, 2, type="i")], "reduce_op": "sum"},
            {"name": "ppkt", "channel_type": "memory", "src_buff": [chunk(mine, 2, type="i")],
             "dst_buff": [chunk(2, 2, buffer_id=0)]},
            {"name": "upkt", "src_buff": [chunk(2, 2, type="s")], "dst_buff": [chunk(theirs, 2, type="i")]},
        ]  # fmt: skip
        return {
            "id": rank, "input_chunks": 4, "output_chunks": 4, "scratch_chunks": 4,
            "threadblocks": [{
                "id": 0, "ops": ops,
                "channels": [{"channel_type": "memory", "channel_ids": [0], "buff": "s"}],
                "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
            }],
            "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
            "remote_buffers": [{"rank": 1 - rank, "type": "s", "access_channel_types": ["memory"]}],
            "semaphores": [],
        }  # fmt: skip

    return {
        "name": "unfused", "collective": "allreduce", "protocol": "LL", "inplace": True,
        "gpus": [gpu(0), gpu(1)], "use_double_scratch_buffer": True,
    }  # fmt: skip


def checked(document: Document) -> list[str]:
    return check_mscclpp.check(mscclpp_plan.loads(json.dumps(document), "plan.json"))


def test_packets_keep_each_element_in_order_without_a_nop() -> None:
    assert checked(unfused_packets()) == []


@pytest.mark.parametrize("other", ["another range", "plain data"])
def test_packets_and_what_threads_share_differently_need_a_nop(other: str) -> None:
    document = unfused_packets()
    ops = document["gpus"][0]["threadblocks"][0]["ops"]
    if other == "another range":  # the second half alone: its elements belong to other threads than in the whole
        ops[2:3] = [copy.deepcopy(ops[2]), copy.deepcopy(ops[2])]
        for part in (0, 1):
            ops[2 + part]["src_buff"], ops[2 + part]["dst_buff"] = (
                [chunk(part, type="i")],
                [chunk(2 + part, buffer_id=0)],
            )
    else:
        ops.insert(2, {"name": "copy", "src_buff": [chunk(0, 2, type="i")], "dst_buff": [chunk(0, 2, type="o")]})
    assert ["a nop is missing" in finding for finding in checked(document)] == [True]
    ops.insert(3 if other == "another range" else 2, {"name": "nop"})
    if other == "plain data":
        assert checked(document) == []  # in place, input and output are one buffer, and both operations read


def piped(where: list[Document], place: int, **fields: object) -> None:
    """The operation at `place` becomes the only one of a pipeline."""
    loop = {"unit_size": 2**20, "num_chunks": 1}
    where[place] = {"name": "pipeline", "iter_context": loop, "ops": [where[place]], **fields}


def test_a_pipeline_may_name_its_buffer() -> None:
    assert changed(PLANS["ring"], lambda document: piped(*next(ops(document, "put")), buff="i")) == []
    with pytest.raises(InputError, match="found no MSCCL"):
        changed(PLANS["ring"], lambda document: piped(*next(ops(document, "put")), buff="z"))


def test_packets_in_a_pipeline_of_several_iterations_are_refused() -> None:
    def change(document: Document) -> None:
        piped(*next(ops(document, "respkt")))

    said = "gpu 1 tb 0 op 1: respkt moves all of its packets in every iteration of the pipeline"
    (finding,) = changed(PLANS["packets"], change)
    assert finding.startswith(said)
    assert changed(structs.replace(PLANS["packets"], max_message_size=2**20), change) == []


def without_flushes(document: Document) -> None:
    for each in document["gpus"]:
        for part in each["threadblocks"]:
            part["ops"] = [op for op in part["ops"] if op["name"] != "flush"]


def test_packets_put_out_of_double_scratch_need_no_flush() -> None:
    """Their half of the scratch is written again two calls later, when every rank has a signal that they arrived."""
    assert list(ops(json.loads(mscclpp_plan.dumps(PLANS["packets over ports"])), "flush"))
    assert changed(PLANS["packets over ports"], without_flushes) == []

    def unread(document: Document) -> None:
        without_flushes(document)
        where, place = list(ops(document, "upkt"))[-1]
        del where[place]

    assert any("a flush is missing" in finding for finding in changed(PLANS["packets over ports"], unread))
