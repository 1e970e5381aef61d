"""Fixtures shared by all tests: golden files, outside data, deterministic hypothesis."""

from __future__ import annotations

import gc
import hashlib
import json
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"
DIGESTS = GOLDEN / "digests.json"

# Two test processes share two cores; threads of theirs would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "treadle", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("treadle")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden with what the code makes now")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Garbage collections pass over what imports and collection made: PyTorch, SymPy and 7,000 tests would be looked
    through hundreds of times, a sixth of the CPU time of a run."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What compares with tests/golden is marked so."""
    for item in items:
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker("golden")


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Golden:
    """`golden("target/feature.out", text)` compares text with tests/golden/target/feature.out; `digests` compares many
    texts with what digests.json has of them under `case`."""

    update: bool

    def __call__(self, name: str, text: str) -> None:
        path = GOLDEN / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if not path.is_file():
            pytest.fail(f"no golden file {name}; look at the text, then run `make golden`")
        assert text == path.read_text(encoding="utf-8"), f"{name} changed; look at the diff, then `make golden`"

    def digests(self, case: str, texts: Mapping[str, str]) -> None:
        found = {name: digest_of(text) for name, text in sorted(texts.items())}
        if self.update:
            everything = dict(sorted({**self.known(), case: found}.items()))
            DIGESTS.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
        assert found == self.known().get(case), f"{case} changed; `make golden` where it should"

    def known(self) -> dict[str, dict[str, str]]:
        return json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.is_file() else {}


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(bool(request.config.getoption("--update-golden")))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real files from elsewhere, found through TREADLE_DATA; tests skip where they are absent."""
    path = Path(os.environ.get("TREADLE_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"TREADLE_DATA: no folder {path.name!r} with real files here")
    return path


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts in racks that are far apart need a tenth of the steps by which positions of hosts are found."""
    monkeypatch.setattr("treadle.planner.machine.embedding.STEPS", 150)
