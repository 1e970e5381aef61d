"""`measure` on this very machine: plausible numbers, sources that say measured, a profile that can be planned on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.planner.documents.sources import source_of
from tests.planner.documents.test_hardware import numeric_leaves
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Device, Hardware, Link, Switch
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import expand
from treadle.probe import measure as module
from treadle.probe.fit import LinkFit
from treadle.probe.local import detect
from treadle.probe.measure import Measurement, measure
from treadle.probe.timing import SendTiming

FIT = LinkFit(2.0, 10.0, 0.01, (1.0, 3.0), (9.0, 11.0))


@pytest.fixture(scope="module")
def measured() -> tuple[Measurement, list[tuple[int, int]]]:
    pytest.importorskip("torch")
    if detect().devices[0].kind == "gpu":
        pytest.skip("a GPU machine measures its GPUs, not two CPU processes")
    steps: list[tuple[int, int]] = []
    return measure(
        2, (1 << 10, 1 << 20), command="treadle profile measure --world 2", on_step=lambda *s: steps.append(s)
    ), steps


@pytest.mark.slow
def test_a_measured_profile_is_complete(measured):
    hardware = measured[0].hardware
    assert store.loads(store.dumps(hardware), "x", Hardware) == hardware
    topology = expand(hardware)
    assert [(link.src, link.dst, link.kind) for link in topology.links] == [(0, 1, "loopback"), (1, 0, "loopback")]
    (device,) = hardware.devices
    assert (device.kind, device.count) == ("cpu", 2)
    assert set(device.peak_flops) == {"float32", "bfloat16"}
    assert 1e8 < device.peak_flops["float32"] < 1e14
    assert 1e8 < device.memory_bandwidth < 1e13
    assert 0.01 < device.launch_us < 1e4
    assert 0 <= hardware.links[0].alpha_us < 1e6
    assert 1 < hardware.links[0].beta_us_per_MB < 1e6


@pytest.mark.slow
def test_every_number_says_that_it_was_measured_and_how(measured):
    hardware = measured[0].hardware
    for path in (
        "links[0].alpha_us",
        "devices[0].peak_flops.float32",
        "devices[0].memory_bandwidth",
        "devices[0].launch_us",
    ):
        source = source_of(hardware, path)
        assert source.startswith("measured: `treadle profile measure --world 2` on ")
        assert hardware.host.cpu_model in source


@pytest.mark.slow
def test_no_number_is_without_a_source(measured):
    hardware = measured[0].hardware
    leaves = set(numeric_leaves(msgspec.to_builtins(hardware))) - {"version"}
    assert [path for path in leaves if not source_of(hardware, path)] == []


@pytest.mark.slow
def test_the_fit_comes_with_its_uncertainty_and_progress_reaches_the_end(measured):
    measurement, steps = measured
    fit = measurement.fits["loopback"]
    assert fit.alpha_interval[0] <= fit.alpha_us <= fit.alpha_interval[1]
    assert fit.beta_interval[0] <= fit.beta_us_per_MB <= fit.beta_interval[1]
    assert steps[-1][0] == steps[-1][1] == len(steps)


@pytest.mark.parametrize("world", [0, -1, 10**6])
def test_impossible_worlds_are_refused(world):
    with pytest.raises(InputError, match="--world: found"):
        measure(world)


@pytest.mark.parametrize("sizes", [(), (0,), (1 << 40,)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(InputError, match="--sizes"):
        measure(2, sizes)


def test_equal_links_are_one_class_and_long_lists_are_thinned():
    hardware = Hardware(
        version=1,
        name="x",
        nodes=1,
        devices=detect().devices,
        links=(
            Link(src=0, dst=1, kind="nvlink"),
            Link(src=1, dst=0, kind="nvlink"),
            Link(src=0, dst=2, kind="nvlink", count=2),
            Link(src=2, dst=0, kind="nvlink", count=2),
        ),
        switches=(Switch(name="s", kind="nvswitch", members=tuple(range(8)), count=6),),
    )
    classes = module._classes(hardware)
    assert classes["nvlink"] == [(0, 1)]
    assert classes["nvlink-x2"] == [(0, 2)]
    assert len(classes["nvswitch-x6"]) == 28
    assert 1 <= len(module._spread(classes["nvswitch-x6"])) <= module.PAIRS_PER_CLASS


def test_the_cost_of_parallel_links_is_stated_for_one_of_them():
    link = module._with_costs(Link(src=0, dst=1, kind="nvlink", count=2), {"nvlink-x2": FIT})
    assert (link.alpha_us, link.beta_us_per_MB, link.count) == (2.0, 20.0, 2)


def test_repeats_of_all_pairs_are_pooled_per_setting():
    pooled = module._pooled(
        [SendTiming(8, 1.0, True, (1.0, 2.0)), SendTiming(8, 1.0, True, (3.0,)), SendTiming(8, 1.0, False, (4.0,))]
    )
    assert pooled == [SendTiming(8, 1.0, False, (4.0,)), SendTiming(8, 1.0, True, (1.0, 2.0, 3.0))]


def gpus(count: int) -> Hardware:
    return Hardware(version=1, name="local", nodes=1, devices=(Device(model="a GPU", kind="gpu", count=count),))


@pytest.mark.parametrize(
    ("shown", "world", "links", "members"),
    [
        ("smi_old.txt", 3, {(0, 1, "nvlink", 2), (1, 0, "nvlink", 2)}, []),
        ("smi_new.txt", 3, set(), [(0, 1, 2)]),
        ("smi_new.txt", 1, set(), []),
        (None, 2, {(0, 1, "gpu-peer", 1), (1, 0, "gpu-peer", 1)}, []),
    ],
)
def test_gpus_are_measured_on_the_links_that_nvidia_smi_names(shown, world, links, members, monkeypatch):
    text = (Path(__file__).parent / "samples" / shown).read_text() if shown else "No devices were found"
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(
        module.subprocess, "run", lambda *args, **kwargs: subprocess.CompletedProcess(args, 0, stdout=text)
    )
    graph = module._gpu_graph(gpus(4), world)
    assert graph.devices_per_node == world
    assert {(link.src, link.dst, link.kind, link.count) for link in graph.links} == links
    assert [switch.members for switch in graph.switches] == members
    assert list(graph.problems()) == []


def test_a_gpu_profile_takes_its_copy_engines_from_the_pinned_copies():
    rates = {"memory_bandwidth": [3e12], "launch_us": [5.0], "flops.float32": [5e13, 7e13]}
    hardware = module._profile(
        gpus(2), rates, {"host-to-device": FIT, "device-to-host": FIT}, "treadle profile measure"
    )
    assert [engine.direction for engine in hardware.copy_engines] == ["host-to-device", "device-to-host"]
    assert hardware.copy_engines[0].bandwidth == pytest.approx(2**20 / 10e-6, rel=1e-3)
    assert hardware.devices[0].peak_flops == {"float32": 6e13}
    assert "pinned copies" in source_of(hardware, "copy_engines[0].bandwidth")


def test_workers_end_when_the_measuring_command_is_killed():
    pytest.importorskip("torch")
    script = (
        "from treadle.cli.main import main; import sys; sys.argv = ['treadle', 'profile', 'measure', '--world', '2']"
    )
    command = [sys.executable, "-c", f"{script}\nif __name__ == '__main__':\n    main()"]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while len(workers) < 2 and time.monotonic() < deadline and parent.poll() is None:
        time.sleep(0.1)
        workers = [
            child for child in psutil.Process(parent.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
    assert len(workers) == 2
    time.sleep(3)  # past their imports
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    for worker in alive:
        worker.kill()
    assert alive == []
