"""Fixtures of the tests of what runs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the caller's."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
