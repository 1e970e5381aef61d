"""Files of programs become problems, or one line that says where they fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.array.program import problem_of_program
from treadle.planner.errors import InputError

POWER = """
import treadle.array as ta

def scaled(tile):
    return tile * 3

def program():
    x = ta.map_tiles(scaled, ta.ones((4, 4)))
    for _ in range(2):
        x = x @ x
    return x

def broken():
    return ta.ones(3) @ ta.ones(4)

def absent():
    return ta.ones(3).no_such_name
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_program_with_a_function_of_its_own(folder: Path) -> None:
    path = folder / "powers_of_matrices.py"
    path.write_text(POWER)
    problem = problem_of_program(path)
    assert problem.name == "powers_of_matrices"
    assert [node.function for node in problem.nodes] == ["ones", "powers_of_matrices:scaled", "matmul", "matmul"]


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        (POWER, "broken", r"failing_program.py:14: matmul of shapes \(3,\) and \(4,\)"),
        (POWER, "absent", r"failing_program.py:17: AttributeError: 'Array' object has no attribute 'no_such_name'"),
        (POWER, "missing", "name a function of the file, as FILE.py:FUNCTION; it has scaled, program, broken, absent"),
        ("x = (", None, "failing_program.py:1: SyntaxError"),
        ("raise RuntimeError", None, "failing_program.py:1: RuntimeError"),
        ("def program():\n    raise SystemExit(0)", None, "failing_program.py:2: SystemExit: 0"),
        ("", None, "it has none"),
    ],
)
def test_programs_that_fail_say_where(folder: Path, text: str, function: str | None, message: str) -> None:
    path = folder / "failing_program.py"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        problem_of_program(path, function)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_modules(folder: Path) -> None:
    for name, message in (("absent.py", "does not exist"), ("two words.py", "no Python file"), ("json.py", "rename")):
        path = folder / name
        path.write_text("") if name == "json.py" else None
        with pytest.raises(InputError, match=message):
            problem_of_program(path)


def test_what_a_program_does_to_its_process_does_not_reach_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, here = folder / "talking_program.py", Path.cwd()
    path.write_text(
        "import os\nprint('at import')\n" + POWER.replace("    x =", "    print('x'), os.chdir('/')\n    x =", 1)
    )
    problem_of_program(path, "program")
    shown = capsys.readouterr()
    assert (shown.out, shown.err, Path.cwd()) == ("", "at import\nx\n", here)
