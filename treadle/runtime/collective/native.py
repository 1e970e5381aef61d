"""Collective programs as compiled kernels: on host fibers with g++, on GPUs with nvcc.

`build` compiles a program, `build_folder` what `treadle generate --target cuda` wrote. A `CompiledProgram` runs all
ranks from one process, `CompiledRanks` are those of one among several processes, a `CompiledRank` is one. With target
`fibers` every thread of every threadblock of every rank is a fiber of this process, and a seed chooses their order.
With target `cuda` the tensors of one GPU belong to virtual ranks of one cooperative launch; several GPUs use peer
pointers, several processes CUDA IPC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from treadle.codegen import emit
from treadle.codegen.collective.cuda import kernels
from treadle.codegen.collective.cuda.kernels import Kernel
from treadle.codegen.collective.cuda.tables import Tables, tables
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.collective.protocols import PROTOCOLS
from treadle.planner.documents.nearest import meant
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.runtime.agreement import agreed
from treadle.runtime.collective.native_layout import part_elements, place
from treadle.runtime.collective.native_session import Buffers, Session, Sizes
from treadle.runtime.native_build import Target, compile_library, compiler

DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int32: 4}
"""Data types that programs with sums take, with their codes in treadle_types.h; others take any."""
OPERATIONS = {"sum": 0, "avg": 0, "min": 1, "max": 2}
SLOT_BYTES = {"Simple": 512 << 10, "LL": 16 << 10, "LL128": 120 << 10}
"""Payload of a slot; larger chunks go in several iterations of the program."""


@dataclass(frozen=True)
class LaunchSettings:
    """How a program runs; None stands for the default of its target and protocol.

    `threads` of a threadblock: a multiple of 8 for fibers, by default 8; of 32 up to 512 on GPUs, by default as many as
    let all threadblocks be resident. `slots` of a connection: a power of two. On GPUs a wait of more than `timeout`
    seconds is taken for a deadlock, 0 is without limit; fibers need no clock for that.
    """

    threads: int | None = None
    slots: int | None = None
    slot_bytes: int | None = None
    timeout: float = 60.0


def build(
    program: CollectiveProgram,
    target: Target = "fibers",
    *,
    kernel: Kernel = "interpreter",
    arch: str | None = None,
    settings: LaunchSettings | None = None,
) -> CompiledProgram:
    """`program` compiled with the interpreter kernel, which all programs of a protocol share, or its specialised one.

    `arch` is nvcc's -arch, by default that of the available GPU. Raises MissingBackendError without g++ or nvcc, or
    without a GPU when `arch` is not given; InputError for steps that no kernel knows.
    """
    texts = kernels.headers()
    if kernel == "specialised":
        texts["program.cu"] = kernels.specialised(program, tables(program))
    main = "program.cu" if kernel == "specialised" else kernels.INTERPRETER
    return _library(program, target, kernel, arch, texts, main, settings)


def build_folder(
    folder: Path | str,
    target: Target = "fibers",
    *,
    kernel: Kernel = "specialised",
    arch: str | None = None,
    settings: LaunchSettings | None = None,
) -> dict[str, CompiledProgram]:
    """The libraries of a folder that `treadle generate --target cuda` wrote, by the name of their XML file.

    Raises what `build` raises, and InputError for another folder, one that was changed since, and one with other C++
    than this version makes of its programs: foreign text is never compiled.
    """
    manifest, texts = emit.read(folder)
    if manifest.target != "cuda":
        raise InputError(f"found an artefact for {manifest.target}, expected one for cuda", where=str(folder))
    libraries = {}
    for name in sorted(texts):
        if name.endswith(".xml"):
            program = xml.parse(texts[name], str(Path(folder) / name))
            ours, main = kernels.headers(), kernels.INTERPRETER
            if kernel == "specialised":
                main = f"{name.removesuffix('.xml')}.cu"
                ours[main] = kernels.specialised(program, tables(program))
            for file, text in ours.items():
                if _code(texts.get(file, "")) != _code(text):
                    message = "found other kernels than this version of treadle makes of the program; generate again"
                    raise InputError(message, where=str(Path(folder) / file))
            libraries[name] = _library(program, target, kernel, arch, ours, main, settings)
    return libraries


def _code(text: str) -> list[str]:
    """The lines without remarks, which call some collectives otherwise than the XML does."""
    return [line for line in text.splitlines() if not line.startswith("//")]


def _library(
    program: CollectiveProgram,
    target: Target,
    kernel: Kernel,
    arch: str | None,
    texts: Mapping[str, str],
    main: str,
    settings: LaunchSettings | None,
) -> CompiledProgram:
    compiler(target)
    if target == "cuda" and arch is None and not torch.cuda.is_available():
        raise MissingBackendError(
            "found no GPU that PyTorch can use, expected one for backend cuda; install a driver and PyTorch for CUDA, "
            "or take backend fibers"
        )
    table = tables(program)
    needed = {name: text for name, text in texts.items() if name == main or name.startswith("treadle_")}
    definitions = kernels.definitions(kernel, program.protocol, table.reduces)
    path = compile_library(needed, main, target, definitions, arch)
    return CompiledProgram(program, target, path, table, settings or LaunchSettings())


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A compiled program. Slots and counters are made at the first run and used again by all later ones."""

    program: CollectiveProgram
    target: Target
    path: Path
    table: Tables
    settings: LaunchSettings
    _sessions: dict[tuple[int, ...], Session] = field(default_factory=dict, repr=False)

    @property
    def reduces(self) -> bool:
        return self.table.reduces

    def run(self, inputs: Sequence[Tensor], op: str = "sum", *, seed: int = 0, wait: bool = True) -> list[Tensor]:
        """The collective over the tensors of all ranks; returns what each of them gets.

        Tensors as a rank of the collective has them: for allgather its part, for reducescatter and alltoall the parts
        for all ranks along the first dimension, else the whole. Any size works. A program in place works in the
        caller's tensors where input and output are one; otherwise they stay as they are. `op`: sum, avg, min, max.
        On GPUs, without `wait` it returns when the work is queued on the current streams.

        Raises InputError for tensors that do not fit, CheckFailed naming each waiting step when the program hangs.
        """
        if len(inputs) != len(self.program.ranks):
            raise InputError(f"found {len(inputs)} tensors, expected one for each of {len(self.program.ranks)} ranks")
        devices = tuple(self._device(rank, tensor) for rank, tensor in enumerate(inputs))
        if devices not in self._sessions:
            self._sessions[devices] = self.open(devices)
        session = self._sessions[devices]
        try:
            return self._call(session, dict(enumerate(inputs)), op, seed, wait or self.target == "fibers")
        except CheckFailed:
            del self._sessions[devices]  # its counters stand anywhere
            raise

    def open(self, devices: Sequence[int]) -> Session:
        """Slots and counters on `devices`, one entry per rank, -1 for ranks of other processes."""
        protocol, settings = self.program.protocol, self.settings
        return Session(
            self.path,
            self.program,
            self.table,
            devices=devices,
            threads=settings.threads or 0,
            slots=settings.slots or PROTOCOLS[protocol].slots,
            slot_bytes=settings.slot_bytes or SLOT_BYTES[protocol],
        )

    def close(self) -> None:
        """Give back slots and counters."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _call(
        self, session: Session, tensors: Mapping[int, Tensor], op: str, seed: int, wait: bool = True
    ) -> list[Tensor]:
        for rank, tensor in tensors.items():
            if self._device(rank, tensor) != session.devices[rank] and self.target == "cuda":
                expected = f"expected one on cuda:{session.devices[rank]}"
                raise InputError(f"rank {rank}: found a tensor on {tensor.device}, {expected}")
        first = next(iter(tensors.values()))
        if any(tensor.dtype != first.dtype for tensor in tensors.values()):
            raise InputError("found tensors of several data types, expected one")
        elements = part_elements(self.program, tensors)
        sizes = self._sizes(first, elements, op)
        width = session.chunk_width(sizes)
        placed = {rank: place(self.program, rank, tensor, elements) for rank, tensor in tensors.items()}
        if elements:
            scratch = {
                rank: tensor.new_empty(self.program.ranks[rank].scratch_chunks * width, dtype=torch.uint8)
                for rank, tensor in tensors.items()
            }
            buffers = [Buffers()] * len(self.program.ranks)
            streams = [0] * len(buffers)
            for rank, each in placed.items():
                averaged = each.averaged * sizes.element if op == "avg" and self.table.reduces else 0
                buffers[rank] = Buffers(each.input, each.output, scratch[rank].data_ptr(), averaged)
                if self.target == "cuda":
                    streams[rank] = torch.cuda.current_stream(tensors[rank].device).cuda_stream
            session.launch(
                buffers, sizes, streams=streams, timeout=self.settings.timeout, seed=seed, keep=(scratch, placed)
            )
            if wait:
                session.wait()
        return [placed[rank].finish() for rank in tensors]

    def _sizes(self, tensor: Tensor, elements: int, op: str) -> Sizes:
        if op not in OPERATIONS:
            raise InputError(f"found operation {op!r}, {meant(op, OPERATIONS)}")
        if self.table.reduces and tensor.dtype not in DTYPES:
            known = ", ".join(str(dtype) for dtype in DTYPES)
            raise InputError(f"found tensors of {tensor.dtype}, expected {known}")
        size = tensor.element_size()
        return Sizes(elements * size, size, DTYPES.get(tensor.dtype, 0), OPERATIONS[op])

    def _device(self, rank: int, tensor: Tensor) -> int:
        kind = "cpu" if self.target == "fibers" else "cuda"
        if tensor.device.type != kind:
            raise InputError(f"rank {rank}: found a tensor on {tensor.device}, expected one on {kind}")
        return tensor.device.index or 0


class CompiledRanks:
    """The ranks of a library that this process holds, each with a GPU of its own or as neighbours on one; the others
    belong to other processes of a torch.distributed group. `devices` are GPUs by rank.

    Making it is a collective call: the processes exchange CUDA IPC handles of their slots. Raises InputError, the same
    in all processes, where a rank is in none or in several of them, and where the driver refuses in one: no peer
    access, a path without the stores that LL128 needs, more threadblocks than a GPU holds at once.

    When a rank gives up a wait, closes early or dies, the kernels of all ranks end and CheckFailed names it; a process
    that has ended is always noticed. The slots are given back then, and later calls raise the same.
    """

    def __init__(self, library: CompiledProgram, devices: Mapping[int, int], group: Any = None) -> None:
        self._library, self._group = library, group
        self._fault: str | None = None
        ranks = range(len(library.program.ranks))
        placed: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(placed, sorted(devices), group=group)
        for rank in ranks:
            holders = [number for number, each in enumerate(placed) if rank in each]
            if len(holders) != 1:
                found = f"processes {', '.join(map(str, holders))}" if holders else "no process"
                raise InputError(f"found rank {rank} in {found}, expected each of {len(ranks)} ranks in one")

        def shared() -> tuple[Session, float, dict[int, bytes]]:
            session = library.open([devices.get(rank, -1) for rank in ranks])
            return session, session.fit(), {rank: session.share(rank) for rank in devices}

        def attached() -> None:
            for rank, handle in (pair for each in handles for pair in each.items()):
                if rank not in devices:
                    self._session.attach(rank, handle)
            self._session.watch()

        self._session, self.share, own = agreed(shared, group)
        handles: list[Any] = [None] * len(placed)
        distributed.all_gather_object(handles, own, group=group)
        agreed(attached, group)  # also a barrier: no kernel waits while another rank still attaches

    def run(self, tensors: Mapping[int, Tensor], op: str = "sum") -> dict[int, Tensor]:
        """The shares of this process's ranks of a call of `CompiledProgram.run`, by rank, on their current streams. It
        does not wait for the GPUs. Raises InputError for tensors that do not fit or are elsewhere, before anything is
        launched; CheckFailed once any rank has given up."""
        self._require_standing()
        held = [rank for rank, device in enumerate(self._session.devices) if device >= 0]
        if sorted(tensors) != held:
            raise InputError(f"found tensors of ranks {sorted(tensors)}, expected those of this process, {held}")
        ordered = {rank: tensors[rank] for rank in held}
        with self._given_back():
            return dict(zip(held, self._library._call(self._session, ordered, op, 0, wait=False), strict=True))

    def wait(self) -> None:
        """Wait for the GPUs. Raises CheckFailed with the rank at fault and each step here that waited, when a call was
        given up."""
        self._require_standing()
        with self._given_back():
            self._session.wait()

    def close(self) -> None:
        """Give back slots and counters. A collective call, as others may still be reading them. Raises CheckFailed when
        a call was given up and nothing has shown it yet."""
        if self._fault is not None:
            return
        self.wait()
        with self._given_back():
            self._meet()
            self._session.detach()
            self._meet()  # CUDA requires memory to be closed everywhere before its owner frees it
            self._session.close()

    def _meet(self) -> None:
        try:
            distributed.barrier(self._group)
        except RuntimeError:
            self._session.require_standing()
            raise

    def _require_standing(self) -> None:
        if self._fault is not None:
            raise CheckFailed(self._fault)

    @contextmanager
    def _given_back(self) -> Iterator[None]:
        """Where a call was given up, only this process can give back what it holds."""
        try:
            yield
        except CheckFailed:
            self._fault = f"{self._library.program.name}: not usable any more: {self._session.fault()}"
            self._session.close()
            raise


class CompiledRank(CompiledRanks):
    """One rank of a library whose ranks are processes of a torch.distributed group, each with a GPU of its own."""

    def __init__(self, library: CompiledProgram, rank: int, device: int, group: Any = None) -> None:
        world = distributed.get_world_size(group)
        if world != len(library.program.ranks):
            raise InputError(f"found {world} processes, expected the program's {len(library.program.ranks)} ranks")
        self._rank = rank
        super().__init__(library, {rank: device}, group)

    def __call__(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """This rank's share of a call, as `run` makes it."""
        return self.run({self._rank: tensor}, op)[self._rank]
