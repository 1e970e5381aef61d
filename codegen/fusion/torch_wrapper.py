"""A PyTorch module for a schedule: a class that is called with the tensors of the program (CoCoNet, section 5.11)."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection

from treadle.codegen.templates import template
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion import text
from treadle.planner.passes.fusion.dims import shape_text
from treadle.planner.passes.fusion.layouts import Sliced, layout_text
from treadle.planner.passes.fusion.program import Input, Program


def generate(program: Program, by_library: Collection[str] = ()) -> str:
    """The text of a module with one class, named after the program: `Adam(group, extents={"N": 1024})(g, p, ...)`.
    PyTorch makes the products `by_library`.

    Raises InputError for a program or an input whose name Python keeps for itself.
    """
    for taken in (class_name(program.name), *program.input_names):
        if keyword.iskeyword(taken) or taken == "self":
            raise InputError(f"found the name {taken!r}, which Python keeps for itself, expected another")
    names = {name for value in program.by_name.values() for extent in value.type.shape for name in extent.names}
    return template("fusion/torch.py.j2").render(
        program=program.name,
        classname=class_name(program.name),
        schedule=text.show(program).rstrip(),
        inputs=[(value.name, _about(value, program)) for value in program.inputs],
        outputs=program.outputs,
        by_library=tuple(sorted(by_library)),
        dimensions=sorted({name.split(".")[0] for name in names}),
        sliced=[value.name for value in program.inputs if isinstance(value.type.layout, Sliced)],
    )


def class_name(name: str) -> str:
    """In the style of classes: `self_attention` becomes SelfAttention."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"\W|_", name)) or "Program"


def _about(value: Input, program: Program) -> str:
    if not value.type.shape:
        return f"{value.type.dtype}, a number or tensor"
    state = ", updated in place" if value.name in program.updates else ""
    return f"{value.type.dtype} {shape_text(value.type.shape)}, {layout_text(value.type.layout)}{state}"
