"""What the benchmarks print, and that their hand-made peers are what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import NAMES, main
from benchmarks.collectives import Peer, ring, tree, two_level
from benchmarks.common import Table, show
from planner import documents, resources
from planner.hardware import Hardware, scaled


@pytest.fixture(scope="module")
def ndv2() -> Hardware:
    return scaled(documents.load(resources.locate("profiles", "ndv2"), Hardware), 2)


def test_every_file_is_a_benchmark_that_is_listed():
    files = {path.stem for path in Path(import_module("benchmarks").__path__[0]).glob("[!_]*.py")}
    assert files - {"common"} == set(NAMES)
    listed = CliRunner().invoke(main, ["--list"]).output
    assert all(name in listed for name in NAMES)


def test_an_unknown_benchmark_is_refused():
    result = CliRunner().invoke(main, ["nothing"])
    assert result.exit_code == 2
    assert "'nothing'" in result.output


def test_tables_and_json_show_the_same_rows(capsys):
    table = Table("title", [{"name": "a", "ratio": 1.25}, {"name": "b"}], ("a note",))
    show([table], as_json=False)
    printed = capsys.readouterr().out
    assert "1.250" in printed
    assert "a note" in printed
    show([table], as_json=True)
    assert json.loads(capsys.readouterr().out)["tables"] == [
        {"title": "title", "rows": table.rows, "notes": ["a note"]}
    ]


def test_planning_benchmarks_start_without_torch():
    code = "import benchmarks.memory_planning, benchmarks.collectives, sys; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_one_ring_is_as_slow_as_its_network_link(ndv2):
    """Of 16 chunks of 1 MiB all but one cross each InfiniBand link of the ring, at 1.7 + 106 us each."""
    assert ring("allgather", ndv2, 2**20, 1) == 15 * 107_700


def test_a_tree_takes_its_depth_twice(ndv2):
    """Three NVLink levels of 0.7 us and one InfiniBand level of 1.7 us, up and down, of next to no bytes."""
    assert 2 * (3 * 700 + 1700) <= tree(ndv2, 16) <= 2 * (3 * 700 + 1700) * 1.1


def test_two_levels_move_less_between_nodes_than_a_ring(ndv2):
    assert two_level(ndv2, 2**24, 1) < ring("allreduce", ndv2, 2**24, 1)


def test_a_wrong_peer_is_not_timed(ndv2):
    peer = Peer("allgather", ndv2, 2**10, 1)
    peer.send(0, 0, 1, [])
    with pytest.raises(RuntimeError, match="never arrives"):
        peer.time_ns()
