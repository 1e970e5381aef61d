"""Documents: what is read, what is refused and in which words, what is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.samples import (
    ARTEFACT,
    DOCUMENTS,
    HARDWARE,
    JSON_VALUES,
    MEMORY_PLAN,
    SKETCH,
    SWAP_PROBLEM,
    TRACE,
    values_of,
)
from treadle.planner.documents import store
from treadle.planner.documents.explain import misfit
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.store import FORMS, TYPES, digest, dumps, load, load_any, loads, parse, save
from treadle.planner.documents.trace import Costs, Op, Tensor, Trace
from treadle.planner.errors import InputError, TreadleError
from treadle.planner.passes.memory.problem import MemoryProblem


def plain(document: Any) -> Any:
    return json.loads(dumps(document))


def edited(document: Any, edit: str, value: Any) -> dict[str, Any]:
    """The plain values of `document` with the member at a dotted path replaced."""
    raw = plain(document)
    *steps, last = [int(step) if step.isdigit() else step for step in edit.split(".")]
    place = raw
    for step in steps:
        place = place[step]
    place[last] = value
    return raw


def refusal(raw: Any, expect: type) -> str:
    with pytest.raises(InputError) as caught:
        loads(json.dumps(raw), "f.json", expect)
    return str(caught.value)


# Reading and writing back


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_sound_document_survives_writing_and_reading(name: str, tmp_path: Path) -> None:
    document = DOCUMENTS[name]
    save(document, tmp_path / "doc.json")
    assert load_any(tmp_path / "doc.json") == document
    assert load(tmp_path / "doc.json", type(document)) == document
    assert (tmp_path / "doc.json").read_text() == dumps(load_any(tmp_path / "doc.json"))


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_yaml_and_json_of_the_same_values_are_the_same_document(name: str) -> None:
    document = DOCUMENTS[name]
    for style in (None, False):
        assert loads(yaml.dump(plain(document), default_flow_style=style), "f.yaml", type(document)) == document


@pytest.mark.parametrize("kind", sorted(TYPES))
@settings(max_examples=25)
@given(data=st.data())
def test_any_document_that_fits_its_type_reads_back_equal(kind: str, data: st.DataObject) -> None:
    form = FORMS.get(TYPES[kind], TYPES[kind])
    raw = data.draw(values_of(form))
    assert misfit(raw, form) is None
    document = msgspec.convert(raw, form)
    again = msgspec.convert(parse(dumps(document), "f"), form)
    assert again == document
    assert dumps(again) == dumps(document)


def test_whole_numbers_and_fractions_have_one_canonical_spelling() -> None:
    assert dumps(loads(json.dumps(edited(HARDWARE, "network.alpha_us", 2)), "f", Hardware)) == dumps(
        loads(json.dumps(edited(HARDWARE, "network.alpha_us", 2.0)), "f", Hardware)
    )


def test_a_fraction_that_a_program_wrote_as_a_whole_number_has_the_same_digest_as_when_read_back() -> None:
    plan = DOCUMENTS["memory plan"]
    whole = msgspec.structs.replace(plan, prediction=msgspec.structs.replace(plan.prediction, time_us=3))
    assert digest(loads(dumps(whole), "f", Plan)) == digest(whole)
    assert '"time_us": 3.0' in dumps(whole)


def test_arguments_of_operators_keep_whole_numbers_apart_from_fractions() -> None:
    args = loads(dumps(TRACE), "f", Trace).ops[0].args
    assert args is not None
    assert [type(item) for item in args[2:4]] == [int, float]


def test_the_canonical_form_is_golden(golden: Any) -> None:
    golden("documents/hardware.json", dumps(HARDWARE))
    golden("documents/plan.json", dumps(DOCUMENTS["memory plan"]))


def test_a_digest_belongs_to_the_content_not_to_its_spelling() -> None:
    spaced = json.dumps(plain(SKETCH), indent=7)
    assert digest(loads(spaced, "f", Sketch)) == digest(SKETCH)
    assert digest(SKETCH).startswith("sha256:")
    assert digest(SKETCH) != digest(loads(json.dumps(edited(SKETCH, "name", "other")), "f", Sketch))


def test_comment_lines_are_allowed_in_json_and_slashes_in_text_stay() -> None:
    text = dumps(HARDWARE).replace("{", '{ // a comment with "quotes" and }\n', 1).replace("a CPU", "http://a//b")
    assert loads(text, "f", Hardware).host.cpu_model == "http://a//b"


@pytest.mark.parametrize("change", [lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n")])
def test_byte_order_marks_and_windows_lines_are_read(change: Any, tmp_path: Path) -> None:
    for text in (dumps(SKETCH), yaml.dump(plain(SKETCH))):
        (tmp_path / "f").write_bytes(change(text).encode())
        assert load(tmp_path / "f", Sketch) == SKETCH


# YAML as people write it


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("+.5", 0.5),
        ("010", 10),
        ("-0", 0),
        ("yes", "yes"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        (".nan", ".nan"),
        ("0x10", "0x10"),
        ("~", None),
        ("'1'", "1"),
        ("|\n  a\n  b", "a\nb\n"),
        ("&x [1]", [1]),
        ("{0: 1, true: 2, null: 3}", {"0": 1, "true": 2, "null": 3}),
    ],
)
def test_yaml_scalars_follow_version_1_2(text: str, value: Any) -> None:
    assert parse(f"a: {text}\n", "f") == {"a": value}


def test_anchors_and_aliases_repeat_values() -> None:
    assert parse("a: &x {b: 1}\nc: *x\n", "f") == {"a": {"b": 1}, "c": {"b": 1}}


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "found an empty file, expected a document"),
        (" \n\t\n", "found an empty file, expected a document"),
        ("# only a comment", "$: found null, expected an object with `kind` and `version`"),
        ("[1, 2]", "$: found an array of 2 values, expected an object with `kind` and `version`"),
        ("plain words", "$: found 'plain words' (text), expected an object with `kind` and `version`"),
        ("{", "found broken JSON (Expecting property name enclosed in double quotes, line 1, column 2)"),
        ('{"a": 1,\n "b": }', "found broken JSON (Expecting value, line 2, column 7)"),
        ('{"a": 1, "a": 2}', "found key 'a' twice in one object"),
        ('{"a": NaN}', "found NaN, which is not a number a document may hold"),
        ('{"a": -Infinity}', "found -Infinity, which is not a number"),
        ('{"a": 1e999}', "found 1e999, which is out of the range of numbers"),
        ('{"a": "\\ud800"}', "found half of a surrogate pair in a text"),
        ('{"a": ' + "9" * 5000 + "}", "found a number of 5000 digits, which is out of the range of numbers"),
        ("[" * 300 + "]" * 300, "found nesting deeper than 100, expected a document"),
        ("[" * 100_000, "found nesting deeper than 100, expected a document"),
        ("a: " + "[" * 300 + "]" * 300, "found broken YAML (nesting deeper than 100, line 1, column 103)"),
        ("a: " + "[" * 100_000, "nesting deeper than 100"),
        ("- " * 100_000 + "a", "nesting deeper than 100"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "found broken YAML (key 'c' twice in one object, line 4, column 3)"),
        ("a: !!python/object:os.system x", "a tag 'tag:yaml.org,2002:python/object:os.system'; tags mean nothing"),
        ("a: !!binary aGk=", "a tag 'tag:yaml.org,2002:binary'"),
        ("a: !!timestamp 2024-01-01", "a tag 'tag:yaml.org,2002:timestamp'"),
        ("a: !!bool maybe", "a tag 'tag:yaml.org,2002:bool'"),
        ("? [1]\n: 2", "a key that is no plain word, line 1, column 3"),
        ("a: &x [1, *x]", "alias *x without an earlier, finished anchor &x, line 1, column 11"),
        ("a: *x", "alias *x without an earlier"),
        (LAUGHS, "aliases that repeat over 1000000 values"),
        ("a:\n\t- 1", "line 2, column 1"),
        ("a: b\x00c", "control characters are not allowed"),
        ("a: 1\n---\nb: 2", "a second document in one file"),
        ("a: 1e999", "1e999, which is out of the range of numbers, line 1, column 4"),
        ("a: " + "9" * 5000, "a number of 5000 digits"),
        ('a: "\\ud800"', "found broken YAML"),
        ("a: [1, 2", "line"),
    ],
)
def test_a_text_that_is_no_document_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(text, "f.yaml", Hardware)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("f.yaml: ")
    assert "\n" not in str(caught.value)


# What does not fit


@pytest.mark.parametrize(
    ("document", "edit", "value", "message"),
    [
        (HARDWARE, "nodes", "x", "$.nodes: found 'x' (text), expected a whole number"),
        (HARDWARE, "nodes", 0, "$.nodes: found 0, expected a whole number of at least 1"),
        (HARDWARE, "nodes", 1.0, "$.nodes: found 1.0, expected a whole number"),
        (HARDWARE, "nodes", True, "$.nodes: found true, expected a whole number"),
        (HARDWARE, "nodes", None, "$.nodes: found null, expected a whole number"),
        (HARDWARE, "nodes", 10**60, f"$.nodes: found {10**49}...0000, expected a whole number of at most {2**62}"),
        (HARDWARE, "name", "", "$.name: found '' (text), expected text that is not empty"),
        (HARDWARE, "name", 3, "$.name: found 3, expected text"),
        (HARDWARE, "name", "n" * 5000, "n...' (text), expected text of at most 4096 characters"),
        (HARDWARE, "devices.0.kind", "tpu", "$.devices[0].kind: found 'tpu' (text), expected one of 'cpu', 'gpu'"),
        (HARDWARE, "devices.0.launch_us", -1.5, "found -1.5, expected a number of at least 0"),
        (HARDWARE, "devices.0.launch_us", 10**400, "0000, expected a number of at most 1e+30"),
        (HARDWARE, "devices.0.peak_flops", {"float32": 0}, "$.devices[0].peak_flops.float32: found 0, expected a numb"),
        (HARDWARE, "network.beta_us_per_MB", 0, "found 0, expected a number above 0"),
        (HARDWARE, "devices", {}, "$.devices: found an object, expected an array"),
        (HARDWARE, "devices", [3], "$.devices[0]: found 3, expected an object"),
        (HARDWARE, "nics.0.gpudirect", "yes", "$.nics[0].gpudirect: found 'yes' (text), expected true or false"),
        (HARDWARE, "sources", {"a b": 3}, "$.sources['a b']: found 3, expected text"),
        (HARDWARE, "sources", {"a\nb": 3}, "$.sources['a\\nb']: found 3, expected text"),
        (MEMORY_PLAN, "inputs.trace.digest", "md5:1", "found 'md5:1' (text), expected text matching ^sha256:"),
        (ARTEFACT, "files", {"step.py": "md5:1"}, "found 'md5:1' (text), expected text matching ^sha256:"),
        (HARDWARE, "device", [], "$.device: found an unknown field, did you mean 'devices'?"),
        (HARDWARE, "host.xyz", [], "expected one of cpu_cores, cpu_model, memory_bytes, numa_nodes"),
        (HARDWARE, "links.0.dst", 7, "$.links[0].dst: found 7, expected a local device index below 2"),
        (HARDWARE, "version", 2, "$.version: found hardware version 2, expected at most 1; a newer treadle wrote it"),
        (HARDWARE, "version", 10**60, "expected at most 1; a newer treadle wrote it"),
        (HARDWARE, "version", "1", "$.version: found '1' (text), expected a whole number"),
        (
            HARDWARE,
            "kind",
            "car",
            "$.kind: found 'car' (text), expected one of aggregation-problem, artefact, checkpoint-problem, ",
        ),
        (HARDWARE, "kind", ["car"], "$.kind: found an array of 1 value, expected one of"),
        (HARDWARE, "kind", "trace", "$.kind: found 'trace' (text), expected 'hardware'"),
        (SKETCH, "symmetry_offsets.0", [1, 2, 3, 4], "found 4 numbers, expected an offset, a group"),
        (SKETCH, "internode_sketch.internode_conn", {"one": [1]}, "$.internode_sketch.internode_conn.one: found 'one'"),
        (SKETCH, "internode_sketch.internode_conn", {"1": ["a"]}, "internode_conn['1'][0]: found 'a' (text), expected"),
        (SKETCH, "internode_sketch.chunk_to_relay_map", [0, 0], "chunk_to_relay_map[0]: found 0, expected a whole"),
        (TRACE, "ops.0.outputs.1", 3, "$.ops[0].outputs[1]: found 3, expected text"),
        (
            TRACE,
            "returned",
            {"dict": [["a", {"tensor": "g"}]]},
            "$.returned.dict[0][1]: found tensor 'g', expected one of",
        ),
        (TRACE, "returned", {"tuple": [{}]}, "$.returned.tuple[0]: found an object of other than one field"),
        (TRACE, "returned", [{"code": "x"}], "$.returned[0]: found something else, expected a tree of outputs"),
        (
            TRACE,
            "returned",
            {"dict": [["a"]]},
            "$.returned.dict[0]: found something else, expected a key and its value",
        ),
        (TRACE, "tangent_of", [1], "$.tangent_of[0]: found output 1, expected an index below 1"),
        (TRACE, "tangent_of", [0, 0], "$.tangent_of: found 2 outputs for 1 tangents, expected one output for each"),
        (TRACE, "detached", ["nope"], "$.detached[0]: found unknown tensor 'nope'"),
        (TRACE, "ops.0.inputs.1", "nope", "$.ops[0].inputs[1]: found unknown tensor 'nope', expected the id of a tens"),
        (TRACE, "ops.0.after", ["bw"], "$.ops: found a cycle: "),
        (TRACE, "tensors.3.alias_of", "v", "$.tensors: found a cycle: v -> v, expected alias_of chains that end"),
        (TRACE, "tensors.0.bytes", -4, "$.tensors[0].bytes: found -4, expected a whole number of at least 0"),
        (
            DOCUMENTS["memory plan"],
            "decisions.pass",
            "magic",
            "$.decisions.pass: found 'magic' (text), expected one of",
        ),
        (DOCUMENTS["memory plan"], "decisions", 3, "$.decisions: found 3, expected an object"),
        (
            DOCUMENTS["memory plan"],
            "decisions.program.0",
            ["jump", 3],
            "program[0][0]: found 'jump' (text), expected o",
        ),
        (
            DOCUMENTS["memory plan"],
            "decisions.program.0",
            [],
            "found an array of 0 values, expected an array that begi",
        ),
        (DOCUMENTS["memory plan"], "decisions.program.1", ["forward"], "expected an array of 2 to 4 values"),
        (
            DOCUMENTS["memory plan"],
            "decisions.program.1",
            ["forward", 0, 0, False, 1],
            "expected an array of 2 to 4 val",
        ),
        (DOCUMENTS["collective plan"], "decisions.transfers.0", [0] * 9, "expected an array of 6 to 7 values"),
        (DOCUMENTS["memory plan"], "decisions.program.1", ["forward", -1], "program[1][1]: found -1, expected a whole"),
        (
            DOCUMENTS["memory plan"],
            "decisions.problem.kind",
            "job",
            "problem.kind: found 'job' (text), expected 'memor",
        ),
        (
            DOCUMENTS["collective plan"],
            "decisions.transfers.0.1",
            5,
            "found 5 -> 1, expected two different ranks below",
        ),
        (SWAP_PROBLEM, "ops.0.inputs", [3], "$.ops[0].inputs[0]: found 3, which nothing has made yet, expected a tens"),
        (SWAP_PROBLEM, "ops.0.writes", [1], "$.ops[0].writes[0]: found 1, expected one of the inputs"),
        (SWAP_PROBLEM, "ops.1.outputs", [2], "$.ops[1].outputs[0]: found 2, made by operator 0, expected a new tensor"),
        (SWAP_PROBLEM, "ops.1.after", [1], "$.ops[1].after[0]: found 1, expected an earlier operator, below 1"),
        (SWAP_PROBLEM, "tensors.0.kept", False, "$.tensors[0].kept: found false, expected true for a parameter"),
        (SWAP_PROBLEM, "machine.together", [7, 6], "$.machine.together: found 7/6, expected a fraction from 1/2 to 1"),
        (SWAP_PROBLEM, "machine.together", [2, 5], "$.machine.together: found 2/5, expected a fraction from 1/2 to 1"),
        (
            DOCUMENTS["swap plan"],
            "decisions.order.1",
            2,
            "$.decisions.order[1]: found 2, expected an operator, below 2",
        ),
        (DOCUMENTS["swap plan"], "decisions.nodes.1.item", 2, "$.decisions.nodes[1].item: found 2, expected below 2"),
        (
            DOCUMENTS["swap plan"],
            "decisions.nodes.1.after",
            [1],
            "nodes[1].after[0]: found 1, expected an earlier node",
        ),
        (
            DOCUMENTS["swap plan"],
            "decisions.problem.ops.0.inputs",
            [9],
            "$.decisions.problem.ops[0].inputs[0]: found 9",
        ),
    ],
)
def test_a_wrong_value_is_named_with_place_and_expectation(document: Any, edit: str, value: Any, message: str) -> None:
    line = refusal(edited(document, edit, value), type(document))
    assert message in line
    assert line.startswith("f.json: $.")
    assert len(line) < 400


def test_missing_fields_are_named() -> None:
    raw = plain(HARDWARE)
    del raw["nodes"]
    assert refusal(raw, Hardware).startswith("f.json: $.nodes: found nothing, expected this required field: a whole")
    del raw["kind"]
    assert refusal(raw, Hardware).startswith(
        "f.json: $.kind: found nothing, expected one of aggregation-problem, artefact"
    )
    raw = plain(DOCUMENTS["memory plan"])
    del raw["decisions"]["pass"]
    line = refusal(raw, Plan)
    assert line.endswith(
        "$.decisions.pass: found nothing, expected one of 'aggregation', 'checkpoint', 'collective', 'compression', "
        "'fusion', 'index', 'memory', 'ranks', 'server', 'sparse', 'swap', 'tiling'"
    )


# Files


def test_unreadable_files_are_refused_in_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b'{"name": "caf\xe9"}')
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, reason in {
        "absent.json": "cannot read: No such file or directory",
        ".": "found a folder, expected a file",
        "pipe": "found a named pipe, expected a file",
        "latin": "found a byte at 13 that is not UTF-8, expected a text file",
        "loop": "cannot read: Too many levels of symbolic links",
        "/dev/null": "found a device, expected a file",
        "a\0b": "cannot read: embedded null byte",
    }.items():
        with pytest.raises(InputError, match=reason):
            load(os.path.join(tmp_path, name), Hardware)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_permissions_are_respected_with_a_reason(tmp_path: Path) -> None:
    save(HARDWARE, tmp_path / "f.json")
    (tmp_path / "f.json").chmod(0)
    with pytest.raises(InputError, match="cannot read: Permission denied"):
        load(tmp_path / "f.json", Hardware)
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot write: Permission denied"):
        save(HARDWARE, tmp_path / "g.json")
    tmp_path.chmod(0o700)


def test_writing_follows_links_keeps_modes_and_makes_folders(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "real.json"
    save(HARDWARE, target)
    target.chmod(0o640)
    (tmp_path / "link.json").symlink_to(target)
    save(SKETCH, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load(target, Sketch) == SKETCH
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in target.parent.iterdir()) == ["real.json"]


def test_a_device_is_written_to_and_not_replaced() -> None:
    save(HARDWARE, "/dev/null")
    assert not Path("/dev/null").is_file()


def test_places_that_cannot_be_written_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name, reason in {
        ".": "found a folder, expected a file to write",
        "file/below.json": "cannot write: (File exists|Not a directory)",
        "n" * 300: "cannot write: File name too long",
        "a\0b": "cannot write: embedded null byte",
    }.items():
        with pytest.raises(InputError, match=reason):
            save(HARDWARE, os.path.join(tmp_path, name))


def test_what_load_would_refuse_is_not_written(tmp_path: Path) -> None:
    twice = Trace(
        version=1,
        name="n",
        mode="infer",
        source="hand",
        costs=Costs(model="absent"),
        tensors=(Tensor(id="a", role="input"), Tensor(id="a", role="input")),
        ops=(),
    )
    with pytest.raises(InputError, match=r"f.json: \$.tensors\[1\].id: found second tensor 'a'"):
        save(twice, tmp_path / "f.json")
    with pytest.raises(InputError, match=r"<hardware>: \$.nodes: found -1, expected a whole number of at l"):
        save(msgspec.structs.replace(HARDWARE, nodes=-1), tmp_path / "f.json")
    assert not list(tmp_path.iterdir())


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    save(HARDWARE, path)
    code = (
        "import os, signal, sys\n"
        "from treadle.planner.documents import files\n"
        "files.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_text(sys.argv[1], 'new')\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    assert load(path, Hardware) == HARDWARE


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (("a",), "$.ops[0].inputs: found no 'b', which is in the arguments, expected all tensors of the call"),
        (
            ("a", "b", "c"),
            "$.ops[0].inputs[2]: found 'c', which is not in the arguments, expected the tensors of the call",
        ),
    ],
)
def test_the_inputs_of_an_op_are_the_tensors_of_its_arguments(inputs: tuple[str, ...], message: str) -> None:
    call = Op(id="op", target="aten.addmm.default", phase="forward", inputs=inputs, outputs=("d",),
              args=({"tensor": "a"}, [{"tensor": "b"}]), kwargs={"beta": 1})  # fmt: skip
    tensors = tuple(Tensor(id=name, role="activation") for name in "abcd")
    trace = Trace(
        version=1, name="t", mode="train", source="hand", costs=Costs(model="absent"), tensors=tensors, ops=(call,)
    )
    with pytest.raises(InputError, match=re.escape(message)):
        loads(dumps(trace), "t.json", Trace)


def test_a_trace_of_several_megabytes_loads() -> None:
    count = 8000
    trace = Trace(
        version=1,
        name="large",
        mode="train",
        source="hand",
        costs=Costs(model="absent"),
        tensors=tuple(
            Tensor(id=f"t{n}", role="activation", bytes=n, shape=(1, 2, 3), stride=(6, 3, 1), dtype="float32")
            for n in range(2 * count)
        ),
        ops=tuple(
            Op(
                id=f"op{n}",
                target="aten.convolution.default",
                phase="forward",
                inputs=(f"t{n}", f"t{n + 1}"),
                outputs=(f"t{count + n}",),
                args=({"tensor": f"t{n}"}, {"tensor": f"t{n + 1}"}, [1, 2], 1.5, None, False),
                time_ns=n,
            )
            for n in range(1, count)
        ),
    )
    text = dumps(trace)
    assert len(text) > 3.5e6
    assert loads(text, "f", Trace) == trace


# Fuzzing


def places(raw: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside `raw`."""
    found: list[tuple[Any, Any]] = []
    stack = [raw]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                stack.append(node[key])
    return found


WILD = JSON_VALUES | st.sampled_from(
    [-1, 0, 1.0, 2**62 + 1, 2**63, 10**400, -0.0, 1e300, "", "\x00", "x" * 5000, [], {}]
)


def check_refusal_or_success(text: str, expect: type) -> None:
    try:
        store.digest(loads(text, "some file", expect))
    except TreadleError as error:
        line = str(error)
        assert line.startswith("some file: ")
        assert "\n" not in line
        assert "found" in line
        assert "expected" in line or "did you mean" in line


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
@given(data=st.data())
def test_mutated_documents_are_read_or_refused_in_one_line(name: str, data: st.DataObject) -> None:
    document = DOCUMENTS[name]
    raw = plain(document)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(raw)))
        match data.draw(st.sampled_from(["delete", "replace", "insert", "copy"])):
            case "delete":
                del container[key]
            case "replace":
                container[key] = data.draw(WILD)
            case "insert" if isinstance(container, list):
                container.insert(key, data.draw(WILD))
            case "insert":
                container[data.draw(st.text(max_size=5))] = data.draw(WILD)
            case "copy":
                other, at = data.draw(st.sampled_from(places(raw)))
                container[key] = json.loads(json.dumps(other[at]))
        if not raw or not places(raw):
            break
    check_refusal_or_success(json.dumps(raw), type(document))
    fits = misfit(raw, type(document)) is None
    try:
        msgspec.convert(raw, type(document))
    except msgspec.ValidationError:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
@given(data=st.data())
def test_damaged_texts_are_read_or_refused_in_one_line(name: str, data: st.DataObject) -> None:
    document = DOCUMENTS[name]
    text = data.draw(st.sampled_from([dumps(document), yaml.dump(plain(document))]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        match data.draw(st.sampled_from(["truncate", "flip", "insert", "drop"])):
            case "truncate":
                text = text[:at]
            case "flip":
                text = text[:at] + data.draw(st.characters(exclude_categories=["Cs"])) + text[at + 1 :]
            case "insert":
                extra = data.draw(
                    st.sampled_from(["\t", "&a ", "*a", "!!", "[", "{", "}", "'", '"', "\n", ": ", "- ", "\x00"])
                )
                text = text[:at] + extra + text[at:]
            case "drop":
                text = text[:at] + text[at + data.draw(st.integers(1, 30)) :]
    check_refusal_or_success(text, type(document))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_in_one_line(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(path, MemoryProblem)
    assert "\n" not in str(caught.value)


def test_two_tangents_do_not_belong_to_one_output() -> None:
    raw = edited(TRACE, "tangents", ["t", "t"]) | {"tangent_of": [0, 0]}
    assert "$.tangent_of[1]: found output 0 again, expected outputs that occur once" in refusal(raw, Trace)
