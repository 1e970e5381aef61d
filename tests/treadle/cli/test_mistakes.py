"""Mistakes that people make on command lines: one line that says what was found and what to do, and nothing lost."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.planner.samples import COLLECTIVE_PLAN, HARDWARE, MEMORY_PLAN, PROBLEM, SKETCH, TRACE
from treadle.cli.main import run
from treadle.planner.documents.store import dumps

FILES = {
    "plan.json": dumps(MEMORY_PLAN),
    "coll.json": dumps(COLLECTIVE_PLAN),
    "problem.json": dumps(PROBLEM),
    "hw.json": dumps(HARDWARE),
    "trace.json": dumps(TRACE),
    "sketch.json": dumps(SKETCH),
    "empty.json": "",
    "list.json": "[1]",
    "notes.txt": "mine",
    "typo.yaml": "kind: hardware\nversion: 1\nname: a\nnode: 2\n",
    "newer.json": '{"kind":"trace","version":99}',
    "bad.json": '{"kind": ',
    "kind.json": '{"kind":"hardwear","version":1}',
    "foreign/a.txt": "x",
    "bad.xml": "<algo>",
    "mistaken_step.py": "def step(): return 1\n",
}
MEMORY = "plan memory --problem problem.json"
ALLGATHER = "plan collective allgather --hardware ring4 --size 1K"
SIZE_OR_SHARE = "expected a size such as 8GiB, or a share of plain PyTorch's peak such as 0.5x"
SIZE = "expected a size such as 4096, 64KiB or 8GiB"
TRACES = "an ExecutionTrace (schema, nodes), a Kineto or Chrome trace (traceEvents), Chakra or a memory snapshot"
MISTAKES = {
    # Commands and options
    "plann": "no such command 'plann'; did you mean 'plan'? (see `treadle --help`)",
    "help plann": "no such command 'plann'; did you mean 'plan'? (see `treadle --help`)",
    "plan memmory": "no such command 'memmory'; did you mean 'memory'? (see `treadle plan --help`)",
    "trace captur": "no such command 'captur'; did you mean 'capture'? (see `treadle trace --help`)",
    "--bogus": "No such option: --bogus (see `treadle --help`)",
    "-q profile list -v": "--quiet and --verbose exclude each other",
    f"{MEMORY} -o x.json --budgett 1": "No such option: --budgett; did you mean '--budget'?",
    "check": "Missing argument 'FILE' (see `treadle check --help`)",
    "sketch show ring": "Missing option '--hardware' (see `treadle sketch show --help`)",
    # Where to write
    MEMORY: "Missing option '-o' / '--output' (see `treadle plan memory --help`)",
    f"{MEMORY} -o ''": "--output: found an empty name, expected a file or folder to write",
    f"{MEMORY} -o no/x.json": "--output: found no folder 'no' to write 'x.json' into",
    f"{MEMORY} -o folder": "folder: found a folder, expected a file to write",
    "profile measure --index -o folder": "folder: found a folder, expected a file to write",
    f"{MEMORY} -o problem.json": "problem.json: found an input of this command, expected another file to write",
    f"{MEMORY} -o x.py": "--output: found 'x.py', expected a file that ends in .json, .yaml or .yml",
    f"{MEMORY} -o notes.txt": "--output: found 'notes.txt', expected a file that ends in .json, .yaml or .yml",
    f"{MEMORY} -o /proc/x.json": "--output: no file can be made in the folder '/proc': ",
    f"{MEMORY} -o /dev/full": "/dev/full: cannot write: No space left on device",
    "plan job hw.json -o notes.txt": "--output: found 'notes.txt', which is a file, expected a folder",
    "generate plan.json -o notes.txt": "--output: found 'notes.txt', which is a file, expected a folder",
    "report plan.json -o r.pdf": "--output: found 'r.pdf', expected a file that ends in .html, .htm or .svg",
    # What to read
    "plan memory -o x.json": "give either --trace or --problem (see `treadle plan memory --help`)",
    "plan memory --problem problm.json -o x.json": (
        "problm.json: cannot read: No such file or directory; did you mean 'problem.json'?"
    ),
    "plan memory --problem folder -o x.json": "folder: found a folder, expected a file",
    "plan memory --problem empty.json -o x.json": "empty.json: found an empty file, expected a document",
    "plan memory --problem bin.json -o x.json": "bin.json: found a byte at 0 that is not UTF-8, expected a text file",
    "plan memory --problem list.json -o x.json": (
        "list.json: $: found an array of 1 value, expected an object with `kind` and `version`"
    ),
    "plan memory --problem hw.json -o x.json": "hw.json: $.kind: found 'hardware' (text), expected 'memory-problem'",
    "plan memory --problem bad.json -o x.json": (
        "bad.json: found broken JSON (Expecting value, line 1, column 10), expected a whole document"
    ),
    "plan memory --trace newer.json --budget 1x -o x.json": "a newer treadle wrote it, upgrade to read it",
    "plan swap -o x.json": "give either --trace or --problem (see `treadle plan swap --help`)",
    "plan fusion --hardware ring4 -o x.json": "give either PROGRAM or --trace (see `treadle plan fusion --help`)",
    "plan fusion nope.py --hardware ring4 -o x.json": "nope.py: cannot read: No such file or directory",
    "plan job nope.yaml -o d": "nope.yaml: cannot read: No such file or directory",
    # Budgets, sizes and other numbers
    "plan memory --trace trace.json -o x.json": "--trace needs --budget or --sweep (see `treadle plan memory --help`)",
    "plan swap --trace trace.json -o x.json": "--trace needs --hardware, for the device's memory",
    f"{MEMORY} --budget 8GX -o x.json": f"--budget: found '8GX', {SIZE_OR_SHARE}",
    f"{MEMORY} --budget -8 -o x.json": f"--budget: found '-8', which is negative, {SIZE_OR_SHARE}",
    f"{MEMORY} --budget -.5x -o x.json": f"--budget: found '-.5x', which is negative, {SIZE_OR_SHARE}",
    f"{MEMORY} --budget 0 -o x.json": "--budget: found '0', expected more than nothing and at most 2^62",
    f"{MEMORY} --budget 1B -o x.json": "budget 1 B (1 bytes, 0.00833x of plain PyTorch) is below the least feasible",
    f"{MEMORY} --gap 2 -o x.json": "Invalid value for '--gap': 2 is not in the range 0<=x<=1",
    f"{MEMORY} --time-limit -1 -o x.json": "Invalid value for '--time-limit': -1 is not in the range 0<x<=1000000",
    f"{MEMORY} --solver higs -o x.json": "Invalid value for '--solver': found 'higs', did you mean 'highs'?",
    # Collectives
    "plan collective allgahter --hardware ring4 -o x.json": (
        "Invalid value for 'COLLECTIVE': found 'allgahter', did you mean 'allgather'?"
    ),
    f"{ALLGATHER} --method ringg -o x.json": "--method: found 'ringg', did you mean 'ring'?",
    f"{ALLGATHER} --hardware ndv3 -o x.json": "not one of the shipped profiles; did you mean 'ndv2', 'ndv4' or 'ndv5'?",
    f"{ALLGATHER} --hardware typo.yaml -o x.json": ("typo.yaml: $.node: found an unknown field, did you mean 'nodes'?"),
    f"{ALLGATHER} --hardware kind.json -o x.json": (
        "kind.json: $.kind: found 'hardwear' (text), did you mean 'hardware'?"
    ),
    f"{ALLGATHER} --sketch rng -o x.json": (
        "rng: no such file, and not one of the shipped sketches; did you mean 'ring'?"
    ),
    f"{ALLGATHER} --root 1 -o x.json": "--root: found 1, expected none: allgather has no root",
    f"{ALLGATHER} --size -1 -o x.json": f"--size: found '-1', which is negative, {SIZE}",
    f"{ALLGATHER} --size 1Q -o x.json": f"--size: found '1Q', {SIZE}",
    f"{ALLGATHER} --sizes 1K -o x": "--sizes: found --size too, expected one of the two",
    f"{ALLGATHER} --nodes 0 -o x.json": "Invalid value for '--nodes': 0 is not in the range x>=1",
    f"{ALLGATHER} --pattern hw.json -o x.json": "hw.json: $.kind: found 'hardware' (text), expected 'pattern'",
    # Plans and artefacts
    "generate plan.json -o foreign": "plan.json: found no trace 'step.trace.json' next to the plan, expected it there",
    "generate plan.json --target torch-swp -o g": "found 'torch-swp', did you mean 'torch-swap'?",
    "generate coll.json --target torch -o g": "a collective plan has no target torch, which is for memory plans",
    "generate hw.json -o g": "hw.json: $.kind: found 'hardware', expected a plan or a selection",
    "generate plan.json --trace hw.json -o g": "hw.json: $.kind: found 'hardware' (text), expected 'trace'",
    "run nope": "nope: found no artefact.json, expected a folder that `treadle generate` wrote",
    "run foreign": "foreign: found no artefact.json, expected a folder that `treadle generate` wrote",
    "run foreign --backend gpu": "Invalid value for '--backend': found 'gpu', expected one of cpu, fibers, cuda, gloo, "
    "nccl",
    "check nope.json": "nope.json: cannot read: No such file or directory",
    "check foreign": "foreign: found no artefact.json, expected a folder that `treadle generate` wrote",
    "check bad.xml": "bad.xml: found broken XML (Premature end of data in tag algo line 1, line 1, column 7), expected",
    "check hw.json --runtime rcl": "Invalid value for '--runtime': found 'rcl', did you mean 'rccl'?",
    "simulate bad.xml": "bad.xml: found broken XML (Premature end of data in tag algo line 1, line 1, column 7), exp",
    "simulate hw.json": "hw.json: $.kind: found 'hardware' (text), expected 'plan'",
    "simulate plan.json --hardware ring4": "plan.json: found a document with --hardware, expected MSCCL XML",
    "report hw.json -o r.html": "hw.json: $.kind: found 'hardware', expected a plan or a selection",
    # Traces, profiles and sketches
    "trace capture m -o t.json": "m: found no MODULE:FUNCTION, expected for example examples.models.gpt2:small",
    "trace capture mistaken_step:stp -o t.json": "mistaken_step:stp: found no function 'stp', did you mean 'step'?",
    "trace capture mm:step -o t.json": "mm:step: found no module 'mm' in ",
    "trace capture mistaken_step:step -o t.json": (
        "mistaken_step:step: it returned an int, expected (model, inputs) or (model, inputs, loss)"
    ),
    "trace import notes.txt -o t.json": (f"notes.txt: found neither JSON, protobuf nor a pickle, expected {TRACES}"),
    "trace show hw.json": "hw.json: $.kind: found 'hardware' (text), expected 'trace'",
    "profile show dgx": "dgx: no such file, and not one of the shipped profiles; did you mean 'dgx1' or 'dgx2'?",
    "profile import notes.txt -o h.yaml": "notes.txt: found no header with GPU0, expected the output of `nvidia-smi",
    "sketch show ring --hardware ringg4": "ringg4: no such file, and not one of the shipped profiles; did you mean",
}
CODES = {f"{MEMORY} --budget 1B -o x.json": 3}
"""Where another exit code than 2 is right: a budget that is too small is no wrong input."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("foreign", "folder"):
        (tmp_path / name).mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bin.json").write_bytes(b"\xff\xfe\x00")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    """The files below a folder, without what Python compiles."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.parametrize("line", MISTAKES)
def test_one_line_says_what_is_wrong_and_every_file_stays(
    line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    code = run(shlex.split(line))
    said = capsys.readouterr()
    assert said.err.startswith("error: "), said.err
    assert said.err.count("\n") == 1, said.err
    assert MISTAKES[line] in said.err
    assert (code, said.out) == (CODES.get(line, 2), "")
    assert contents(folder) == before


def test_a_place_to_write_is_tried_before_anything_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split("plan memory --problem nope.json -o /proc/x.json")) == 2
    assert capsys.readouterr().err.startswith("error: --output: no file can be made in the folder '/proc': ")
