"""The swap baselines that run on a CPU, executed there.

Copies within the host's memory show what a peer moves, not its cost on a card. torchtune's `OffloadActivations` refuses
the CPU (its constructor needs a CUDA stream); vDNN and ODSwap have no implementation for PyTorch. `torch-offload` is a
swap plan under `torch.compile`, with stand-ins for PyTorch's offloading operators, which need an accelerator: they copy
as late as is allowed and poison absent tensors.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import Row, Table, progress
from benchmarks.memory.varied import Step
from benchmarks.swap.networks import HARDWARE
from examples.models import googlenet, gpt2, resnet50
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.codegen.swap import torch_offload
from treadle.planner.passes.swap.extract import machine_of
from treadle.planner.passes.swap.planning import SwapOptions, inplace_problem, plan_swap, with_memory
from treadle.probe.resolve import load_hardware
from treadle.runtime.followers import follow
from treadle.runtime.offload_ops import stand_in

MODELS: dict[str, Callable[[], Step]] = {
    "ResNet-50, 4 images of 96x96": lambda: resnet50.resnet50(batch=4, image_size=96),
    "GoogLeNet, 4 images of 96x96": lambda: googlenet.googlenet(batch=4, image_size=96),
    "GPT-2, 4 texts of 64 tokens": lambda: gpt2.step(gpt2.TINY, 4, 64),
}
REPEATS = 5
SHARE = Fraction(3, 5)
OPTIONS = SwapOptions(generations=5, time_limit_s=20.0)


def tables() -> Iterator[Table]:
    """Step time on the CPU and bits of gradients: plain PyTorch, save_on_cpu, and a swap plan under torch.compile."""
    torch.set_num_threads(1)
    rows = []
    for name, make in MODELS.items():
        progress(f"swap.real: {name}")
        rows += compared(name, make)
    notes = (
        "ms: median processor time of forward and backward. torch-offload runs operator by operator with stand-ins, so "
        "its time is not shown. Bits: gradients equal to those of plain PyTorch, or the largest relative difference.",
        "moved MiB: in one direction. save_on_cpu copies parameters that autograd saves as well.",
    )
    yield Table("Swapping on the CPU", rows, notes)


def compared(name: str, make: Callable[[], Step]) -> list[Row]:
    """One model: every variant."""
    torch.manual_seed(0)
    model, inputs, loss = make()
    start = copy.deepcopy(model.state_dict())

    def once(call: Callable[..., Any], context: Any = nullcontext) -> tuple[float, list[Tensor]]:
        model.load_state_dict(start)
        model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        began = time.process_time()
        with context():
            result = call(*inputs)
        result.backward()
        took = time.process_time() - began
        return took, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    def plain(*arguments: Tensor) -> Tensor:
        return loss(model, *arguments)

    counting, moved = counted()
    once(plain, counting)
    contexts = (nullcontext, torch.autograd.graph.save_on_cpu)
    found = [[once(plain, context) for context in contexts] for _ in range(REPEATS)]
    took, own = (statistics.median(pair[at][0] for pair in found) for at in range(2))
    (_, reference), (_, gradients) = found[-1]
    rows: list[Row] = [{"model": name, "variant": "plain", "ms": took * 1e3}]
    rows.append(_row("save_on_cpu", gradients, reference) | {"ms": own * 1e3, "x plain": own / took} | moved())
    hardware = load_hardware(HARDWARE)
    trace = with_roofline(capture(make, name, "train"), hardware)
    task = inplace_problem(trace, machine_of(hardware))
    task = replace(task, problem=with_memory(task.problem, SHARE))
    decisions = plan_swap(task, options=OPTIONS).decisions
    files, carried = torch_offload.generate(decisions, trace)
    traffic = stand_in()
    before = traffic.out_copies, traffic.out_bytes
    torch._dynamo.reset()
    follower = follow("torch-offload", files[torch_offload.FILE_NAME], name, model, loss)
    _, gradients = once(follower.call)
    copies, size = traffic.out_copies - before[0], traffic.out_bytes - before[1]
    rows.append(
        _row("torch-offload", gradients, reference)
        | {"copies": copies, "moved MiB": size / 2**20, "of the plan's": f"{len(carried.moves)} activations"}
    )
    return rows


def counted() -> tuple[Callable[[], Any], Callable[[], Row]]:
    """A context in which every saved tensor is counted as save_on_cpu copies it."""
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    def context() -> Any:
        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    return context, lambda: {"copies": len(sizes), "moved MiB": sum(sizes) / 2**20}


def _row(variant: str, gradients: list[Tensor], reference: list[Tensor]) -> Row:
    same = all(torch.equal(a, b) for a, b in zip(gradients, reference, strict=True))
    apart = max(
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in zip(gradients, reference, strict=True)
    )
    return {"variant": variant, "bits": "equal" if same else f"differ by {apart:.1e}"}
