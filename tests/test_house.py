"""The house itself: the wheel works on its own, the documents are true, and no machine shows through."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tokenize
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from treadle.planner.documents import store
from treadle.planner.passes import ROOMS, rooms
from treadle.planner.passes.collective.planning import METHODS
from treadle.planner.passes.interface import PlanFunction
from treadle.planner.version import __version__

ROOT = Path(__file__).parents[1]
TEXTS = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".j2", ".txt", ".proto", ".svg", ".xml", "", ".html"}
PACKAGES = ("planner", "codegen", "treadle")
TREE = (*PACKAGES, "templates", "sketches", "profiles", "tests", "benchmarks", "docs", "examples")


@cache
def files() -> list[Path]:
    """Every source file of the house."""
    inside = [path for folder in TREE for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    top = [path for path in sorted(ROOT.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return [path for path in [*top, *inside, ROOT / ".ci" / "run"] if "__pycache__" not in path.parts]


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


# The wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and, after it, the dependencies of this one; it does not see the checkout."""
    home = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    packages = next(home.glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def alone(installed: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the wheel's environment in `folder`, far from the checkout."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TREADLE"))}
    return subprocess.run(
        [str(installed / command[0]), *command[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_carries_what_ships(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for kind in ("templates", "sketches", "profiles", "examples"):
        shipped = [path for path in (ROOT / kind).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert shipped
        assert {f"treadle/planner/_data/{path.relative_to(ROOT)}" for path in shipped} <= inside
    assert not [name for name in inside if name.startswith(("tests", "examples", "benchmarks", "docs"))]


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    assert "treadle/py.typed" in archive.namelist()
    facts = archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    for line in (
        "License-Expression: Apache-2.0",
        "Description-Content-Type: text/markdown",
        "Requires-Python: >=3.11",
    ):
        assert f"\n{line}\n" in facts
    assert "Typing :: Typed" in facts


@pytest.mark.slow
def test_the_wheel_has_the_same_bytes_however_it_is_built(wheel: Path, tmp_path: Path) -> None:
    """From the checkout at another moment, and from the source distribution, which has no links."""
    build = [sys.executable, "-m", "build", "--no-isolation"]
    subprocess.run([*build, "--sdist", "--outdir", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    unpacked = next((tmp_path / "source").iterdir())
    for source in (ROOT, unpacked):
        out = tmp_path / f"from-{source.name}"
        subprocess.run([*build, "--wheel", "--outdir", str(out), str(source)], check=True, capture_output=True)
        assert next(out.glob("*.whl")).read_bytes() == wheel.read_bytes()


@pytest.mark.slow
def test_the_dockerfile_installs_the_wheel_without_an_index(wheel: Path, tmp_path: Path) -> None:
    """Its RUN lines of the first stage, in another place and for the wheel only: no package index is asked."""
    _, first, second = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).split("\nFROM ")
    assert "\nCOPY dist/wheelhouse /wheelhouse\n" in first
    assert "\nCOPY --from=build /opt/treadle /opt/treadle\n" in second
    assert second.index("\nUSER treadle\n") < second.index('\nENTRYPOINT ["treadle"]\n')
    (tmp_path / "wheelhouse").mkdir()
    (tmp_path / "wheelhouse" / wheel.name).write_bytes(wheel.read_bytes())
    for command in re.findall(r"^RUN (.*)$", first, re.MULTILINE):
        there = command.replace("/wheelhouse", f"{tmp_path}/wheelhouse").replace("/opt/", f"{tmp_path}/")
        there = re.sub(r"^python ", f"{sys.executable} ", there)
        environment = {**os.environ, "PIP_NO_DEPS": "1", "PIP_CONFIG_FILE": os.devnull}
        subprocess.run(["bash", "-c", there], check=True, capture_output=True, env=environment)
    site = next((tmp_path / "treadle").glob("lib/python*/site-packages"))
    assert (site / "treadle" / "planner" / "_data" / "examples" / "fusion" / "adam.py").is_file()
    assert (tmp_path / "treadle" / "bin" / "treadle").is_file()


@pytest.mark.slow
def test_type_checkers_see_the_types_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The package comes from the wheel, and PyTorch and mypy from this environment."""
    (tmp_path / "train.py").write_text("import treadle\nreveal_type(treadle.apply)\ntreadle.apply(3, 'plan.json')\n")
    done = alone(installed, tmp_path, "python", "-m", "mypy", "--strict", "train.py")
    assert "-> treadle.runtime.planned_module.PlannedModule" in done.stdout
    assert 'Argument 1 to "apply" has incompatible type "int"; expected Module' in done.stdout
    assert "Found 1 error in 1 file" in done.stdout


def test_the_wheel_runs_its_own_code(installed: Path, tmp_path: Path) -> None:
    code = "from treadle import codegen, planner; print(planner.__file__, codegen.__file__)"
    done = alone(installed, tmp_path, "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(installed.parent)) for path in done.stdout.split())


def test_files_of_a_user_may_have_the_names_of_our_folders(installed: Path, tmp_path: Path) -> None:
    for name in ("planner", "codegen"):
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    (tmp_path / "train.py").write_text(
        "import codegen, planner, treadle\nprint(codegen.MINE, planner.MINE, treadle.apply)\n"
    )
    done = alone(installed, tmp_path, "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True True <function apply")


@pytest.mark.slow
def test_the_wheel_plans_a_collective_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = alone(
        installed,
        tmp_path,
        *("treadle", "plan", "collective", "allgather", "--hardware", "ring4", "--sketch", "ring", "--size", "64KiB"),
        *("-o", "ring.plan.json"),
    )
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path) == ["ring.plan.json"]
    checked = alone(installed, tmp_path, "treadle", "check", "ring.plan.json")
    assert checked.returncode == 0, checked.stderr
    made = alone(
        installed, tmp_path, "treadle", "generate", "ring.plan.json", "--target", "msccl-xml", "-o", "artefacts"
    )
    assert made.returncode == 0, made.stderr


MODEL = """
import torch

def step():
    layers = [torch.nn.Linear(32, 32) if n % 2 == 0 else torch.nn.GELU() for n in range(12)]
    return torch.nn.Sequential(*layers), (torch.randn(2048, 32),)
"""


@pytest.mark.slow
def test_the_wheel_plans_memory_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    captured = alone(installed, tmp_path, "treadle", "trace", "capture", "model:step", "-o", "step.trace.json")
    assert captured.returncode == 0, captured.stderr
    done = alone(
        installed,
        tmp_path,
        *("treadle", "plan", "memory", "--trace", "step.trace.json", "--hardware", "cpu-2x2", "--budget", "0.7x"),
        *("-o", "memory.plan.json"),
    )
    assert done.returncode == 0, done.stderr
    made = alone(installed, tmp_path, "treadle", "generate", "memory.plan.json", "--target", "torch", "-o", "artefacts")
    assert made.returncode == 0, made.stderr


# The checkout


def test_no_file_shows_the_machine_it_was_written_on() -> None:
    names = [re.escape(str(ROOT)), re.escape(str(Path.home())) + r"/", "/tmp/", r"\.\./shared", "/home/", "/work/"]
    allowed = {"tests/conftest.py": r"\.\./shared"}
    for path in files():
        if path.suffix not in TEXTS or path == Path(__file__):
            continue
        text = text_of(path)
        for pattern in names:
            if allowed.get(str(path.relative_to(ROOT))) != pattern:
                assert not re.search(pattern, text), f"{path.relative_to(ROOT)} holds {pattern}"


def test_no_test_asserts_how_long_something_takes() -> None:
    for path in files():
        if path.suffix == ".py" and path.is_relative_to(ROOT / "tests"):
            timed = re.search(
                r"assert [^\n]*(monotonic|perf_counter|process_time|time\.time)\(\) - \w+ <", path.read_text()
            )
            assert not timed, f"{path.relative_to(ROOT)}: {timed[0]}; figures belong into benchmarks"


def test_links_in_the_documents_lead_somewhere() -> None:
    pages = [path for path in files() if path.suffix == ".md"]
    assert pages
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    folders = "planner|codegen|treadle|tests|benchmarks|examples|templates"
    for name in re.findall(rf"(?<![\w/.~-])(?:{folders})/[\w./*-]*(?![\w./*<-])", page.read_text()):
        example = "/toy" in name  # the pass that docs/adding-a-pass.md adds
        assert example or any(ROOT.glob(name.rstrip("./"))), f"{page.name} names {name}"


def test_files_that_the_architecture_names_exist() -> None:
    for name in re.findall(r"`(\w+\.py)`", (ROOT / "docs" / "architecture.md").read_text()):
        assert any(any((ROOT / package).rglob(name)) for package in PACKAGES), f"architecture.md names {name}"
    for text in re.findall(r">([^<]+)</text>", (ROOT / "docs" / "architecture.svg").read_text()):
        for name in re.findall(r"\b(?:\w+/)+(?= |$)", text):
            assert any((ROOT / folder / name).is_dir() for folder in (".", *PACKAGES)), f"architecture.svg names {name}"


def resolved(name: str) -> Any:
    """What `treadle.x.y` names: a module, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for attribute in parts[end:]:
            found = getattr(found, attribute)
        return found
    raise AttributeError(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_that_a_page_imports_exist(page: Path) -> None:
    text = page.read_text()
    classes = set(re.findall(r"^\| `(\w+)` \| `treadle", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE))
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for module, names in re.findall(r"^ *from (treadle[\w.]*) import ([\w, ]+)$", block, re.MULTILINE):
            for name in names.split(", ") if ".toy" not in module else ():
                found = resolved(f"{module}.{name}")
                assert not isinstance(found, type) or name in classes, f"docs/glossary.md lacks {name}"
    for name in re.findall(r"`(treadle(?:\.[a-z_]\w+)+)\b(?![-/])", text):  # `treadle.check/1` is a schema
        resolved(name)
    for name, module in re.findall(r"^\| `(\w+)` \| `(treadle[\w.]+)` \|", text, re.MULTILINE):
        resolved(f"{module}.{name}")


@pytest.mark.parametrize("page", PAGES[:1] + PAGES[3:], ids=lambda page: page.name)
def test_a_page_opens_with_one_title_and_a_short_sentence(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1
    opening = next(block for block in text.split("\n\n")[1:] if not block.startswith(("!", "#")))
    assert opening[0] not in "|-<", f"{page.name} opens with no sentence"
    assert len(re.split(r"[.:;](?:\s|$)", opening)[0].split()) <= 25


FORBIDDEN = (
    r"told|tells?|telling|hears?|heard|speaks?|spoken|nobody|somebody|(made|mak(e|es|ing) (it|them)) again|"
    r"by (itself|themselves)|at hand|where there (is|are) (one|none)|so many|beside|in vain|of no (more )?use|"
    r"stands? its check|ways?|reckon(s|ed)?|betters|is over|carr(y|ies) out|go(es)? along|spec \d|"
    r"as published|the source(?! (rank|text|code|of|file))|(?<=is )no room"
)
"""Words that pages, docstrings and messages do not use; `the source rank` and `source code` are other senses."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_the_terms_of_the_field(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    found = re.search(rf"\b({FORBIDDEN})\b", " ".join(prose.split()), re.IGNORECASE)
    assert not found, f"{page.name}: {found[0]}"


def product_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PACKAGES]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_comments_and_messages_use_the_terms_of_the_field(package: str) -> None:
    found = []
    for path in product_files():
        inside = path.relative_to(ROOT).parts[0] == package
        for token in tokenize.generate_tokens(io.StringIO(text_of(path)).readline) if inside else ():
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                place, prose = f"{path.relative_to(ROOT)}:{token.start[0]}", " ".join(token.string.split())
                found += [f"{place}: {word[0]}" for word in re.finditer(rf"\b({FORBIDDEN})\b", prose, re.IGNORECASE)]
                found += [f"{place} opens with Of" for _ in re.finditer(r'^("""|# )Of ', prose)]
    assert not found


def test_a_public_class_name_has_one_meaning() -> None:
    paths: dict[str, str] = {}
    for path in product_files():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                place = str(path.relative_to(ROOT))
                assert node.name not in paths, f"{place} and {paths[node.name]} have a class {node.name}"
                paths[node.name] = place


def test_the_index_links_every_page_and_the_readme_the_index() -> None:
    linked = set(re.findall(r"\(([\w-]+\.md)[)#]", (ROOT / "docs" / "index.md").read_text()))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()


def test_the_methods_page_names_every_collective_method() -> None:
    text = (ROOT / "docs" / "methods.md").read_text()
    for name in METHODS:
        assert re.search(rf"`{name}` \||\*\*{name}\*\*", text), f"docs/methods.md lacks {name}"
    assert len(METHODS) == 14  # the table of docs/systems.md


def test_every_dependency_has_its_reason_and_its_locked_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [project["project"]["dependencies"], project["dependency-groups"]["dev"]]
    groups += [wants for name, wants in project["project"]["optional-dependencies"].items() if name != "all"]
    wanted = {re.split(r"[><=\[ ]", want)[0].lower() for group in groups for want in group}
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    documented = {name.lower() for name in re.findall(r"^\| `([^`]+)` \|", reasons, re.MULTILINE)}
    assert documented == wanted
    locked = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    assert wanted - locked <= {"gurobipy"}


def test_the_changelog_names_the_version_of_the_code_as_its_last_release() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    releases = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", each) for each in headings[1:]]
    assert all(releases)
    numbers = [(tuple(map(int, each.groups()[:3])), each[4]) for each in releases if each]
    assert numbers == sorted(numbers, reverse=True)
    assert __version__ == ".".join(map(str, numbers[0][0]))


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-cpu.txt"])
def test_every_locked_version_has_the_hashes_of_its_files_and_no_address(name: str) -> None:
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    entry = r"[a-z0-9-]+==[\w.+]+( ; [^\n\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"({entry})+", text)
    assert "://" not in (ROOT / name).read_text()


def test_what_make_install_names_is_what_the_project_asks_for() -> None:
    asked = subprocess.run([sys.executable, ROOT / ".ci" / "direct"], capture_output=True, text=True, check=True).stdout
    names = {re.split(r"[><=\[ ]", line)[0] for line in asked.splitlines()}
    assert {"jinja2", "torch", "protobuf", "distributed", "pytest"} <= names
    assert not {"treadle", "gurobipy", "nvidia-nccl-cu13"} & names


def test_every_environment_variable_is_documented_once() -> None:
    used, macros = set(), set()
    for path in files():
        if path.suffix == ".py" and path != Path(__file__):
            used |= set(re.findall(r"\bTREADLE_[A-Z_]+\b", text_of(path)))
        elif path.is_relative_to(ROOT / "templates"):
            macros |= set(re.findall(r"\bTREADLE_[A-Z_]+\b", text_of(path)))
    used -= macros
    text = (ROOT / "docs" / "environment.md").read_text()
    documented = re.findall(r"^\| `(TREADLE_[A-Z_]+)`", text, re.MULTILINE)
    assert sorted(documented) == sorted(used)


def test_continuous_integration_runs_lint_and_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert re.search(r"^timeout .*\d+m make lint test test-slow ", script, re.MULTILINE)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"install", "demo", "test", "lint", "bench", "wheel"} <= targets


def test_only_treadle_is_imported_by_that_name() -> None:
    for path in files():
        if path.suffix == ".py":
            found = re.search(r"^ *(?:from|import) (?:planner|codegen)\b", text_of(path), re.MULTILINE)
            assert not found, f"{path.relative_to(ROOT)}: {found[0].strip()}; it is treadle.{found[0].split()[1]}"


def test_the_tests_stand_where_their_modules_do() -> None:
    for path in sorted((ROOT / "tests").rglob("__init__.py")):
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.parts and folder.parts[0] in ("planner", "codegen", "treadle"):
            assert (ROOT / folder).is_dir(), f"tests/{folder} mirrors no folder"


def closed_unions(trees: Iterable[ast.Module]) -> list[frozenset[str]]:
    """The classes of every union that is named at the top of a module, as in `Layout = Replicated | Sliced`."""
    classes = {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    unions = []
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                names = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
                if len(names) > 1 and names <= classes:
                    unions.append(frozenset(names))
    return unions


def asked(pattern: ast.pattern | None) -> set[str]:
    """The classes that a pattern asks the subject itself for."""
    match pattern:
        case ast.MatchClass(ast.Name(name)):
            return {name}
        case ast.MatchOr(patterns):
            return {name for each in patterns for name in asked(each)}
        case ast.MatchAs(inner):
            return asked(inner)
    return set()


def asked_by_test(test: ast.expr) -> set[str]:
    match test:
        case ast.Call(ast.Name("isinstance"), [_, kinds]):
            return {part.id for part in ast.walk(kinds) if isinstance(part, ast.Name)}
    return set()


def chains(tree: ast.Module) -> Iterator[tuple[int, set[str], list[ast.stmt]]]:
    """Line, classes asked for and last branch of every `match` and of every `if isinstance ... elif isinstance`."""
    inner = {id(node.orelse[0]) for node in ast.walk(tree) if isinstance(node, ast.If) and len(node.orelse) == 1}
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            yield node.lineno, {name for case in node.cases for name in asked(case.pattern)}, node.cases[-1].body
        elif isinstance(node, ast.If) and id(node) not in inner:
            tests, last = [], [node]
            while len(last) == 1 and isinstance(last[0], ast.If):
                tests.append(last[0].test)
                last = last[0].orelse
            if len(tests) > 1:
                yield node.lineno, {name for test in tests for name in asked_by_test(test)}, last


def test_choices_over_closed_unions_end_in_assert_never() -> None:
    trees = {path: tree_of(path) for path in product_files()}
    unions = closed_unions(trees.values())
    assert any("Replicated" in union for union in unions)
    for path, tree in trees.items():
        for line, named, last in chains(tree) if re.search("isinstance|match ", text_of(path)) else ():
            if any(len(named & union) > 1 for union in unions):
                end = ast.unparse(last[-1]) if last else ""
                assert end.startswith("assert_never("), f"{path.relative_to(ROOT)}:{line} does not end in assert_never"


def test_nothing_asks_for_decisions_by_their_class() -> None:
    """`Plan[...]` says whose a plan is; `as_pass` and `require_pass` find out."""
    for path in files():
        for node in ast.walk(tree_of(path)) if path.suffix == ".py" and "Decisions" in text_of(path) else ():
            named = asked_by_test(node) if isinstance(node, ast.expr) else set()
            named |= asked(node) if isinstance(node, ast.pattern) else set()
            found = [name for name in named if name.endswith("Decisions")]
            assert not found, f"{path.relative_to(ROOT)} asks for {found[0]}; as_pass and require_pass do that"


@pytest.mark.parametrize("name", ROOMS)
def test_every_pass_is_entered_by_a_function_of_one_signature(name: str) -> None:
    function = getattr(importlib.import_module(f"treadle.planner.passes.{name}.planning"), f"plan_{name}")
    shared, found = inspect.signature(PlanFunction.__call__).parameters, inspect.signature(function).parameters
    assert [(p.name, p.kind) for p in found.values()] == [(p.name, p.kind) for p in shared.values()][1:]
    options = found["options"].default
    assert dataclasses.is_dataclass(options)
    assert type(options).__dataclass_params__.frozen
    assert {p.default for p in found.values() if p.name not in ("problem", "options")} == {None}


@pytest.mark.parametrize("name", ROOMS)
def test_what_runs_the_plans_of_a_pass_imports_no_other_pass(name: str) -> None:
    others = re.compile(rf"treadle\.(?:runtime|passes|planner\.passes|codegen)\.({'|'.join({*ROOMS} - {name})})\b")
    for path in sorted((ROOT / "treadle" / "runtime" / name).rglob("*.py")):
        found = [each for each in imported(path) if others.match(each)]
        assert not found, f"{path.relative_to(ROOT)} imports {found[0]}"


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, and the names that it imports from it as `module.name`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_jobs_and_reports_name_no_pass() -> None:
    """They go over the list of passes; `treadle plan job` and the report page take a new one as it is."""
    ordinary = ("ranks", "index")  # words that name a pass in quotes only
    words, common = "|".join(name for name in ROOMS if name not in ordinary), "|".join(ordinary)
    classes = "|".join(name.capitalize() for name in ordinary)
    named = re.compile(rf"\b({words})\b|[\"'.]({common})[\"']|passes\.({common})|(?-i:({classes})[A-Z])", re.IGNORECASE)
    for folder in ("job", "report"):
        for path in sorted((ROOT / "treadle" / folder).glob("*.py")):
            found = named.search(path.read_text())
            assert not found, f"{path.relative_to(ROOT)} names {found[0]}"


def string_parts() -> str:
    """Every literal text of the product, f-strings without what they insert, one after the other."""
    return "\n".join(
        node.value
        for path in product_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_messages_on_the_troubleshooting_page_are_those_of_the_code() -> None:
    """The first cell of a row begins with a message in backticks, in which `...` stands for what is inserted."""
    page, texts = (ROOT / "docs" / "troubleshooting.md").read_text(), string_parts()
    messages = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(messages) > 30
    for message in messages:
        parts = [part for part in (each.strip(" ,;") for each in message.split("...")) if len(part) > 3]
        assert parts, message
        for part in parts:
            assert part in texts, f"docs/troubleshooting.md quotes {part!r}, which is no message"


FORMATS = (ROOT / "docs" / "formats.md").read_text()
EXAMPLES = re.findall(r"^## ([a-z-]+)$|```(?:yaml|json)\n(.*?)```", FORMATS, re.MULTILINE | re.DOTALL)


def test_the_systems_and_the_formats_page_name_every_pass() -> None:
    systems = (ROOT / "docs" / "systems.md").read_text()
    table = re.findall(r"^\| ([^|]+) \| [^|]+ \| `plan (\w+)`", systems, re.MULTILINE)
    assert sorted(table) == sorted((made_by.system, made_by.name) for made_by in rooms())
    rows = "".join(f"| `{name}` | {summary} |\n" for name, summary in ROOMS.items())
    assert f"| pass | what it decides |\n|---|---|\n{rows}\n" in FORMATS


def test_the_formats_page_shows_every_kind_with_examples_that_load() -> None:
    section, shown = "", set()
    for heading, example in EXAMPLES:
        section = heading or section
        if example:
            store.loads(example, f"docs/formats.md, {section}", store.TYPES[section])
            shown.add(section)
    assert shown == set(store.TYPES)
