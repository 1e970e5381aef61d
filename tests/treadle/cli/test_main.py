"""How every command line ends: exit codes, one line on stderr, no traceback, nothing heavy imported for help."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from tests.planner.samples import TRACE
from treadle.cli import main as main_module
from treadle.cli.lazy import LazyGroup, UsageError
from treadle.cli.main import SUBCOMMANDS, Root, cli, run
from treadle.cli.plan import PASSES
from treadle.planner.documents.store import save
from treadle.planner.errors import CheckFailed, InfeasibleError, InputError, LimitError, MissingBackendError

XML = Path(__file__).parents[2] / "golden" / "msccl_xml" / "allreduce_ring4.out.xml"
ROOT = Path(__file__).parents[3]
TREADLE = [sys.executable, "-m", "treadle"]


def ended(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TREADLE, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a subcommand whose body is `body` and give its exit code and what it said on stderr."""

    def end(body: Callable[[], object]) -> tuple[int, str]:
        module = ModuleType("fake_subcommand")
        module.command = lambda: body()  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "fake_subcommand", module)
        monkeypatch.setattr(Root, "table", {**SUBCOMMANDS, "fake": ("fake_subcommand", "")})
        return run(["fake"]), capsys.readouterr().err

    return end


def raising(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (CheckFailed("2 findings", ("plan: $.a", "plan: $.b")), 1, "plan: $.a\nplan: $.b\nerror: 2 findings\n"),
        (InputError("found 1, expected 2", where="f", path="$.a"), 2, "error: f: $.a: found 1, expected 2\n"),
        (InputError("two\nlines", where="f"), 2, "error: f: two lines\n"),
        (InfeasibleError("least budget is 3 GiB"), 3, "error: least budget is 3 GiB\n"),
        (LimitError("no plan in time"), 4, "error: no plan in time\n"),
        (MissingBackendError("no nvcc; install cuda"), 5, "error: no nvcc; install cuda\n"),
        (
            ModuleNotFoundError("No module named 'torch.x'", name="torch.x"),
            5,
            "error: this needs torch.x, which is not installed; install it: pip install 'treadle[torch]'\n",
        ),
        (UsageError("wrong."), 2, "error: wrong (see `treadle fake --help`)\n"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device\n"),
        (PermissionError(13, "Permission denied", "some/file"), 2, "error: some/file: Permission denied\n"),
        (MemoryError(), 4, "error: found too little memory\n"),
        (MemoryError("Unable to allocate 2 GiB"), 4, "error: found too little memory: Unable to allocate 2 GiB\n"),
        (typer.Exit(1), 1, ""),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (typer.Abort(), 130, "error: interrupted\n"),
        (
            ZeroDivisionError("by\nzero"),
            70,
            "error: internal error: ZeroDivisionError: by zero; run again with TREADLE_DEBUG=1 and report it\n",
        ),
        (
            EOFError("cut off"),
            70,
            "error: internal error: EOFError: cut off; run again with TREADLE_DEBUG=1 and report it\n",
        ),
        (
            ModuleNotFoundError("No module named 'nope'", name="nope"),
            70,
            "error: internal error: ModuleNotFoundError: No module named 'nope'; "
            "run again with TREADLE_DEBUG=1 and report it\n",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_ends_in_its_exit_code_and_its_line(
    ending: Callable[..., tuple[int, str]], error: BaseException, code: int, line: str
) -> None:
    assert ending(raising(error)) == (code, line)


def test_a_command_that_returns_a_number_ends_in_it(ending: Callable[..., tuple[int, str]]) -> None:
    assert ending(lambda: 1) == (1, "")
    assert ending(lambda: None) == (0, "")


def test_tracebacks_are_shown_only_when_asked_for(
    ending: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" not in ending(raising(InputError("bad")))[1]
    monkeypatch.setenv("TREADLE_DEBUG", "0")
    assert "Traceback" not in ending(raising(ValueError("bad")))[1]
    monkeypatch.setenv("TREADLE_DEBUG", "1")
    code, text = ending(raising(ValueError("bad")))
    assert code == 70
    assert "Traceback" in text
    assert text.endswith("error: internal error: ValueError: bad; run again with TREADLE_DEBUG=1 and report it\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plann"], "error: no such command 'plann'; did you mean 'plan'? (see `treadle --help`)\n"),
        (["plan", "memmory"], "error: no such command 'memmory'; did you mean 'memory'? (see `treadle plan --help`)\n"),
        (["xyz"], f"error: no such command 'xyz'; expected one of {', '.join(SUBCOMMANDS)} (see `treadle --help`)\n"),
        (["trace", "cap"], "error: no such command 'cap'; did you mean 'capture'? (see `treadle trace --help`)\n"),
        (["--versoin"], "error: No such option: --versoin; did you mean '--version'? (see `treadle --help`)\n"),
        (["--bogus"], "error: No such option: --bogus (see `treadle --help`)\n"),
        (
            ["run", "x", "--backend", "gpu"],
            "error: Invalid value for '--backend': found 'gpu', expected one of cpu, fibers, cuda, gloo, nccl "
            "(see `treadle run --help`)\n",
        ),
        (
            ["run", "x", "--timeout", "nan"],
            "error: Invalid value for '--timeout': nan is not in the range 0<x<=1000000 (see `treadle run --help`)\n",
        ),
        (
            ["simulate", "x", "--size", "much"],
            "error: --size: found 'much', expected a size such as 4096, 64KiB or 8GiB\n",
        ),
        (
            ["plan", "swap", "-o", "x", "--time-limit", "inf"],
            "error: Invalid value for '--time-limit': inf is not in the range 0<x<=1000000 "
            "(see `treadle plan swap --help`)\n",
        ),
        (
            ["plan", "swap", "-o", "x", "--seed", "2147483648"],
            "error: Invalid value for '--seed': 2147483648 is not in the range 0<=x<=2147483647 "
            "(see `treadle plan swap --help`)\n",
        ),
        (
            ["run", "x", "--steps", "2.0"],
            "error: Invalid value for '--steps': '2.0' is not a whole number (see `treadle run --help`)\n",
        ),
        (["plan", "job", "x", "-o", ""], "error: --output: found an empty name, expected a file or folder to write\n"),
        (
            ["plan", "job", "x", "-o", __file__],
            f"error: --output: found {__file__!r}, which is a file, expected a folder\n",
        ),
        (["check", "a\x1b[31m\nb"], "error: a\\x1b[31m\\nb: cannot read: No such file or directory\n"),
        (["profile", "show"], "error: Missing argument 'NAME' (see `treadle profile show --help`)\n"),
    ],
)
def test_wrong_usage_ends_in_2_with_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (run(arguments), *capsys.readouterr()) == (2, "", line)


@pytest.mark.parametrize("arguments", [[], ["plan"]])
def test_no_arguments_print_the_help_as_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Usage: treadle")
    assert "Commands:" in printed.err
    assert printed.err.endswith(f"\nerror: found no command (see `{' '.join(['treadle', *arguments])} --help`)\n")


# Through real processes


def test_a_process_ends_in_2_with_one_line() -> None:
    done = ended("plann")
    line = "error: no such command 'plann'; did you mean 'plan'? (see `treadle --help`)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_an_exit_code_needs_no_stderr_to_write_to() -> None:
    with open("/dev/full", "w") as full:
        assert (
            subprocess.run([sys.executable, "-m", "treadle", "check", "--bogus"], stderr=full, check=False).returncode
            == 2
        )


def test_a_malformed_file_ends_in_2_with_one_line_naming_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hw.yaml").write_text("kind: hardware\nversion: 1\nname: x\nnodes: many\ndevices: []\n")
    line = f"error: {tmp_path}/hw.yaml: $.nodes: found 'many' (text), expected a whole number of at least 1\n"
    assert (run(["profile", "show", str(tmp_path / "hw.yaml")]), capsys.readouterr().err) == (2, line)
    traced = ended("profile", "show", str(tmp_path / "hw.yaml"), TREADLE_DEBUG="1")
    assert traced.returncode == 2
    assert "Traceback" in traced.stderr
    assert traced.stderr.endswith(line)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    script = f"{sys.executable} -m treadle profile show ndv4 --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "{\n0\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments", [["profile", "show", "ndv4"], ["profile", "show", "ndv4", "--json"], ["trace", "show", "step.json"]]
)
def test_a_reader_that_never_came_is_no_error(arguments: list[str], tmp_path: Path) -> None:
    save(TRACE, tmp_path / "step.json")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*TREADLE, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("redirection", "code", "line"),
    [(">&-", 0, ""), ("2>&-", 0, ""), (">/dev/full", 2, "error: stdout: No space left on device\n")],
)
def test_closed_and_full_outputs_end_quietly(redirection: str, code: int, line: str) -> None:
    script = f"{sys.executable} -m treadle profile list {redirection}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, line)


def test_a_terminal_without_unicode_gets_other_characters(tmp_path: Path) -> None:
    save(TRACE, tmp_path / "step.json")
    done = ended("trace", "show", str(tmp_path / "step.json"), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "live bytes over the ops" in done.stdout


def test_ctrl_c_ends_in_130_without_a_traceback() -> None:
    code = """
        import sys, time, types
        from treadle.cli.main import Root, run
        fake = types.ModuleType("fake")
        fake.command = lambda: (print("ready", flush=True), time.sleep(60))
        sys.modules["fake"] = fake
        Root.table["fake"] = ("fake", "")
        sys.exit(run(["fake"]))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "error: interrupted\n")


@pytest.mark.parametrize("module", ["treadle.cli.main", "pydantic", "lxml", "numpy"])
def test_ctrl_c_during_an_import_ends_in_one_line(module: str) -> None:
    code = f"""
        import os, signal, sys
        from treadle.__main__ import main

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, Finder())
        sys.argv = ["treadle", "check", {str(XML)!r}]
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_little_is_imported_before_ctrl_c_is_ours() -> None:
    """Until then Python prints a traceback."""
    code = "import sys; before = set(sys.modules); import treadle.__main__; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "treadle.__main__" in done.stdout
    assert {"re", "typing", "typer", "contextlib"}.isdisjoint(done.stdout.split())


def test_what_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    """As in the background of a shell script."""
    code = (
        "import os, signal, sys; from treadle.__main__ import main\n"
        "sys.meta_path.insert(0, type('F', (), {'find_spec': lambda *_: os.kill(os.getpid(), signal.SIGINT)})())\n"
        "sys.argv = ['treadle', '--version']; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_checking_one_xml_imports_no_solver_and_no_graph_library() -> None:
    code = (
        "import sys\nfrom treadle.cli.main import run\n"
        f"code = run(['check', {str(XML)!r}])\n"
        "print([name for name in ('scipy', 'networkx', 'ortools', 'torch', 'numba') if name in sys.modules])\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[1:]) == (0, "", ["[]"])


HEAVY = ["torch", "ortools", "msgspec", "numpy", "scipy", "lxml", "yaml", "rich", "jinja2", "networkx", "matplotlib"]
HEAVY += ["numba", "distributed", "pydantic"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom treadle.cli.main import run\n"
        "codes = [run(each) for each in (['--help'], ['plan', '--help'], ['--version'])]\n"
        f"print(codes, [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[0, 0, 0] []\n"


def test_every_help_works_without_torch_and_solvers() -> None:
    code = """
        import sys
        for name in ("torch", "ortools", "gurobipy", "scipy", "matplotlib", "google.protobuf", "numba", "distributed"):
            sys.modules[name] = None
        from tests.treadle.cli.test_main import leaves
        from treadle.cli.main import cli, run

        for name in leaves(cli):
            for path in (name.split(" "), name.split(" ")[:-1]):
                assert run([*path, "--help"]) == 0, path
        loaded = {"torch", "rich", "pydantic"} & {name for name, module in sys.modules.items() if module}
        assert not loaded, loaded
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^Usage: treadle ?(.*?) \[OPTIONS\]", done.stdout, re.MULTILINE)
    assert {*SUBCOMMANDS, *(f"plan {name}" for name in PASSES)} <= set(shown)


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text()
    documented = set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE))
    errors = {CheckFailed, InputError, InfeasibleError, LimitError, MissingBackendError}
    codes = {0, main_module.INTERNAL_ERROR, main_module.INTERRUPTED, *(error.exit_code for error in errors)}
    assert documented == {str(code) for code in codes}


def leaves(command: Any, path: tuple[str, ...] = ()) -> dict[str, TyperCommand]:
    """Every command that does something, by its name on the command line."""
    if isinstance(command, TyperCommand):
        return {" ".join(path): command}
    found: dict[str, TyperCommand] = {}
    for name in command.list_commands(None):
        inner = command.load(name) if isinstance(command, LazyGroup) else command.get_command(None, name)
        found |= leaves(inner, (*path, name))
    return found


def test_every_command_has_json_and_help_for_every_option() -> None:
    for name, command in leaves(cli).items():
        assert any("--json" in each.opts for each in command.params), f"{name} lacks --json"
        assert command.help, f"{name} lacks a description"
        for each in command.params:
            assert isinstance(each, TyperOption | TyperArgument)
            assert each.help, f"{name} {each.opts[0]} lacks a help text"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_commands_that_pages_show_have_these_options() -> None:
    options = {
        name: {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        for name, command in leaves(cli).items()
    }
    shown = 0
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        lines = [line for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) for line in block.split("\n")]
        for line in (*lines, *re.findall(r"`(treadle [^`]*)`", text)):
            called = re.match(r"\s*(?:\$ )?treadle ((?:[a-z]+\s+)+)(.*)", re.sub(r"\s(#|\|\|).*", "", line), re.DOTALL)
            words = called[1].split() if called else []
            name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in options), None)
            own = called[2].split(" -- ")[0] if called and name else ""
            for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", own):
                assert option in {*options[name or ""], "--help", "-h"}, f"{page.name}: {line}"
                shown += 1
    assert shown > 100
