"""`make gpu`: its list of checks, what becomes of one that fails, crashes or hangs, the table, data and page."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import record, wheels, work
from benchmarks.gpu.items import ITEMS, Item
from benchmarks.gpu.launch import ROOT, Record, run, unpacked

CARD = {"card": "A card", "cards": 1, "architecture": "sm_90", "torch": "2.11.0", "nvcc": "13.0", "driver": None}
CHECKS = {
    "good": "from benchmarks.common import Table\nfrom benchmarks.gpu.items import Outcome\n"
    "def check(dry, word='one'):\n    return Outcome(f'{word} right', (Table('t', [{'ms': 1.5}]),))\n",
    "failing": "def check(dry):\n    raise ValueError('found 1, expected 2')\n",
    "lacking": "import a_package_that_is_nowhere\n",
    "dying": "import os, signal\ndef check(dry):\n    os.kill(os.getpid(), signal.SIGSEGV)\n",
    "leaving": "import os\ndef check(dry):\n    print('last words', flush=True)\n    os._exit(3)\n",
    "hanging": "import time\ndef check(dry):\n    while True:\n        time.sleep(0.05)\n",
}


@pytest.fixture
def room(tmp_path: Path) -> dict[str, str]:
    """The environment of a room `fakes.gpu` with the checks above."""
    folder = tmp_path / "fakes" / "gpu"
    folder.mkdir(parents=True)
    for name, text in CHECKS.items():
        (folder / f"{name}.py").write_text(text)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def ended(name: str, env: dict[str, str], folder: Path, *, dry: bool = False) -> Record:
    limit = 1.0 if name == "hanging" else 60.0
    return run(Item(name, 60), dry, limit, env, folder, "fakes.gpu")


def test_every_item_has_its_check_and_fits_into_the_time() -> None:
    for item in ITEMS:
        module = item.name.partition(".")[0]
        assert "def check(dry: bool" in (ROOT / "benchmarks" / "gpu" / f"{module}.py").read_text()
        assert f"| `{module}" in record.INTRODUCTION.read_text()
    assert len({item.name for item in ITEMS}) == len(ITEMS)
    assert ITEMS[0].name == "compile"


def test_no_end_of_a_check_ends_the_others(room: dict[str, str], tmp_path: Path) -> None:
    found = {name: ended(name, room, tmp_path / "build") for name in CHECKS}
    assert {name: (each.result, each.figure) for name, each in found.items()} == {
        "good": ("good", "one right"),
        "failing": ("failed", "ValueError: found 1, expected 2"),
        "lacking": ("missing", "No module named 'a_package_that_is_nowhere'"),
        "dying": ("crashed", "ended by SIGSEGV"),
        "leaving": ("crashed", "ended with 3 and no result"),
        "hanging": ("timed out", "took more than 1 s"),
    }
    assert found["good"].tables == [{"title": "t", "rows": [{"ms": 1.5}], "notes": []}]
    assert found["leaving"].detail == ("last words",)
    assert any("hanging.py" in line for line in found["hanging"].detail)  # where it hung
    assert any("dying.py" in line for line in found["dying"].detail)


def test_an_item_may_name_a_part_and_a_dry_run_says_so(room: dict[str, str], tmp_path: Path) -> None:
    found = ended("good.LL", room, tmp_path / "build", dry=True)
    assert (found.item, found.result, found.figure) == ("good.LL", "dry", "LL right")


def test_errors_of_ours_are_told_from_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: Exception) -> dict[str, object]:
        def check(dry: bool) -> None:
            raise error

        monkeypatch.setattr(work, "import_module", lambda name: SimpleNamespace(check=check))
        return work.found_by("benchmarks.gpu.any", False)

    assert raising(ModuleNotFoundError("no", name="scipy"))["result"] == "missing"
    assert raising(ModuleNotFoundError("no", name="treadle.gone"))["result"] == "failed"


def test_the_table_and_the_time_of_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ends = {"one": Record("one", "good", "x" * 200, 1.0), "two": Record("two", "failed", "wrong", 2.0, ("why",))}
    monkeypatch.setattr(command, "run", lambda item, dry, limit, env: ends[item.name])
    items = [Item(name, 10) for name in ends]
    assert [each.item for each in command.shown(command.checked(items, False, {}))] == ["one", "two"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["check", "result", "s", "figure"]
    assert lines[1].startswith("one                 good          1.0  xxx")
    assert lines[1].endswith("x...")
    assert lines[-4:-1] == ["two: wrong", "  why", ""]
    monkeypatch.setattr(command, "LIMIT", 0.0)
    assert {each.result for each in command.checked(items, False, {})} == {"not run"}
    assert {each.result for each in command.checked(items, True, {})} == {"good", "failed"}


def test_what_is_missing_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "environment", dict)
    for facts, nvcc, options, words in (
        ({"torch": "2.11.0", "card": None}, "nvcc", [], "found no GPU that PyTorch can use; `make gpu DRY=1` runs"),
        ({"torch": None, "why": "no torch", "card": None}, "nvcc", ["--dry"], "PyTorch cannot be imported: no torch"),
        ({"torch": "2.11.0", "card": "A card"}, None, ["--dry"], "found no nvcc; install the CUDA toolkit"),
    ):
        monkeypatch.setattr(command.card, "facts", lambda env, facts=facts: facts)
        monkeypatch.setattr(command.shutil, "which", lambda name, nvcc=nvcc: nvcc)
        assert command.main(options) == 5
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {words}")
    with pytest.raises(SystemExit, match="2"):
        command.main(["nothing"])


def test_records_of_a_card_take_the_place_of_older_ones(tmp_path: Path) -> None:
    data, page = tmp_path / "gpu.json", tmp_path / "gpu.md"
    rows = [{"ms": 1.2345, "kernel": "a|b"}, {"ms": None}]
    for figure in ("old", "new"):
        found = Record("swap", "good", figure, 3.21, tables=[{"title": "t", "rows": rows, "notes": []}])
        record.saved(CARD, "2026-01-02", [found], data, page)
        record.saved({**CARD, "card": "Another", "cards": 8}, "2026-01-02", [], data, page)
    assert [card["card"] for card in record.read(data)] == ["A card", "Another"]
    text = page.read_text()
    assert "## A card\n\n2026-01-02: sm_90, nvcc 13.0, torch 2.11.0.\n" in text
    assert "## 8 x Another" in text
    assert "| `swap` | good | new | 3 |" in text
    assert "| ms | kernel |\n|---|---|\n| 1.23 | a\\|b |\n| - | - |" in text
    assert "old" not in text.partition("## A card")[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]


def test_the_page_is_that_of_its_data() -> None:
    cards = record.read()
    assert record.PAGE.read_text(encoding="utf-8") == record.text_of(cards)
    assert cards or "No card has run the checks yet" in record.PAGE.read_text(encoding="utf-8")


def test_wheels_have_the_hashes_of_the_lock() -> None:
    text = wheels.requirements((ROOT / "constraints.txt").read_text())
    assert [line.partition("==")[0] for line in text.splitlines() if "==" in line] == list(wheels.NAMES)
    assert text.count("--hash=sha256:") >= len(wheels.NAMES)
    with pytest.raises(KeyError):
        wheels.requirements("numpy==1 \\\n    --hash=sha256:0\n")


def test_wheels_are_unpacked_once_and_for_their_own_python(tmp_path: Path) -> None:
    folder, packages = tmp_path / "wheels", tmp_path / "packages"
    assert unpacked(folder, packages) is None
    folder.mkdir()
    with zipfile.ZipFile(folder / "some-1-py3-none-any.whl", "w") as file:
        file.writestr("some.py", "x = 1")
    assert unpacked(folder, packages) == packages
    (packages / "some.py").write_text("changed")
    assert unpacked(folder, packages) == packages
    assert (packages / "some.py").read_text() == "changed"
    (folder / "other-1-cp99-cp99-linux_x86_64.whl").touch()
    assert unpacked(folder, packages) is None


@pytest.mark.slow
def test_a_dry_run_of_some_checks(capfd: pytest.CaptureFixture[str]) -> None:
    if command.shutil.which("nvcc") is None:
        pytest.skip("found no nvcc")
    assert command.main(["--dry", "throughput", "operators"]) == 0
    assert capfd.readouterr().out.count(" dry ") == 2
