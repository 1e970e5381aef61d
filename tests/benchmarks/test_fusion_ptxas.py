"""What nvcc reports about registers and spills is read; so is its refusal."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.fusion.ptxas import Resources, reported, resources
from treadle.planner.errors import CheckFailed


def test_reports_of_nvcc_are_read() -> None:
    words = """ptxas info    : Compiling entry function '_ZN7treadle3farENS_4TaskE' for 'sm_90'
ptxas info    : Function properties for _ZN7treadle3farENS_4TaskE
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 1024 bytes smem, 704 bytes cmem[0]
"""
    assert reported(words) == (Resources("far", 64, 4, 12, 1024),)
    with pytest.raises(CheckFailed, match="without registers or spills"):
        reported("Compiling entry function 'f'")


def test_nvcc_may_refuse() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("found no nvcc")
    with pytest.raises(CheckFailed, match="nvcc refused the schedule for sm_90"):
        resources("int x = y;", "sm_90")
