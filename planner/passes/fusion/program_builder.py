"""From values to a program: what belongs to it, in which order, under which names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.infer import retyped
from treadle.planner.passes.fusion.naming import canonical
from treadle.planner.passes.fusion.operations import completed
from treadle.planner.passes.fusion.program import Input, Kernel, Node, Overlap, Program
from treadle.planner.passes.fusion.values import Launch, Value, current, label


def build_program(
    name: str,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    scope: Mapping[str, object],
    reserved: Collection[str],
) -> Program:
    """The program that computes `outputs`, writes all Updates of `inputs` and makes every other value in `scope`.

    Values are called after the variables in `scope`, where no word may be `reserved`. Raises InputError for a value
    that is made of other inputs, and for names that cannot be.
    """
    for value in (*inputs, *outputs):
        if not isinstance(value, Value):
            raise InputError(f"{name}: found {value!r}, expected tensors")
    given = {value.serial for value in inputs}
    variables = {variable: value for variable, value in scope.items() if not variable.startswith("_")}
    wanted = [current(value) for value in outputs]
    written = [value.written for value in inputs if value.written is not None]
    others = [value for value in variables.values() if isinstance(value, Value) and _at_home(value, given)]
    nodes = _made_for([*wanted, *written, *others], name, given)
    names = _names(name, inputs, nodes, variables, reserved)
    launches: dict[Launch, str] = {}
    for variable, of in variables.items():
        if isinstance(of, Launch) and _launched(of) <= set(names):
            launches.setdefault(of, variable)

    def called(member: Value | Launch) -> str:
        if isinstance(member, Value):
            return names[member.serial]
        if member not in launches:
            raise InputError(f"{name}: found a kernel without a name, expected it assigned to a variable")
        return launches[member]

    program = Program(
        name=label(name),
        inputs=tuple(Input(names[value.serial], value.type) for value in inputs),
        nodes=tuple(
            Node(
                names[value.serial],
                value.op,
                tuple(names[of.serial] if isinstance(of, Value) else of for of in value.operands),
                value.type,
                completed(value.op, value.attributes),
            )
            for value in nodes
        ),
        outputs=tuple(names[value.serial] for value in wanted),
        kernels=tuple(
            Kernel(key, of.policy, tuple(map(called, of.members))) for of, key in launches.items() if of.policy
        ),
        overlaps=tuple(Overlap(key, tuple(map(called, of.members))) for of, key in launches.items() if not of.policy),
    )
    if not nodes:
        raise InputError(f"{name}: found no operation, expected outputs or Updates")
    return canonical(retyped(program))


def _made_for(values: Sequence[Value], program: str, given: set[int]) -> list[Value]:
    """All that these are made of, without the inputs, in the order in which it was written."""
    needed = _needed(values)
    for value in needed:
        if not value.op and value.serial not in given:
            raise InputError(f"{program}: found the tensor {value.name!r} used, expected it among the inputs")
    return [value for value in needed if value.op]


def _needed(values: Sequence[Value]) -> list[Value]:
    """These and all that they are made of, in the order in which it was written."""
    found: dict[int, Value] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value.serial not in found:
            found[value.serial] = value
            waiting += [of for of in value.operands if isinstance(of, Value)]
    return [found[serial] for serial in sorted(found)]


def _at_home(value: Value, given: set[int]) -> bool:
    """Whether all tensors that it needs are inputs."""
    return all(of.op or of.serial in given for of in _needed([value]))


def _launched(launch: Launch) -> set[int]:
    """The values that a kernel or overlap runs."""
    return {
        serial
        for member in launch.members
        for serial in ({member.serial} if isinstance(member, Value) else _launched(member))
    }


def _names(
    program: str,
    inputs: Sequence[Value],
    nodes: Sequence[Value],
    variables: Mapping[str, object],
    reserved: Collection[str],
) -> dict[int, str]:
    """Names by serial number: those of inputs, explicit ones, variables; the rest begin with an underscore."""
    names = {value.serial: value.name or "" for value in inputs}
    made = {node.serial: label(node.name) for node in nodes if node.name}
    taken = [*names.values(), *made.values()]
    if twice := [name for name in taken if taken.count(name) > 1]:
        raise InputError(f"{program}: found two values called {twice[0]!r}, expected names that differ")
    operations = {node.serial for node in nodes}
    for variable, of in variables.items():
        if isinstance(of, Value) and of.serial in operations and of.serial not in made:
            name = variable
            while name in taken:
                name += "_"
            made[of.serial] = label(name)
            taken.append(name)
    for name in made.values():
        if name in reserved:
            raise InputError(f"{program}: found the name {name!r}, which is a word of the language, expected another")
    return {**{node.serial: f"_{number}" for number, node in enumerate(nodes)}, **names, **made}
