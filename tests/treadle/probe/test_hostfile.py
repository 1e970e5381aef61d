"""Hostfiles: three spellings, and one line with file and number for everything else."""

from __future__ import annotations

import pytest

from treadle.planner.errors import InputError
from treadle.probe.hostfile import parse_hostfile


def test_the_spellings_of_launchers_are_read() -> None:
    text = "# gpus\n\ngpu1\ngpu2 slots=8   # eight\ngpu3:4\n  10.0.0.9  slots = 2\nnode-5.rack_1.example.org:1\n"
    found = [tuple(host) for host in parse_hostfile(text, "h")]
    assert found == [("gpu1", 1), ("gpu2", 8), ("gpu3", 4), ("10.0.0.9", 2), ("node-5.rack_1.example.org", 1)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "h: found 0 hosts, expected 2 to 4096"),
        ("a\n", "h: found 1 hosts, expected 2 to 4096"),
        ("a\nb\na slots=2\n", "h: line 3: found a again, expected each host once; it is in line 1"),
        ("a\nb slots=0", "h: line 2: found '0' slots of b, expected a number from 1 to 1024"),
        ("a\nb:", "h: line 2: found '' slots of b"),
        ("a\nb:-1", "h: line 2: found '-1' slots of b"),
        ("a\nb slots=99999", "h: line 2: found '99999' slots of b"),
        ("a\nb slots=８", "h: line 2: found '８' slots of b"),
        ("a\nb max_slots=2", "h: line 2: found 'b max_slots=2', expected a name, `name slots=8` or `name:8`"),
        ("a\nb slots=2 max_slots=4", "h: line 2: found 'b slots=2 max_slots=4', expected a name"),
        ("a\nb c", "h: line 2: found 'b c', expected a name"),
        ("a\n-oProxyCommand=touch", "h: line 2: found '-oProxyCommand=touch', expected the name or IPv4 address"),
        ("a\nb;reboot", "h: line 2: found 'b;reboot', expected the name or IPv4 address"),
        ("a\n$(reboot)", "h: line 2: found '$(reboot)', expected the name or IPv4 address"),
        ("a\nroot@b", "h: line 2: found 'root@b', expected the name or IPv4 address"),
        ("a\nb'\"", "expected the name or IPv4 address"),
        ("a\nbü", "h: line 2: found 'bü', expected the name or IPv4 address"),
        ("a\nfe80::1", "h: line 2: found"),
        ("a\n" + "b" * 300, "expected the name or IPv4 address"),
    ],
)
def test_anything_else_is_one_line(text: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        parse_hostfile(text, "h")
    assert line in str(error.value)
    assert "\n" not in str(error.value)
