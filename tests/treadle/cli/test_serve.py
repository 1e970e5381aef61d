"""`treadle serve` as processes: a server that is killed, one that is asked to end, and lines for bad input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.planner.samples import RANKS_PLAN
from tests.treadle.runtime.server.served import access_file, expected, joined, plan_of, push, train, until, values
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.errors import CheckFailed


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["small.plan.json", "--server", "1"], "--server: found 1, the plan has 1 server, counted from 0"),
        (["small.plan.json", "small.plan.json"], "expected different namespaces: NAMESPACE=PLAN"),
        (["small.plan.json", "--access", "a", "--access", "b"], "--access: found 2 files for 1 plan"),
        (["small.plan.json", "--resume", "3"], "--resume: found no --snapshot"),
        (["small.plan.json", "--peer", "host"], "--peer: found 'host', expected HOST:PORT"),
        (["small.plan.json", "--peer", "host:1"], "--peer: found 1, expected 0, the other servers in order"),
        (["small.plan.json", "--address", "192.0.2.1"], "--address: cannot listen at 192.0.2.1: "),
        (["a b.plan.json"], "expected letters, digits, '.', '_' or '-', up to 64; write NAMESPACE=PLAN"),
        (["of_ranks.plan.json"], "of_ranks.plan.json: found a ranks plan, expected a server plan"),
        (["none.plan.json"], "none.plan.json: cannot read: No such file or directory"),
    ],
    ids=("server", "twice", "access", "resume", "peer", "peers", "address", "namespace", "pass", "file"),
)
def test_bad_input_is_one_line(
    arguments: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("small", "a b"):
        store.save(plan_of(), f"{name}.plan.json")
    store.save(RANKS_PLAN, "of_ranks.plan.json")
    assert run(["serve", *arguments]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert line in last
    assert not list(tmp_path.glob("*.access.json"))


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A server of the plan in `folder` that listens."""
    command = [sys.executable, "-m", "treadle", "serve", "small.plan.json", "--snapshot", "kept", "--every", "5"]
    process = subprocess.Popen(
        [*command, *options], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serves small at 127.0.0.1:")
    return process


@pytest.mark.slow
def test_a_killed_server_goes_on_from_its_last_snapshot_and_its_workers_fail_clearly(tmp_path: Path) -> None:
    store.save(plan_of(), tmp_path / "small.plan.json")
    server = started(tmp_path)
    workers = joined(access_file(tmp_path), 0, 1)
    train(workers, 7)
    until(lambda: (tmp_path / "kept" / "small.0-000000000005.snapshot").exists())
    server.send_signal(signal.SIGKILL)
    server.wait()
    until(lambda: workers[0].controls[0].notice() is not None)
    assert "the server at this host is gone" in (workers[0].controls[0].notice() or "")
    with pytest.raises(CheckFailed, match="server"):
        train(workers)
    for worker in workers:
        worker.close()
    with started(tmp_path) as server:
        workers = joined(access_file(tmp_path), 0, 1)
        assert [worker.step for worker in workers] == [6, 6]
        train(workers, 2)
        assert np.array_equal(values(workers[1]), expected(7))
        for worker in workers:
            worker.close()
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 0
    assert "small: goes on from step 5 (kept/small.0-000000000005.snapshot)" in errors
    assert errors.splitlines()[-1].startswith("small: ended after step 7: all workers have left; its state is in ")


@pytest.mark.slow
def test_sigterm_ends_a_server_with_a_snapshot_and_a_dead_worker_with_an_error(tmp_path: Path) -> None:
    store.save(plan_of(), tmp_path / "small.plan.json")
    with started(tmp_path) as server:
        workers = joined(access_file(tmp_path), 0, 1)
        train(workers, 3)
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
        until(lambda: workers[0].controls[0].notice() is not None)
        for worker in workers:
            worker.close()
    assert server.returncode == 0
    assert "small: ended after step 3: ended by SIGTERM; its state is in kept/" in errors
    with started(tmp_path) as server:
        (worker,) = joined(access_file(tmp_path), 0)
        code = (
            "import sys; from treadle.runtime.server.worker import Worker; "
            "Worker(sys.argv[1], 1); print(1, flush=True); sys.stdin.read()"
        )
        line = [sys.executable, "-c", code, access_file(tmp_path)]
        other = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout is not None
        assert other.stdout.readline()
        push(worker)
        other.kill()
        other.communicate()
        with pytest.raises(CheckFailed, match=r"worker 1 is lost in step 4"):
            worker.finish()
        _, errors = server.communicate(timeout=60)
        worker.close()
    assert server.returncode == 1
    assert errors.splitlines()[-1].startswith("error: small: worker 1 is lost in step 4 (")
    assert not os.path.exists(access_file(tmp_path))
