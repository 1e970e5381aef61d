"""The kernels of a parameter server on a GPU: bit by bit those of CPUs; times against a copy and PyTorch.

In a dry run the kernels are fibers of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Row, Table, gpu_milliseconds
from benchmarks.gpu.items import Kernel, Outcome
from treadle.kernels.server.gpu import GpuServerKernels
from treadle.kernels.server.library import KeyPart, ServerKernels, settings_of
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.server.problem import STATES, OptimizerName

SETTINGS: dict[OptimizerName, dict[str, float]] = {
    "mean": {},
    "sgd": {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01},
    "nesterov": {"lr": 0.1, "momentum": 0.9, "maximize": 1},
    "adam": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "decoupled": 1},
    "lamb": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01},
}
TYPES = (torch.float32, torch.float16, torch.bfloat16)
CASES = ((1, 16), (4097, 4096), (100_003, 8192), (1 << 22, 8192))
"""Elements of a key, and of its chunks."""
DRY_CASES = ((1, 16), (133, 48), (4200, 4160))
WORKERS, STEPS = 3, 3
TIMED = 1 << 26
REPEATS = 10


def kernels(dry: bool) -> Iterator[Kernel]:
    yield Kernel("server", lambda arch: GpuServerKernels("cuda", arch), True)


def check(dry: bool) -> Outcome:
    """Raises CheckFailed naming each case that differs from the kernels of CPUs."""
    made, device = GpuServerKernels("fibers" if dry else "cuda"), "cpu" if dry else "cuda"
    cases = [(*case, optimizer) for case in (DRY_CASES if dry else CASES) for optimizer in SETTINGS]
    wrong = [
        f"{size} in chunks of {chunk}, {name}"
        for size, chunk, name in cases
        if differs(made, size, chunk, name, device)
    ]
    if wrong:
        raise CheckFailed(f"{len(wrong)} of {len(cases)} cases differ: {wrong[0]}", tuple(wrong))
    rows = [] if dry else list(timed(made))
    return Outcome(
        f"{len(cases)} keys of {WORKERS} workers have the bits of CPUs after {STEPS} steps",
        (Table("Steps of a key, 256 MiB", rows),) if rows else (),
    )


def differs(made: GpuServerKernels, size: int, chunk: int, optimizer: OptimizerName, device: str) -> bool:
    """Whether weights, states, their forms of 16 bits or the last ratio of LAMB's norms differ after some steps."""
    reference, settings = ServerKernels(exact=True), settings_of(SETTINGS[optimizer])
    generator = torch.Generator().manual_seed(size)
    weight = torch.randn(size, generator=generator)
    bounds = range(chunk, size, chunk)
    parts = [KeyPart.of(each, optimizer) for each in np.split(weight.numpy().copy(), bounds)]
    weight = weight.to(device)
    states = tuple(torch.zeros_like(weight) for _ in range(STATES[optimizer]))
    sums, total = np.empty(size, np.float32), torch.empty_like(weight)
    for step in range(STEPS):
        for worker in range(WORKERS):
            sent = torch.randn(size, generator=generator).to(TYPES[step])
            raw = sent.numpy() if step == 0 else sent.view(torch.int16).numpy()
            reference.add_into(sums, raw, str(sent.dtype).removeprefix("torch."), first=worker == 0)
            made.add_into(total, sent.to(device), first=worker == 0)
        parts = reference.step(
            optimizer, settings, step + 1, WORKERS, list(zip(np.split(sums, bounds), parts, strict=True))
        )
        made.step(optimizer, settings, step + 1, WORKERS, total, weight, states, chunk)
    found = [total, weight, *states]
    expected = [
        sums,
        *(np.concatenate(each) for each in zip(*((part.weight, *part.states) for part in parts), strict=True)),
    ]
    same = all(np.array_equal(mine.cpu().numpy(), theirs) for mine, theirs in zip(found, expected, strict=True))
    narrow = all(torch.equal(made.narrowed(weight, dtype), weight.to(dtype)) for dtype in TYPES[1:])
    ratio = optimizer != "lamb" or made.ratio.item() == reference.ratio
    return not (same and narrow and ratio)


def timed(made: GpuServerKernels) -> Iterator[Row]:
    """Times on the device, next to PyTorch's fused Adam and to a copy of the weights."""
    total, weight, first, second = (torch.rand(TIMED, device="cuda") for _ in range(4))
    parameter = torch.nn.Parameter(torch.rand(TIMED, device="cuda"))
    parameter.grad = total
    fused = torch.optim.AdamW([parameter], fused=True)
    works: dict[str, Callable[[], Any]] = {
        f"add {str(dtype).removeprefix('torch.')}": _adding(made, second, torch.rand(TIMED, device="cuda").to(dtype))
        for dtype in TYPES
    }
    for optimizer in SETTINGS:
        works[optimizer] = _stepping(made, optimizer, total, weight, (first, second)[: STATES[optimizer]])
    works |= {"PyTorch: fused AdamW": fused.step, "copy of the weights": lambda: weight.copy_(total)}
    for name, work in works.items():
        yield {"what": name, "ms": gpu_milliseconds(work, REPEATS)}


def _adding(made: GpuServerKernels, total: Tensor, sent: Tensor) -> Callable[[], None]:
    return lambda: made.add_into(total, sent, first=False)


def _stepping(
    made: GpuServerKernels, optimizer: OptimizerName, total: Tensor, weight: Tensor, states: tuple[Tensor, ...]
) -> Callable[[], None]:
    settings = settings_of(SETTINGS[optimizer])
    return lambda: made.step(optimizer, settings, 2, WORKERS, total, weight, states, 8192)
