"""Profiles by name, by path, and `local`."""

from __future__ import annotations

import sys

import pytest

from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.probe import local
from treadle.probe.resolve import load_hardware


def test_a_shipped_name_a_path_and_a_number_of_nodes(tmp_path):
    assert load_hardware("ndv2").nodes == 1
    assert load_hardware("ndv2", 3).nodes == 3
    store.save(load_hardware("ring4"), tmp_path / "mine.json")
    assert load_hardware(str(tmp_path / "mine.json")) == load_hardware("ring4")
    with pytest.raises(InputError, match=r"not one of the shipped profiles; .*ndv2"):
        load_hardware("ndv3")


def test_local_is_this_machine_without_any_cost():
    hardware = load_hardware("local")
    assert hardware.name == "local"
    assert hardware.devices_per_node >= 1
    assert list(hardware.problems()) == []
    assert hardware.host.cpu_cores >= 1
    assert hardware.host.memory_bytes > 2**20
    assert hardware.devices[0].peak_flops == {}
    assert (hardware.links, hardware.switches, hardware.network) == ((), (), None)
    assert store.loads(store.dumps(hardware), "x", Hardware) == hardware


def test_local_asks_no_framework_where_no_gpu_driver_is_loaded(monkeypatch):
    monkeypatch.setattr(local, "_DRIVERS", ("/nowhere/driver",))
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it now raises
    (device,) = local.detect().devices
    assert (device.kind, device.count) == ("cpu", 1)


def test_a_cpu_without_a_name_is_unknown_not_empty(monkeypatch):
    monkeypatch.setattr(local.Path, "read_text", lambda *args, **kwargs: "model name\t:\n")
    monkeypatch.setattr(local.platform, "processor", lambda: "")
    assert local.cpu_model() == "unknown CPU"
