"""`treadle profile` and costs between hosts: which options go together, what is shown and drawn."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.planner.samples import COST_MATRIX
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostHost, CostMatrix, PairRate

pytestmark = pytest.mark.usefixtures("few_steps")


def racks(count: int, size: int) -> CostMatrix:
    """Hosts in racks, numbered so that those of one rack do not follow each other, with their positions."""
    rack = [host % count for host in range(count * size)]
    hosts = range(count * size)
    return CostMatrix(
        version=1,
        name="racks",
        hosts=tuple(CostHost(name=f"n{host}", position=(0, 0, 0, 0, rack[host], host)) for host in hosts),
        latency_us=tuple(tuple(0.0 if i == j else 10.0 if rack[i] == rack[j] else 30.0 for j in hosts) for i in hosts),
        rates=tuple(PairRate(i, j, 1e9 if rack[i] == rack[j] else 2e8) for i in hosts for j in hosts if i < j),
        measured_at="2020-01-01T00:00:00Z",
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--pairs"], "--pairs: found a process on its own, expected one rank of several"),
        (["--hosts", "absent"], "absent: cannot read: No such file"),
        (["--pairs", "--sizes", "4K"], "--sizes: found --pairs too, expected one of the two"),
        (["--hosts", "h", "--sparse"], "--sparse: found --hosts too, expected one of the two"),
        (["--hosts", "h", "--backend", "cpu"], "--backend: found --hosts too"),
        (["--ssh", "ssh"], "--ssh: found neither --hosts nor --pairs"),
        (["--interface", "lo"], "--interface: found neither --hosts nor --pairs"),
        (["--pairs", "--ssh", "ssh"], "--ssh: found no --hosts, expected it too"),
        (["--probes", "5"], "--probes: found neither --hosts nor --pairs"),
        (["--pairs", "--probes", "0"], "0 is not in the range 1<=x<=65535"),
        (["--pairs", "--percentile", "101"], "101 is not in the range 0<=x<=100"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    assert run(["profile", "measure", *arguments]) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK: found 2, expected a number below 2"),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "3"}, "RANK: found 3, expected a number below 3"),
        ({"JOB_COMPLETION_INDEX": "4", "WORLD_SIZE": "4"}, "RANK: found 4, expected a number below 4"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "3"}, "--pairs: found a process on its own"),
    ],
    ids=["torchrun", "srun", "kubernetes", "a batch script of Slurm"],
)
def test_the_rank_is_that_of_the_launcher(
    variables: dict[str, str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **variables}.items():
        monkeypatch.setenv(name, value)
    assert run(["profile", "measure", "--pairs"]) == 2
    assert line in capsys.readouterr().err


def test_show_prints_groups_spread_age_and_how_well_positions_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(racks(2, 2), "costs.json")
    assert run(["profile", "show", "costs.json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("\nracks\n")
    assert "median 30 us, 10 to 30" in out
    assert "median 200 MB/s, 200 to 1000" in out
    assert "n0, n2" in out
    assert "n1, n3" in out
    assert "2020-01-01T00:00:00Z, " in out
    assert "100.0% of " in out
    assert run(["profile", "show", "costs.json", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "treadle.profile-show-pairs/1"
    assert shown["groups"] == [["n0", "n2"], ["n1", "n3"]]
    assert shown["costs"] == json.loads(Path("costs.json").read_text())
    assert run(["profile", "show", "costs.json", "--nodes", "2"]) == 2
    assert "--nodes: found costs between hosts, expected a hardware profile with it" in capsys.readouterr().err


def test_show_names_pairs_that_were_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    us = [[0.0, 1.0, None], [1.0, 0.0, 1.0], [None, 2.0, 0.0]]
    hosts = tuple(CostHost(name=name) for name in "abc")
    costs = CostMatrix(version=1, name="gap", hosts=hosts, latency_us=tuple(map(tuple, us)))
    store.save(costs, tmp_path / "gap.json")
    assert run(["profile", "show", str(tmp_path / "gap.json")]) == 0
    assert "1 pair of hosts did not answer: a - c" in capsys.readouterr().err


def test_the_picture_orders_hosts_by_their_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(racks(2, 2), "costs.json")
    assert run(["profile", "show", "costs.json", "--svg", "a.svg"]) == 0
    assert run(["profile", "show", "costs.json", "--svg", "b.svg"]) == 0
    text = Path("a.svg").read_text()
    assert text == Path("b.svg").read_text()
    texts = [each.text for each in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert [each for each in texts if each and each.startswith("n")][:4] == ["n0", "n2", "n1", "n3"]
    titles = [each.text for each in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}title")]
    assert "n0 - n2: 10 us" in titles
    assert "n0 - n1: 200 MB/s" in titles
    assert len(titles) == 2 * 12


def test_a_small_matrix_with_everything_can_be_shown_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "costs.json"
    store.save(COST_MATRIX, path)
    assert run(["profile", "show", str(path), "--svg", str(tmp_path / "x.svg")]) == 0
    assert run(["profile", "show", str(path)]) == 0
    assert "at most 1.4: a1 - b1" in capsys.readouterr().out
