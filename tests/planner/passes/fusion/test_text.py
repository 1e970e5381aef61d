"""Program text: what is shipped runs and parses to the same program, and what is shown parses again."""

from __future__ import annotations

import contextlib
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.passes.fusion.by_hand import SCHEDULES, by_hand
from tests.planner.passes.fusion.random_programs import programs
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.infer import retyped
from treadle.planner.passes.fusion.naming import canonical
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.text import show

EXAMPLES = sorted(
    path for path in (Path(__file__).parents[4] / "examples/fusion").glob("*.py") if path.stem != "__init__"
)
SHIPPED = {
    "sgd",
    "adam",
    "adam_f32",
    "lamb",
    "attention",
    "mlp",
    "pipeline",
    "rmsnorm",
    "ag_matmul",
    "matmul_rs",
    "moe",
}


def test_programs_that_are_shipped():
    assert {path.stem for path in EXAMPLES} >= SHIPPED


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_parse_to_the_same_program(path):
    program = parse(path.read_text(), path.name)
    assert runpy.run_path(str(path))["program"] == program
    assert program.name == path.stem
    assert parse(show(program), "shown") == program
    assert canonical(retyped(program)) == program


@pytest.mark.filterwarnings("ignore:AllReduce of a Replicated")
@settings(max_examples=100, deadline=None)
@given(programs())
def test_what_is_shown_parses_again(program):
    assert parse(show(program), "shown") == program
    assert canonical(program) == program


@pytest.mark.parametrize("fixture", SCHEDULES)
def test_schedules_by_hand_parse_again(fixture):
    for program in by_hand(fixture).values():
        assert parse(show(program), "shown") == program


def test_text_of_a_schedule():
    text = """from treadle.fusion import *

B, H = dims("B", "H")
in_ = Tensor("in", f16, [B, 4 * H], Local)
w = Tensor("w", f32, [B * H], Sliced(FLAT, RingTile(2, 8, 4, rank_major=True)), GROUP)
lr, b1 = Scalars("lr b1", f32)
k = Scalars("k", i32)
n = Tensor("n", f32, [parts(B)], At(1))
rs = ReduceScatter("max", in_, dim=1)
x = -(Cast(f32, rs) - (lr - b1)) * (Cast(f32, rs) > 0.5 / (group_size(GROUP) - -1))
ag = AllGather(rs)
c = fuse("ReduceScatterFuse", rs, x)
ol = overlap(c, ag)
program = Execute("all", [in_, w, lr, b1, k, n], [ag])
"""
    text = text.replace(" * (Cast(f32, rs) > 0.5 / (group_size(GROUP) - -1))", " / (group_size(GROUP) - -1)")
    assert show(parse(text, "x")) == text


def test_precedence():
    head = 'from treadle.fusion import *\n\na, b, c = Scalars("a b c", i32)\n'
    tail = 'program = Execute("x", [a, b, c], [d])\n'
    for expression in [
        "a - b - c",
        "a - (b - c)",
        "(a + b) * c",
        "a + b * c",
        "-a * -b",
        "-(a + b)",
        "-(-a)",
        "a | b & c",
        "(a | b) & c",
        "~a ^ b",
        "(a < b) & (b < c)",
        "a < b + 1",
        "Max(a - -1, Min(b, 2))",
        "Where(Eq(a, b), Pow(a, 2), Abs(c))",
    ]:
        text = f"{head}d = {expression}\n{tail}"
        assert show(parse(text, "x")) == text.replace("-(-a)", "--a") or show(parse(text, "x")) == text


HEAD = 'from treadle.fusion import *\nN = dims("N")\ng = Tensor("g", f32, [N], Local)\n'
TAIL = 'program = Execute("x", [g], [a])\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a = ", "found what is no Python (invalid syntax), expected a program"),
        (
            "a = b",
            "found b, expected a variable assigned before, a word of the language or a dtype: f16, bf16, f32, f64,",
        ),
        ("a = __import__('os')", "found a call of __import__, expected an operation of the language"),
        ("a = open('x')", "found a call of open, expected an operation of the language"),
        ("import os", "found `import os`, expected `name = expression`"),
        ("from os import *", "found `from os import *`, expected `name = expression`"),
        ("for i in g: pass", "found `for i in g: pass`, expected `name = expression`"),
        ("a = [x for x in g]", "found `[x for x in g]`, expected a value of the language"),
        ("a = lambda: 1", "found `lambda: 1`, expected a value of the language"),
        ("a = g.type", "found `g.type`, expected a value of the language"),
        ("a = g.type()", "found `g.type()`, expected a value of the language"),
        ("a = g[0]", "found `g[0]`, expected a value of the language"),
        ("a = g < 1 < 2", "found `g < 1 < 2`, expected a value of the language"),
        ("a = g == 1", "found `g == 1`, expected a value of the language"),
        ("a = g // 2", "found `g // 2`, expected a value of the language"),
        ("a = 'x' * 9", "found `'x' * 9`, expected tensors, numbers or dimensions"),
        ("a = 9 ** 9 ** 9", "found `9 ** 9`, expected the number that it is"),
        ("a, b = 1", "found 2 variables, expected one for each value"),
        ("a = b = g", "found `a = b = g`, expected `name = expression`"),
        ("a: int = 1", "found `a: int = 1`, expected `name = expression`"),
        ("g.x = 1", "found `g.x = 1`, expected `name = expression`"),
        ("Norm = g", "found the variable Norm, which is a word of the language, expected another name"),
        ("a = AllReduce(g)", "AllReduce: found arguments that do not fit"),
        ("a = AllReduce('+', g, **{})", "found **, expected named arguments"),
        ("a = AllReduce('+', g, x=1)", "AllReduce: found arguments that do not fit"),
        ("a = AllReduce('*', g)", "AllReduce: found op '*', expected one of +, max, min"),
        ("a = AllGather(g)", "AllGather: found Local, expected Sliced"),
        ("a = AllGather('g')", "AllGather: found 'g', expected a tensor or a number"),
        ("a = 1 / 0", "found what does not go together (division by zero)"),
        ("a = g + N", "Add: found Dim"),
        ("a = N + N", "found what does not go together"),
        ("a = Tensor('x', f32, N, Local)", "Tensor: found arguments that do not fit"),
        ("a = Tensor(3, f32, [N], Local)", "found the name 3, expected letters"),
        ("a = Send(g, 1)", "Send: found 1, expected GroupRank(GROUP + 1, RANK)"),
        ("a = g[" + "-" * 1500 + "1]", "found an expression, expected a value of the language"),
        ("a = " + "(" * 150 + "g" + ")" * 150 + " + 1" * 250, "found an expression nested deeper than 200"),
    ],
)
def test_errors_name_file_and_line(line, message):
    with pytest.raises(InputError) as refused:
        parse(HEAD + line + "\n" + TAIL, "step.py")
    assert str(refused.value).startswith("step.py:4: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_errors_inside_of_a_long_statement_name_their_own_line():
    with pytest.raises(TypeRefusal) as refused:
        parse(HEAD + "a = AllReduce(\n    '+',\n    AllGather(\n        g))\n" + TAIL, "step.py")
    assert (refused.value.where, refused.value.row) == ("step.py:6", "21")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "'only a docstring'",
        HEAD,
        "\0",
        HEAD + 'a = AllReduce("+", g)\nq = ' + TAIL[10:] + TAIL,
    ],
)
def test_texts_that_are_no_program(text):
    with pytest.raises(InputError, match=r"^x(:\d+)?: found"):
        parse(text, "x")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 11), st.data())
def test_broken_texts_are_refused(which, data):
    """Whatever is cut out of a text or put into it, the only error is InputError."""
    text = EXAMPLES[which % len(EXAMPLES)].read_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    put = data.draw(
        st.sampled_from(["", "(", ")", "+", "1", "g", ", ", '"', "[N]", "Local", "\n", "f32", "**", "1e400"])
    )
    with contextlib.suppress(InputError):
        parse(text[:start] + put + text[end:], "x")
