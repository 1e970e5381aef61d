"""The PyTorch module of a schedule: processes with a process group, state in slices, state dicts, lists of tensors."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest

from codegen.fusion.torch_wrapper import class_name, generate
from planner.errors import InputError
from planner.fusion.program import Program
from planner.fusion.schedule import Schedule
from tests.planner.fusion.transform_samples import example
from treadle.runtime.launch import launch

torch = pytest.importorskip("torch")

PARTS = (7, 1, 0, 29)
SIZE = sum(PARTS)
SCALARS = {"lr": 1.0, "b1": 0.5, "b2": 0.75, "t": 1.0, "eps": 0.0}


def adam() -> Program:
    """RS, Adam on slices of all state, and AG of the model's copy in one kernel."""
    schedule = Schedule(example("adam"))
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


def _train(rank: int, world: int, text: str) -> dict[str, Any]:
    """Two steps, tensors that do not fit, and the state as others would load it."""
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
    text = generate(adam())
    found = launch(2, _train, (text,), 120)
    for each in found:
        assert each["same"]
        assert each["back"]
        assert each["steps"] == 2
        np.testing.assert_array_equal(each["first"], expected(1)[0])
        np.testing.assert_allclose(each["second"].astype(float), expected(2)[0].astype(float), rtol=2e-3)
        np.testing.assert_array_equal(each["moment"], expected(2)[1])
    assert [each["local"] for each in found] == [19, 18]


def test_the_module_is_a_class_with_the_tensors_of_the_program() -> None:
    text = generate(adam())
    tree = ast.parse(text)
    (made_class,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert made_class.name == "Adam"
    (call,) = [node for node in made_class.body if isinstance(node, ast.FunctionDef)]
    assert [argument.arg for argument in call.args.args][1:6] == ["g", "p", "ph", "m", "v"]
    assert "m: f32 [N], Sliced(FLAT), updated in place" in text
    assert class_name("self_attention") == "SelfAttention"
