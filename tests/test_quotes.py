"""Pages quote what commands print: each page's commands run in their order, end as shown and print what is shown."""

from __future__ import annotations

import faulthandler
import re
from pathlib import Path

import pytest

from tests.quotes import EVENT, PAGES, Quote, commands, pictures, ran

QUICK = {"json-output.md", "memory-problem.md"}
"""Pages that take few seconds; the others are slow."""

RUN = [
    pytest.param(page, id=page.name, marks=() if page.name in QUICK else pytest.mark.slow)
    for page in PAGES
    if commands(page.read_text())
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", RUN)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # ends the process after 360 s, which a busy machine may need
    for quote in ran(page.read_text(), tmp_path):
        assert quote.ends_as_shown, f"{quote.command}\n{quote.printed}"
        assert quote.accurate, f"{quote.command}\nshown:\n{quote.shown}\nprinted:\n{quote.printed}"
    for shown, drawn in pictures(page, tmp_path):
        assert drawn.read_bytes() == shown.read_bytes(), f"{shown.name} is older than its command; make docs"


def test_every_block_that_shows_a_command_is_one_that_runs() -> None:
    """A `$ ` outside of a console block would be output that nothing compares."""
    for page in PAGES:
        text = EVENT.sub("", page.read_text())
        assert not re.search(r"^\$ ", text, re.MULTILINE), f"{page.name} shows a command outside of ```console"


@pytest.mark.parametrize(
    ("command", "shown", "printed", "accurate"),
    [
        ("treadle check a", "a: accepted (7)\n", "a: accepted (7)\n", True),
        ("treadle check a", "a: accepted (7)\n", "a: accepted (8)\n", False),
        ("treadle check a", "a\n...\nz\n", "a\nb\nc\nz\n", True),
        ("treadle check a", "a\n...\nz\n", "a\nb\nc\n", False),
        ("treadle run a", "  step  93.1 ms, 72.1 MiB\n", "  step  101.7 ms, 72.1 MiB\n", True),
        ("treadle run a", "  step  93.1 ms, 72.1 MiB\n", "  step  93.1 ms, 72.2 MiB\n", False),
        ("treadle plan job a", "fits: by 14 KiB\n", "fits: by 1.02 MiB\n", True),
        ("treadle plan job a", "fits: by 14 KiB\n", "over: by 14 KiB\n", False),
        (
            "treadle check a.index.plan.json",
            "took the 7th predicted, 1.46 times as fast as the 1st; off: 0.53\n",
            "took the 1st predicted; off: 1.02\n",
            True,
        ),
    ],
)
def test_numbers_count_except_where_a_command_measures(command: str, shown: str, printed: str, accurate: bool) -> None:
    quote = Quote(command, shown, printed, 0)
    assert quote.accurate == accurate
    assert quote.updated() == (shown if accurate else quote.updated())
    assert Quote(command, quote.updated(), printed, 0).accurate


def test_a_cut_in_a_block_stays_where_it_is() -> None:
    assert Quote("treadle check a", "1\n...\n9\n", "one\ntwo\nthree\nfour\n", 0).updated() == "one\n...\nfour\n"


def test_a_command_that_fails_where_the_page_shows_success_is_found() -> None:
    assert not Quote("treadle check a", "a: accepted\n", "error: a: cannot read\n", 2).ends_as_shown
    assert Quote("treadle check a", "error: a: cannot read\n", "error: a: cannot read\n", 2).ends_as_shown
