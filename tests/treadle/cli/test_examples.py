"""`treadle examples`: what the documentation names lies where its commands look, and a user's files stay theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.cli.main import run

ROOT = Path(__file__).parents[3]


def test_the_examples_of_the_documentation_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["examples"]) == 0
    assert run(["examples"]) == 0  # equal files may be there already
    shipped = {path for path in (ROOT / "examples").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()} == {
        path.relative_to(ROOT) for path in shipped
    }
    assert all((tmp_path / path.relative_to(ROOT)).read_bytes() == path.read_bytes() for path in shipped)


def test_changed_examples_stay_and_nothing_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine" / "fusion" / "adam.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("MINE = True\n")
    assert run(["examples", "-o", str(tmp_path / "mine")]) == 2
    assert "adam.py" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    assert mine.read_text() == "MINE = True\n"
