"""Swap problems of captured and imported traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.models import gpt2, resnet50
from treadle.capture.costs import with_roofline
from treadle.capture.formats import import_trace
from treadle.capture.graph import capture
from treadle.capture.optimizer import with_optimizer
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.planner.passes.swap.extract import machine_of, problem_from_trace

V100 = store.load(resources.locate("profiles", "p3-v100-16gb"), Hardware)


def test_a_training_step_with_adam_writes_every_parameter_and_state_once() -> None:
    trace = with_roofline(with_optimizer(capture(gpt2.tiny, "gpt2"), "adam"), V100)
    problem = problem_from_trace(trace, machine_of(V100))
    written = [t for op in problem.ops for t in op.writes]
    roles = [tensor.role for tensor in problem.tensors]
    trained = {t for op in problem.ops if op.id.startswith("adam_") for t in op.writes}
    assert len(written) == len(set(written))
    assert {t for t, role in enumerate(roles) if role == "parameter"} <= trained
    assert not any(tensor.kept for tensor in problem.tensors if tensor.role == "gradient")
    assert problem.ideal_ns == sum(op.time_ns for op in problem.ops) > 0
    owned = sum(tensor.bytes or 0 for tensor in trace.tensors if tensor.role == "parameter" and tensor.alias_of is None)
    assert owned == sum(tensor.bytes for tensor in problem.tensors if tensor.role == "parameter")


def test_running_statistics_are_states_and_their_new_values_are_kept() -> None:
    trace = with_roofline(capture(resnet50.tiny, "resnet"), V100)
    problem = problem_from_trace(trace, machine_of(V100))
    tensors = {tensor.id: tensor for tensor in problem.tensors}
    assert trace.updates
    for buffer, value in trace.updates:
        assert tensors[buffer].role == "state"
        assert tensors[value].kept
        assert tensors[value].role == "activation"
    assert not any(op.writes for op in problem.ops)
    finals = [tensor.id for tensor in trace.tensors if tensor.gradient_of is not None]
    assert all(tensors[key].kept for key in finals if key in tensors)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet-ddp2-rank0.kineto.json.gz", "found no op that reads or makes a tensor, expected a trace with tensors"),
        ("pytorch-ddp.chakra-et.tar.gz", "has no time"),
    ],
)
def test_imported_traces_that_do_not_tell_enough_are_refused(data_dir: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        problem_from_trace(import_trace(data_dir / "traces" / name), machine_of(V100))
