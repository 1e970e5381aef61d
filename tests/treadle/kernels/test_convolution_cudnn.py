"""cuDNN by name: the whole path from tensors to its functions, run against a stand-in on the CPU that computes
convolutions by their definition; and compiled against the real headers where they are installed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from treadle import kernels
from treadle.kernels import convolution_cudnn
from treadle.planner.errors import MissingBackendError

FAKE = Path(__file__).parent / "fake_cudnn"
SHAPES = [
    # x, weight, stride, padding, dilation, groups
    ((2, 4, 7, 6), (6, 4, 3, 3), 1, 1, 1, 1),
    ((1, 4, 9, 8), (4, 2, 3, 2), [2, 1], [1, 0], [1, 2], 2),
    ((3, 3, 5, 5), (2, 3, 1, 1), 1, 0, 1, 1),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """The extension, linked to the stand-in, and the stand-in."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    if torch.version.cuda is not None:
        pytest.skip("PyTorch has loaded cuDNN itself, whose place the stand-in cannot take")
    folder = tmp_path_factory.mktemp("cudnn")
    fake = folder / "libcudnn.so.9"
    flags = ["-O1", "-shared", "-fPIC", "-std=c++17", "-Wl,-soname,libcudnn.so.9", f"-I{FAKE}"]
    subprocess.run(["g++", *flags, str(FAKE / "fake.cpp"), "-o", str(fake)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return convolution_cudnn.load([FAKE], fake), ctypes.CDLL(str(fake))


@pytest.fixture
def cudnn(built: tuple[ctypes.CDLL, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Direction, algorithm, math type and stream of the last call; cuDNN is the stand-in."""
    library, fake = built
    monkeypatch.setattr(convolution_cudnn, "_library_for", lambda device: library)
    monkeypatch.setattr(convolution_cudnn, "_stream", lambda device: ctypes.c_void_p(77))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    fake.fake_cudnn_last.restype = ctypes.POINTER(ctypes.c_int * 4)
    return lambda: list(fake.fake_cudnn_last().contents)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("image", "window", "stride", "padding", "dilation", "groups"), SHAPES)
def test_all_three_directions_are_those_of_pytorch(
    cudnn, dtype, image, window, stride, padding, dilation, groups
) -> None:
    generator = torch.Generator().manual_seed(0)
    # Not contiguous: cuDNN must receive contiguous tensors.
    x = torch.rand(image, generator=generator, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.rand(window, generator=generator, dtype=dtype).requires_grad_()
    bias = torch.rand(window[0], generator=generator, dtype=dtype).requires_grad_()
    y = torch.nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    grad = torch.rand(y.shape, generator=generator, dtype=dtype)
    y.backward(grad)
    numbers = (stride, padding, dilation, groups)
    with torch.no_grad():
        torch.testing.assert_close(kernels.conv2d_cudnn(x, weight, bias, *numbers, "implicit_precomp_gemm"), y)
        direction, algorithm, _, stream = cudnn()
        assert (direction, algorithm, stream) == (0, 1, 77)
        torch.testing.assert_close(
            kernels.conv2d_cudnn_input_gradient(grad, weight, list(image), *numbers, "fft_tiling"), x.grad
        )
        assert cudnn()[:2] == [1, 3]
        made, of_bias = kernels.conv2d_cudnn_weight_gradient(grad, x, list(window), True, *numbers, "algo_3")
        assert cudnn()[:2] == [2, 3]
        torch.testing.assert_close(made, weight.grad)
        torch.testing.assert_close(of_bias, bias.grad)
        assert kernels.conv2d_cudnn_weight_gradient(grad, x, list(window), False, *numbers, "algo_0")[1] is None


def test_single_precision_is_exact_where_tf32_is_not_allowed(cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2)
    for allowed, math in ((True, 0), (False, 3)):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        kernels.conv2d_cudnn(x, weight, None, 1, 0, 1, 1, "gemm")
        assert cudnn()[2] == math


def test_what_cudnn_refuses_says_so_in_its_words(cudnn) -> None:
    x, weight = torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)
    with pytest.raises(RuntimeError, match="cudnnGetConvolutionForwardWorkspaceSize: CUDNN_STATUS_NOT_SUPPORTED"):
        kernels.conv2d_cudnn(x, weight, None, 2, 1, 1, 1, "winograd")
    assert kernels.conv2d_cudnn(x, weight, None, 1, 1, 1, 1, "winograd").shape == (1, 1, 5, 5)


def test_without_a_gpu_the_reason_is_named() -> None:
    x, weight = torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)
    with pytest.raises(MissingBackendError, match="found tensors on cpu"):
        kernels.conv2d_cudnn(x, weight, None, 1, 1, 1, 1, "winograd")
    if not torch.cuda.is_available():
        with pytest.raises(MissingBackendError, match="need an NVIDIA GPU"):
            convolution_cudnn.require_cudnn()


def test_the_extension_compiles_against_the_real_headers(tmp_path: Path) -> None:
    """Whether every call has the types that the installed cuDNN declares."""
    try:
        headers, _ = convolution_cudnn.locate()
    except MissingBackendError as error:
        pytest.skip(str(error))
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-fsyntax-only"]
    include = [f"-I{folder}" for folder in headers]
    subprocess.run(["g++", *flags, *include, str(convolution_cudnn._SOURCE)], check=True)


def test_headers_and_library_of_python_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (
        "nvidia/cudnn/include/cudnn.h",
        "nvidia/cu13/include/cuda_runtime_api.h",
        "nvidia/cu13/include/crt/host_defines.h",
        "nvidia/cudnn/lib/libcudnn.so.9",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(convolution_cudnn, "find_spec", lambda name: found)
    assert convolution_cudnn._places()[0] == tmp_path / "nvidia/cudnn"
    headers, library = convolution_cudnn.locate()
    assert headers == [tmp_path / "nvidia/cudnn/include", tmp_path / "nvidia/cu13/include"]
    assert library == tmp_path / "nvidia/cudnn/lib/libcudnn.so.9"


def test_a_missing_header_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_cudnn, "_places", lambda: [tmp_path])
    with pytest.raises(MissingBackendError, match=r"need cudnn\.h, which was not found; install it: pip install"):
        convolution_cudnn.locate()
