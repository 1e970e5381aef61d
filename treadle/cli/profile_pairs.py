"""`treadle profile` for costs between hosts: measure them, show them, draw them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.json_output import print_json
from treadle.cli.output import live_line, note, print_table
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostHost, CostMatrix
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.machine.cost_age import age_of, in_words, stamp, utc_now

if TYPE_CHECKING:
    from treadle.probe.crew import Crew
    from treadle.probe.pairs_summary import PairsSummary


def measure_pairs(
    hostfile: str | None,
    ssh: str | None,
    interface: str | None,
    probes: int | None,
    percentile: float | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Measure between the hosts of a hostfile, or of all ranks, of which rank 0 writes and prints."""
    from treadle.probe.pairs import ProbeSettings, probe_pairs
    from treadle.probe.pairs_summary import summarised

    usual = ProbeSettings()
    settings = ProbeSettings(
        usual.probes if probes is None else probes, usual.percentile if percentile is None else percentile
    )
    if hostfile is None and ssh is not None:
        raise InputError("found no --hosts, expected it too", where="--ssh")
    command = "treadle profile measure " + ("--pairs" if hostfile is None else f"--hosts {Path(hostfile).name}")
    with _crew(hostfile, ssh, interface) as gathered:
        if gathered is None:
            return
        crew, members, hosts = gathered
        with live_line() as show:
            when = stamp(utc_now())
            found = probe_pairs(crew, members, hosts, settings, when=when, command=command, on_step=show)
    if output is not None:
        store.save(found.matrix, output)
        note(f"wrote {output}")
    summary = summarised(found.matrix)
    if as_json:
        print_json("profile-measure-pairs", _facts(found.matrix, summary))
    else:
        _print(found.matrix, summary)


@contextmanager
def _crew(
    hostfile: str | None, ssh: str | None, interface: str | None
) -> Iterator[tuple[Crew, list[int], list[CostHost]] | None]:
    """A crew, the members of it that are probed, and their hosts; None on all ranks but the first."""
    if hostfile is not None:
        from treadle.probe.hostfile import read_hostfile
        from treadle.probe.ssh_crew import SSH, ssh_crew

        with ssh_crew(read_hostfile(hostfile), SSH if ssh is None else ssh, interface) as crew:
            hosts = [CostHost(name=each.name, address=each.at[0], slots=each.slots) for each in crew.hosts]
            yield crew, list(range(len(hosts))), hosts
        return
    from treadle.probe.launched import launched_rank
    from treadle.probe.store_crew import hosts_of, store_crew

    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    with store_crew(*launched_rank()) as joined:
        yield None if joined is None else (joined, *hosts_of(joined))


def pairs_in(name: str) -> CostMatrix | None:
    """The cost matrix in a file; None for anything else."""
    if not Path(name).is_file():
        return None
    is_matrix = store.kind_of(parse(store.read_text(name), name), name) == "cost-matrix"
    return store.load(name, CostMatrix) if is_matrix else None


def show_pairs(costs: CostMatrix, name: str, svg: str | None, as_json: bool) -> None:
    """Print a summary of `costs`, or draw them."""
    from treadle.probe.pairs_summary import summarised

    summary = summarised(costs)
    if svg is not None:
        from treadle.probe.draw_pairs import pairs_svg

        store.write_text(svg, pairs_svg(costs, summary))
        note(f"wrote {svg}")
    if as_json:
        print_json("profile-show-pairs", _facts(costs, summary))
    elif svg is None:
        _print(costs, summary)


def _facts(costs: CostMatrix, summary: PairsSummary) -> dict[str, object]:
    names = [host.name for host in costs.hosts]
    return {
        "costs": json.loads(store.dumps(costs)),
        "groups": [[names[host] for host in group] for group in summary.groups],
        "unmeasured": [[names[src], names[dst]] for src, dst in summary.unmeasured],
        "affinity": None if summary.affinity is None else summary.affinity._asdict(),
    }


def _print(costs: CostMatrix, summary: PairsSummary) -> None:
    names = [host.name for host in costs.hosts]
    slots = sorted({host.slots for host in costs.hosts})
    age = age_of(costs, utc_now())
    rows: list[tuple[str, object]] = [
        ("hosts", len(names)),
        ("slots of a host", ", ".join(map(str, slots))),
        ("measured", "at an unknown time" if age is None else f"{costs.measured_at}, {in_words(age)} ago"),
        ("latency", _spread(summary.latency_us, "us")),
        ("rate of a stream", _spread(tuple(rate / 1e6 for rate in summary.rates), "MB/s")),
    ]
    probing = costs.probing
    if probing is not None:
        rows.append(("echoes", f"{probing.probes} in each direction, percentile {probing.percentile:g}"))
        rows.append(("echoes lost, late", f"{probing.lost}, {probing.late}"))
        if (uneven := probing.asymmetry) is not None:
            pair = " - ".join(names[host] for host in uneven.pair)
            rows.append(("two directions apart", f"median {uneven.median:g} times, at most {uneven.largest:g}: {pair}"))
    if summary.affinity is not None and summary.affinity.compared:
        share = summary.affinity.correct / summary.affinity.compared
        rows.append(("nearer hosts cheaper", f"{share:.1%} of {many(summary.affinity.compared, 'triplet')}"))
    print_table(costs.name, ("what", "value"), [(what, value) for what, value in rows if value])
    print_table(
        "groups of near hosts",
        ("group", "size", "hosts"),
        [(number, len(group), _listed([names[host] for host in group])) for number, group in enumerate(summary.groups)],
    )
    if summary.unmeasured:
        pairs = _listed([f"{names[src]} - {names[dst]}" for src, dst in summary.unmeasured])
        note(f"{many(len(summary.unmeasured), 'pair')} of hosts did not answer: {pairs}")
    print_table("where the numbers come from", ("what", "source"), sorted(costs.sources.items()))


def _spread(values: tuple[float, ...], unit: str) -> str:
    """Least, median and largest."""
    if not values:
        return ""
    low, middle, high = (f"{value:.4g}" for value in values)
    return f"median {middle} {unit}, {low} to {high}"


def _listed(names: list[str], most: int = 16) -> str:
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])
