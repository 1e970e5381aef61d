"""One cache for the tests of this folder: what one measured, the others take."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the measured costs of all tests."""
    return tmp_path_factory.mktemp("cache") / "treadle" / "costs"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, costs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder of plans."""
    costs.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = tmp_path / "treadle"
    folder.mkdir(mode=0o700)
    (folder / "costs").symlink_to(costs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return folder / "plans"
