"""Costs of an op's other implementations: work by algorithm, modelled and measured times, workspace, and the cache."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from treadle.capture.costs import (
    in_step,
    measuring,
    roofline,
    with_counts,
    with_measured,
    with_measured_in_step,
    with_roofline,
)
from treadle.capture.costs.cache import file_of, kept
from treadle.capture.costs.convolution import convolution_of, phases
from treadle.capture.costs.counting import shadows_of, signature
from treadle.capture.graph import capture
from treadle.capture.operator_calls import call
from treadle.planner.documents.hardware import Device, Hardware
from treadle.planner.documents.trace import Implementation, Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.graph.implementations.convolution import with_reading
from treadle.runtime.meter import Meter

BATCH, SIDE = 3, 10


def convolutions() -> Any:
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 5, padding=2), nn.MaxPool2d(2))
    return model, (torch.randn(BATCH, 4, SIDE, SIDE, requires_grad=True),)


@cache
def step() -> Trace:
    return with_implementations(capture(convolutions, "convolutions"))


def calls(trace: Trace) -> list[Op | Implementation]:
    return [each for op in trace.ops for each in (op, *op.implementations)]


def flops(target: str, name: str) -> list[int | None]:
    """Floating-point operations of one implementation, for each op of that target in order."""
    trace = with_counts(step())
    return [
        other.flops for op in trace.ops if op.target == target for other in op.implementations if other.name == name
    ]


def test_flops_of_algorithms_by_hand() -> None:
    pixels, tiles = BATCH * SIDE * SIDE, BATCH * (SIDE // 2) ** 2
    assert flops("aten.convolution.default", "im2col") == [2 * pixels * 9 * 4 * 6, 2 * pixels * 25 * 6 * 4]
    transforms = 28 * 4 * 6 + 32 * 4 * tiles + 24 * 6 * tiles
    assert flops("aten.convolution.default", "winograd") == [2 * 16 * tiles * 4 * 6 + transforms]
    # The input gradient is the convolution with the channels' parts exchanged.
    transforms = 28 * 4 * 6 + 32 * 6 * tiles + 24 * 4 * tiles
    assert flops("treadle.conv2d_input_gradient", "winograd") == [2 * 16 * tiles * 4 * 6 + transforms]
    # Transforms of 12 x 12 have 12 x 7 frequencies; 72 planes of the kernels' 24, the images' 18 and 12.
    (fft,) = flops("aten.convolution.default", "fft")
    assert fft == 8 * BATCH * 24 * 84 + round(2.5 * 144 * 7.169925) * (18 + 24 + 12)


def test_winograd_multiplies_less_by_the_published_factor() -> None:
    trace = step()
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    found = {}
    for each in trace.ops[0].implementations:
        work = convolution_of(each, tensors)
        assert work is not None
        found[each.name] = next(phase.flops for phase in phases(work) if phase.kind == "product")
    assert found["im2col"] / found["winograd"] == 2.25


def test_im2col_moves_its_buffer_twice() -> None:
    """The windows are written by one phase and read by the next; sample by sample they are read with the weight."""
    op = with_counts(step()).ops[0]
    moved = {other.name: other.bytes_moved for other in op.implementations}
    x, y, weight, windows = (4 * n for n in (BATCH * 4 * 100, BATCH * 6 * 100, 6 * 4 * 9, BATCH * 4 * 9 * 100))
    assert moved["im2col"] == x + 2 * windows + weight + y
    assert moved["im2col_sample"] == x + 2 * windows + BATCH * weight + y


def machine(kind: Any = "gpu", **fields: Any) -> Hardware:
    device = Device(model="toy", kind=kind, count=1, **fields)
    return Hardware(version=1, name="toy", nodes=1, devices=(device,))


def by_name(op: Op) -> dict[str, int]:
    return {"default": op.time_ns or 0} | {other.name: other.time_ns or 0 for other in op.implementations}


def large() -> Trace:
    """One convolution as large as those of VGG-16, which a roofline distinguishes."""
    model = nn.Conv2d(256, 256, 3, padding=1, bias=False)
    return with_implementations(capture(lambda: (model, (torch.empty(64, 256, 28, 28, requires_grad=True),)), "large"))


P100 = {"peak_flops": {"float32": 9.3e12}, "memory_bandwidth": 732e9}


def test_on_a_gpu_workspace_buys_time() -> None:
    """The order of the published instance: no workspace is slowest, Winograd fastest, and it needs the most."""
    trace = with_roofline(large(), machine(**P100))
    forward = next(op for op in trace.ops if op.target == "aten.convolution.default")
    times = by_name(forward)
    assert times["default"] > times["im2col"] > times["winograd"]
    assert times["im2col_sample"] >= times["im2col"]
    spaces = {other.name: other.workspace_bytes for other in forward.implementations}
    assert 0 < spaces["im2col_sample"] < spaces["winograd"] < spaces["im2col"]
    assert forward.workspace_bytes == 0


def test_small_products_do_not_fill_a_gpu() -> None:
    trace = with_roofline(large(), machine(**P100))
    times = by_name(trace.ops[0])
    assert roofline.GPU_FILL > 256 * 28 * 28
    assert times["im2col_sample"] > 1.2 * times["im2col"]
    on_cpu = by_name(with_roofline(large(), machine("cpu", **P100)).ops[0])
    assert on_cpu["im2col_sample"] < 1.05 * on_cpu["im2col"]


def test_each_launch_costs() -> None:
    fast = {"peak_flops": {"float32": 1e18}, "memory_bandwidth": 1e18}
    times = by_name(with_roofline(step(), machine(**fast, launch_us=1000.0)).ops[0])
    assert {name: round(ns / 1e6) for name, ns in times.items() if name != "inplace"} == {
        "default": 1,
        "im2col": 2,
        "im2col_sample": 2 * BATCH,
        "winograd": 4,
    }


def test_modelled_workspace_is_what_the_kernels_make() -> None:
    """Modelled on tensors without memory; here every kernel also runs on real ones."""
    trace = with_roofline(step(), machine(**P100))
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    generator = torch.Generator().manual_seed(0)
    seen = 0
    for each in calls(trace):
        if not each.target.startswith("treadle."):
            continue
        values = {key: measuring.sample(tensors[key], generator) for key in each.inputs}
        with torch.no_grad(), Meter(list(values.values())) as meter:
            results = call(each, values)
            live = meter.live_bytes
        # What stands in for an operand that is not read takes a few bytes on one device and none on the other.
        assert abs((each.workspace_bytes or 0) - (meter.peak_bytes - live)) < 16, each.target
        assert results
        seen += 1
    assert seen > 15


def test_a_dropout_drawn_again_holds_its_mask() -> None:
    def dropping() -> Any:
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)), (torch.randn(4, 8),)

    trace = with_roofline(with_implementations(capture(dropping, "dropping")), machine(**P100))
    found = {each.target: each.workspace_bytes for each in calls(trace) if each.target.startswith("treadle.")}
    assert found["treadle.dropout_backward_rng"] == 32 + 5056 - 128  # the mask, and the state until the result is made
    assert all(count is not None for count in found.values())


def test_work_that_only_a_measurement_tells_is_absent() -> None:
    op = Op(id="op", target="treadle.safe_to_invert", phase="forward", inputs=("w",), args=({"tensor": "w"},))
    assert roofline.kernel_workspace(op, {"w": torch.empty(3, device="meta")}) is None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Measuring takes the fewest repeats and its cache lies in `tmp_path`; the targets measured so far."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measuring, "ENOUGH_SECONDS", 0.0)
    measured: list[str] = []
    real = measuring._measure
    monkeypatch.setattr(measuring, "_measure", lambda op, *rest: measured.append(op.target) or real(op, *rest))
    return measured


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "treadle.costs"]


def test_every_implementation_is_measured(quick: list[str]) -> None:
    shown: list[tuple[int, int]] = []
    trace = with_measured(step(), lambda done, of, target: shown.append((done, of)))
    assert len(calls(trace)) == len(calls(step()))
    assert all((each.time_ns or 0) > 0 and each.workspace_bytes is not None for each in calls(trace))
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    assert len(quick) == len({signature(each, tensors) for each in calls(trace)})
    assert shown == [(done, len(calls(trace))) for done in range(len(calls(trace)))]


def test_measured_workspace_of_kernels_is_what_they_make(quick: list[str]) -> None:
    """The allocator sees at least what the kernels' tensors take, and for convolutions not much more."""
    modelled, measured = with_roofline(step(), machine(**P100)), with_measured(step())
    for one, two in zip(calls(modelled), calls(measured), strict=True):
        if one.target.startswith("treadle.") and one.workspace_bytes:
            assert (two.workspace_bytes or 0) >= one.workspace_bytes
    for one, two in zip(modelled.ops[0].implementations, measured.ops[0].implementations, strict=True):
        assert (two.workspace_bytes or 0) <= (one.workspace_bytes or 0) + 64 * 1024, one.name


def test_workspace_inside_an_operator_is_seen() -> None:
    """It counts what is freed when the call returns, and nothing else."""
    x = torch.rand(1000)
    assert measuring._cpu_workspace(lambda: torch.relu(x)) == 0
    assert measuring._cpu_workspace(lambda: torch.relu_(x)) == 0
    assert 4000 <= measuring._cpu_workspace(lambda: (x + 1).sum()) < 4100


def test_what_was_measured_is_not_measured_again(quick: list[str]) -> None:
    with kept("cpu") as known:
        first = with_measured(step(), known=known)
    count = len(quick)
    with kept("cpu") as known:
        second = with_measured(step(), known=known)
    assert (len(quick), first) == (count, second)
    with kept("cpu", fresh=True) as known:
        with_measured(step(), known=known)
    assert len(quick) == 2 * count
    assert [path.name for path in file_of("cpu").parent.iterdir()] == [file_of("cpu").name]


def test_the_cache_belongs_to_a_machine(quick: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with kept("cpu") as known:
        known["a call"] = (1, 2)
    before = file_of("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert file_of("cpu") != before
    with kept("cpu") as known:
        assert known == {}


@pytest.mark.parametrize(
    "text", ["", "garbage", '{"machine": []}', '{"machine": ["other"], "measured": {"a": [1]}}', "\udcff"]
)
def test_a_damaged_cache_is_ignored_with_a_note(quick: list[str], caplog: pytest.LogCaptureFixture, text: str) -> None:
    path = file_of("cpu")
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with kept("cpu") as known:
        assert known == {}
        known["a call"] = (1, 2)
    (line,) = logged(caplog)
    assert line.startswith(f"measured costs in {path} are not used: ")
    with kept("cpu") as known:
        assert known == {"a call": (1, 2)}


def test_what_was_measured_before_an_interrupt_is_kept(quick: list[str]) -> None:
    def interrupted() -> None:
        with kept("cpu") as known:
            known["a call"] = (1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with kept("cpu") as known:
        assert known == {"a call": (1, 2)}


def test_two_runs_at_the_same_time_lose_nothing(quick: list[str]) -> None:
    with kept("cpu") as one:
        one["first"] = (1, 2)
        with kept("cpu") as two:
            two["second"] = None
    with kept("cpu") as known:
        assert known == {"first": (1, 2), "second": None}


def test_a_folder_that_cannot_be_written_is_told(
    quick: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "treadle").touch()
    with kept("cpu") as known:
        known["a call"] = (1, 2)
    (line,) = logged(caplog)
    assert line.startswith("measured costs are not kept: ")
    assert line.endswith("set XDG_CACHE_HOME to a folder to write to")


def test_an_implementation_that_cannot_run_is_left_out(quick: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Here Winograd of a kernel that it is not for; the op's own call has to run."""
    trace = step()
    op = next(op for op in trace.ops if any(other.name == "fft" for other in op.implementations))
    fft = next(other for other in op.implementations if other.name == "fft")
    wrong = replace(fft, name="wrong", target="treadle.conv2d_winograd")
    trace = replace(trace, ops=(replace(op, implementations=(wrong, fft)),))
    with caplog.at_level(logging.WARNING):
        measured = with_measured(trace)
    assert [other.name for other in measured.ops[0].implementations] == ["fft"]
    assert logged(caplog)[0].startswith(f"left out: wrong of op {op.id!r} (treadle.conv2d_winograd) cannot be measured")
    broken = replace(trace, ops=(replace(op, target="treadle.conv2d_winograd", args=wrong.args),))
    with pytest.raises(InputError, match=r"op '.*' \(treadle.conv2d_winograd\) cannot be measured here"):
        with_measured(broken)


def test_what_does_not_fit_into_memory_is_left_out_and_not_kept(
    quick: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for the windows of one sample, but not for those of the batch."""
    op = step().ops[0]
    trace = replace(step(), ops=(op,))
    modelled = {
        other.name: other.workspace_bytes or 0 for other in with_roofline(trace, machine(**P100)).ops[0].implementations
    }
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    operands = sum(tensors[key].bytes or 0 for key in {*op.inputs, op.outputs[0]} if key)
    free = operands + modelled["im2col"] - 1
    monkeypatch.setattr(measuring.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    known: dict[str, measuring.Measured] = {}
    found = [other.name for other in with_measured(trace, known=known).ops[0].implementations]
    assert "im2col_sample" in found
    assert "im2col" not in found
    assert any("im2col of op" in line and " of memory, " in line for line in logged(caplog))
    monkeypatch.undo()
    assert "im2col" in [other.name for other in with_measured(trace, known=known).ops[0].implementations]


def test_an_unknown_kernel_is_named() -> None:
    op = replace(step().ops[0], implementations=(Implementation(name="x", family="conv", target="treadle.nothing"),))
    with pytest.raises(InputError, match=r"found kernel 'treadle.nothing', expected one of treadle\.kernels"):
        with_measured(replace(step(), ops=(op,)))


def test_shadows_take_no_memory() -> None:
    assert {shadow.device.type for shadow in shadows_of(step().tensors).values()} == {"meta"}


def test_in_the_step_every_call_has_its_turn_and_losers_go(quick: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []
    real = in_step.StepPasses._time

    def slow_winograd(run: Any, way: Any, live: Any) -> Any:
        timed.append(way.target)
        taken, results = real(run, way, live)
        return (10**9 if "winograd" in str((way.target, way.args)) else taken), results

    monkeypatch.setattr(in_step.StepPasses, "_time", slow_winograd)
    known: dict[str, Any] = {}
    offered = with_reading(step())
    trace = with_measured_in_step(offered, known=known)
    assert {each.target for each in calls(offered)} <= set(timed)
    assert not any("winograd" in str((each.target, each.args)) for each in calls(trace))
    for op in trace.ops:
        for way in op.implementations:
            smaller = way.workspace_bytes < op.workspace_bytes or not set(op.inputs) <= set(way.inputs)
            assert way.time_ns < op.time_ns or smaller or way.overwrites or None in way.outputs
    timed.clear()
    assert with_measured_in_step(offered, known=known) == trace
    assert not timed


def test_a_step_that_does_not_fit_or_run_keeps_the_times_of_its_calls(
    quick: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("all elements should be\nbetween 0 and 1")

    known: dict[str, Any] = {}
    expected = in_step.without_losers(with_measured(step(), known=known))
    monkeypatch.setattr(in_step.StepPasses, "_time", fails)
    assert with_measured_in_step(step(), known=known) == expected
    (line,) = logged(caplog)
    assert "cannot run on random data, so its calls were timed one by one: all elements should be between" in line
    monkeypatch.setattr(in_step, "HEADROOM", 1e12)
    assert with_measured_in_step(step(), known=known) == expected
    assert len(logged(caplog)) == 1
