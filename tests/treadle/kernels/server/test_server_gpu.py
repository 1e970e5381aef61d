"""The kernels for GPUs, run by fibers: the bits of those for processors, in every order of threads."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.server import DRY_CASES, SETTINGS, differs
from treadle.kernels.server.gpu import MAIN, GpuServerKernels
from treadle.planner.passes.server.problem import OptimizerName
from treadle.runtime.kernel_texts import texts


@pytest.fixture(scope="module")
def kernels() -> GpuServerKernels:
    return GpuServerKernels("fibers")


@pytest.mark.parametrize("optimizer", SETTINGS)
def test_bits_are_those_of_processors(kernels: GpuServerKernels, optimizer: OptimizerName) -> None:
    for kernels.order, (size, chunk) in enumerate(DRY_CASES):
        assert not differs(kernels, size, chunk, optimizer, "cpu"), (size, chunk)


def test_norms_in_another_order_differ(kernels: GpuServerKernels) -> None:
    def step(*given: Any) -> None:
        made.step(*(*given[:-1], 16))
        kernels.ratio = made.ratio

    made = GpuServerKernels("fibers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "step", step)
        assert differs(kernels, 4200, 4160, "lamb", "cpu")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvcc_compiles_the_kernels_without_spills(arch: str, tmp_path: Path) -> None:
    for name, text in texts("server").items():
        (tmp_path / name).write_text(text)
    command = ["nvcc", "-std=c++17", "-O3", f"-arch={arch}", "-Xptxas=-v", "-cubin", MAIN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert len(spills) == 9
    assert set(spills) == {("0", "0")}
