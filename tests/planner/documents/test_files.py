"""Files that are not there: the message asks for the one that was meant, by its name and not by its ending."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.planner.documents.files import read_text
from treadle.planner.errors import InputError


@pytest.mark.parametrize(
    ("asked", "question"),
    [
        ("stpe.json", "; did you mean 'step.json'?"),
        ("step.yaml", ""),
        ("absent.json", ""),
    ],
)
def test_a_missing_file_asks_for_one_of_a_like_name(tmp_path: Path, asked: str, question: str) -> None:
    (tmp_path / "step.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        read_text(tmp_path / asked)
    assert str(caught.value) == f"{tmp_path / asked}: cannot read: No such file or directory{question}"
