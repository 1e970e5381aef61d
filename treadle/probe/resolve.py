"""The hardware profile that `--hardware NAME_OR_PATH --nodes N` means, for every command."""

from __future__ import annotations

from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware, scaled

LOCAL = "local"


def load_hardware(name_or_path: str, nodes: int | None = None) -> Hardware:
    """The profile meant by a shipped name, a path, or `local` (this machine), with `nodes` nodes where given.

    Raises InputError when there is no such profile, its file is malformed, or it cannot have that many nodes.
    """
    if name_or_path == LOCAL:
        from treadle.probe.local import detect

        hardware = detect()
    else:
        hardware = store.load(resources.locate("profiles", name_or_path), Hardware)
    return hardware if nodes is None else scaled(hardware, nodes)
