"""Profiles fitted to nccl-tests: known alpha and beta come back, and planned rings take the measured times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.treadle.probe.nccl_files import LOG, SIZES, as_json, as_table
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.probe.nccl_fit import fit_profile
from treadle.probe.nccl_tests import Collective, CollectiveTimes, NcclTimes
from treadle.probe.resolve import load_hardware


def closed(
    alpha: float,
    beta: float,
    ranks: int,
    links: int,
    passes: int = 2,
    noise: float = 0.0,
    sizes: Sequence[int] = SIZES,
) -> dict[int, float]:
    """NCCL's factors over `links` links of each rank; beta in us per MiB."""
    random, hops = np.random.default_rng(3), passes * (ranks - 1)
    return {
        size: (hops * alpha + hops / ranks * size / 2**20 * beta / links) * (1 + noise * random.standard_normal())
        for size in sizes
    }


@pytest.mark.parametrize(
    ("profile", "ranks", "links", "collective", "passes"),
    [
        ("ring4", 4, 2, "allreduce", 2),
        ("switch4", 4, 1, "allgather", 1),
        ("switch4", 4, 1, "reducescatter", 1),
        ("dgx2", 16, 1, "allreduce", 2),
    ],
)
def test_known_alpha_and_beta_come_back(
    profile: str, ranks: int, links: int, collective: Collective, passes: int
) -> None:
    costs = load_hardware(profile)
    links *= costs.switches[0].count if costs.switches else 1
    times = closed(2.5, 31.0, ranks, links, passes, noise=0.01)
    times[SIZES[6]] *= 3  # an outlier
    fit = fit_profile(NcclTimes((CollectiveTimes(collective, ranks, 1, times),)), costs, "mine", "x")
    assert fit.alpha_us == pytest.approx(2.5, rel=0.02)
    assert fit.beta_us_per_MB == pytest.approx(31.0, rel=0.02)
    assert fit.largest.size == SIZES[6]
    assert not list(fit.hardware.problems())


@pytest.mark.parametrize(("profile", "nics"), [("ndv2", 1), ("ndv5", 8)])
def test_the_slowest_of_several_nodes_is_their_network(profile: str, nics: int) -> None:
    costs = load_hardware(profile)
    times = closed(5.0, 200.0, 16, nics)
    fit = fit_profile(NcclTimes((CollectiveTimes("allreduce", 16, 2, times),)), costs, "mine", "x")
    assert fit.hardware.nodes == 2
    assert (fit.hardware.links, fit.hardware.switches) == (costs.links, costs.switches)
    assert fit.alpha_us == pytest.approx(5.0, rel=1e-3)
    assert fit.beta_us_per_MB == pytest.approx(200.0, rel=1e-3)
    assert fit.hardware.network is not None
    assert (fit.part, fit.hardware.network.alpha_us) == (costs.network and costs.network.kind, fit.alpha_us)
    assert abs(fit.largest.residual) < 0.01


@pytest.mark.parametrize(
    ("ranks", "hosts", "times", "message"),
    [
        (8, 1, closed(1, 8, 4, 2), "found 8 ranks on 1 host, expected the 4 on 1 node of profile ring4"),
        (4, 2, closed(1, 8, 4, 2), "found times of 2 hosts and no network in profile ring4"),
        (4, 1, dict.fromkeys(SIZES[:4], 30.0), "do not grow with the size"),
        (4, 1, {size: 1e3 - index for index, size in enumerate(SIZES)}, "do not grow with the size"),
    ],
)
def test_what_does_not_fit_the_profile_is_refused(
    ranks: int, hosts: int, times: dict[int, float], message: str
) -> None:
    runs = NcclTimes((CollectiveTimes("allreduce", ranks, hosts, times),))
    with pytest.raises(InputError, match=message):
        fit_profile(runs, load_hardware("ring4"), "mine", "x")


@pytest.mark.parametrize("profile", ["ring4", "switch4", "dgx1"])
def test_the_planned_ring_takes_the_measured_times(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ranks = load_hardware(profile).ranks
    times = closed(2.5, 31.0, ranks, 1)
    Path("nccl.json").write_text(as_json(times, ranks))
    Path("nccl.txt").write_text(as_table(times, ranks))
    for file in ("nccl.json", "nccl.txt"):
        assert run(["profile", "import", file, "--costs-from", profile, "-o", f"{file}.yaml"]) == 0
    assert Path("nccl.json.yaml").read_text() == Path("nccl.txt.yaml").read_text()
    for size in (8192, 32 << 20):
        command = ["plan", "collective", "allreduce", "--hardware", "nccl.json.yaml", "--method", "ring"]
        assert run([*command, "--size", str(size), "-o", f"{size}.json"]) == 0
        capsys.readouterr()
        assert run(["simulate", f"{size}.json", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["time_us"] == pytest.approx(times[size], rel=0.03)


def test_the_command_prints_sizes_residuals_and_the_largest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "run.json", tmp_path / "hw.yaml"
    file.write_text(as_json(closed(2.5, 31.0, 4, 2), 4))
    assert run(["profile", "import", str(file), "-o", str(out)]) == 2
    assert (
        "expected --costs-from NAME with that of the machine, or a run with NCCL_DEBUG=INFO" in capsys.readouterr().err
    )
    assert run(["profile", "import", str(file), "--costs-from", "ring4", "-o", str(out)]) == 0
    captured = capsys.readouterr()
    blank, title, head, *rows = captured.out.partition("\n\nNCCL's own")[0].splitlines()
    assert (blank, title, head.split()) == ("", "allreduce", ["size", "measured", "fitted", "residual"])
    assert len(rows) == len(SIZES)
    assert "largest residual " in captured.err
    assert "alpha 2.5 us, beta 31 us/MiB of each link (link), fitted to 14 sizes" in captured.err
    assert store.load(out, Hardware).name == "run"
    assert run(["profile", "import", str(file), "--costs-from", "ring4", "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["fit"]
    assert (found["part"], found["sizes"][0]["collective"]) == ("link", "allreduce")


@pytest.mark.parametrize("seed", range(3))
def test_noise_of_3_percent_and_an_outlier_move_alpha_and_beta_by_less_than_2(seed: int) -> None:
    sizes = [8 << k for k in range(28)]
    noise = np.random.default_rng(seed)
    runs = []
    for collective, passes in (("allreduce", 2), ("allgather", 1), ("reducescatter", 1)):
        exact = closed(2.5, 31.0, 4, 1, passes, sizes=sizes)
        times = {size: time * (1 + 0.03 * noise.standard_normal()) for size, time in exact.items()}
        times[sizes[seed]] *= 4
        runs.append(CollectiveTimes(cast(Collective, collective), 4, 1, times))
    fit = fit_profile(NcclTimes(tuple(runs)), load_hardware("switch4"), "mine", "x")
    assert fit.alpha_us == pytest.approx(2.5, rel=0.02)
    assert fit.beta_us_per_MB == pytest.approx(31.0, rel=0.02)
    assert (len(fit.rows), fit.largest.size) == (84, sizes[seed])


def test_the_planned_ring_of_two_nodes_takes_the_measured_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    times = closed(5.0, 200.0, 16, 1)
    Path("nccl.json").write_text(as_json(times, 16, 2))
    assert run(["profile", "import", "nccl.json", "--costs-from", "ndv2", "-o", "hw.yaml"]) == 0
    size = 32 << 20
    plan = ["plan", "collective", "allreduce", "--hardware", "hw.yaml", "--method", "ring", "--size", str(size)]
    assert run([*plan, "-o", "ring.json"]) == 0
    capsys.readouterr()
    assert run(["simulate", "ring.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_us"] == pytest.approx(times[size], rel=0.03)


def test_the_log_of_a_run_has_topology_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "run.log", tmp_path / "hw.yaml"
    alltoall = as_table(closed(1.0, 1.0, 8, 1), 8).replace("all_reduce_perf", "alltoall_perf")
    file.write_text(LOG + as_table(closed(2.5, 31.0, 8, 12), 8) + alltoall)
    assert run(["profile", "import", str(file), "-o", str(out)]) == 0
    err = capsys.readouterr().err
    assert "left out alltoall_perf: the fit knows allreduce, allgather and reducescatter" in err
    assert "each link (nvswitch), fitted to 14 sizes" in err
    hardware = store.load(out, Hardware)
    (switch,) = hardware.switches
    assert (switch.count, switch.members, switch.alpha_us) == (12, tuple(range(8)), pytest.approx(2.5, rel=0.02))
    assert switch.beta_us_per_MB == pytest.approx(31.0, rel=0.02)
    assert (
        "the topology is that of its log (NCCL 2.21.5, 8 ranks, 1 host, 1 channel, over P2P)"
        in (hardware.sources["switches"])
    )
    file.write_text(LOG + as_table(closed(5.0, 200.0, 16, 4), 16, 2))
    assert run(["profile", "import", str(file), "-o", str(out)]) == 2
    assert "found times of 2 hosts and no network" in capsys.readouterr().err
    assert run(["profile", "import", str(file), "--costs-from", "ndv4", "-o", str(out)]) == 0
    assert "alpha 5 us, beta 200 us/MiB of each link (ib)" in capsys.readouterr().err
