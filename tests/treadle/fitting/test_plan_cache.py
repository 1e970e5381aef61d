"""Kept plans: found for the same step only, and never trusted blindly."""

from __future__ import annotations

import gc
import logging
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from torch import nn

import treadle
from tests.treadle.fitting.models import BATCH, Deep, batch_of, loss_of
from treadle.capture.costs.cache import file_of
from treadle.fitting import plan_cache, programs
from treadle.fitting.fitted import FittedModule
from treadle.fitting.plan_entry import PLAN, TRACE, PlanEntry
from treadle.fitting.verifying import verified
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan


def fit(model: nn.Module | None = None, **settings: object) -> FittedModule:
    return treadle.fit(model or Deep(), batch_of(), loss=loss_of, **{"budget": "0.6x", **settings})


@pytest.fixture(scope="module")
def first(costs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of plans after a `fit()`."""
    home = tmp_path_factory.mktemp("first")
    (home / "treadle").mkdir(mode=0o700)
    costs.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "treadle" / "costs").symlink_to(costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        fit()
    return home / "treadle" / "plans"


@pytest.fixture
def kept(first: Path, cache: Path) -> Path:
    """The folder of plans, as after a `fit()`."""
    return Path(shutil.copytree(first, cache))


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


def test_a_kept_plan_is_taken_while_another_process_searches(kept: Path) -> None:
    """A background search holds the lock for its whole time."""
    (entry,) = entries(kept)
    found: list[FittedModule] = []
    with PlanEntry(entry).locked():
        thread = threading.Thread(target=lambda: found.append(fit()), daemon=True)
        thread.start()
        thread.join(60)
        assert "verified when it was made" in found[0].summary
    thread.join()


def test_a_plan_that_another_process_put_there_during_verification_is_not_verified(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(*args: object) -> str:
        (entry,) = entries(cache)
        plan = store.load(entry / PLAN, Plan)
        replace = msgspec.structs.replace
        store.save(replace(plan, provenance=replace(plan.provenance, solver_status="another search")), entry / PLAN)
        return verified(*args)

    with monkeypatch.context() as patched:
        patched.setattr("treadle.fitting.fit.verified", replaced)
        fit()
    assert "one step verified" in fit().summary
    assert "verified when it was made" in fit().summary


def test_another_step_budget_or_setting_has_an_entry_of_its_own(kept: Path) -> None:
    fit(Other())
    fit(budget="0.7x")
    fit(reserve="100KiB", budget="0.9x")
    fit(hold_gradients=True)
    assert len(entries(kept)) == 5


@pytest.mark.parametrize("damage", ["cut", "foreign", "stale", "no trace"])
def test_an_entry_that_cannot_be_used_is_made_again(kept: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    (entry,) = entries(kept)
    text = (entry / PLAN).read_text()
    if damage == "cut":
        (entry / PLAN).write_text(text[: len(text) // 2])
    elif damage == "stale":
        (entry / PLAN).write_text(text.replace('"version": 1', '"version": 99'))
    elif damage == "no trace":
        (entry / TRACE).unlink()
    else:
        fit(Other())
        (other,) = set(entries(kept)) - {entry}
        for name in (PLAN, TRACE):
            (entry / name).write_text((other / name).read_text())
    caplog.clear()
    with caplog.at_level(logging.WARNING, "treadle"):
        again = fit()
    assert len([record for record in caplog.records if record.name.startswith("treadle")]) == 1
    assert "replaced" in caplog.text
    again(*batch_of()).backward()
    store.load(entry / PLAN, Plan)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("treadle")]


@contextmanager
def no_file_grows() -> Iterator[None]:
    """Every write to a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("place", ["treadle/plans", "treadle"])
def test_a_folder_that_cannot_be_used_is_reported_once(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "base"
    (base / place).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    (base / place).write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    with caplog.at_level(logging.WARNING, "treadle"):
        fitted = fit()
        fitted(*batch_of()).backward()
        fitted.zero_grad()
        fitted(*batch_of(BATCH * 5 // 4)).backward()
    (line,) = warnings(caplog)
    assert "plans are not kept: " in line
    assert str(base) in line
    folder = fitted.summary.rpartition("plan in ")[2]
    assert Path(folder).is_dir()
    del fitted
    gc.collect()
    assert not Path(folder).parent.exists()


def test_a_full_disk_is_reported_once(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "treadle"), no_file_grows():
        fitted = fit(budget="0.65x")
        fitted(*batch_of()).backward()
        fitted.zero_grad()
        fitted(*batch_of(BATCH * 3 // 2)).backward()
    (line,) = warnings(caplog)
    assert "are not kept" in line
    assert "File too large" in line
    assert fitted.summary.endswith("the plan is not kept")
    assert all(found.settled for found in fitted.programs.known.values())
    assert not [file for entry in entries(cache) for file in entry.iterdir() if file.name.startswith(".")]


@pytest.mark.parametrize("name", [PLAN, TRACE, "verified.txt", ""])
def test_a_folder_or_file_in_place_of_the_other_is_reported_once(
    kept: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (entry,) = entries(kept)
    if name:
        (entry / name).unlink()
        (entry / name).mkdir()
    else:
        shutil.rmtree(entry)
        entry.write_text("")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "treadle"):
        fit()(*batch_of()).backward()
    (line,) = warnings(caplog)
    assert str(entry / name) in line


def test_a_folder_in_place_of_the_measured_costs_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "treadle" / "costs").unlink()
    file_of("cpu").mkdir(mode=0o700, parents=True)
    with caplog.at_level(logging.WARNING, "treadle"):
        fit()(*batch_of()).backward()
    (line,) = warnings(caplog)
    assert "found a folder, expected a file" in line


def test_a_cache_that_is_only_read_serves_its_plans(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "treadle"), no_file_grows():
        assert "verified when it was made" in fit().summary
    assert not warnings(caplog)


def test_the_oldest_entries_are_deleted_first(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old,) = entries(kept)
    os.utime(old, (1, 1))
    fit(budget="0.7x")
    (middle,) = set(entries(kept)) - {old}
    monkeypatch.setattr(plan_cache, "MOST_BYTES", sum(file.stat().st_size for file in middle.iterdir()) + 1000)
    fit(budget="0.8x")
    assert old not in entries(kept)
    assert middle in entries(kept)


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
