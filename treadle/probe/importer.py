"""`treadle profile import`: which dialect a file is, and costs copied from another profile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from treadle.planner import resources
from treadle.planner.documents import store, taccl_files
from treadle.planner.documents.hardware import Hardware, Link, Switch
from treadle.planner.documents.parsing import parse
from treadle.planner.errors import InputError
from treadle.probe.lstopo_xml import import_lstopo
from treadle.probe.nccl_fit import NO_COSTS, CollectiveFit, fit_profile, machine_of_runs
from treadle.probe.nccl_library_fit import LibraryFit, channels_of, fit_library
from treadle.probe.nccl_log import has_topology, import_nccl_log, is_log, summary
from treadle.probe.nccl_tests import NcclTimes, read_times
from treadle.probe.nccl_xml import import_nccl
from treadle.probe.nvidia_smi import import_nvidia_smi
from treadle.probe.resolve import load_hardware
from treadle.probe.topograph import import_topograph, is_topograph

PartT = TypeVar("PartT", Link, Switch)
_ROOT = re.compile(r"<(system|topology)[\s>/]")


def import_profile(
    path: Path,
    name: str | None = None,
    message_bytes: int | None = None,
    cost_scale: float | None = None,
    node: Hardware | None = None,
) -> Hardware:
    """Read NCCL or RCCL topology XML, their log, lstopo XML, `nvidia-smi topo -m`, TACCL topology JSON, or topograph
    YAML; the profile has one node, or those that topograph lists, each like that of `node`.

    `message_bytes` and `cost_scale` belong to a TACCL topology: the message its costs are for, and what they were
    multiplied by. Raises InputError with file and line when the file is none of these or malformed.
    """
    text, where = store.read_text(path).removeprefix("\ufeff"), str(path)
    name = name or _name_of(path)
    raw = parse(text, where) if text.lstrip("\ufeff \t\r\n").startswith("{") or is_topograph(text) else None
    if taccl_files.is_topology(raw):
        return taccl_files.hardware_of(raw, where, name, message_bytes, cost_scale or 1)
    if message_bytes is not None or cost_scale is not None:
        option = "--message-size" if message_bytes is not None else "--cost-scale"
        raise InputError("found a size or scale of costs, expected one only for a TACCL topology", where=option)
    if raw is not None:
        if isinstance(raw, dict) and not {"switches", "nodes", "blocks", "capacity_blocks"} & raw.keys():
            expected = "a TACCL topology (gpus_per_node, alpha) or one of topograph (switches, nodes, blocks)"
            raise InputError(
                f"found keys {', '.join(sorted(raw)[:8]) or 'none'}, expected {expected}", where=where, path="$"
            )
        hardware = import_topograph(raw, where, name, node)
    elif is_log(text):
        hardware = import_nccl_log(text, where, name)
    elif not text.lstrip("\ufeff \t\r\n").startswith("<"):
        hardware = import_nvidia_smi(text, where, name)
    else:
        root = _ROOT.search(text)
        if root is None:
            raise InputError(
                "found XML without <system> or <topology>, expected NCCL topology or lstopo XML", where=where
            )
        hardware = (import_nccl if root[1] == "system" else import_lstopo)(text, where, name)
    for at, found, expected in hardware.problems():
        raise InputError(f"found {found}, expected {expected}", where=where, path=at)
    return hardware


def import_times(
    path: Path, name: str | None, costs: Hardware | None
) -> tuple[CollectiveFit, LibraryFit | None] | None:
    """A profile fitted to the times of a file of nccl-tests, links first, then NCCL's own algorithms on GPUs; None when
    the file is something else.

    The topology is that of the log of NCCL in the file, with what it lacks from `costs`, else that of `costs`. Raises
    InputError when the file cannot be read or fitted, or there is no topology.
    """
    text, where = store.read_text(path).removeprefix("\ufeff"), str(path)
    measured = read_times(text, where)
    if measured is None:
        return None
    name = name or _name_of(path)
    if has_topology(text):
        logged = import_nccl_log(text, where, name)
        topology = with_costs(logged, costs) if costs is not None else logged
        fit = fit_profile(measured, topology, name, where, f"its log ({summary(text)})")
        counted = replace(topology, transport=NO_COSTS)  # the rates of the log are those that NCCL counts with
        return fit, fit_library(measured.runs, _as_run(measured, counted, fit), fit.hardware, channels_of(text))
    if costs is None:
        raise InputError(
            "found times of nccl-tests and no topology, expected --costs-from NAME with that of the machine, or a run "
            "with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH, whose log has it",
            where=where,
        )
    fit = fit_profile(measured, costs, name, where)
    return fit, fit_library(measured.runs, _as_run(measured, costs, fit), fit.hardware, channels_of(text))


def _as_run(measured: NcclTimes, topology: Hardware, fit: CollectiveFit) -> Hardware:
    """The machine on which NCCL chose: fitted costs only where the topology has none."""
    known = machine_of_runs(measured.runs, topology, topology.name)
    links = tuple(one if one.beta_us_per_MB else two for one, two in zip(known.links, fit.hardware.links, strict=True))
    switches = tuple(
        one if one.beta_us_per_MB else two for one, two in zip(known.switches, fit.hardware.switches, strict=True)
    )
    return replace(
        known,
        links=tuple(replace(link, alpha_us=link.alpha_us or 0.0) for link in links),
        switches=tuple(replace(switch, alpha_us=switch.alpha_us or 0.0) for switch in switches),
    )


def _name_of(path: Path) -> str:
    return re.split(r"[.\s]", path.name.lstrip("."))[0] or "imported"


def costs_for(hardware: Hardware) -> list[str]:
    """The shipped profiles that have alpha and beta for every link and switch of `hardware`."""
    return [name for name in resources.names("profiles") if _has_costs(load_hardware(name), hardware)]


def _has_costs(costs: Hardware, hardware: Hardware) -> bool:
    try:
        _costed(hardware, costs)
    except InputError:
        return False
    return True


def _costed(hardware: Hardware, costs: Hardware) -> tuple[tuple[Link, ...], tuple[Switch, ...]]:
    links = tuple(_with_cost(link, costs) for link in hardware.links)
    switches = tuple(_with_cost(switch, costs) for switch in hardware.switches)
    return links, switches


def with_costs(hardware: Hardware, costs: Hardware) -> Hardware:
    """`hardware` with alpha and beta of each link kind, and the network, of `costs` where it has none itself.

    The cost of one link is copied; parallel links divide it as they do in every profile. Raises InputError when
    `costs` lacks a kind or has it with different costs.
    """
    source = f"copied from profile {costs.name}"
    try:
        links, switches = _costed(hardware, costs)
    except InputError as error:
        if not (others := costs_for(hardware)):
            raise
        raise InputError(f"{error.args[0]}, as {', '.join(others)} have", where=costs.name) from None
    sources = dict(hardware.sources)
    for field, before, after in (("links", hardware.links, links), ("switches", hardware.switches, switches)):
        if before != after:
            sources[field] = f"{sources[field]}; what it lacked of alpha and beta {source}"
    network = hardware.network
    if network is None and costs.network is not None:
        network, sources["network"] = costs.network, source
        speeds = [max((nic.speed_gbps or 0 for nic in it.nics if nic.devices), default=0) for it in (hardware, costs)]
        if all(speeds) and speeds[0] != speeds[1]:
            network = replace(network, beta_us_per_MB=network.beta_us_per_MB * speeds[1] / speeds[0])
            sources["network"] += f", its beta for a NIC of {speeds[0]:g} instead of {speeds[1]:g} Gb/s"
    return replace(hardware, links=links, switches=switches, network=network, sources=sources)


def _with_cost(part: PartT, costs: Hardware) -> PartT:
    if part.alpha_us is not None and part.beta_us_per_MB is not None:
        return part
    known = {
        (other.alpha_us, other.beta_us_per_MB, other.count if isinstance(part, Switch) else 1)
        for other in (costs.switches if isinstance(part, Switch) else costs.links)
        if other.kind == part.kind and other.alpha_us is not None and other.beta_us_per_MB is not None
    }
    if len(known) != 1:
        found = "no costs" if not known else f"{len(known)} different costs"
        shape = "switches" if isinstance(part, Switch) else "links"
        raise InputError(f"found {found} for {shape} of kind {part.kind!r}, expected one", where=costs.name)
    ((alpha, beta, ports),) = known
    if isinstance(part, Switch):
        # A profile may state a port as one link; what a member gets in all is what is copied.
        beta = beta / ports * part.count
    return replace(
        part,
        alpha_us=alpha if part.alpha_us is None else part.alpha_us,
        beta_us_per_MB=beta if part.beta_us_per_MB is None else part.beta_us_per_MB,
    )
