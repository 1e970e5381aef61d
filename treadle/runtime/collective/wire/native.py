"""One rank's script of a program, run by compiled code (`executor.cpp`), without Python for any message."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from socket import AF_UNIX, socket
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from treadle.codegen.collective.actions import Action, Range, TaggedMessage
from treadle.planner.documents.transports import PIECE_BYTES
from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.collective.wire.shared_memory import share
from treadle.runtime.native_build import compile_library
from treadle.runtime.sockets import close

DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3, torch.int32: 4, torch.int64: 5}
OPERATIONS = {"sum": 0, "avg": 0, "min": 1, "max": 2}
BUFFERS = {"i": 0, "o": 1, "s": 2}
INTERRUPTED = -1
NO_STEP = -2
"""In place of an action: the call has no step of its own that waits."""
CLOSE_SECONDS = 3.0
_INTEGER = ctypes.c_int32


class _Range(ctypes.Structure):
    _fields_ = [(name, _INTEGER) for name in ("buffer", "first", "count")]


class _End(ctypes.Structure):
    _fields_ = [(name, _INTEGER) for name in ("peer", "tag", "count")]


class _Action(ctypes.Structure):
    _fields_ = [
        ("reads", _Range * 2),
        ("terms", _INTEGER),
        ("writes", _Range),
        ("has_target", _INTEGER),
        ("receives", _End),
        ("sends", _End),
        ("stream", _INTEGER),
        ("value", _INTEGER * 2),
        ("leave", _INTEGER * 2),
        ("behind", _INTEGER * 2),
        ("waits", _INTEGER),
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        ("buffers", ctypes.c_void_p * 3),
        ("width", ctypes.c_int64),
        ("piece", ctypes.c_int64),
        ("dtype", _INTEGER),
        ("operation", _INTEGER),
        ("what", ctypes.c_uint64),
    ]


@cache
def library() -> Any:
    """The compiled executor. Raises MissingBackendError without g++."""
    sources = [each for each in files(__package__).iterdir() if each.name.endswith((".h", ".cpp"))]
    texts = {each.name: each.read_text(encoding="utf-8") for each in sources}
    loaded = ctypes.CDLL(str(compile_library(texts, "executor.cpp", "process")))
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("wire_board_bytes", ctypes.c_uint64, [integer]),
        ("wire_open", pointer, [integer, integer, integer, pointer, pointer, pointer, pointer, integer]),
        ("wire_close", None, [pointer]),
        ("wire_program", pointer, [pointer, integer, pointer, integer, integer]),
        ("wire_forget", None, [pointer]),
        ("wire_message", ctypes.c_char_p, [pointer]),
        ("wire_action", integer, [pointer]),
        ("wire_run", integer, [pointer, pointer, pointer]),
        ("wire_resume", integer, [pointer]),
        ("wire_abandon", None, [pointer]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class RankWire:
    """Streams to all other ranks: `sockets` by rank, None at this one's own place, closed with it. All ranks run the
    same programs over them in the same order. Ranks of one host, whose sockets are of the family AF_UNIX, exchange
    through memory that they share, unless `sharing` is off. `latency_us` is added to the time of every message from
    another host, where a lab stands for a slower network. `more` are further streams like `sockets`, over which
    messages to other hosts are spread.
    """

    def __init__(
        self,
        rank: int,
        sockets: Sequence[socket | None],
        latency_us: float = 0.0,
        *,
        sharing: bool = True,
        more: Sequence[Sequence[socket | None]] = (),
    ) -> None:
        self.rank, self.sockets, self.more, ranks = rank, sockets, more, len(sockets)
        self.lock, self.stopping = Lock(), False
        shared = share(rank, sockets, library().wire_board_bytes) if sharing else None
        self.board = None if shared is None else shared[0]
        near = [] if shared is None else shared[1]
        places = [near.index(other) if other in near else -1 for other in range(ranks)]
        delays = [
            0 if each is None or (sharing and each.family == AF_UNIX) else round(latency_us * 1000) for each in sockets
        ]
        streams = [
            -1 if each is None or (number and places[other] >= 0) else each.fileno()
            for other in range(ranks)
            for number, each in enumerate((sockets[other], *(stream[other] for stream in more)))
        ]
        self.handle: int | None = library().wire_open(
            rank,
            ranks,
            1 + len(more),
            (_INTEGER * len(streams))(*streams),
            (_INTEGER * ranks)(*places),
            (ctypes.c_uint64 * ranks)(*delays),
            None if self.board is None else ctypes.addressof(ctypes.c_char.from_buffer(self.board)),
            len(near),
        )

    def stop(self) -> None:
        """End the call that another thread may be in, within a second; later ones fail."""
        self.stopping = True

    def close(self) -> None:
        """Close the sockets; other ranks that still wait for this one learn that it is gone."""
        self.stop()
        # A signal handler may run in the thread that holds it, whose call ends after the handler.
        if self.lock.acquire(timeout=CLOSE_SECONDS):
            if self.handle is not None:
                library().wire_close(self.handle)
                self.handle = None
            for each in (self.sockets, *self.more):
                close(each)
            if self.board is not None:
                self.board.close()
            self.lock.release()


class WireScript:
    """A script as tables of the compiled code. `streams`: the number of the one over which each action sends to another
    host, modulo those of a wire; by default the first."""

    def __init__(self, script: Sequence[Action], ranks: int, streams: Sequence[int] = ()) -> None:
        lists: list[int] = []
        starts: tuple[list[list[int]], list[list[int]]] = ([[] for _ in script], [[] for _ in script])
        for index, action in enumerate(script):
            for earlier, others in zip((action.after, action.after_leaving), starts, strict=True):
                for other in earlier:
                    others[other].append(index)

        def listed(numbers: Sequence[int]) -> Any:
            lists.extend(numbers)
            return (_INTEGER * 2)(len(lists) - len(numbers), len(numbers))

        def end(message: TaggedMessage | None, peer: str) -> Any:
            return _End(-1, 0, 0) if message is None else _End(getattr(message, peer), message.tag, message.count)

        def place(range_: Range | None) -> Any:
            return _Range(0, 0, 0) if range_ is None else _Range(BUFFERS[range_[0]], range_[1], range_[2])

        rows = [
            _Action(
                (_Range * 2)(*map(place, action.reads)),
                len(action.reads),
                place(action.writes),
                action.writes is not None,
                end(action.receives, "src"),
                end(action.sends, "dst"),
                stream,
                listed(value),
                listed(leave),
                listed(action.behind),
                len(action.after) + len(action.after_leaving),
            )
            for action, stream, value, leave in zip(script, streams or [0] * len(script), *starts, strict=True)
        ]
        self.script = script
        self.reduces = any(len(each.reads) + (each.receives is not None) > 1 for each in script)
        self.handle: int | None = library().wire_program(
            (_Action * len(rows))(*rows), len(rows), (_INTEGER * len(lists))(*lists), len(lists), ranks
        )

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None:
            library().wire_forget(self.handle)

    def run(self, wire: RankWire, buffers: Mapping[str, Tensor], width: int, op: str, what: str) -> None:
        """One call in `buffers`, of `width` elements a chunk; `what` names the program, the same on all ranks.

        Raises CheckFailed with the rank that was lost or called something else, and the step that it holds up,
        InputError for elements that cannot be added up here.
        """
        like = buffers["i"]
        if self.reduces and like.dtype not in DTYPES:
            raise InputError(f"found tensors of {like.dtype}, expected {', '.join(map(str, DTYPES))}")
        call = _Call(
            (ctypes.c_void_p * 3)(*(buffers[name].data_ptr() for name in BUFFERS)),
            width * like.element_size(),
            PIECE_BYTES,
            DTYPES.get(like.dtype, -1),
            OPERATIONS[op],
            int.from_bytes(sha256(f"{what} {width} {like.dtype} {op}".encode()).digest()[:8], "little"),
        )
        native = library()
        with wire.lock:
            if wire.handle is None or wire.stopping:
                raise CheckFailed(f"rank {wire.rank}: the process group of this call was destroyed or interrupted")
            self._call(native, wire, call)

    def _call(self, native: Any, wire: RankWire, call: _Call) -> None:
        try:
            code = native.wire_run(wire.handle, self.handle, ctypes.byref(call))
            while code == INTERRUPTED:
                if wire.stopping:
                    raise CheckFailed(f"rank {wire.rank}: the call was stopped")
                code = native.wire_resume(wire.handle)
        except BaseException:
            native.wire_abandon(wire.handle)
            raise
        if code:
            reason, step = native.wire_message(wire.handle).decode(), self._step(native.wire_action(wire.handle))
            raise CheckFailed(f"rank {wire.rank}: {reason}{step}")

    def _step(self, index: int) -> str:
        """Where an action stands in the program."""
        if index == NO_STEP:
            return ""
        if not 0 <= index < len(self.script):
            return ", after the last step of this rank"
        place, step = self.script[index].place, self.script[index].step
        return f", waited for by step {place.step} ({step.type}) of threadblock {place.threadblock}"
