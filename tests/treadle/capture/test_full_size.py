"""The reference models at the sizes of their papers trace without the memory that they would need."""

from __future__ import annotations

import importlib
import resource

import pytest

from treadle.capture.costs import with_counts
from treadle.capture.graph import capture
from treadle.planner.graph.liveness import sweep

pytestmark = pytest.mark.slow

GIB = 2**30

# Parameters, and what one step keeps alive at its peak at least, in GiB.
MODELS = {
    "resnet50:resnet50": (25_557_032, 12),
    "vgg16:vgg16": (138_357_544, 10),
    "googlenet:googlenet": (6_624_904, 12),
    "mobilenet_v2:mobilenet_v2": (3_504_872, 12),
    "unet:unet": (31_037_698, 12),
    "gpt2:xl": (1_557_611_200, 11),
    "lstm_lm:medium": (19_780_400, 0.1),
    "moe:mixtral": (1_409_318_912, 10),
}


@pytest.mark.parametrize("name", MODELS)
def test_traced_without_memory(name: str) -> None:
    module, function = name.split(":")
    entry = getattr(importlib.import_module(f"examples.models.{module}"), function)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = with_counts(capture(entry, name))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GIB // 1024
    parameters, least = MODELS[name]
    weights = [tensor for tensor in trace.tensors if tensor.role == "parameter"]
    assert sum(tensor.bytes for tensor in weights) == 4 * parameters
    assert least * GIB < sweep(trace).peak < 24 * GIB
    assert len(trace.gradient_order) == len(weights)


def test_resnet50_does_its_published_work() -> None:
    """4.09 billion multiplications and additions for one image forward (torchvision's table), twice that backward."""
    from examples.models import resnet50

    trace = with_counts(capture(lambda: resnet50.resnet50(batch=1), "resnet50"))
    forward = sum(op.flops or 0 for op in trace.ops if op.phase == "forward")
    backward = sum(op.flops or 0 for op in trace.ops if op.phase == "backward")
    assert forward / 2e9 == pytest.approx(4.09, abs=0.005)
    assert 1.9 < backward / forward < 2  # the gradient of the images is not computed
