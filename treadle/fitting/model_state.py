"""What a captured step fixes of a model besides its tensors: values in Python attributes, hooks of its modules, and
what its loss reads from outside."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from treadle.fitting.value_key import (
    EXACT_ATOMS,
    is_not_compared,
    key_of,
    key_of_hook,
    key_of_read,
    own_attributes,
    reads_outside,
)

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_OF_WRAPPERS = ("_fsdp_", "_is_fsdp_")
"""How the names of attributes begin that `fully_shard` sets."""
_HOOKS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
Attributes = tuple[tuple[str, str, Hashable], ...]
"""Name of the module, name of the attribute, key of its value."""


def attributes_of(model: nn.Module, loss: Any = None) -> Attributes:
    """The attributes of all modules of `model` and their classes, without those that every module has, and what `loss`
    reads from outside."""
    modules = dict(model.named_modules())
    known: dict[int, Hashable] = {id(module): "module" for module in modules.values()}
    base = dict(known)
    found: list[tuple[str, str, Hashable]] = []
    for place, module in modules.items():  # in each call: one plain loop, without a call for a number
        for name, value in vars(module).items():
            if name in _OF_EVERY_MODULE or name in module._parameters or name.startswith(_OF_WRAPPERS):
                continue
            kind = type(value)
            found.append((place, name, (kind, value) if kind in EXACT_ATOMS else _known_key(value, base, known)))
    kinds = dict.fromkeys(map(type, modules.values()))
    for kind in dict.fromkeys(parent for each in kinds for parent in each.__mro__):
        found += (("", f"{kind.__name__}.{name}", key_of(x, base)) for name, x in own_attributes(kind).items())
    for kind in kinds:
        if reads_outside(kind.forward):
            found.append(("", f"{kind.__name__}.forward", key_of_read(kind.forward, base)))
    if loss is not None:
        found.append(("", "", key_of_read(loss, base)))
    return tuple(found)


def _known_key(value: Any, base: dict[int, Hashable], known: dict[int, Hashable]) -> Hashable:
    if type(value) is tuple and EXACT_ATOMS.issuperset(kinds := tuple(map(type, value))):
        return kinds, value
    if id(value) not in known:
        known[id(value)] = key_of(value, base)
    return known[id(value)]


def not_compared(attributes: Attributes) -> Iterator[str]:
    """What of `attributes` is not compared, or not all of it, as `module.attribute`."""
    for place, name, key in attributes:
        if is_not_compared(key):
            yield ".".join(filter(None, (place, name))) or "the loss"


def hooks_of(model: nn.Module) -> Attributes:
    """The hooks of all modules of `model`, in the same form, without those by which PyTorch computes parameters."""
    each = [
        (place, kind, hooks)
        for place, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        for kind in _HOOKS
        if (hooks := getattr(module, kind))
    ]
    of_all = [("", kind, getattr(torch_module, f"_global{kind}")) for kind in _HOOKS]
    return tuple(
        (place, _HOOKS[kind], key_of_hook(hook))
        for place, kind, hooks in (*each, *of_all)
        for hook in hooks.values()
        if not type(hook).__module__.startswith("torch.nn.utils.")
    )


def first_difference(before: Attributes, after: Attributes) -> str:
    """The name of an attribute in which they differ, as `module.attribute`."""
    known = {(place, name): key for place, name, key in before}
    changed = [entry for entry in after if known.get(entry[:2], ...) != entry[2]]
    names = [entry[:2] for entry in changed] or sorted(known.keys() - {entry[:2] for entry in after})
    return ".".join(filter(None, (names or [("", "")])[0])) or "what the loss takes from outside"
