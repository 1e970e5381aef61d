"""Memory plans of whole networks on a GPU: allocator peak and step time, compared with eager, SAC and PyTorch's budget.

Costs of every implementation, cuDNN's algorithms among them, are measured on the card. The peak of a peer is the budget
of a plan, whose time is compared with the peer's. Peers: plain PyTorch; its selective checkpointing, which saves matrix
products and convolutions, of every direct part of the model that can be wrapped; and AOT autograd's partitioner under
`activation_memory_budget`, through torch.compile without a code generator.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from benchmarks.common import Row, Table, progress, without_gpu
from benchmarks.memory.execution import memory_plan
from benchmarks.memory.varied import Step
from examples.models import googlenet, gpt2, mobilenet_v2, resnet50, unet, vgg16
from treadle.capture.costs import with_measured
from treadle.capture.graph import capture
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.graph.implementations.cudnn import with_cudnn
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.runtime.memory.apply import apply
from treadle.runtime.meter import Meter

MODELS: dict[str, Callable[[], Step]] = {
    "ResNet-50 b184": resnet50.resnet50,
    "GoogLeNet b320": googlenet.googlenet,
    "U-Net b11": unet.unet,
    "VGG-16 b176": partial(vgg16.vgg16, dropout=0.0),
    "MobileNet-V2 b256": mobilenet_v2.mobilenet_v2,
    "GPT-2 small b8": gpt2.small,
    "GPT-2 medium b4": gpt2.medium,
}
BUDGETS = (0.5, 0.3, 0.1)
REPEATS = 5
OPTIONS = MemoryOptions(time_limit_s=30.0, workers=2)
SAVED = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.convolution.default]


def tables() -> Iterator[Table]:
    """Allocator peak and step time of planned networks on a GPU, compared with eager, SAC and PyTorch's budget."""
    if absent := list(without_gpu("Memory plans on a GPU")):
        yield from absent
        return
    for title, make in MODELS.items():
        yield compared(title, make, "cuda")


def compared(title: str, make: Callable[[], Step], device: str) -> Table:
    """One network on `device`: every peer, and the plan for each peer's measured peak."""
    progress(f"memory.gpu: {title}: measuring its operators")
    captured = with_implementations(capture(make, title, "train"))
    trace = with_measured(with_cudnn(captured) if device == "cuda" else captured, device=device)
    rows, notes = [], []
    for name, call, model, inputs in peers(make, device):
        progress(f"memory.gpu: {title}: {name}")
        try:
            peak, seconds = measured(call, model, inputs)
        except RuntimeError as error:
            notes.append(f"{name}: {' '.join(str(error).split())[:200]}")
            continue
        rows.append({"step": name, "peak MiB": peak / 2**20, "ms": seconds * 1e3})
        rows[-1] |= ours(trace, make, peak, seconds, device)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return Table(f"{title} on {name}", rows, ("Ours: the plan for the peer's peak.", *notes))


def peers(
    make: Callable[[], Step], device: str
) -> Iterator[tuple[str, Callable[[], Tensor], nn.Module, tuple[Tensor, ...]]]:
    """(name, function that computes the loss, model, inputs) of every peer."""
    model, inputs, loss = placed(make, device)
    yield "eager", lambda: loss(model, *inputs), model, inputs
    selected = copy.deepcopy(model)
    contexts = partial(create_selective_checkpoint_contexts, SAVED)
    for part in [selected, *selected.children()]:
        if isinstance(part, nn.Sequential | nn.ModuleList):
            for place, inner in enumerate(part):
                part[place] = checkpoint_wrapper(inner, context_fn=contexts)
    yield "SAC, products and convolutions saved", lambda: loss(selected, *inputs), selected, inputs
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    for budget in BUDGETS:
        own = copy.deepcopy(model)
        backend = aot_autograd(fw_compiler=boxed_nop, partition_fn=min_cut_rematerialization_partition)
        compiled = torch.compile(partial(loss, own), backend=backend)

        def step(compiled: Callable[..., Tensor] = compiled, budget: float = budget) -> Tensor:
            with config.patch(activation_memory_budget=budget):
                return compiled(*inputs)

        yield f"PyTorch budget {budget}", step, own, inputs


def placed(make: Callable[[], Step], device: str) -> Step:
    """The step with its model and inputs on `device`, the same numbers each time."""
    torch.manual_seed(0)
    model, inputs, loss = make()
    return model.to(device), tuple(tensor.to(device) for tensor in inputs), loss


def measured(call: Callable[[], Tensor], model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[int, float]:
    """Peak bytes of the allocator (on a CPU: of live tensors) and median seconds of a step, after one to warm up."""
    cuda = inputs[0].is_cuda
    finish: Callable[[], None] = torch.cuda.synchronize if cuda else lambda: None

    def step() -> float:
        model.zero_grad(set_to_none=True)
        finish()
        start = time.perf_counter()
        call().backward()
        finish()
        return time.perf_counter() - start

    step()
    model.zero_grad(set_to_none=True)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated()
    else:
        with Meter(model, inputs) as meter:
            step()
        peak = meter.peak_bytes
    return peak, statistics.median(step() for _ in range(REPEATS))


def ours(trace: Trace, make: Callable[[], Step], peak: int, seconds: float, device: str) -> Row:
    """The plan for the peer's peak, run and compared with the peer."""
    try:
        plan = memory_plan(trace, peak, options=OPTIONS)
        model, inputs, _ = placed(make, device)
        module = apply(model, plan, trace)
    except (InfeasibleError, LimitError, InputError) as error:
        return {"ours": type(error).__name__}
    our_peak, our_seconds = measured(lambda: module(*inputs), module, inputs)
    return {
        "our peak / peer": our_peak / peak,
        "our time / peer": our_seconds / seconds,
        "predicted / measured peak": plan.prediction.peak_bytes / our_peak,
    }
