"""What `--help` and `help` print: lists that agree with the commands they list, whole sentences, plain arguments."""

from __future__ import annotations

import re

import pytest
from typer.core import TyperCommand

from treadle.cli.main import SUBCOMMANDS, Root, run


def first_sentence(help: str) -> str:
    return " ".join(help.partition("\n\n")[0].split())


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_list_of_commands_says_what_their_own_help_says(name: str) -> None:
    """A group in the same words, and by the verbs of its commands in their order; a single command by the same verb."""
    short = SUBCOMMANDS[name][1]
    command = Root.load(Root(), name)
    if isinstance(command, TyperCommand):
        assert (command.help or "").split()[0] == short.split()[0]
        return
    assert short == first_sentence(command.help)
    inner = [first_sentence(each.help) for each in getattr(command, "commands", {}).values()]
    verbs = re.split(", | or ", re.match(r"\w+(, \w+)*( or \w+)?", short)[0].lower())  # type: ignore[index]
    assert verbs == ([each.split()[0].lower() for each in inner] or [name])


@pytest.mark.parametrize("path", [[], *([name] for name in SUBCOMMANDS)])
def test_no_line_of_a_list_of_commands_is_cut(path: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == 0
    assert not re.findall(r"^  .*\w\.\.\.$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        (["help"], ["--help"]),
        (["help", "plan"], ["plan", "--help"]),
        (["help", "plan", "memory"], ["plan", "memory", "--help"]),
        (["plan", "help", "memory"], ["plan", "memory", "--help"]),
        (["help", "check"], ["check", "--help"]),
    ],
)
def test_help_is_a_word_too(arguments: list[str], same: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert run(same) == 0
    assert shown == capsys.readouterr().out
    assert shown.startswith("Usage: treadle")


def test_help_names_arguments_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, line in {
        ("check",): "  FILE...  Plans, other documents, folders",
        ("simulate",): "  FILE  A plan, or MSCCL XML.",
        ("trace", "show"): "  FILE  A trace.",
        ("plan", "collective"): "  COLLECTIVE <allgather|",
    }.items():
        assert run([*arguments, "--help"]) == 0
        shown = capsys.readouterr().out
        assert line in shown
        assert "<str>" not in shown
        assert "<list[" not in shown
