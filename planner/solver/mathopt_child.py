"""The process in which HiGHS and SCIP run; a script that mathopt.py starts, not a module to import.

stdin: the solver type and when to end on time.monotonic's clock, which all processes share, then four length-prefixed
messages (model, initializer, parameters, model parameters), then a byte that asks for an interrupt; end of file means
that the parent is gone, and ends this process at once.
stdout: frames of one letter, a length and a text: L log lines, R the result, E an error.
A process of its own because HiGHS inside MathOpt ignores interrupters and only here can be given a thread count, and
because both solvers write to the terminal from C.
"""

import math
import os
import struct
import sys
import threading
import time
from typing import Any, BinaryIO


def receive(stream: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", stream.read(8))
    return stream.read(length)


def main() -> None:
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a solver prints from C must not mix with the frames

    from ortools.math_opt import callback_pb2, model_parameters_pb2, model_pb2, parameters_pb2
    from ortools.math_opt.core.python import solver
    from ortools.util.python.solve_interrupter import SolveInterrupter

    def send(kind: bytes, text: bytes) -> None:
        sink.write(kind + struct.pack("<Q", len(text)) + text)
        sink.flush()

    solver_type, end = struct.unpack("<Qd", source.read(16))
    kinds: tuple[Any, ...] = (
        model_pb2.ModelProto,
        parameters_pb2.SolverInitializerProto,
        parameters_pb2.SolveParametersProto,
        model_parameters_pb2.ModelSolveParametersProto,
    )
    messages = [kind.FromString(receive(source)) for kind in kinds]
    if end < math.inf:
        messages[2].time_limit.FromNanoseconds(int(1e9 * max(0.0, end - time.monotonic())))
    interrupter = SolveInterrupter()

    def listen() -> None:
        while source.read(1):
            interrupter.interrupt()
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    try:
        result = solver.solve(
            messages[0],
            solver_type,
            *messages[1:],
            lambda lines: send(b"L", "\n".join(lines).encode()),
            callback_pb2.CallbackRegistrationProto(),
            None,
            interrupter.pybind_interrupter,
        )
        send(b"R", result.SerializeToString())
    except Exception as error:
        send(b"E", f"{type(error).__name__}: {error}".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
