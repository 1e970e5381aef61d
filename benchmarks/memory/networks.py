"""The networks of the memory tables and the machine that prices them: MONeT's five at its batches, and GPT-2 XL."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from treadle.planner.documents.hardware import VERSION, Device, Hardware
from treadle.planner.passes.memory.problem import MemoryProblem

NETWORKS = {
    "ResNet-50 b184": "examples.models.resnet50:resnet50",
    "GoogLeNet b320": "examples.models.googlenet:googlenet",
    "U-Net b11": "examples.models.unet:unet",
    "VGG-16 b176": "examples.models.vgg16:vgg16",
    "MobileNet-V2 b256": "examples.models.mobilenet_v2:mobilenet_v2",
}

P100 = Hardware(
    version=VERSION,
    name="p100-pcie-16gb",
    nodes=1,
    devices=(
        Device(
            model="P100-PCIE-16GB",
            kind="gpu",
            count=1,
            memory_bytes=16 * 2**30,
            peak_flops={"float64": 4.7e12, "float32": 9.3e12, "float16": 18.7e12},
            memory_bandwidth=732e9,
        ),
    ),
    sources={"devices": "NVIDIA Tesla P100 PCIe data sheet: 16 GB at 732 GB/s, 4.7/9.3/18.7 TFLOP/s"},
)


@cache
def problem_of(name: str) -> MemoryProblem:
    """The memory problem of one training step of a network, with every implementation and roofline times."""
    module, function = NETWORKS[name].split(":")
    return problem_from(getattr(import_module(module), function), name)


def gpt2_xl() -> MemoryProblem:
    """One training step of GPT-2 XL: 48 layers of width 1600, 8 sequences of 1,024 tokens, single precision."""
    from examples.models.gpt2 import xl

    return problem_from(lambda: xl(batch=8), "GPT-2 XL b8")


def problem_from(step: object, name: str) -> MemoryProblem:
    """The memory problem of the step that `step` makes."""
    from treadle.capture.costs import with_roofline
    from treadle.capture.graph import capture
    from treadle.planner.graph.implementations import with_implementations
    from treadle.planner.passes.memory.extract.problem import problem_from_trace

    assert callable(step)
    trace = with_implementations(capture(step, name, "train"))
    return problem_from_trace(with_roofline(trace, P100), 0)
