"""Models under another tool's wrapper are refused by its name, before anything is captured or trained."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DataParallel, DistributedDataParallel

import treadle
from tests.treadle.runtime.models import STEPS, plan_of, trace_of
from treadle.capture.graph import capture
from treadle.planner.errors import InputError
from treadle.runtime.wrappers import require_unwrapped


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """A process group of this process only."""
    place = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))


def replaced(wrap):
    """A model whose inner block `wrap` replaces."""
    found = model()
    found[1] = wrap(found[1])
    return found


def compiled_in_place(found: nn.Module) -> nn.Module:
    found.compile(backend="eager")
    return found


class DeepSpeedEngine(nn.Module):
    """By the name of DeepSpeed's own, which is not installed."""

    __module__ = "deepspeed.runtime.engine"


class PipelineEngine(DeepSpeedEngine):
    __module__ = "deepspeed.runtime.pipe.engine"


WRAPPED = {
    "ddp": (lambda mesh: DistributedDataParallel(model()), "the model under DistributedDataParallel", "around"),
    "ddp inside": (lambda mesh: replaced(DistributedDataParallel), "'1' under DistributedDataParallel", "around"),
    "fully_shard": (lambda mesh: fully_shard(model(), mesh=mesh), "the model under fully_shard", "planned"),
    "fully_shard inside": (
        lambda mesh: replaced(lambda block: fully_shard(block, mesh=mesh)),
        "module '1' under fully_shard",
        "fully_shard(planned)",
    ),
    "fsdp": (
        lambda mesh: FullyShardedDataParallel(model(), use_orig_params=True, device_id=torch.device("cpu")),
        "the model under FullyShardedDataParallel",
        "use_orig_params=True",
    ),
    "dp": (lambda mesh: DataParallel(model()), "the model under DataParallel", "DistributedDataParallel"),
    "tensor parallel": (
        lambda mesh: parallelize_module(model(), mesh, {"0": ColwiseParallel()}),
        "parameter '0.weight' as a DTensor",
        "tensor parallelism",
    ),
    "compiled": (lambda mesh: torch.compile(model(), backend="eager"), "the model under torch.compile", "plain"),
    "compiled inside": (
        lambda mesh: replaced(lambda block: torch.compile(block, backend="eager")),
        "module '1' under torch.compile",
        "plain",
    ),
    "compiled in place": (lambda mesh: replaced(compiled_in_place), "module '1' compiled by .compile()", "plain"),
    "deepspeed": (lambda mesh: DeepSpeedEngine(), "the model as a DeepSpeedEngine", "not planned"),
    "deepspeed pipeline": (lambda mesh: PipelineEngine(), "the model as a DeepSpeedEngine", "not planned"),
}


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo")
@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapper_is_refused_by_its_name_and_with_what_to_do(name, group):
    make, what, advice = WRAPPED[name]
    with pytest.raises(InputError) as refusal:
        require_unwrapped(make(group), "here")
    assert str(refusal.value).startswith("here: found ")
    assert what in str(refusal.value)
    assert advice in str(refusal.value)


def test_a_plain_model_is_accepted():
    require_unwrapped(model(), "here")


def test_capture_apply_and_swapped_refuse():
    found = replaced(compiled_in_place)
    with pytest.raises(InputError, match="module '1' compiled"):
        capture(lambda: (found, (torch.randn(3, 4),)), "here")
    for call, name in ((treadle.apply, "treadle.apply"), (treadle.swapped, "treadle.swapped")):
        with pytest.raises(InputError, match=f"{name}: found module '1' compiled"):
            call(found, "absent.json")


def test_a_planned_model_is_not_planned_again():
    first, _ = STEPS["mlp"]()
    planned = treadle.apply(first, plan_of("mlp"), trace_of("mlp"))
    with pytest.raises(InputError, match=r"found the model as a planned module, expected it plain; pass its `\.model`"):
        treadle.apply(planned, plan_of("mlp"), trace_of("mlp"))


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo")
def test_a_cast_of_parameters_by_fully_shard_is_refused_with_what_to_do(group):
    first, inputs = STEPS["mlp"]()
    planned = treadle.apply(first, plan_of("mlp", Fraction(1)), trace_of("mlp"))
    fully_shard(planned, mesh=group, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with pytest.raises(InputError, match=r"param_dtype=torch.bfloat16.*capture with --autocast bfloat16"):
        planned(*inputs)
