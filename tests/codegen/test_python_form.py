"""Generated Python is parsed again: a line that treadle never writes is refused before it is written or run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GOLDEN
from treadle.codegen import emit
from treadle.codegen.python_form import TABLES, _statements, require_form
from treadle.codegen.targets import Artefacts
from treadle.planner.documents.plan import InputRef
from treadle.planner.errors import InputError

WRITTEN = {
    "tiny.step.py": "torch",
    "zoo.step.py": "torch",
    "small.swap.py": "torch-swap",
    "layers.offload.py": "torch-offload",
    "compression.hook.py": "ddp-hook",
    "sparse.hook.py": "ddp-hook",
}
FOREIGN = (
    "import os",
    "import torch.hub",
    "from os import system",
    "from treadle import kernels as rng",
    "from treadle.runtime.swap.step import *",
    "__import__('os')",
    "exec('1')",
    "open('x', 'w')",
    "PARAMETERS['x']()",
    "lambda: 0",
    "[x for x in 'ab']",
    "f'{aten}'",
    "().__class__",
    "aten.__class__",
    "aten.mm.default.__self__",
    "aten.save.default(1, 'x')",
    "torch.load('x')",
    "torch.ops.load_library('x')",
    "torch.ops.prim.Print.default(1)",
    "kernels.os.system('x')",
    "float.fromhex('1')",
    "float = 1",
    "def f():\n    exec = 1\nx = exec",
    "def f(eval): return 1",
    "def exec(): return 1",
    "with 1 as open: pass",
    "torch = 1",
    "aten = torch",
    "(aten,) = [1]",
    "dict(**{})",
    "class X: pass",
    "@float\ndef forward(): return 1",
    "async def f(): return 1",
    "while True: pass",
    "\0",
    "x = (",
    "x = " + 100_000 * "-" + "1",
)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_treadle_writes_passes_and_any_other_line_does_not(name: str):
    text, target = (GOLDEN / "torch" / name).read_text(), WRITTEN[name]
    require_form(target, text, name)
    for line in FOREIGN:
        with pytest.raises(InputError) as error:
            require_form(target, f"{text}\n{line}\n", name)
        assert str(error.value).startswith(f"{name}:"), line
        assert len(str(error.value)) < 200
        assert "\n" not in str(error.value)


def test_a_call_among_the_tables_of_a_module_is_no_table():
    text = (GOLDEN / "torch" / "layers.offload.py").read_text()
    for old, new in (("MOVES = [", "MOVES = [print(1), "), ("MOVES = [", "moves = [], [")):
        assert old in text
        with pytest.raises(InputError, match="expected nothing but what treadle generates for torch-offload"):
            require_form("torch-offload", text.replace(old, new), "offload.py")
    with pytest.raises(InputError, match=r"offload\.py:1: found a part of the module"):
        require_form("torch-offload", text[: text.index("def _name(")], "offload.py")


def test_a_call_in_place_of_the_docstring_of_a_module_is_refused():
    _, _, rest = (GOLDEN / "torch" / "layers.offload.py").read_text().split('"""', 2)
    for first in ("__import__('os')", "1", "f'{1}'"):
        with pytest.raises(InputError, match="expected nothing but what treadle generates"):
            require_form("torch-offload", first + rest, "offload.py")


def test_every_template_of_tables_has_statements_to_compare_with():
    for name in (name for names in TABLES.values() for name in names):
        assert len(_statements(name)) >= 2


def test_a_step_without_what_callers_need_is_refused():
    text = (GOLDEN / "torch" / "tiny.step.py").read_text().replace("def backward(", "def other(")
    with pytest.raises(InputError, match=r"step\.py:1: found no backward"):
        require_form("torch", text, "step.py")


def test_nothing_is_written_of_artefacts_with_foreign_python(tmp_path: Path):
    plan = InputRef(file="p.json", digest="sha256:" + "0" * 64)
    artefacts = Artefacts("torch", plan, {"a.txt": "x", "step.py": "import os\n"}, None, {})
    with pytest.raises(InputError, match=r"^step\.py:1: found "):
        emit.write(artefacts, tmp_path / "out")
    assert not (tmp_path / "out").exists()
