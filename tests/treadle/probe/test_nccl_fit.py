"""Profiles fitted to nccl-tests: known alpha and beta come back, and planned rings take the measured times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.treadle.probe.nccl_files import SIZES, as_json, as_table
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.probe.nccl_fit import fit_profile
from treadle.probe.nccl_tests import Collective, CollectiveTimes
from treadle.probe.resolve import load_hardware


def closed(alpha: float, beta: float, ranks: int, links: int, passes: int = 2, noise: float = 0.0) -> dict[int, float]:
    """NCCL's factors over `links` links of each rank; beta in us per MiB."""
    random, hops = np.random.default_rng(3), passes * (ranks - 1)
    return {
        size: (hops * alpha + hops / ranks * size / 2**20 * beta / links) * (1 + noise * random.standard_normal())
        for size in SIZES
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
    fit = fit_profile(CollectiveTimes(collective, ranks, 1, times), costs, "mine", "x")
    assert fit.alpha_us == pytest.approx(2.5, rel=0.02)
    assert fit.beta_us_per_MB == pytest.approx(31.0, rel=0.02)
    assert fit.largest[0] == SIZES[6]
    assert not list(fit.hardware.problems())


@pytest.mark.parametrize(("profile", "nics"), [("ndv2", 1), ("ndv5", 8)])
def test_the_slowest_of_several_nodes_is_their_network(profile: str, nics: int) -> None:
    costs = load_hardware(profile)
    times = closed(5.0, 200.0, 16, nics)
    fit = fit_profile(CollectiveTimes("allreduce", 16, 2, times), costs, "mine", "x")
    assert fit.hardware.nodes == 2
    assert (fit.hardware.links, fit.hardware.switches) == (costs.links, costs.switches)
    assert fit.alpha_us == pytest.approx(5.0, rel=1e-3)
    assert fit.beta_us_per_MB == pytest.approx(200.0, rel=1e-3)
    assert fit.hardware.network is not None
    assert (fit.part, fit.hardware.network.alpha_us) == (costs.network and costs.network.kind, fit.alpha_us)
    assert abs(fit.largest[1]) < 0.01


@pytest.mark.parametrize(
    ("ranks", "hosts", "times", "message"),
    [
        (8, 1, closed(1, 8, 4, 2), "found 8 ranks on 1 host, expected the 4 on 1 node of profile ring4"),
        (4, 2, closed(1, 8, 4, 2), "found 4 ranks on 2 hosts, expected the 4 on 1 node of profile ring4"),
        (4, 1, dict.fromkeys(SIZES[:4], 30.0), "do not grow with the size"),
    ],
)
def test_what_does_not_fit_the_profile_is_refused(
    ranks: int, hosts: int, times: dict[int, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fit_profile(CollectiveTimes("allreduce", ranks, hosts, times), load_hardware("ring4"), "mine", "x")


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
    assert "expected --costs-from NAME with the machine's topology" in capsys.readouterr().err
    assert run(["profile", "import", str(file), "--costs-from", "ring4", "-o", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == ["size", "measured", "fitted", "residual"]
    assert len(captured.out.splitlines()) == 1 + len(SIZES)
    assert "largest residual " in captured.err
    assert "alpha 2.5 us, beta 31 us/MiB of each link (link), fitted to 14 sizes" in captured.err
    assert store.load(out, Hardware).name == "run"
    assert run(["profile", "import", str(file), "--costs-from", "ring4", "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fit"]["part"] == "link"
