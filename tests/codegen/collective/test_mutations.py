"""The checker rejects every mutation of a program: real files and own ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.codegen.collective.mutations import MUTATIONS
from tests.codegen.collective.test_check import ring_program, swap_pair
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import CollectiveProgram

FILES = (
    "msccl-scheduler/ncv4_ag_hier_4_LL.xml",
    "msccl-scheduler/ncv4_ar_hier_12_Simple.xml",
    "msccl-scheduler/ndv4_a2a2ll.xml",
    "msccl-scheduler/ndv4_ag-16m.xml",
    "msccl-scheduler/ndv4_ag-1k-512k.xml",
    "msccl-scheduler/ndv4_ag-32m-1g.xml",
    "msccl-scheduler/ndv4_r48ll.xml",
    pytest.param("rccl/all-reduce-ring-simple.xml", marks=pytest.mark.slow),
    "rccl/allreduce-allpairs-8n-ll-32tb-op.xml",
    "rccl/allreduce-allpairs-8n-ll-32tb.xml",
    "rccl/alltoall-8n-0-9kb.xml",
    "rccl/alltoall-8n-7mb-43mb.xml",
    "teccl/amd_32.xml",
)
LEAST = 15
"""Kinds of mutation that must apply to each file."""

OWN = {"ring": ring_program(4), "exchange": swap_pair("sr", "rs")}


@cache
def parsed(path: Path) -> CollectiveProgram:
    return xml.parse(path.read_text(), path.name)


@pytest.mark.parametrize("kind", MUTATIONS)
@pytest.mark.parametrize("file", FILES)
def test_a_broken_real_file_is_rejected(file: str, kind: str, data_dir: Path) -> None:
    program = parsed(data_dir / "msccl" / file)
    broken = MUTATIONS[kind](program)
    assert broken is None or (broken != program and check_program.check(broken) != [])


@pytest.mark.parametrize("file", FILES)
def test_at_least_fifteen_kinds_apply_to_each_file(file: str, data_dir: Path) -> None:
    program = parsed(data_dir / "msccl" / file)
    assert sum(mutate(program) is not None for mutate in MUTATIONS.values()) >= LEAST


@pytest.mark.parametrize("kind", MUTATIONS)
@pytest.mark.parametrize("name", OWN)
def test_a_broken_program_is_rejected(name: str, kind: str) -> None:
    assert check_program.check(OWN[name]) == []
    broken = MUTATIONS[kind](OWN[name])
    assert broken is None or check_program.check(broken) != []


def test_most_mutations_apply_to_own_programs() -> None:
    for program in OWN.values():
        assert sum(mutate(program) is not None for mutate in MUTATIONS.values()) >= LEAST
