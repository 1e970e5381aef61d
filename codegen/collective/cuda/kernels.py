"""CUDA text of collective programs: our device header, the interpreter kernel, and one specialised kernel per program.

The very same text is compiled by nvcc for GPUs and by g++ with the host body of the device header, where every thread
of every threadblock of every rank is a fiber.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from treadle.codegen.collective.cuda.tables import BlockRow, StepRow, Tables, tables
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.templates import template
from treadle.planner import resources

Kernel = Literal["interpreter", "specialised"]

INTERPRETER = "treadle_interpreter.cu"
SYMMETRIC = "treadle_symmetric.cu"
HOST_FLAGS = ("-shared", "-fPIC", "-fno-strict-aliasing", "-fvisibility=hidden")
"""Kernels view the same bytes as words of several widths, which nvcc allows and C++ does not."""
CUDA_FLAGS = ("-shared", "-Xcompiler=-fPIC,-fvisibility=hidden")

_BUFFERS = ("INPUT", "OUTPUT", "SCRATCH")
_READ, _WRITE = 4, 8
_TYPES = {6: "S", 9: "R", 11: "RCS", 23: "RRS", 29: "RRC", 31: "RRCS", 12: "CPY", 28: "RE", 0: "NOP"}


def artefacts(programs: Mapping[str, CollectiveProgram]) -> dict[str, str]:
    """Every text of a folder by relative path; `programs` by the stem of their files. They share a protocol. Raises
    InputError for steps that no kernel knows."""
    files = dict(headers())
    tabled = {name: tables(program) for name, program in programs.items()}
    for name, program in programs.items():
        files[f"{name}.xml"] = xml.emit(program)
        files[f"{name}.cu"] = specialised(program, tabled[name])
        files[f"{name}_program.h"] = _program_header(program, tabled[name])
    protocol = next(iter(programs.values())).protocol
    reduces = any(table.reduces for table in tabled.values())
    files["Makefile"] = template("cuda/Makefile.j2").render(
        kernels=sorted(programs),
        host_flags=HOST_FLAGS,
        cuda_flags=CUDA_FLAGS,
        kernel_flags=definitions("specialised", protocol, reduces),
        interpreter_flags=definitions("interpreter", protocol, reduces),
    )
    return files


def headers() -> dict[str, str]:
    """The texts that are the same for every program: headers, driver and interpreter kernel, by file name."""
    folder = resources.folder("templates") / "cuda"
    paths = sorted([*folder.glob("*.h"), folder / INTERPRETER])
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def symmetric() -> dict[str, str]:
    """The texts of the kernels over symmetric memory, which are the same for every plan, by file name."""
    folder = resources.folder("templates") / "symmetric"
    own = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}
    shared = {name: text for name, text in headers().items() if name.endswith(".h")}
    return {**shared, **own}


def definitions(kernel: Kernel, protocol: str, reduces: bool) -> list[str]:
    """Compiler options of a kernel file. An interpreter serves every program of its protocol that reduces or not."""
    flags = [f"-DTREADLE_REDUCES={int(reduces)}"]
    return [*flags, f"-DTREADLE_PROTOCOL={protocol}"] if kernel == "interpreter" else flags


def specialised(program: CollectiveProgram, table: Tables) -> str:
    """The text of the kernel that executes `program` and nothing else."""
    modes = [mode for mode, on in (("out of place", program.outofplace), ("in place", program.inplace)) if on]
    return template("cuda/kernel.cu.j2").render(
        name=_identifier(program.name),
        collective=program.collective,
        ranks=len(program.ranks),
        modes=" and ".join(modes),
        protocol=program.protocol,
        reduces=int(table.reduces),
        blocks=[_block(table, block) for block in table.blocks],
    )


def _block(table: Tables, block: BlockRow) -> dict[str, Any]:
    ends = []
    if block.recv_rank >= 0:
        ends.append(f"receives from gpu {block.recv_rank} tb {block.recv_block}")
    if block.send_rank >= 0:
        ends.append(f"sends to gpu {block.send_rank} tb {block.send_block}")
    return {
        "function": f"gpu_{block.rank}_tb_{block.id}",
        "about": f"gpu {block.rank} tb {block.id}: {' and '.join(ends) or 'works alone'}",
        "lines": list(_lines(table.steps_of(block))),
    }


def _lines(steps: tuple[StepRow, ...]) -> Iterator[str]:
    for number, row in enumerate(steps):
        arguments = [
            str(number),
            f"{{{_BUFFERS[row.source_buffer]}, {row.source}}}" if row.flow & _READ else "{}",
            f"{{{_BUFFERS[row.target_buffer]}, {row.target}}}" if row.flow & _WRITE else "{}",
            str(row.chunks),
            "AWAITED" if row.awaited else "UNAWAITED",
        ]
        if row.wait_block >= 0:
            arguments.append(f"{{{row.wait_block}, {row.wait_step}}}")
        yield f"step<Reduce, Protocol, {_TYPES[row.flow]}>(launch, block, {', '.join(arguments)});"


def _program_header(program: CollectiveProgram, table: Tables) -> str:
    return template("cuda/program.h.j2").render(
        name=_identifier(program.name),
        ranks=len(program.ranks),
        part_chunks=table.part_chunks,
        max_count=table.max_count,
        blocks=table.blocks,
        steps=table.steps,
    )


def _identifier(name: str) -> str:
    """A name that C++ takes; XML files have all kinds."""
    return re.sub(r"\W", "_", f"_{name}" if name[:1].isdigit() else name or "_", flags=re.ASCII)
