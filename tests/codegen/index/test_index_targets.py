"""The target `index`: which texts are written, that they compile without warnings and run, that names stay data."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.codegen import hostile
from tests.planner.passes.index.index_plans import PROBLEM, problem_of
from treadle.codegen import emit, targets
from treadle.codegen.targets import Artefacts
from treadle.planner.passes.index.configurations import FragmentedLog, GappedArray, IndexConfiguration
from treadle.planner.passes.index.planning import plan_index
from treadle.planner.passes.index.problem import IndexProblem

GAPPED = GappedArray(most_search=2.5, most_shifts=8)
LOG = FragmentedLog(fragment_keys=16, most_fragments=32, new_fragments=2)


def generated(problem: IndexProblem = PROBLEM) -> Artefacts:
    return targets.generate(plan_index(problem), "plan.json")


def of(configuration: IndexConfiguration) -> IndexProblem:
    return problem_of((300,), (310,), configurations=(configuration,))


def test_the_files_are_a_header_a_program_functions_and_a_makefile(tmp_path: Path) -> None:
    found = generated()
    assert found.target == "index"
    assert set(found.files) == {"treadle_index.hpp", "treadle_index_c.cpp", "example.cpp", "Makefile", "plan.json"}
    assert found.facts == {"leaves": "gapped array 1/8", "planned_ns": 350, "operations": 40, "bytes": 2500}
    emit.write(found, tmp_path)
    assert emit.read(tmp_path)[1] == found.files


def test_the_header_differs_by_the_configuration_only_and_the_example_states_it() -> None:
    gapped, log = generated(of(GAPPED)).files, generated(of(LOG)).files
    assert gapped["treadle_index.hpp"] != log["treadle_index.hpp"]
    assert "2.5, 8.0" in gapped["treadle_index.hpp"]
    assert "16, 32, 2" in log["treadle_index.hpp"]
    assert gapped["treadle_index_c.cpp"] == log["treadle_index_c.cpp"]
    assert "fragmented log 16/32/2" in log["example.cpp"]
    assert generated(of(LOG)).files == log


@pytest.mark.parametrize("name", hostile.HOSTILE)
def test_names_of_workloads_and_machines_stay_data(name: str) -> None:
    attacked = generated(replace(PROBLEM, name=name, machine=name, model=name)).files
    for file, text in generated().files.items():
        assert hostile.alike(hostile.shape(file, attacked[file]), hostile.shape(file, text)), file


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [GAPPED, LOG], ids=["gapped", "log"])
def test_the_makefile_builds_a_program_that_makes_no_mistakes(
    configuration: IndexConfiguration, tmp_path: Path
) -> None:
    emit.write(generated(of(configuration)), tmp_path)
    subprocess.run(["make", "-s", "CXXFLAGS=-O1"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "example", "3000"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3000 keys, ")
    assert done.stdout.endswith(" bytes, 0 mistakes\n")
    assert (tmp_path / "libtreadle_index.so").is_file()
