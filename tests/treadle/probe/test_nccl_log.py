"""Logs of NCCL: the tree that they print becomes a profile, and what has none is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.treadle.probe.nccl_files import LOG
from treadle.cli.main import run
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.probe.importer import import_profile
from treadle.probe.nccl_log import import_nccl_log, summary


def read(text: str) -> Hardware:
    return import_nccl_log(text, "x", "mine")


def test_the_tree_of_a_log_is_a_profile_with_rates_and_without_alpha() -> None:
    found = read(LOG)
    assert (found.nodes, found.devices_per_node, found.host.numa_nodes) == (1, 8, 2)
    (switch,) = found.switches
    assert (switch.members, switch.count, switch.alpha_us) == (tuple(range(8)), 12, None)
    assert switch.beta_us_per_MB == pytest.approx(2**20 / 20e3, rel=1e-4)
    assert [(nic.name, nic.devices, nic.speed_gbps) for nic in found.nics] == [
        (f"mlx5_{nic}", (2 * nic, 2 * nic + 1), 200) for nic in range(4)
    ]
    assert [(pcie.name, pcie.numa, pcie.devices) for pcie in found.pcie] == [
        (f"0-{pair + 1}000", pair // 2, (2 * pair, 2 * pair + 1)) for pair in range(4)
    ]
    assert not list(found.problems())


def test_lines_pasted_without_their_prefix_and_shifted_read_the_same() -> None:
    plain = "\n".join(line.split("NCCL INFO ")[1] for line in LOG.splitlines() if "[0] NCCL INFO " in line)
    assert read(plain) == read(LOG)
    assert read(plain.replace(" " * 14, " " * 6)) == read(LOG)
    assert read("\n".join(f"[1,0]<stdout>:{line}" for line in LOG.splitlines())) == read(LOG)


@pytest.mark.parametrize(
    ("rate", "count"), [(80.0, 4), (370.8, 18), (360.0, 18), (264.0, 12), (721.8, 18), (36.0, 2), (48.0, 4), (7.7, 1)]
)
def test_links_between_gpus_are_counted_by_the_rate_of_one(rate: float, count: int) -> None:
    text = f"""=== System : maxWidth {rate} totalWidth {rate} ===
CPU/1 (1/2/-1)
+ PCI[24.0] - GPU/A000 (3)
              + NVL[{rate}] - GPU/B000
+ PCI[24.0] - GPU/B000 (2)
              + NVL[{rate}] - GPU/A000
              + NVL[{rate}] - GPU/C000
==========================================
"""
    found = read(text)
    assert [(link.src, link.dst, link.count) for link in found.links] == [(0, 1, count), (1, 0, count)]
    assert found.links[0].beta_us_per_MB == pytest.approx(2**20 / rate / 1e3 * count, rel=1e-3)
    assert not found.switches


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "".join(line for line in LOG.splitlines(keepends=True) if "===" not in line),
            r"found a log of NCCL 2.21.5, 8 ranks, 1 host, 1 channel, over P2P, without times or topology, expected",
        ),
        ("n:1:2 [0] NCCL INFO Bootstrap : Using eth0\n", "found a log of 1 host, without times or topology"),
        (LOG[: LOG.index("=" * 42)], "without times or topology"),
        (LOG.replace("GPU/0-10000 (0)", "GPU/0-10000"), "found GPU/0-10000 without a rank"),
        (LOG.replace("GPU/", "DEV/"), "found a topology without GPUs"),
        (LOG.replace("PCI[24.0] - GPU", "PCI[0.0] - GPU"), r"found PCI\[0.0\] to GPU/\S+, expected a rate above 0"),
    ],
)
def test_a_log_without_a_topology_says_what_it_has_and_what_to_run(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        read(text)
    assert "\n" not in str(raised.value)


def test_summary_knows_older_logs() -> None:
    text = (
        "n0:7:9 [0] NCCL INFO Channel 00 : 0[4000] -> 1[5000] via P2P/direct pointer\n"
        "n1:7:9 [1] NCCL INFO Channel 01 : 1[5000] -> 2[4000] [send] via NET/IB/0/GDRDMA\n"
        "n1:7:9 [1] NCCL INFO Channel 01 : 2[4000] -> 3[5000] via direct shared memory\n"
    )
    assert summary(text) == "4 ranks, 2 hosts, 2 channels, over NET/IB and P2P and shared memory"


def test_the_command_reads_a_log_and_copies_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(LOG)
    assert run(["profile", "import", str(log), "-o", str(tmp_path / "a.yaml")]) == 0
    assert "the file gives no latencies" in capsys.readouterr().err
    assert run(["profile", "import", str(log), "--costs-from", "ndv4", "-o", str(tmp_path / "b.yaml")]) == 0
    assert "8 x unknown GPU, nvswitch of 8, 4 NICs" in capsys.readouterr().err
    found = import_profile(log)
    assert found.name == "nccl"


def test_a_log_with_nvls_is_of_a_switch_that_works_in_the_network() -> None:
    line = "n0:1:2 [0] NCCL INFO NVLS multicast support is {}available on dev 0 (NVLS_NCHANNELS 16)\n"
    for word, ops in (("", ("multicast", "reduce")), ("not ", ())):
        (fabric,) = import_nccl_log(line.format(word) + LOG, "nccl.log", "log").switches
        assert fabric.in_network == ops
