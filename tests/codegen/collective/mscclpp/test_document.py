"""MSCCL++ plans are read strictly and written back as they were."""

from __future__ import annotations

import json

import pytest

from treadle.codegen.collective.mscclpp import document
from treadle.planner.errors import InputError


def test_every_real_plan_is_written_back_to_the_byte(data_dir) -> None:
    for path in sorted((data_dir / "msccl" / "mscclpp-plans").glob("*.json")):
        text = path.read_text()
        assert document.dumps(document.loads(text, path.name)).strip() == text.strip(), path.name


PLAN = {
    "name": "p",
    "collective": "allreduce",
    "protocol": "Simple",
    "inplace": True,
    "gpus": [
        {
            "id": 0,
            "input_chunks": 1,
            "output_chunks": 1,
            "scratch_chunks": 0,
            "threadblocks": [{"id": 0, "ops": [{"name": "nop"}]}],
        }
    ],
}


def test_what_the_runtime_fills_in_may_be_left_out() -> None:
    plan = document.loads(json.dumps(PLAN), "p.json")
    assert (plan.num_threads_per_block, plan.buffer_alignment, plan.use_double_scratch_buffer) == (1024, 16, False)
    assert plan.max_message_size == 2**64 - 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"protocol": "LL128"}, r"Invalid enum value 'LL128' - at `\$.protocol`"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"gpus": [{"id": 0}]}, "missing required field `input_chunks`"),
        ({"inplace": None}, r"\$.inplace"),
    ],
)
def test_strangers_are_refused_with_their_place(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=r"p\.json: found no MSCCL\+\+ execution plan: ") as caught:
        document.loads(json.dumps(PLAN | change), "p.json")
    assert caught.match(said)


def test_unknown_operations_are_refused() -> None:
    text = json.dumps(PLAN).replace('"nop"', '"glre"')
    with pytest.raises(InputError, match="'glre'"):
        document.loads(text, "p.json")


def test_plans_are_told_from_treadles_documents() -> None:
    assert document.is_plan(json.dumps(PLAN))
    assert not document.is_plan(json.dumps(PLAN | {"kind": "plan"}))
    assert not document.is_plan("[1]")
    assert not document.is_plan("{")
