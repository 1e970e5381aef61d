"""Kept plans: found for the same step only, and never trusted blindly."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import treadle
from tests.treadle.fitting.models import Deep, batch_of, loss_of
from treadle.fitting import plan_cache, programs
from treadle.fitting.fitted import FittedModule
from treadle.fitting.plan_entry import PLAN, TRACE
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan


def fit(model: nn.Module | None = None, **settings: object) -> FittedModule:
    return treadle.fit(model or Deep(), batch_of(), loss=loss_of, **{"budget": "0.6x", **settings})


def entries(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.exists() else []


def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one element with each search."""
    found: list[int] = []
    real = programs.searched

    def searched(*args: object) -> object:
        found.append(1)
        return real(*args)

    monkeypatch.setattr(programs, "searched", searched)
    return found


def test_the_second_process_takes_the_plan(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = searches(monkeypatch)
    first, second = fit(), fit()
    assert len(counted) == 1
    assert "verified when it was made" in second.summary
    assert first.summary.partition(";")[0] == second.summary.partition(";")[0]
    (entry,) = entries(cache)
    assert entry.stat().st_mode & 0o777 == 0o700
    assert store.load(entry / PLAN, Plan).inputs["trace"].file == TRACE


class Other(Deep):
    def forward(self, x: object) -> object:
        return super().forward(x).relu()


def test_another_step_budget_or_setting_has_an_entry_of_its_own(cache: Path) -> None:
    fit()
    fit(Other())
    fit(budget="0.7x")
    fit(reserve="100KiB", budget="0.9x")
    fit(hold_gradients=True)
    assert len(entries(cache)) == 5


@pytest.mark.parametrize("damage", ["cut", "foreign", "stale", "no trace"])
def test_an_entry_that_cannot_be_used_is_made_again(cache: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    fit(Other() if damage == "foreign" else None)
    (entry,) = entries(cache)
    text = (entry / PLAN).read_text()
    if damage == "cut":
        (entry / PLAN).write_text(text[: len(text) // 2])
    elif damage == "stale":
        (entry / PLAN).write_text(text.replace('"version": 1', '"version": 99'))
    elif damage == "no trace":
        (entry / TRACE).unlink()
    else:
        fit()
        (mine,) = set(entries(cache)) - {entry}
        for name in (PLAN, TRACE):
            (mine / name).write_text((entry / name).read_text())
        entry = mine
    caplog.clear()
    with caplog.at_level(logging.WARNING, "treadle"):
        again = fit()
    assert len([record for record in caplog.records if record.name.startswith("treadle")]) == 1
    assert "replaced" in caplog.text
    again(*batch_of()).backward()
    store.load(entry / PLAN, Plan)


def test_a_folder_that_cannot_be_used_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "treadle.fit"):
        fit()(*batch_of()).backward()
    assert "plans are not kept" in caplog.text


def test_the_oldest_entries_are_deleted_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit()
    (old,) = entries(cache)
    os.utime(old, (1, 1))
    fit(budget="0.7x")
    (middle,) = set(entries(cache)) - {old}
    monkeypatch.setattr(plan_cache, "MOST_BYTES", sum(file.stat().st_size for file in middle.iterdir()) + 1000)
    fit(budget="0.8x")
    assert old not in entries(cache)
    assert middle in entries(cache)


TRAINING = """
import logging, sys
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
import treadle
from tests.treadle.fitting.models import Deep, batch_of, loss_of
fitted = treadle.fit(Deep(), batch_of(), budget="0.6x", loss=loss_of)
fitted(*batch_of()).backward()
"""


@pytest.mark.slow
def test_of_four_processes_one_plans(cache: Path) -> None:
    root = str(Path(__file__).parents[3])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINING], cwd=root, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    texts = [process.communicate(timeout=200)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum("measuring the calls" in text for text in texts) == 1
    assert len(entries(cache)) == 1
