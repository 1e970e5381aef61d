"""A job end to end, small: real capture, real plans, real processes, a real page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.caches import cache_with_kernels
from treadle.cli.main import run
from treadle.job.pipeline import plan_job

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow

JOB = """
kind: job
version: 1
name: tiny
model: small:step
hardware: cpu-2x2
nodes: 1
memory: {budget: 0.7x}
collective: {sketch: ring, buckets: 2}
run: {steps: 2, learning_rate: 0.1, seed: 3}
"""

MODEL = """
from examples.models import gpt2


def step():
    return gpt2.tiny(batch=16, tokens=64)
"""


def write_job(folder: Path, old: str = "", new: str = "") -> Path:
    """The job with one replacement, its model next to it."""
    (folder / "small.py").write_text(MODEL)
    (folder / "job.yaml").write_text(JOB.replace(old, new))
    return folder / "job.yaml"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment with a cache of its own."""
    return {**os.environ, "XDG_CACHE_HOME": str(cache_with_kernels(tmp_path_factory.mktemp("cache")))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: dict[str, str]) -> tuple[Path, str]:
    """The folder and the standard output of one finished job."""
    folder = tmp_path_factory.mktemp("job")
    write_job(folder)
    command = [
        sys.executable,
        "-m",
        "treadle",
        "plan",
        "job",
        str(folder / "job.yaml"),
        "-o",
        str(folder / "out"),
        "--json",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=cache)
    assert done.returncode == 0, done.stderr
    assert "measure the step on 2 processes" in done.stderr
    return folder / "out", done.stdout


def test_keeps_its_promises(finished: tuple[Path, str]) -> None:
    summary = json.loads(finished[1])
    assert summary["failures"] == []
    peaks = summary["measured_peaks"]
    plan = json.loads((finished[0] / "memory.plan.json").read_text())
    assert peaks["measured peak"] <= plan["decisions"]["problem"]["budget_bytes"]
    assert peaks["measured peak"] < peaks["plain PyTorch"]


def test_everything_it_wrote_is_accepted(finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    out = finished[0]
    files = [str(path) for path in sorted(out.glob("*.json"))]
    folders = [str(path.parent) for path in sorted(out.glob("*/artefact.json"))]
    assert len(folders) == 3
    assert run(["check", *files, *folders]) == 0
    assert "rejected" not in capsys.readouterr().out


def test_a_second_run_measures_nothing_and_makes_the_same_plans(
    finished: tuple[Path, str], tmp_path: Path, cache: dict[str, str]
) -> None:
    write_job(tmp_path)
    command = [sys.executable, "-m", "treadle", "plan", "job", str(tmp_path / "job.yaml"), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=cache)
    assert "measure the step" not in done.stderr
    assert done.stdout.startswith("predictions: ")
    written = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file())
    for name in written:
        if name.name != "report.html":
            assert (tmp_path / "out" / name).read_bytes() == (finished[0] / name).read_bytes(), name
    assert len(written) > 10


def test_times_and_peak_are_predicted_and_measured(finished: tuple[Path, str]) -> None:
    summary = json.loads(finished[1])
    rows = {row[0]: row[1:] for row in summary["tables"][0]["rows"]}
    assert list(rows) == [
        "peak of live tensors, MiB",
        "forward and backward, ms",
        "exchange of gradients, ms",
        "optimizer, ms",
        "step with its exchange, ms",
        "plain step with its exchange, ms",
    ]
    assert all(float(row[0]) > 0 and float(row[1]) > 0 for name, row in rows.items() if not name.startswith("plain"))
    assert [row[0] for row in summary["tables"][1]["rows"]] == ["0", "1"]
    trace = json.loads((finished[0] / "trace.json").read_text())
    assert trace["costs"]["model"] == "measured"
    assert "2 processes of 1 thread" in trace["costs"]["device"]
    assert summary["predictions"] in (finished[0] / "report.html").read_text()


def test_page_is_self_contained(finished: tuple[Path, str]) -> None:
    page = (finished[0] / "report.html").read_text()
    for part in (
        "Run compared with plain DistributedDataParallel",
        ">Memory</h2>",
        "same numbers",
        "step time",
        "report.perfetto.json",
        "Collective: allreduce-0",
        "Checks and lower bounds",
    ):
        assert part in page
    assert page.count("<script") == 1
    assert 'src="http' not in page
    assert page.count("<svg") + page.count("is the same as") == 6
    timelines = json.loads((finished[0] / "report.perfetto.json").read_text())
    names = {event["args"]["name"] for event in timelines["traceEvents"] if event["name"] == "process_name"}
    assert names == {"memory", "allreduce-0", "allreduce-1"}


def test_page_claims_what_this_job_proved_and_no_more(finished: tuple[Path, str]) -> None:
    page = (finished[0] / "report.html").read_text()
    assert "it claims" not in page
    assert "on its own</td>" not in page
    assert "extracted from the trace by the planner" in page
    proof = json.loads((finished[0] / "memory.plan.json").read_text())["certificate"]
    if "the solver proved" in proof["argument"]:
        words = "optimal" if proof["optimal"] else f"gap {proof['gap']:.2%}"
        assert f"<td>{words}, bound proved by the solver</td>" in page


def test_page_opens_in_a_browser(finished: tuple[Path, str], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None and not os.environ.get("CI"):
        pytest.skip("no Chromium on this machine")
    assert browser is not None, ".ci/run installs Chromium, and it is not there"
    picture = tmp_path / "page.png"
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1100,2000",
        f"--screenshot={picture}",
        (finished[0] / "report.html").as_uri(),
    ]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    from PIL import Image

    with Image.open(picture) as shown:
        assert shown.size == (1100, 2000)
        assert len(shown.convert("RGB").getcolors(2**24)) > 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("model: small:step", "model: small"), "$.model: found"),
        (("small:step", "small:leap"), "leap"),
        (("hardware: cpu-2x2", "hardware: no-such"), "no-such"),
        (("budget: 0.7x", "budget: lots"), "lots"),
        (("sketch: ring", "sketch: none-such"), "none-such"),
        (("steps: 2", "steps: 0"), "$.run.steps"),
        (("version: 1", "version: 2"), "newer treadle"),
    ],
)
def test_bad_jobs_end_in_one_line(
    change: tuple[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path, *change)
    assert run(["plan", "job", str(tmp_path / "job.yaml"), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.strip().splitlines()[-1].startswith("error: ")


def test_inputs_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path, "hardware: cpu-2x2", "hardware: hardware.json")
    (tmp_path / "hardware.json").write_text((ROOT / "profiles" / "cpu-2x2.yaml").read_text())
    assert run(["plan", "job", str(tmp_path / "job.yaml"), "-o", str(tmp_path)]) == 2
    assert "hardware.json: found an input of this command" in capsys.readouterr().err
    assert not (tmp_path / "trace.json").exists()


def test_budget_below_any_plan_is_proved(
    finished: tuple[Path, str],
    tmp_path: Path,
    cache: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the costs that the finished job has measured."""
    assert (finished[0] / "memory.plan.json").is_file()
    monkeypatch.setenv("XDG_CACHE_HOME", cache["XDG_CACHE_HOME"])
    write_job(tmp_path, "0.7x", "100KiB")
    assert run(["plan", "job", str(tmp_path / "job.yaml"), "-o", str(tmp_path / "out")]) == 3
    printed = capsys.readouterr().err
    assert "least feasible" in printed
    assert "measure the step" not in printed


def test_the_job_of_the_demo_is_planned(tmp_path: Path) -> None:
    """What `make demo` also trains, on four processes."""
    planned = plan_job(ROOT / "examples" / "gpt2_dp" / "job.yaml", tmp_path / "out", print)
    assert planned.world == 4
    assert sorted(planned.plans) == ["allreduce-0", "allreduce-1", "memory"]
