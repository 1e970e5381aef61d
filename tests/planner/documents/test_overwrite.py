"""What may be replaced: a file of the same kind that treadle wrote, an empty one, a device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.planner.samples import COLLECTIVE_PLAN, HARDWARE, MEMORY_PLAN, PROBLEM, SKETCH, TRACE
from treadle.planner.documents import store
from treadle.planner.documents.overwrite import require_apart, require_replaceable
from treadle.planner.errors import InputError


@pytest.mark.parametrize("document", [COLLECTIVE_PLAN, HARDWARE, MEMORY_PLAN, PROBLEM, SKETCH, TRACE])
@pytest.mark.parametrize("ending", [".json", ".yaml"])
def test_documents_are_told_by_their_outermost_kind(tmp_path: Path, document: store.Document, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    store.save(document, path)
    own = document.__struct_config__.tag
    require_replaceable(path, str(own))
    for other in {"plan", "hardware", "memory-problem", "sketch", "trace", "page"} - {own}:
        with pytest.raises(InputError, match=f"no {other.replace('hardware', 'profile')} of treadle"):
            require_replaceable(path, other)


@pytest.mark.parametrize(
    "text", ["a plan\n", "notes:\n  kind: plan\n", '{\n  "x": {"kind": "plan"}\n}', "kind: planet\n"]
)
def test_a_text_that_only_mentions_the_kind_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputError, match="would be replaced"):
        require_replaceable(tmp_path / "x", "plan")


def test_free_places_empty_files_devices_and_pipes_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "free", tmp_path / "empty", tmp_path / "pipe", Path("/dev/null"), tmp_path):
        require_replaceable(path, "plan")


def test_an_input_is_found_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("kind: plan\n")
    (tmp_path / "link").symlink_to("in")
    source = str(tmp_path / "in")
    with pytest.raises(InputError, match="found an input of this command"):
        require_replaceable(tmp_path / "link", "plan", ["x", None, source])
    with pytest.raises(InputError, match="found an input of this command"):
        require_apart(tmp_path / "link", [source])
