"""The Python that generated files may contain. A text is parsed again before it is written or executed, and refused
for a single line that treadle never writes.

The quoting of names (`treadle.codegen.templates`) keeps data from becoming code; this is the second barrier, and the
only one for foreign folders. Steps consist of explicit calls, so their form is a list of the names they may use. In the
modules for PyTorch's own checkpointing and compiler only tables differ; the rest is the template, word for word.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import jinja2

from treadle.codegen.templates import template
from treadle.planner.documents.arguments import DTYPES, KERNELS, LAYOUTS, MEMORY_FORMATS, target_problem
from treadle.planner.errors import InputError


@dataclass(frozen=True)
class PythonForm:
    """imports: names by module, none for the module itself. `defines` are names that the text must assign or define,
    `words` what it may read and call without assigning it, `methods` attributes of values, `functions` attributes of
    our modules."""

    imports: Mapping[str, frozenset[str]]
    defines: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    kinds: frozenset[type[ast.AST]] = field(default_factory=frozenset)
    """Besides those that every form has."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


STEP = PythonForm(
    imports={
        "torch": frozenset(),
        "treadle": _names("kernels"),
        "treadle.runtime": _names("inverting objects rng strides"),
    },
    defines=_names(
        "PARAMETERS BUFFERS INPUTS TANGENTS GRADIENTS FROZEN EVALUATING returned forward backward aten torch"
    ),
    words=_names("float iter next tuple"),
    methods=_names("clone copy_ detach device pop values"),
    functions=_names("inverting.spare objects.made rng.replayed rng.state strides.exact"),
    kinds=frozenset({ast.With, ast.withitem, ast.If, ast.Compare, ast.Is, ast.Delete, ast.Del, ast.Starred, ast.Yield}),
)
SWAP = PythonForm(
    imports={
        "torch": frozenset(),
        "treadle": _names("kernels"),
        "treadle.runtime": _names("objects"),
        "treadle.runtime.swap.step": _names("T compute copy_in copy_out drop"),
    },
    defines=_names(
        "ARENA_BYTES MACHINE PREDICTED_NS NAME PARAMETERS BUFFERS OPTIMIZER INPUTS TANGENTS OUTPUTS UPDATES EVALUATING"
        " TRAINING STORAGES INITIAL FINAL NODES returned calls"
    ),
    words=_names("float tuple T compute copy_in copy_out drop"),
    functions=_names("objects.made"),
)
_SAME = "add subtract multiply divide exp expm1 log log1p sqrt negative square maximum minimum sin cos tanh matmul abs"
TILED_FUNCTIONS = frozenset(f"torch.{name}" for name in (*_SAME.split(), "sum", "amax", "amin"))
"""Functions of PyTorch that programs of arrays call."""
TILED_STEP = PythonForm(
    imports={"torch": frozenset(), "treadle": _names("kernels"), "treadle.runtime": _names("objects")},
    defines=_names(
        "MESH PARAMETERS BUFFERS INPUTS TANGENTS GRADIENTS FROZEN EVALUATING UNTRAINED TILINGS aten torch"
        " returned forward backward"
    ),
    words=_names("float tuple"),
    methods=_names(
        "allgather allreduce alltoall clone copy_ detach device made native_dropout none_ignored once part pop"
        " reduce_scatter"
    ),
    functions=_names("objects.made"),
    kinds=frozenset({ast.Delete, ast.Del, ast.Yield}),
)
TILED_PROGRAM = PythonForm(
    imports={"torch": frozenset()},
    defines=_names("MESH COLLECTIVES OUTPUTS NODES run"),
    methods=_names("allgather allreduce alltoall called filled made part reduce_scatter"),
    functions=frozenset({*TILED_FUNCTIONS, "torch.swapaxes"}),
    kinds=frozenset({ast.Delete, ast.Del}),
)
DASK_PROGRAM = PythonForm(
    imports={
        "treadle.runtime.tiling.dask_arrays": _names("mapped moved new viewed"),
        "treadle.runtime.tiling.dask_folds": _names("folded joined scanned"),
    },
    defines=_names("NAME MESH NODES program"),
    words=_names("folded joined mapped moved new scanned viewed"),
)
FUSED = PythonForm(
    imports={
        "__future__": _names("annotations"),
        "typing": _names("Any"),
        "treadle.runtime.fusion.torch_program": _names("FusedProgram Given"),
    },
    defines=_names("SCHEDULE"),
    methods=_names("run"),
    kinds=frozenset({ast.ClassDef}),
)
TABLES = {
    "torch-sac": ("torch/policy.py.j2",),
    "torch-compile": ("torch/partition.py.j2",),
    "torch-offload": ("torch/offload.py.j2",),
    "ddp-hook": ("torch/hook.py.j2", "torch/sparse_hook.py.j2", "torch/server_hook.py.j2"),
    "nvrx": ("checkpoint/nvrx.py.j2",),
    "lm-resiliency": ("checkpoint/lm_resiliency.py.j2",),
    "torchft": ("checkpoint/torchft.py.j2",),
    "jax": ("tiling/jax.py.j2",),
}
"""By target, the templates of modules in which only tables differ."""

_KINDS: frozenset[type[ast.AST]] = frozenset(
    {
        *(ast.Module, ast.Import, ast.ImportFrom, ast.alias, ast.FunctionDef, ast.arguments, ast.arg, ast.Return),
        *(ast.Assign, ast.Expr, ast.Call, ast.keyword, ast.Attribute, ast.Subscript, ast.Name, ast.Load, ast.Store),
        *(ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.UnaryOp, ast.USub),
    }
)
_MODULES = _names("aten inverting kernels objects rng strides torch")
_TAKEN = _MODULES | _names("T compute copy_in copy_out drop") | frozenset(dir(builtins))
"""Names that nothing may be called: assigned in one function, a word of Python would be known in all the others."""
_WORDS_OF_TORCH = DTYPES | LAYOUTS | MEMORY_FORMATS


def require_form(target: str, text: str, where: str) -> None:
    """Raise InputError, which names the line, where the Python `text` of an artefact for `target` is none that treadle
    writes."""
    try:
        odd = _first_odd(target, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno if isinstance(error, SyntaxError) and error.lineno else 1
        raise InputError("found what is no Python, expected a generated module", where=f"{where}:{line}") from error
    if odd is not None:
        line, what = odd
        message = f"found {what}, expected nothing but what treadle generates for {target}"
        raise InputError(message, where=f"{where}:{line}")


def _first_odd(target: str, tree: ast.Module) -> tuple[int, str] | None:
    """(line, what) of the first thing that treadle does not write for `target`."""
    if target in TABLES:
        odd = [_beside_tables(tree, name) for name in TABLES[target]]
        return None if None in odd else max(filter(None, odd))  # from the template that the text is like for longest
    if target == "dask":
        return next(_odd(tree, DASK_PROGRAM), None)
    if target == "dtensor":
        arrays = any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body)
        return next(_odd(tree, TILED_PROGRAM if arrays else TILED_STEP), None)
    fused = target == "torch" and any(isinstance(node, ast.ClassDef) for node in tree.body)
    return next(_odd(tree, SWAP if target == "torch-swap" else FUSED if fused else STEP), None)


def _odd(tree: ast.Module, form: PythonForm) -> Iterator[tuple[int, str]]:
    """(line, what) of everything that `form` does not have."""
    bound = {name.name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for name in node.names}
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assigned |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for name in sorted(form.defines - bound - assigned - defined):
        yield 1, f"no {name}"
    known = bound | assigned | defined | form.words
    kinds = _KINDS | form.kinds
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if type(node) not in kinds or not _allowed(node, form, known):
            yield getattr(node, "lineno", 1), _shown(node)
        else:
            pending += _parts(node)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside `node` that are not allowed or refused together with it."""
    match node:
        case ast.Attribute() if _root(node) in _MODULES:
            return iter(())
        case ast.Assign(targets=[ast.Name("aten")]):
            return iter(())
    return ast.iter_child_nodes(node)


def _allowed(node: ast.AST, form: PythonForm, known: set[str]) -> bool:
    match node:
        case ast.Import(names):
            return all(each.asname is None and form.imports.get(each.name) == frozenset() for each in names)
        case ast.ImportFrom(module, names, 0):
            taken = form.imports.get(module or "", frozenset())
            return all(each.asname is None and each.name in taken for each in names)
        case ast.ImportFrom():
            return False
        case ast.FunctionDef() | ast.ClassDef():
            return not node.decorator_list and node.name not in _TAKEN
        case ast.Assign(targets=[ast.Name("aten")]):
            return ast.unparse(node.value) == "torch.ops.aten"
        case ast.Name(name, ast.Load()):
            return name in known
        case ast.Name(name) | ast.arg(name):
            return name not in _TAKEN and not name.startswith("__")
        case ast.keyword(name):
            return name is not None
        case ast.Call(ast.Name(name)):
            return name in form.words
        case ast.Call(function):
            return isinstance(function, ast.Attribute)
        case ast.Attribute():
            root = _root(node)
            return _of_module(ast.unparse(node), form) if root in _MODULES else node.attr in form.methods
    return True


def _root(node: ast.expr) -> str:
    """The name that an attribute of an attribute, and so on, begins with; empty where it begins with a call."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _of_module(dotted: str, form: PythonForm) -> bool:
    module, _, name = dotted.partition(".")
    if module == "torch":
        operator = name.removeprefix("ops.")
        known = name in _WORDS_OF_TORCH or name == "ops.aten" or dotted in form.functions
        return known or (operator != name and target_problem(operator) is None)
    if module == "aten":
        return target_problem(dotted) is None
    return name in KERNELS if module == "kernels" else dotted in form.functions


def _beside_tables(tree: ast.Module, name: str) -> tuple[int, str] | None:
    """(line, what) of the first statement that is neither a docstring nor a table nor the template's."""
    if ast.get_docstring(tree, clean=False) is None:
        return 1, _shown(tree.body[0]) if tree.body else "nothing"
    template_has = _statements(name)
    here = [statement for statement in tree.body[1:] if not _is_table(statement)]
    for statement, expected in zip(here, template_has, strict=False):
        if ast.dump(statement) != expected:
            return statement.lineno, _shown(statement)
    if len(here) > len(template_has):
        extra = here[len(template_has)]
        return extra.lineno, _shown(extra)
    return (1, "a part of the module") if len(here) < len(template_has) else None


@cache
def _statements(name: str) -> tuple[str, ...]:
    """The statements of the template `name` behind its docstring, without tables."""
    loose = template(name).environment.overlay(undefined=jinja2.ChainableUndefined)
    tree = ast.parse(loose.get_template(name).render(name=""))
    return tuple(ast.dump(statement) for statement in tree.body[1:] if not _is_table(statement))


def _is_table(statement: ast.stmt) -> bool:
    """Whether it gives a constant numbers and texts in lists, tuples and dicts."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    literals = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.UnaryOp, ast.USub, ast.Load)
    return (
        isinstance(target, ast.Name)
        and target.id.isupper()
        and all(isinstance(node, literals) for node in ast.walk(statement.value))
    )


def _shown(node: ast.AST) -> str:
    try:
        text = " ".join(ast.unparse(node).split())
    except RecursionError:
        text = type(node).__name__
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"
