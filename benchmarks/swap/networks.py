"""The networks of SwapAdvisor's tables 5.1 and 5.2, with its figures and its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, Literal

from treadle.planner.documents.trace import Trace
from treadle.planner.passes.swap.extract import machine_of
from treadle.planner.passes.swap.planning import inplace_problem
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.probe.resolve import load_hardware

HARDWARE = "p3-v100-16gb"
HOST_BYTES = 244 * 2**30
"""SwapAdvisor uses one GPU of a p3.8xlarge for models that need more than 61 GB of host memory."""


@dataclass(frozen=True)
class Network:
    """Entry `spec` at `batch`, with SwapAdvisor's figures: table 5.1, and the share of ideal of section 5.2."""

    spec: str
    batch: int
    gigabytes: int
    ops: int
    sizes: int
    share: float


NETWORKS = {
    "WResNet-152-10": Network("examples.models.wide_resnet152:training", 64, 180, 882, 26, 0.95),
    "Inception-4": Network("examples.models.inception_v4:training", 64, 71, 830, 64, 0.65),
    "NasNet-25": Network("examples.models.nasnet_a:training", 64, 193, 5533, 65, 0.53),
    "RNN-8-8K": Network("examples.models.recurrent:rnn_8_8k", 256, 118, 8594, 7, 0.80),
    "BRNN-4-8K": Network("examples.models.recurrent:brnn_4_8k", 128, 99, 9034, 9, 0.80),
}


def training(name: str, batch: int | None = None) -> Trace:
    """One training step with plain SGD, times by the roofline of SwapAdvisor's machine."""
    network = NETWORKS[name]
    return trace_of(partial(entry(network.spec), batch=batch or network.batch), name, "train")


def trained(spec: str, batch: int) -> Trace:
    """One training step of any entry, as `training`."""
    return trace_of(partial(entry(spec), batch=batch), spec.partition(":")[2], "train")


def inference(batch: int) -> Trace:
    """ResNet-152 forward."""
    return trace_of(partial(entry("examples.models.resnet152:inference"), batch=batch), "ResNet-152", "infer")


@cache
def problem_of(name: str, batch: int | None = None) -> SwapProblem:
    """The swap problem of `training`."""
    return problem_from(training(name, batch))


def problem_from(trace: Trace, memory_bytes: int | None = None) -> SwapProblem:
    """The swap problem of a trace on SwapAdvisor's machine, with `memory_bytes` instead of its memory if given."""

    return inplace_problem(trace, machine_of(load_hardware(HARDWARE), memory_bytes, HOST_BYTES)).problem


def entry(spec: str) -> Callable[..., Any]:
    """The function that `MODULE:FUNCTION` names."""
    module, function = spec.split(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def trace_of(step: Callable[..., Any], name: str, mode: Literal["train", "infer"]) -> Trace:
    """The step with every implementation and roofline times, and plain SGD in training."""
    from treadle.capture.costs import with_roofline
    from treadle.capture.graph import capture
    from treadle.capture.optimizer import with_optimizer
    from treadle.planner.graph.implementations import with_implementations

    trace = with_implementations(capture(step, name, mode))
    if mode == "train":
        trace = with_optimizer(trace, "sgd")
    return with_roofline(trace, load_hardware(HARDWARE))
