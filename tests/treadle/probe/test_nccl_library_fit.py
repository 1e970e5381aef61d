"""Factors of NCCL's own algorithms: known ones come back from what nccl-tests and NCCL print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.treadle.probe.nccl_files import LOG, as_json, as_table
from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.nccl_costs import Method, NcclFactors, NcclLibrary
from treadle.planner.machine.nccl import NcclMachine, NcclMethod, best, candidates, library_of
from treadle.probe.nccl_library_fit import channels_of, fit_library
from treadle.probe.nccl_tests import CollectiveTimes, RunSetting, read_times
from treadle.probe.resolve import load_hardware

SIZES = [8 << k for k in range(0, 28, 3)]
KNOWN: dict[Method, NcclFactors] = {
    "ring LL": NcclFactors(latency=1.3, bytes=2.0),
    "ring LL128": NcclFactors(latency=0.8, bytes=1.5),
    "ring Simple": NcclFactors(latency=1.1, bytes=1.2),
    "tree LL": NcclFactors(latency=1.7, bytes=0.9),
    "nvls": NcclFactors(latency=0.9, bytes=1.4),
}
FORCED = {"ring LL": "NCCL_ALGO=Ring NCCL_PROTO=LL", "ring LL128": "NCCL_ALGO=Ring NCCL_PROTO=LL128",
          "ring Simple": "NCCL_ALGO=Ring NCCL_PROTO=Simple", "tree LL": "NCCL_ALGO=^Ring,NVLS NCCL_PROTO=LL",
          "nvls": "NCCL_ALGO=NVLS"}  # fmt: skip


def with_factors(methods: Mapping[Method, NcclFactors]) -> Hardware:
    """Eight H100 whose NCCL takes that much longer than its model says."""
    base = load_hardware("ndv5")
    library = NcclLibrary(methods=dict(methods))
    return replace(base, transports=replace(base.transports, nccl_library=library))


def methods_of(hardware: Hardware, collective: Collective = "allreduce") -> dict[Method, NcclMethod]:
    library = library_of(hardware)
    assert isinstance(library, NcclMachine), library
    return {each.method: each for each in candidates(library, collective)}


def times_of(method: NcclMethod) -> dict[int, float]:
    return {size: method.time_us(size) for size in SIZES}


def by_nccl_itself(hardware: Hardware) -> dict[int, NcclMethod]:
    """What NCCL takes by its own numbers, with the factors that it does not know."""
    named = methods_of(hardware)
    own = library_of(hardware)
    assert isinstance(own, NcclMachine)
    return {size: named[best(candidates(own.own, "allreduce"), size).method] for size in SIZES}


def imported(folder: Path, text: str, *more: str) -> Hardware:
    (folder / "run.txt").write_text(text)
    given = ["--costs-from", "ndv5", "-o", str(folder / "hw.yaml")]
    assert run(["profile", "import", str(folder / "run.txt"), *given, *more]) == 0
    return store.load(folder / "hw.yaml", Hardware)


def assert_same_times(one: NcclMethod, other: NcclMethod, rel: float = 2e-3) -> None:
    for size in SIZES:
        assert one.time_us(size) == pytest.approx(other.time_us(size), rel=rel), (one.method, size)


def test_known_factors_come_back_from_forced_runs(tmp_path, capsys):
    true = methods_of(with_factors(KNOWN))
    found = imported(tmp_path, "".join(f"+ {FORCED[m]} run\n{as_table(times_of(true[m]), 8)}" for m in KNOWN))
    assert found.transports.nccl_library is not None
    fitted = found.transports.nccl_library.methods
    assert set(fitted) == set(KNOWN)
    for method, factors in KNOWN.items():
        assert fitted[method].latency == pytest.approx(factors.latency, rel=2e-3)
        assert_same_times(methods_of(found)[method], true[method])
    captured = capsys.readouterr()
    assert "NCCL's own algorithms: factors to its model" in captured.out
    assert "more than a third" not in captured.err
    assert "fitted to 50 times of nccl-tests" in found.sources["transports.nccl_library"]


def test_without_settings_nccl_ran_what_its_own_numbers_make_best(tmp_path):
    true = by_nccl_itself(with_factors(KNOWN))
    found = imported(tmp_path, as_table({size: method.time_us(size) for size, method in true.items()}, 8))
    library = found.transports.nccl_library
    assert library is not None
    assert set(library.methods) == {"ring LL", "nvls"}
    for size, method in true.items():
        assert methods_of(found)[method.method].time_us(size) == pytest.approx(method.time_us(size), rel=0.02)


def test_tuning_lines_say_what_ran(tmp_path):
    """Eight bytes went by tree, all else by LL128; allgathers count the part of one rank."""
    true = methods_of(with_factors(KNOWN))
    ran = {size: true["tree LL" if size == 8 else "ring LL128"] for size in SIZES}
    lines = "".join(
        f"node0:7:9 [0] NCCL INFO AllReduce: {size} Bytes -> Algo {method.algorithm.upper()} proto {method.protocol} "
        f"channel{{Lo..Hi}}={{0..1}}\n"
        for size, method in ran.items()
    )
    found = imported(tmp_path, as_table({size: method.time_us(size) for size, method in ran.items()}, 8) + lines)
    assert found.transports.nccl_library is not None
    assert set(found.transports.nccl_library.methods) == {"tree LL", "ring LL128"}
    assert found.transports.nccl_library.methods["ring LL128"].latency == pytest.approx(0.8, rel=2e-3)
    gathered = "node0:7:9 [0] NCCL INFO AllGather: 1 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"
    text = as_table(dict.fromkeys(SIZES, 1.0), 8, collective="allgather") + gathered
    times = read_times(text, "x")
    assert times is not None
    assert times.runs[0].took == {8: RunSetting("RING", "LL")}


def test_a_setting_holds_for_the_next_run_only():
    times = dict.fromkeys(SIZES, 3.0)
    log = "node0:7:9 [0] NCCL INFO NCCL_ALGO set by environment to Tree\n"
    found = read_times(log + as_table(times, 8) + as_table(dict.fromkeys(SIZES, 2.0), 8), "x")
    assert found is not None
    assert [run.setting for run in found.runs] == [RunSetting("Tree"), RunSetting()]
    assert [run.times[8] for run in found.fastest] == [2.0]


def test_a_misfit_of_more_than_a_third_is_said(tmp_path, capsys):
    times = times_of(methods_of(with_factors({}))["ring LL"])
    times[SIZES[4]] *= 3
    imported(tmp_path, "NCCL_ALGO=Ring NCCL_PROTO=LL\n" + as_table(times, 8))
    assert "NCCL's model is off by more than a third at 1 size, the most -6" in capsys.readouterr().err
    imported(tmp_path, as_json(times, 8), "--json")
    facts = json.loads(capsys.readouterr().out)["nccl_library"]
    assert set(facts) == {"factors", "sizes", "left_out"}


def test_what_the_model_lacks_is_left_out_and_cpus_have_none():
    runs = [CollectiveTimes("allreduce", 8, 1, dict.fromkeys(SIZES, 9.0), RunSetting("allreduce:tree"))]
    ndv5 = load_hardware("ndv5")
    found = fit_library(runs, ndv5, ndv5, NcclLibrary())
    assert found is not None
    assert found.left_out == ("allreduce with NCCL_ALGO=allreduce:tree: the model has none of these",)
    assert fit_library(runs, load_hardware("hosts-2x2"), ndv5, NcclLibrary()) is None


def test_channels_of_a_log():
    line = "NCCL INFO 24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer"
    assert channels_of(line) == NcclLibrary(channels=24, nvls_channels=16)
    assert channels_of("16 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p") == NcclLibrary(channels=16)
    assert channels_of("") == NcclLibrary()


def test_the_log_of_a_run_has_all_of_it(tmp_path):
    """Rates that NCCL counts with come from its log, so what it chose does too."""
    file, out = tmp_path / "run.log", tmp_path / "hw.yaml"
    ring = methods_of(load_hardware("ndv4"))["ring Simple"]
    channels = "node0:7:9 [0] NCCL INFO 18 coll channels, 0 nvls channels, 8 p2p channels\n"
    file.write_text(LOG + channels + "NCCL_PROTO=Simple NCCL_ALGO=Ring\n" + as_table(times_of(ring), 8))
    assert run(["profile", "import", str(file), "-o", str(out)]) == 0
    library = store.load(out, Hardware).transports.nccl_library
    assert library is not None
    assert library.channels == 18
    assert library.methods["ring Simple"].latency == pytest.approx(1.0, rel=1e-2)
