"""Reading XML that others wrote: no entities, no network, and every complaint carries file and line."""

from __future__ import annotations

from typing import Any

from lxml import etree

from treadle.planner.errors import InputError

Element = etree._Element


def parse_xml(text: str, where: str, root: str) -> Element:
    """The root element, which must be called `root`. Raises InputError for anything else."""
    parser = etree.XMLParser(
        encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )
    try:
        element = etree.fromstring(text.encode("utf-8", "surrogatepass"), parser)
    except etree.XMLSyntaxError as error:
        line = error.lineno or 1
        reason = " ".join(str(error.msg).split())
        raise InputError(f"found broken XML ({reason}), expected a whole document", where=f"{where}:{line}") from error
    except ValueError as error:
        raise InputError(f"found {error}, expected an XML document", where=where) from error
    declared: Any = element.getroottree().docinfo.internalDTD
    if declared is not None and next(declared.iterentities(), None) is not None:
        raise InputError("found entity declarations, expected a document without", where=where)
    if element.tag != root:
        raise fault(element, where, f"found <{element.tag}>, expected <{root}>")
    return element


def fault(element: Element, where: str, message: str) -> InputError:
    """An InputError that points at the line of `element`."""
    return InputError(message, where=f"{where}:{element.sourceline}")


def text_of(element: Element, name: str, where: str) -> str:
    """The attribute `name`, which must be there and not be empty."""
    value = element.get(name)
    if not value:
        raise fault(element, where, f"found <{element.tag}> without {name!r}, expected one")
    return value


def number_of(element: Element, name: str, where: str, default: int | None = None) -> int:
    """The attribute `name` as an integer from -1 (which these formats use for unknown) to 2^31."""
    if default is not None and element.get(name) is None:
        return default
    value = text_of(element, name, where)
    try:
        number = int(value)
    except ValueError:
        number = -2
    if not -1 <= number <= 2**31:
        raise fault(element, where, f"found <{element.tag}> with {name}={value!r}, expected a whole number")
    return number


def class_of(code: str) -> int | None:
    """The upper 16 bits of a PCI class code: 0x0302 for `0x030200` and for `0302`."""
    digits = code.lower().removeprefix("0x")
    try:
        return int(digits[:4], 16) if len(digits) >= 4 else None
    except ValueError:
        return None
