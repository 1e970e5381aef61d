"""Kernels of the server: the bits of PyTorch's optimizers and conversions on processors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from treadle.kernels.server.library import SETTINGS, KeyPart, ServerKernels, server_kernels, settings_of
from treadle.planner.errors import InputError
from treadle.planner.passes.server.problem import OptimizerName
from treadle.server import Lamb, lamb
from treadle.server.lamb import square_sum

SIZES = (1, 17, 4099)
STEPS, WORKERS = 12, 3
SGD: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1, "maximize": True},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
    {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01, "maximize": True},
]
ADAM: list[dict[str, Any]] = [
    {},
    {"betas": (0.3, 0.7), "weight_decay": 0.1, "eps": 1e-3},
    {"maximize": True, "weight_decay": 0.02},
]


@pytest.fixture(scope="module")
def kernels() -> ServerKernels:
    return server_kernels()


def given(group: Mapping[str, Any]) -> Any:
    """The settings of a group of PyTorch's."""
    named = {name: group[name] for name in SETTINGS if name in group}
    if "betas" in group:
        named["beta1"], named["beta2"] = group["betas"]
    return settings_of({**named, "decoupled": group.get("decoupled_weight_decay", False)})


def gradient(size: int, generator: torch.Generator) -> Tensor:
    """Numbers of very different sizes, so that every rounding shows."""
    return torch.randn(size, generator=generator) * 10.0 ** torch.randint(-6, 3, (size,), generator=generator)


def compare(
    kernels: ServerKernels,
    name: OptimizerName,
    made: Callable[..., torch.optim.Optimizer],
    values: dict[str, Any],
    size: int,
    chunk: int,
) -> None:
    """Steps of the server, whose chunks have `chunk` elements, and of PyTorch on the mean of the same gradients."""
    generator = torch.Generator().manual_seed(size)
    parameter = torch.nn.Parameter(torch.randn(size, generator=generator))
    optimizer = made([parameter], lr=0.03, **values)
    settings = given(optimizer.param_groups[0])
    bounds = [(begin, min(size, begin + chunk)) for begin in range(0, size, chunk)]
    parts = [KeyPart.of(parameter.detach().numpy()[begin:end].copy(), name) for begin, end in bounds]
    for step in range(1, STEPS + 1):
        gradients = [gradient(size, generator) for _ in range(WORKERS)]
        parameter.grad = (gradients[0] + gradients[1] + gradients[2]) / WORKERS
        optimizer.step()
        chunks = []
        for (begin, end), part in zip(bounds, parts, strict=True):
            total = np.empty(end - begin, np.float32)
            for worker, each in enumerate(gradients):
                kernels.add_into(total, each.numpy()[begin:end], "float32", first=worker == 0)
            chunks.append((total, part))
        parts = kernels.step(name, settings, step, WORKERS, chunks)
        assert np.array_equal(np.concatenate([part.weight for part in parts]), parameter.detach().numpy())
    state = optimizer.state[parameter]
    for number, key in enumerate(("momentum_buffer",) if name in ("sgd", "nesterov") else ("exp_avg", "exp_avg_sq")):
        if state.get(key) is not None:
            assert np.array_equal(np.concatenate([part.states[number] for part in parts]), state[key].numpy())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("values", SGD, ids=range(len(SGD)))
def test_sgd(kernels: ServerKernels, values: dict[str, Any], size: int) -> None:
    compare(kernels, "nesterov" if "nesterov" in values else "sgd", torch.optim.SGD, values, size, 1000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("values", ADAM, ids=range(len(ADAM)))
@pytest.mark.parametrize("made", [torch.optim.Adam, torch.optim.AdamW])
def test_adam(
    kernels: ServerKernels, made: Callable[..., torch.optim.Optimizer], values: dict[str, Any], size: int
) -> None:
    compare(kernels, "adam", made, values, size, 1000)


def test_foreach_is_the_same(kernels: ServerKernels) -> None:
    for name, made in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)):
        values = {"foreach": True, "weight_decay": 0.1, **({"momentum": 0.9} if name == "sgd" else {})}
        compare(kernels, name, made, values, 301, 128)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "chunk"), [(1001, 16), (17_001, 1008), (17_001, 8192), (17_001, 20_000)])
@pytest.mark.parametrize("values", ADAM, ids=range(len(ADAM)))
def test_lamb(kernels: ServerKernels, values: dict[str, Any], size: int, chunk: int) -> None:
    sums: list[float] = []

    def recorded(tensor: Tensor, chunk: int) -> float:
        sums.append(square_sum(tensor, chunk))
        return sums[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lamb, "square_sum", recorded)
        compare(kernels, "lamb", Lamb, {**values, "chunk_bytes": 4 * chunk}, size, chunk)
    assert len(sums) == 2 * STEPS
    assert kernels.ratio == math.sqrt(sums[-2]) / math.sqrt(sums[-1])


def test_lamb_of_a_zero_parameter_takes_the_direction_as_it_is() -> None:
    parameter = torch.nn.Parameter(torch.zeros(5))
    parameter.grad = torch.ones(5)
    Lamb([parameter], lr=0.5, eps=0.0).step()
    assert parameter.tolist() == pytest.approx([-0.5] * 5)


@pytest.mark.parametrize(
    ("values", "where"),
    [({"lr": -1.0}, "lr"), ({"betas": (0.9, 1.0)}, "betas"), ({"chunk_bytes": 100}, "chunk_bytes")],
    ids=["lr", "betas", "chunk"],
)
def test_lamb_refuses(values: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        Lamb([torch.nn.Parameter(torch.zeros(1))], **values)
    assert caught.value.where == where


def test_mean(kernels: ServerKernels) -> None:
    total = torch.randn(333).numpy()
    (part,) = kernels.step("mean", settings_of({}), 1, 3, [(total, KeyPart.of(np.zeros_like(total), "mean"))])
    assert np.array_equal(part.weight, total / np.float32(3))


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_are_in_the_order_given(kernels: ServerKernels, dtype: str, bypass: bool) -> None:
    for size in (1, 511, 1029):
        sent = [torch.randn(size).to(getattr(torch, dtype)) for _ in range(4)]
        expected = sent[0].float()
        total = np.empty(size + 64, np.float32)
        aligned = total[-(total.ctypes.data // 4) % 16 :][:size]
        for number, each in enumerate(sent):
            expected = expected + each.float() if number else expected
            raw = each.numpy() if dtype == "float32" else each.view(torch.uint16).numpy()
            kernels.add_into(aligned, raw, dtype, first=number == 0, bypass=bypass)
        assert np.array_equal(aligned, expected.numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_number_of_16_bits(kernels: ServerKernels, dtype: str) -> None:
    raw = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(1 << 16, np.float32)
    kernels.add_into(wide, raw, dtype, first=True)
    expected = torch.from_numpy(raw.view(np.int16)).view(getattr(torch, dtype))
    assert torch.equal(torch.from_numpy(wide).nan_to_num(7), expected.float().nan_to_num(7))
    near = np.sort(wide[np.isfinite(wide)])
    middle = ((near[1:].astype(np.float64) + near[:-1]) / 2).astype(np.float32)
    rounded = [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf)), wide]
    values = np.concatenate([*rounded, np.array([1e30, -1e30, 65519.99, 65520, 3.4e38, 1e-45], np.float32)])
    found = torch.from_numpy(kernels.to_type(values, dtype).view(np.int16)).view(getattr(torch, dtype))
    assert torch.equal(found.float().nan_to_num(7), torch.from_numpy(values).to(found.dtype).float().nan_to_num(7))
