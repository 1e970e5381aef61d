"""Learning a model of indexes on this machine: traces that are drawn, runs that are kept, and a run that is ended."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.treadle.probe.index_costs import made_up_ns
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.errors import LimitError, MissingBackendError
from treadle.planner.passes.index.configurations import GappedArray, grid
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.problem import DrawnWorkload
from treadle.probe import index_runs, index_traces, measure_index
from treadle.probe.index_runs import KeptRuns
from treadle.probe.index_traces import HELD_OUT, LEARNED, moved, trace_of


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Small traces, a cache of the test's own, and a short training."""
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in {"LEAST_BULK": 100, "MOST_BULK": 200, "LEAST_OPERATIONS": 100, "MOST_OPERATIONS": 200}.items():
        monkeypatch.setattr(index_traces, name, value)
    monkeypatch.setattr(measure_index, "_digest", lambda: "runs")
    from treadle.probe import index_training

    monkeypatch.setattr(index_training, "EPOCHS", 1)
    monkeypatch.setattr(index_training, "NETWORKS", 1)


class Index:
    """Stands for the real one: `most` traces' worth of runs, then the user ends it."""

    def __init__(self, most: int) -> None:
        self.most, self.traces, self.workload = most, 0, None

    def run(self, configuration, workload, insert_share):
        self.traces += workload is not self.workload
        self.workload = workload
        return made_up_ns(configuration, workload, insert_share, hard=1.0)

    def ended(self):
        return self.traces > self.most


@pytest.mark.parametrize("number", range(15))
def test_a_trace_is_drawn_from_its_number(number, monkeypatch):
    monkeypatch.setattr(index_traces, "MOST_BULK", 1 << 14)
    monkeypatch.setattr(index_traces, "MOST_OPERATIONS", 1 << 16)
    trace, again = trace_of(number, 5), trace_of(number, 5)
    assert trace.places == again.places
    assert (trace.workload.operations.keys == again.workload.operations.keys).all()
    assert (np.diff(trace.workload.keys) > 0).all()
    inserts = trace.workload.counts().inserts / len(trace.workload.operations.ops)
    assert inserts == pytest.approx(trace.insert_share, abs=1e-4)
    if trace.family in HELD_OUT:
        assert trace.places == tuple(range(len(grid())))
    else:
        assert trace.family in LEARNED
        assert sum(isinstance(grid()[each], GappedArray) for each in trace.places) == index_traces.GAPPED


@pytest.mark.parametrize("family", ["uniform", "sequence", "exponential", "zipf"])
@pytest.mark.parametrize("seed", range(4))
def test_moved_keys_stay_in_their_order(family, seed):
    before = drawn(DrawnWorkload(family=family, bulk=3000, operations=2000, insert_share=0.5, seed=seed))
    after = moved(before, np.random.default_rng(seed))
    assert (np.diff(after.keys) > 0).all()
    both = [np.concatenate([each.keys, each.operations.keys]) for each in (before, after)]
    assert (np.argsort(both[0], kind="stable") == np.argsort(both[1], kind="stable")).all()
    assert after.keys_at_end() == before.keys_at_end()


def test_a_run_that_is_ended_goes_on_where_it_was(small, tmp_path):
    path = tmp_path / "runs.jsonl"
    first = Index(3)
    kept = KeptRuns(path, 1)
    kept.measure(1e6, first.run, first.ended, lambda done, left: None)
    assert len(kept.runs) == 3
    whole = path.read_text()
    path.write_bytes(whole.encode() + b"\0\xff" + whole[: len(whole) // 5].encode())  # went down while writing
    again = KeptRuns(path, 1)
    assert again.runs == kept.runs
    second = Index(2)
    again.measure(1e6, second.run, second.ended, lambda done, left: None)
    assert len(again.runs) == 5
    assert path.read_text().startswith(whole)
    assert [each.number for each in KeptRuns(path, 1).runs] == list(range(5))


def test_the_minutes_count_all_runs_together(small, tmp_path, monkeypatch):
    times = iter(range(0, 10000, 10))
    monkeypatch.setattr(index_runs, "monotonic", lambda: next(times))
    for most, wanted in ((25, 3), (25, 3), (45, 5)):
        kept = KeptRuns(tmp_path / "runs.jsonl", 1)
        kept.measure(most, Index(99).run, lambda: False, lambda done, left: None)
        assert len(kept.runs) == wanted


@pytest.mark.parametrize(
    "line",
    ["", "null", "[]", "{}", '{"number": 0, "ns": {}, "again_ns": 1, "seconds": 1}', "\x00", "[" * 5000]
    + [json.dumps({"number": 0, "ns": {"0": ns}, "again_ns": 1.0, "seconds": 1.0}) for ns in (-1, 0, "x", 1e400, None)]
    + [json.dumps({"number": 1, "ns": {"0": 1}, "again_ns": 1.0, "seconds": 1.0})]
    + [json.dumps({"number": 0, "ns": {"100": 1}, "again_ns": 1.0, "seconds": 1.0})],
)
def test_what_is_no_line_of_runs_is_measured_again(tmp_path, line):
    (tmp_path / "runs").write_text(f"{line}\n")
    assert KeptRuns(tmp_path / "runs", 1).runs == []


def test_configurations_that_do_not_run_are_left_out(small, tmp_path):
    kept = KeptRuns(tmp_path / "runs", 1)
    index = Index(1)

    def run(configuration, workload, share):
        ns = index.run(configuration, workload, share)
        return ns if isinstance(configuration, GappedArray) else None

    kept.measure(1e6, run, index.ended, lambda done, left: None)
    assert all(isinstance(grid()[place], GappedArray) for place in kept.runs[0].ns)
    with pytest.raises(LimitError, match="no configuration of an index"):
        kept.measure(1e6, lambda *of: None, lambda: False, lambda done, left: None)


def test_too_few_traces_are_kept_and_say_so(small, tmp_path):
    index = Index(3)
    with pytest.raises(LimitError, match="measured 3 traces to learn from, expected at least 16; what was measured is"):
        measure_index.measure_index(run=index.run, ended=index.ended)
    assert len((tmp_path / "cache" / "treadle" / "index-runs" / "runs.jsonl").read_text().splitlines()) == 3


def test_a_model_is_learned_and_validated_on_other_families(small, tmp_path, monkeypatch, capsys):
    index = Index(42)
    monkeypatch.setattr(measure_index, "_real_run", lambda: index.run)
    real = measure_index.measure_index
    monkeypatch.setattr(
        measure_index, "measure_index", lambda **given: real(**{**given, "ended": index.ended, "minutes": 1e6})
    )
    path = tmp_path / "model.yaml"
    assert run(["profile", "measure", "--index", "-o", str(path)]) == 0
    model = store.load(path, IndexModel)
    assert {each.family for each in model.validation} == set(HELD_OUT)
    assert all(each.configurations == len(grid()) for each in model.validation)
    assert set(model.training.families) <= set(LEARNED)
    assert model.training.runs == 16 * model.training.traces
    assert model.training.repeat_spread == 0
    assert "books, baseline" in capsys.readouterr().out
    assert not list((tmp_path / "cache").rglob("*.jsonl"))
    assert run(["profile", "show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "treadle.profile-show-index/1"
    assert shown["model"]["training"]["seed"] == measure_index.SEED


def test_options_of_the_command(small, capsys, monkeypatch):
    assert run(["profile", "measure", "--index"]) == 2
    assert "expected a file for the model with it: -o FILE" in capsys.readouterr().err
    assert run(["profile", "measure", "--minutes", "3"]) == 2
    assert "--minutes" in capsys.readouterr().err
    assert run(["profile", "measure", "--index", "--server"]) == 2
    assert "found --server too, expected one of the two" in capsys.readouterr().err.replace("--index", "--server")


def test_without_torch_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingBackendError, match=r"pip install 'treadle\[torch\]'"):
        measure_index.measure_index()
