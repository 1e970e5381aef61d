"""Tables of latencies from other probers: separators, gaps, scales; every mistake is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.cli.main import run
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.errors import InputError
from treadle.probe.matrix_import import import_matrix


def table(folder: Path, text: str) -> Path:
    path = folder / "rtt.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        ",a,b,c\na,0,1.5,2\nb,1.5,0,\nc,2,4,0\n",
        "# us\nhost;a;b;c\na;;1.5;2\nb;1.5;-;nan\n\nc;2;4;\n",
        "\ta\tb\tc\na\t0\t1.5\t2\nb\t1.5\t0\t-\nc\t2\t4\t0\n",
        "a b c\na 0 1.5 2\nb 1.5 0 -\nc 2 4 0\n",
        '"","a","b","c"\n"a",7,1.5,2\n"b",1.5,7,""\n"c",2,4,7\n',
    ],
    ids=["commas", "semicolons", "tabs", "blanks", "quotes"],
)
def test_the_separators_of_other_tools_are_read(text: str, tmp_path: Path) -> None:
    found = import_matrix(table(tmp_path, text), None, 1.0)
    assert [host.name for host in found.hosts] == ["a", "b", "c"]
    assert found.latency_us == ((0, 1.5, 2), (1.5, 0, None), (2, 4, 0))
    assert found.name == "rtt"
    assert found.measured_at is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "rtt.csv: found nothing, expected a line that names the hosts"),
        (",a,b\na,0,1\n", "rtt.csv: found 1 rows, expected one for each of"),
        (",a,b\na,0,1\nc,1,0\n", "rtt.csv: line 3: found the row of 'c', expected that of 'b'"),
        (",a,b\na,0,1,2\nb,1,0\n", "rtt.csv: line 2: found 3 numbers, expected one for each of 2 hosts"),
        (",a,b\na,0,fast\nb,1,0\n", "rtt.csv: line 2: found 'fast', expected a number from 0 on, or nothing"),
        (",a,b\na,0,-1\nb,1,0\n", "rtt.csv: line 2: found '-1', expected a number"),
        (",a,b\na,0,inf\nb,1,0\n", "rtt.csv: line 2: found 'inf', expected a number"),
        (",a,a\na,0,1\na,1,0\n", "rtt.csv: $.hosts[1].name: found 'a' again"),
    ],
)
def test_a_mistake_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        import_matrix(table(tmp_path, text), None, 1.0)
    assert line in str(error.value)


def test_profile_import_takes_a_table_by_its_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path, ",a,b\na,0,5\nb,7,0\n")
    assert run(["profile", "import", "rtt.csv", "-o", "m.json", "--cost-scale", "0.5", "--name", "cloud"]) == 0
    found = store.load("m.json", CostMatrix)
    assert (found.name, found.latency_us) == ("cloud", ((0, 2.5), (3.5, 0)))
    assert "wrote m.json: latencies between 2 hosts" in capsys.readouterr().err
    assert run(["profile", "import", "rtt.csv", "-o", "n.json", "--costs-from", "ndv2"]) == 2
    assert "--costs-from: found a table of latencies" in capsys.readouterr().err
