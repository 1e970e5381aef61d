"""Live lines, lines of a log, and colours."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from treadle.cli import output
from treadle.cli.main import run
from treadle.cli.output import LOG_S, live_line, note_error, print_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that pass only where a test says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(output, "sys", SimpleNamespace(stderr=stream))  # pytest replaces sys.stderr before each test
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_log_gets_a_line_every_thirty_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with live_line(clock) as show:
        for second in range(100):
            clock.now_s = second
            show(f"best at {second} s")
    assert LOG_S == 30
    assert capsys.readouterr().err == "best at 30 s\nbest at 60 s\nbest at 90 s\n"


def test_short_work_logs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with live_line(Clock()) as show:
        show("best")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_one_line_ten_times_a_second_which_is_erased(terminal: Terminal) -> None:
    clock = Clock()
    with live_line(clock) as show:
        for text in ("first", "too early", "second"):
            show(text)
            clock.now_s += 0.06
    assert terminal.getvalue() == "\r\x1b[2Kfirst\r\x1b[2Ksecond\r\x1b[2K"


def test_a_dumb_terminal_is_a_log(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    clock = Clock()
    with live_line(clock) as show:
        show("first")
        clock.now_s = 31
        show("second")
    note_error("wrong")
    assert terminal.getvalue() == "second\nerror: wrong\n"


def test_a_note_replaces_the_live_line(terminal: Terminal) -> None:
    with live_line(Clock()) as show:
        show("best so far")
        output.note("cuDNN is absent")
    assert terminal.getvalue().startswith("\r\x1b[2Kbest so far\r\x1b[2KcuDNN is absent\n")


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False), ({"TERM": "dumb"}, False),
     ({"TERM": "dumb", "FORCE_COLOR": "1"}, True)],
)  # fmt: skip
def test_errors_have_colour_on_a_terminal(
    environment: dict[str, str], coloured: bool, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    note_error("wrong")
    assert terminal.getvalue() == ("\x1b[31m\x1b[1merror: \x1b[0mwrong\n" if coloured else "error: wrong\n")


@pytest.mark.parametrize(("force", "bold"), [("1", True), ("0", False), ("", False)])
def test_titles_are_bold_off_a_terminal_only_where_asked_for(
    force: str, bold: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", force)
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_table("links", ("kind", "count"), [("nvlink", 6)])
    assert ("\x1b[" in capsys.readouterr().out) is bold
    monkeypatch.setenv("NO_COLOR", "1")
    print_table("links", ("kind", "count"), [("nvlink", 6)])
    assert "\x1b[" not in capsys.readouterr().out


def test_help_and_errors_off_a_terminal_have_no_escape_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--help"]) == 0
    assert run(["plan", "memry"]) == 2
    assert "\x1b" not in "".join(capsys.readouterr())
