"""The PyTorch module of a schedule: processes with a process group, state in slices, state dicts, lists of tensors."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from tests.planner.passes.fusion.transform_samples import example
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.codegen.fusion.torch_wrapper import class_name, generate
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.runtime.fusion import torch_program
from treadle.runtime.fusion.build import Compiled
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.hosts import join
from treadle.runtime.launch import launch

torch = pytest.importorskip("torch")

PARTS = (7, 1, 0, 29)
SIZE = sum(PARTS)
SCALARS = {"lr": 1.0, "b1": 0.5, "b2": 0.75, "t": 1.0, "eps": 0.0}


def adam() -> Program:
    """RS, Adam on slices of all state, and AG of the model's copy in one kernel."""
    schedule = ScheduleBuilder(example("adam"))
    whole = schedule.fuse(["avg", "m_", "v_", "m1", "v1", "p_", "ph_"], "ComputationFuse")
    rs, ag = schedule.split(schedule.find("AllReduce"), "ARSplitRSAG")
    (part,), gathers = schedule.reorder(ag, [whole])
    for name in ("m", "v", "p"):
        schedule.as_slice(name)
        schedule.dead(gathers[name])
    schedule.fuse([rs, part, gathers["ph"]], "AllReduceFuse")
    return schedule.program


def made(text: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile(text, "adam.py", "exec"), space)
    return space["Adam"]


def gradient(rank: int) -> Any:
    return torch.from_numpy(np.random.default_rng(rank).integers(1, 5, SIZE).astype(np.float16) * 4)


SAME_HOST, TWO_HOSTS = ("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.2")


def _train(rank: int, world: int, text: str) -> list[dict[str, Any]]:
    return [_train_at(hosts[rank], rank, text) for hosts in (SAME_HOST, TWO_HOSTS)]


def _train_at(address: str, rank: int, text: str) -> dict[str, Any]:
    """Two steps, tensors that do not fit, and the state as others would load it."""
    torch_program.join = partial(join, address=address)  # type: ignore[assignment]
    with pytest.raises(InputError, match="found adam at rank 1 and adam at rank 0, expected the same program, sizes"):
        made(text)(extents={"N": SIZE + rank})
    step = made(text)(extents={"N": SIZE}, parts={"N": PARTS}, scattered=["ph"], timeout=30)
    full = {"p": torch.arange(float(SIZE)), "m": torch.zeros(SIZE), "v": torch.zeros(SIZE)}
    state = step.sliced_state(full)
    ph = [torch.zeros(size, dtype=torch.float16) for size in PARTS]
    returned = step(gradient(rank), state["p"], ph, state["m"], state["v"], **SCALARS)
    first = torch.cat(ph).numpy()
    ph[0] = ph[0].clone()  # a tensor that has moved
    step(gradient(rank), state["p"], ph, state["m"], state["v"], **{**SCALARS, "t": 2.0})
    module = torch.nn.Module()
    module.register_buffer("moment", state["m"].clone())
    module.register_state_dict_post_hook(step.state_dict_hook({"moment": "m"}))
    module.register_load_state_dict_pre_hook(step.load_state_dict_hook({"moment": "m"}))
    saved = module.state_dict()["moment"]
    module.moment.zero_()
    module.load_state_dict({"moment": saved})
    with pytest.raises(InputError, match=r"m: found torch.float32 \[37\], expected torch.float32"):
        step(gradient(rank), state["p"], ph, full["m"], state["v"], **SCALARS)
    with pytest.raises(InputError, match="found no v, expected all of its inputs"):
        step.run(g=gradient(rank), p=state["p"], ph=ph, m=state["m"], **SCALARS)
    with pytest.raises(InputError, match="ph: found other tensors than"):
        step(gradient(rank), state["p"], ph[:2], state["m"], state["v"], **SCALARS)
    step.close()
    return {
        "same": returned is ph,
        "first": first,
        "second": torch.cat(ph).numpy(),
        "local": state["m"].numel(),
        "moment": saved.numpy(),
        "back": bool((module.moment == state["m"]).all()),
        "steps": step.step,
    }


def expected(steps: int) -> tuple[Any, Any]:
    """Adam by hand: the mean of both gradients."""
    g = (gradient(0).numpy().astype(np.float32) + gradient(1).numpy().astype(np.float32)) / 2
    p, m, v = np.arange(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    for t in range(1, steps + 1):
        m, v = m * np.float32(0.5) + np.float32(0.5) * g, v * np.float32(0.75) + np.float32(0.25) * g * g
        p = p - (m / np.float32(1 - 0.5**t)) / np.sqrt(v / np.float32(1 - 0.75**t))
    return p.astype(np.float16), m


def test_two_processes_train_with_the_generated_module() -> None:
    """On one host, and as on two."""
    found = launch(2, _train, (generate(adam()),), 120)
    for each in (each for of_rank in found for each in of_rank):
        assert each["same"]
        assert each["back"]
        assert each["steps"] == 2
        np.testing.assert_array_equal(each["first"], expected(1)[0])
        np.testing.assert_allclose(each["second"].astype(float), expected(2)[0].astype(float), rtol=2e-3)
        np.testing.assert_array_equal(each["moment"], expected(2)[1])
    assert [[each["local"] for each in of_rank] for of_rank in found] == [[19, 19], [18, 18]]


LIBRARY = """
from treadle.fusion import *

T, H, F = dims("T", "H", "F")
x = Tensor("x", f32, [T, H], Local)
w = Tensor("w", f32, [H, F], Sliced(1))
u = Tensor("u", f32, [F, H], Sliced(0))
whole = AllGather(w)
y = MatMul(x, whole)
z = ReLU(y)
back = AllGather(u)
out = MatMul(z, back)
program = Execute("layers", [x, w, u], [out])
"""
"""Two layers whose weights are kept in slices; the last launch is a product."""
CONVOLVED = """
from treadle.fusion import *

N, C = dims("N", "C")
x = Tensor("x", f32, [N, C, 5, 5], Sliced(0))
w = Tensor("w", f32, [C, C, 3, 3], Replicated)
y = Conv2d(x, w, stride=2, padding=1)
program = Execute("convolved", [x, w], [y])
"""
"""All of it is a library's: there is no kernel to compile."""
EXTENTS = {"T": 6, "H": 4, "F": 5, "N": 3, "C": 4}


def _layers(rank: int, world: int, texts: tuple[str, ...]) -> dict[str, list[Any]]:
    """Each program in several steps, its inputs those of the step: those that are sliced, sliced."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        space: dict[str, Any] = {}
        exec(compile(text, "module.py", "exec"), space)
        (made,) = (each for name, each in space.items() if name in ("Layers", "Convolved"))
        step = made(extents={name: size for name, size in EXTENTS.items() if name in text}, timeout=30)
        found[made.__name__] = []
        for number in range(3):
            given = {each.name: whole_input(each, number, rank) for each in step.program.inputs}
            mine = step.sliced_state(given)
            result = step(*(tensor.requires_grad_(number == 1) for tensor in mine.values()))
            found[made.__name__].append(result.detach().numpy().copy())
        step.close()
    return found


def whole_input(of: Any, step: int, rank: int) -> Any:
    shape = tuple(extent.value(EXTENTS) for extent in of.type.shape)
    several = 100 * rank if type(of.type.layout).__name__ == "Local" else 0
    values = np.random.default_rng(len(shape) + 10 * step + several + ord(of.name)).integers(-3, 4, shape)
    return torch.from_numpy(values.astype(np.float32))


@pytest.mark.slow
def test_products_by_a_library_run_between_our_launches() -> None:
    layers, convolved = (parse(text, "programs") for text in (LIBRARY, CONVOLVED))
    texts = generate(layers, ["y", "out"]), generate(convolved, ["y"])
    assert "by_library = ('out', 'y')" in texts[0]
    lowered = lower(layers, Bindings({"T": 6, "H": 4, "F": 5}, 2), by_library=["y", "out"])
    assert [type(each).__name__ for each in lowered.runs] == ["range", "Call", "range", "Call"]
    assert "Gemm<" not in lowered.text
    found = launch(2, _layers, (texts,), 120)
    for step in range(3):
        shared = {each.name: whole_input(each, step, 0) for each in (*layers.inputs, *convolved.inputs)}
        images = torch.nn.functional.conv2d(
            whole_input(convolved.inputs[0], step, 0), whole_input(convolved.inputs[1], step, 0), stride=2, padding=1
        )
        for rank, each in enumerate(found):
            x = whole_input(layers.inputs[0], step, rank)
            w = whole_input(layers.inputs[1], step, rank)
            expected = torch.relu(x @ w) @ shared["u"]
            np.testing.assert_array_equal(each["Layers"][step], expected.numpy())
            np.testing.assert_array_equal(each["Convolved"][step], images[2 * rank : 2 * rank + 2].numpy())


def uncompiled(lowered: Lowered) -> Compiled:
    """What is refused before its library is opened."""
    return Compiled(Path("none.so"), "fibers", lowered.bindings.ranks, lowered.buffers)


def test_only_products_by_themselves_are_left_to_a_library() -> None:
    layers, bindings = parse(LIBRARY, "programs"), Bindings({"T": 6, "H": 4, "F": 5}, 2)
    with pytest.raises(InputError, match=r"layers: found 'z' for a library, expected a product .*: y, out"):
        lower(layers, bindings, by_library=["y", "z"])
    lowered = lower(layers, bindings, by_library=["y"])
    with pytest.raises(InputError, match=r"found 1 products left to a library .* expected kernels for all"):
        compare(uncompiled(lowered), lowered)


def test_lists_of_tensors_are_for_the_module_alone() -> None:
    """Example data lies in whole tensors: kernels would take their elements for addresses."""
    sgd, bindings = example("sgd"), Bindings({"N": 8}, 2, 1, {"N": (5, 3)})
    lowered = lower(sgd, bindings, scattered=["p"])
    with pytest.raises(InputError, match=r"take p as lists of tensors .* only the PyTorch module"):
        compare(uncompiled(lowered), lowered)
    with pytest.raises(InputError, match="found 'lr' in scattered, expected some of g, p"):
        lower(sgd, bindings, scattered=["lr"])


def test_the_module_is_a_class_with_the_tensors_of_the_program() -> None:
    text = generate(adam())
    tree = ast.parse(text)
    (made_class,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert made_class.name == "Adam"
    (call,) = [node for node in made_class.body if isinstance(node, ast.FunctionDef)]
    assert [argument.arg for argument in call.args.args][1:6] == ["g", "p", "ph", "m", "v"]
    assert "m: f32 [N], Sliced(FLAT), updated in place" in text
    assert class_name("self_attention") == "SelfAttention"
