"""Memory plans on a GPU: allocator peak and step time against eager PyTorch and per-block checkpointing.

    python -m benchmarks.gpu_memory [--json FILE]

Every op is timed on the card, the plan is made from those times, and the generated step runs on the card.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from examples.models import gpt2, resnet50, unet
from planner.errors import InfeasibleError
from planner.memory.planning import MemoryOptions, plan_memory
from treadle.capture.costs import with_measured
from treadle.capture.graph import capture
from treadle.capture.load import on_device
from treadle.runtime.memory import apply
from treadle.runtime.meter import Meter

MIB = 2**20
SHARES = (Fraction(4, 5), Fraction(3, 5), Fraction(1, 2), Fraction(2, 5))
LIMIT_S = 40.0

Steps = dict[str, Callable[[], Any]]


def cases() -> Steps:
    return {
        "GPT-2 small, batch 8, 1024 tokens": lambda: gpt2.small(batch=8),
        "ResNet-50, batch 184": lambda: resnet50.resnet50(batch=184),
        "U-Net, batch 11, 608x416": lambda: unet.unet(batch=11),
    }


class Checkpointed(nn.Sequential):
    """Blocks of which each is recomputed as a whole."""

    def forward(self, x: Any) -> Any:
        for block in self:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def measure(model: nn.Module, compute: Callable[[], Any]) -> dict[str, float]:
    """Peak of live tensors and of the allocator over forward and backward, and the median step in ms."""

    def step() -> None:
        compute().backward()
        for parameter in model.parameters():
            parameter.grad = None

    step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    allocator = torch.cuda.max_memory_allocated()
    times = []
    for _ in range(7):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return {"allocator_mib": allocator / MIB, "ms": statistics.median(times) * 1e3}


def run_case(name: str, function: Callable[[], Any]) -> list[dict[str, Any]]:
    """Rows of one network: eager, per-block checkpointing where there are blocks, and a plan at each share."""

    on_card = on_device(function, "cuda")
    start = time.perf_counter()
    trace = with_measured(capture(on_card, name), device="cuda")
    print(f"{name}: {len(trace.ops)} ops captured and timed in {time.perf_counter() - start:.1f} s", flush=True)
    torch.manual_seed(0)
    model, inputs, loss = on_card()
    with Meter(model, inputs) as meter:
        loss(model, *inputs).backward()
    reference = {key: value.grad.clone() for key, value in model.named_parameters()}
    model.zero_grad()
    eager = measure(model, lambda: loss(model, *inputs))
    rows = [{"case": name, "what": "eager PyTorch", "live_mib": meter.peak_bytes / MIB, **eager}]
    if isinstance(getattr(model, "blocks", None), nn.Sequential):
        plain = model.blocks
        model.blocks = Checkpointed(*plain)
        with Meter(model, inputs) as meter:
            loss(model, *inputs).backward()
        model.zero_grad()
        blocks = measure(model, lambda: loss(model, *inputs))
        rows.append({"case": name, "what": "checkpoint per block", "live_mib": meter.peak_bytes / MIB, **blocks})
        model.blocks = plain
    for share in SHARES:
        start = time.perf_counter()
        try:
            plan = plan_memory(trace, budget=share, options=MemoryOptions(time_limit_s=LIMIT_S))
        except InfeasibleError as error:
            rows.append({"case": name, "what": f"plan at {float(share):.1f}x", "infeasible": str(error)})
            continue
        seconds = time.perf_counter() - start
        decisions = plan.decisions
        planned = apply(model, plan, trace)
        torch.manual_seed(0)
        with Meter(model, inputs) as meter:
            planned(*inputs).backward()
        worst = max(
            float((value.grad - reference[key]).abs().max() / reference[key].abs().max().clamp_min(1e-12))
            for key, value in model.named_parameters()
        )
        model.zero_grad()
        ours = measure(model, lambda planned=planned: planned(*inputs))
        rows.append(
            {
                "case": name,
                "what": f"plan at {float(share):.1f}x",
                "budget_mib": decisions.problem.budget_bytes / MIB,
                "predicted_mib": decisions.exact_peak_bytes / MIB,
                "live_mib": meter.peak_bytes / MIB,
                **ours,
                "predicted_overhead": decisions.objective_ns / decisions.store_all_ns - 1,
                "measured_overhead": ours["ms"] / eager["ms"] - 1,
                "gap": plan.certificate.gap,
                "solve_s": seconds,
                "gradient_difference": worst,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        del planned
    return rows


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device here; nothing to measure")
        return
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    torch.backends.cudnn.deterministic = True
    rows = []
    for name, function in cases().items():
        try:
            rows += run_case(name, function)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            rows.append({"case": name, "what": "failed", "error": f"{type(error).__name__}: {error}"})
        torch.cuda.empty_cache()
    if "--json" in sys.argv:
        with open(sys.argv[sys.argv.index("--json") + 1], "w") as stream:
            json.dump(
                {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, stream, indent=1
            )
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
