"""The hardware profiles and sketches that options name."""

from __future__ import annotations

from treadle.cli.output import note
from treadle.planner.documents import store, taccl_files
from treadle.planner.documents.hardware import Hardware, scaled
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.sources import locate
from treadle.planner.machine.measured_network import hardware_in

LOCAL = "local"


def load_hardware(name_or_path: str, nodes: int | None = None) -> Hardware:
    """The profile meant by a shipped name, a path, or `local` (this machine), with `nodes` nodes where given. The file
    may be the cost matrix of probed hosts.

    Raises InputError when there is no such profile, its file is malformed, or it cannot have that many nodes.
    """
    if name_or_path == LOCAL:
        from treadle.probe.local import detect

        hardware = detect()
    else:
        hardware = hardware_in(locate(Hardware, name_or_path))
    return hardware if nodes is None else scaled(hardware, nodes)


def load_sketch(name_or_path: str) -> Sketch:
    """The sketch meant by a shipped name or a file; what is not carried over from a TACCL file is noted on stderr.

    Raises InputError when there is none or its file is malformed.
    """
    path = locate(Sketch, name_or_path)
    sketch = store.load(path, Sketch)
    for remark in taccl_files.remarks(parse(store.read_text(path), str(path))):
        note(f"{name_or_path}: {remark}")
    return sketch
