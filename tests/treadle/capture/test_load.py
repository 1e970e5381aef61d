"""Which MODULE:FUNCTION is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.capture.load import load_function
from treadle.planner.errors import InputError


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder `job` in the current one; what is imported from either is forgotten."""
    known = {*sys.modules}
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in {*sys.modules} - known:
        del sys.modules[name]


def test_a_model_lies_in_the_folder_of_the_job_or_in_the_current_one(folders: Path) -> None:
    (folders / "model_of_here.py").write_text("def step():\n    return 'here'\n")
    (folders / "job" / "model_of_job.py").write_text("def step():\n    return 'job'\n")
    assert load_function("model_of_here:step", "job")() == "here"
    assert load_function("model_of_job:step", "job")() == "job"


def test_the_folder_of_the_job_comes_first(folders: Path) -> None:
    for folder in (folders, folders / "job"):
        (folder / "model_of_both.py").write_text(f"def step():\n    return {folder.name!r}\n")
    assert load_function("model_of_both:step", "job")() == "job"


def test_a_module_that_is_nowhere_is_refused_with_both_folders(folders: Path) -> None:
    with pytest.raises(InputError) as refused:
        load_function("model_of_nowhere:step", "job")
    assert f"in {folders / 'job'}, {folders} or among the installed ones" in str(refused.value)
