"""Fixtures shared by all tests: golden files, outside data, deterministic hypothesis."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"

# Two test processes share two cores; threads of theirs would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "treadle", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("treadle")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden with what the code makes now")


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """`golden("target/feature.out", text)` compares text with tests/golden/target/feature.out."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if not path.is_file():
            pytest.fail(f"no golden file {name}; look at the text, then run pytest --update-golden")
        assert text == path.read_text(encoding="utf-8"), f"{name} changed; look at the diff, then --update-golden"

    return compare


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real files from elsewhere, found through TREADLE_DATA; tests skip where they are absent."""
    path = Path(os.environ.get("TREADLE_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"TREADLE_DATA: no folder {path.name!r} with real files here")
    return path
