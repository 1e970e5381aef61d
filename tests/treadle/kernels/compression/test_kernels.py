"""The kernels for GPUs, run by fibers: the bits of the encoders for CPUs, in every order of threads."""

from __future__ import annotations

import shutil

import pytest
import torch

from treadle.kernels.compression.library import ALGORITHMS, CompressionLibrary
from treadle.planner.machine.compressors import compressor
from treadle.runtime.native_build import compile_library

NAMES = [*ALGORITHMS, "topk:0.4", "dgc:0.6"]


@pytest.fixture(scope="module")
def libraries() -> tuple[CompressionLibrary, CompressionLibrary]:
    return CompressionLibrary("process"), CompressionLibrary("fibers")


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_of_the_cpu(libraries: tuple[CompressionLibrary, CompressionLibrary], name: str) -> None:
    found = compressor(name)
    for size in (1, 2, 33, 513, 4097, 17000):
        for kind in ("normal", "ties", "not finite"):
            values = torch.randn(size) if kind == "normal" else torch.randint(-2, 3, (size,)).float()
            if kind == "not finite":
                values[::7], values[1::9] = float("inf"), float("nan")
            results = []
            for number, library in enumerate(libraries):
                residual, out = torch.ones(size), torch.ones(size)
                payload = torch.full((found.wire_bytes(size),), 7, dtype=torch.uint8)
                plain = payload.clone()
                library.encode(found, values, payload, residual, seed=5, threads=2, order=size + number)
                library.encode(found, values, plain, None, seed=5, threads=2, order=number)
                library.decode(found, payload.repeat(2), out, seed=5, pieces=2, threads=2, order=number)
                results.append([payload, plain, residual.view(torch.int32), out.view(torch.int32)])
            assert all(torch.equal(*pair) for pair in zip(*results, strict=True)), (size, kind)


def test_clearing(libraries: tuple[CompressionLibrary, CompressionLibrary]) -> None:
    for name in ("topk:0.1", "randomk:0.1"):
        found, values, results = compressor(name), torch.randn(3000), []
        for library in libraries:
            payload, left = torch.empty(found.wire_bytes(3000), dtype=torch.uint8), values.clone()
            library.encode(found, values, payload, None, seed=2)
            library.decode(found, payload, left, seed=2, clears=True)
            results.append(left)
        assert torch.equal(*results)
        assert int((results[0] == 0).sum()) == 300


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvcc_compiles_the_kernels(arch: str) -> None:
    from treadle.runtime.kernel_texts import texts

    assert compile_library(texts("compression"), "treadle_compression.cu", "cuda", (), arch).is_file()
