"""Memory plans of whole networks, run on the CPU at small sizes: measured peak, step time and gradients.

Costs of every implementation are measured on this machine. Peers: plain PyTorch, and its own selective checkpointing
under a policy made from the same plan (`treadle generate --target torch-sac`). Times are processor time of one thread.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from fractions import Fraction

import torch

from benchmarks.common import Row, Table, progress
from benchmarks.memory.execution import NOTES, Variant, gradients, in_turns, measured_trace, memory_plan, planned, row
from benchmarks.memory.varied import Step
from examples.models import googlenet, gpt2, mobilenet_v2, resnet50, unet, vgg16
from treadle.codegen.memory import torch_sac
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.minimum import least_budget
from treadle.planner.passes.memory.search.attempts import MemoryOptions
from treadle.planner.passes.memory.simulate import simulate
from treadle.runtime.followers import follow

MODELS: dict[str, Callable[[], Step]] = {
    "ResNet-50, 8 images of 96x96": lambda: resnet50.resnet50(batch=8, image_size=96),
    "GoogLeNet, 8 images of 96x96": lambda: googlenet.googlenet(batch=8, image_size=96),
    "MobileNet-V2, 8 images of 96x96": lambda: mobilenet_v2.mobilenet_v2(batch=8, image_size=96),
    "VGG-16, 32 images of 96x96": lambda: vgg16.vgg16(batch=32, image_size=96, dropout=0.0),
    "U-Net, 2 images of 160x112": lambda: unet.unet(batch=2, height=160, width=112),
    "GPT-2 small, 4 texts of 512 tokens": lambda: gpt2.small(batch=4, tokens=512),
    "GPT-2 medium, 2 texts of 512 tokens": lambda: gpt2.medium(batch=2, tokens=512),
}
PLACES = (Fraction(3, 4), Fraction(2, 5), Fraction(1, 10))
"""Budgets as shares of the range from the least feasible one to store-all's, parameters and gradients included."""
BUDGETS = "The number at a plan: its budget, as a share of the distance from there to store-all's."
OPTIONS = MemoryOptions(time_limit_s=20.0, workers=2)
REPEATS = 3


def tables() -> Iterator[Table]:
    """Peak and step time of planned networks on the CPU, compared with plain PyTorch and its checkpointing."""
    torch.set_num_threads(1)
    for title, make in MODELS.items():
        yield compared(title, make)


def compared(title: str, make: Callable[[], Step]) -> Table:
    """One network: eager, planned, and checkpointed after the plan."""
    torch.manual_seed(0)
    model, inputs, loss = make()
    progress(f"memory.models: {title}: measuring its operators")
    trace = measured_trace(make, title)
    eager = Variant("eager", model, lambda: loss(model, *inputs))
    variants = [eager]
    problem = problem_from_trace(trace, 0)
    whole = simulate(problem, lower(problem, store_all(problem))).peak_bytes
    least = least_budget(problem, time_limit_s=OPTIONS.time_limit_s).budget_bytes
    assert least is not None
    notes = [*NOTES[:1], f"Least feasible: {least / 2**20:.1f} MiB. {BUDGETS}"]
    for place in PLACES:
        budget = least + int((whole - least) * place)
        progress(f"memory.models: {title} at {budget / 2**20:.1f} MiB")
        try:
            plan = memory_plan(trace, budget, options=OPTIONS)
        except (InfeasibleError, LimitError) as error:
            notes.append(f"{float(place)}: {error}")
            continue
        variants.append(planned(f"planned, {float(place)}", model, inputs, plan, trace))
        files, chosen = torch_sac.generate(plan.decisions, trace)
        own = copy.deepcopy(model)
        followed = follow("torch-sac", files[torch_sac.FILE_NAME], title, own, loss)
        variants.append(Variant(f"torch-sac, {float(place)}", own, lambda call=followed.call: call(*inputs)))
        notes.append(f"torch-sac, {float(place)}: predicted {chosen.predicted.peak_bytes / 2**20:.1f} MiB")
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    for variant in variants:
        variant.measure_peak(inputs)
    in_turns(variants, REPEATS)
    for name, value in model.named_buffers():
        value.copy_(buffers[name])
    reference = gradients(eager)
    rows: list[Row] = [row(variant, eager, reference) for variant in variants]
    return Table(title, rows, tuple(notes))
