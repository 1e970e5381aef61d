"""HiGHS and SCIP through OR-tools' MathOpt, in a child process (see mathopt_child.py).

Enforced rows: SCIP takes them as indicator constraints. For HiGHS they become big-M rows,

    a.x <= u if z = 1    ->    a.x + (A - u) z <= A,      A = max a.x over the variables' bounds
    a.x >= l if z = 1    ->    a.x + (B - l) z >= B,      B = min a.x over the variables' bounds

(z replaced by 1 - z for a negated literal), which needs finite bounds on the variables of the row.
Interrupts: SCIP stops on its own. HiGHS cannot be stopped inside MathOpt, so it writes each improving solution to a
file without a name, which the child inherits; the child is killed, and the last whole solution of the file and the last
bound of the log are the result.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from treadle.planner.endings import ending
from treadle.planner.errors import InputError, LimitError
from treadle.planner.solver.interface import Backend, Limit, MatrixForm, Model, Options, RawResult
from treadle.planner.solver.mathopt_log import Running, note_log, read_improving

LATE_S = 0.5  # how long past its time limit a solver may go on before it is asked to stop
GRACE_S = 2.0  # how long it may take to do so before its process is ended


@dataclass
class Conversation(Running):
    """How the exchange with the child ended."""

    result: bytes | None = None
    error: str = ""
    killed: bool = False
    overdue: bool = False


def run(model: Model, form: MatrixForm, backend: Backend, options: Options, stop: threading.Event) -> RawResult:
    from ortools.math_opt import parameters_pb2, result_pb2

    highs = backend is Backend.HIGHS
    written = relax_enforced(model, form) if highs else form
    if written.matrix.shape[1] == 0:
        feasible = bool((written.row_lower <= 0).all() and (written.row_upper >= 0).all())
        return RawResult(candidates=[[]] if feasible else [], bound=0.0, infeasible=not feasible)
    solver_type = parameters_pb2.SOLVER_TYPE_HIGHS if highs else parameters_pb2.SOLVER_TYPE_GSCIP
    with tempfile.TemporaryFile() as improving:
        messages = [
            model_proto(written),
            parameters_pb2.SolverInitializerProto(),
            solve_parameters(backend, options, improving.fileno()),
            hint_parameters(model),
        ]
        inherited = (improving.fileno(),)
        state = converse(solver_type, [m.SerializeToString() for m in messages], backend, options, stop, inherited)
        if state.killed:
            limit = Limit.TIME if state.overdue else None
            improving.seek(0)
            found = read_improving(improving.read().decode(errors="replace"), written.matrix.shape[1])
            return RawResult(found, state.bound, limit_fired=limit)
    if state.result is None:
        raise LimitError(f"{model.name}: {backend} ended without a result: {state.error}")
    result = result_pb2.SolveResultProto.FromString(state.result)
    raw = raw_result(model, backend, result, written.matrix.shape[1])
    if state.overdue:
        raw = replace(raw, limit_fired=raw.limit_fired or Limit.TIME)
    if result.termination.reason == result_pb2.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED and written.cost.any():
        # Presolve cannot always distinguish the two; without an objective nothing is unbounded.
        somewhere = run(model, replace(form, cost=0.0 * form.cost), backend, options, stop)
        return replace(raw, infeasible=somewhere.infeasible, unbounded=bool(somewhere.candidates))
    return raw


def raw_result(model: Model, backend: Backend, result: Any, n: int) -> RawResult:
    from ortools.math_opt import result_pb2, solution_pb2

    end = result.termination
    candidates = []
    for solution in result.solutions:
        if solution.primal_solution.feasibility_status == solution_pb2.SOLUTION_STATUS_FEASIBLE:
            values = [0.0] * n
            for var, value in zip(
                solution.primal_solution.variable_values.ids,
                solution.primal_solution.variable_values.values,
                strict=True,
            ):
                values[var] = value
            candidates.append(values)
    failed = (result_pb2.TERMINATION_REASON_NUMERICAL_ERROR, result_pb2.TERMINATION_REASON_OTHER_ERROR)
    if end.reason in failed and not candidates:
        raise LimitError(f"{model.name}: {backend} failed: {end.detail or 'numerical trouble'}; take another backend")
    limits = {result_pb2.LIMIT_TIME: Limit.TIME, result_pb2.LIMIT_NODE: Limit.NODES}
    return RawResult(
        candidates=candidates,
        bound=end.objective_bounds.dual_bound,
        infeasible=end.reason == result_pb2.TERMINATION_REASON_INFEASIBLE,
        unbounded=end.reason == result_pb2.TERMINATION_REASON_UNBOUNDED,
        limit_fired=limits.get(end.limit),
    )


def model_proto(form: MatrixForm) -> Any:
    """The MathOpt model; rows that are enforced become indicator constraints."""
    import numpy as np
    from ortools.math_opt import model_pb2

    proto = model_pb2.ModelProto()
    rows, n = form.matrix.shape
    proto.variables.ids.extend(range(n))
    proto.variables.lower_bounds.extend(form.lower.tolist())
    proto.variables.upper_bounds.extend(form.upper.tolist())
    proto.variables.integers.extend(form.integer.tolist())
    costly = np.flatnonzero(form.cost)
    proto.objective.linear_coefficients.ids.extend(costly.tolist())
    proto.objective.linear_coefficients.values.extend(form.cost[costly].tolist())

    plain = np.setdiff1d(np.arange(rows), np.fromiter(form.enforced, dtype=np.int64, count=len(form.enforced)))
    matrix = form.matrix[plain]
    proto.linear_constraints.ids.extend(range(len(plain)))
    proto.linear_constraints.lower_bounds.extend(form.row_lower[plain].tolist())
    proto.linear_constraints.upper_bounds.extend(form.row_upper[plain].tolist())
    proto.linear_constraint_matrix.row_ids.extend(np.repeat(np.arange(len(plain)), np.diff(matrix.indptr)).tolist())
    proto.linear_constraint_matrix.column_ids.extend(matrix.indices.tolist())
    proto.linear_constraint_matrix.coefficients.extend(matrix.data.tolist())

    for row, literal in form.enforced.items():
        span = slice(form.matrix.indptr[row], form.matrix.indptr[row + 1])
        # SCIP takes one-sided indicator constraints only.
        for low, high in ((form.row_lower[row], math.inf), (-math.inf, form.row_upper[row])):
            if low == -math.inf and high == math.inf:
                continue
            indicator = proto.indicator_constraints[len(proto.indicator_constraints)]
            indicator.indicator_id = literal if literal >= 0 else ~literal
            indicator.activate_on_zero = literal < 0
            indicator.expression.ids.extend(form.matrix.indices[span].tolist())
            indicator.expression.values.extend(form.matrix.data[span].tolist())
            indicator.lower_bound, indicator.upper_bound = low, high
    return proto


def solve_parameters(backend: Backend, options: Options, improving: int) -> Any:
    """`improving` is the number of an open file that the solver's process inherits."""
    from ortools.math_opt import parameters_pb2

    parameters = parameters_pb2.SolveParametersProto()
    parameters.random_seed = options.seed
    parameters.relative_gap_tolerance = options.gap
    parameters.absolute_gap_tolerance = 0.0
    if options.node_limit is not None:
        parameters.node_limit = options.node_limit
    if options.left_s is not None:
        parameters.time_limit.FromNanoseconds(int(options.left_s * 1e9))
    if backend is Backend.HIGHS:
        parameters.highs.int_options["threads"] = options.workers
        parameters.highs.double_options["mip_min_logging_interval"] = 1.0
        parameters.highs.bool_options["mip_improving_solution_save"] = True
        parameters.highs.string_options["mip_improving_solution_file"] = f"/dev/fd/{improving}"
    return parameters


def hint_parameters(model: Model) -> Any:
    from ortools.math_opt import model_parameters_pb2

    parameters = model_parameters_pb2.ModelSolveParametersProto()
    if model.hints:
        hint = parameters.solution_hints.add().variable_values
        hint.ids.extend(sorted(model.hints))
        hint.values.extend([float(model.hints[var]) for var in sorted(model.hints)])
    return parameters


def relax_enforced(model: Model, form: MatrixForm) -> MatrixForm:
    """The form with big-M rows in the place of enforced ones. Raises InputError where no finite M exists."""
    import numpy as np
    from scipy.sparse import csr_matrix, vstack

    if not form.enforced:
        return form
    columns: list[int] = []
    coefs: list[float] = []
    starts = [0]
    lower: list[float] = []
    upper: list[float] = []
    for row, literal in form.enforced.items():
        span = slice(form.matrix.indptr[row], form.matrix.indptr[row + 1])
        ids, a = form.matrix.indices[span], form.matrix.data[span]
        at_lower, at_upper = a * form.lower[ids], a * form.upper[ids]
        least, most = float(np.minimum(at_lower, at_upper).sum()), float(np.maximum(at_lower, at_upper).sum())
        low, high = float(form.row_lower[row]), float(form.row_upper[row])
        sides = [(high, most, -math.inf, most)] if high < most else []
        sides += [(low, least, least, math.inf)] if low > least else []
        for bound, extreme, row_lower, row_upper in sides:
            if math.isinf(extreme):
                raise InputError(
                    f"row {row} is enforced but a variable in it has no finite bound; "
                    "give it one or take backend scip or gurobi",
                    where=model.name,
                )
            slack = extreme - bound
            columns += [*ids.tolist(), literal if literal >= 0 else ~literal]
            coefs += [*a.tolist(), slack if literal >= 0 else -slack]
            starts.append(len(columns))
            shift = 0.0 if literal >= 0 else -slack
            lower.append(row_lower + shift)
            upper.append(row_upper + shift)
    plain = np.setdiff1d(np.arange(form.matrix.shape[0]), np.fromiter(form.enforced, dtype=np.int64))
    extra = csr_matrix((coefs, columns, starts), shape=(len(lower), form.matrix.shape[1]))
    extra.sum_duplicates()
    return replace(
        form,
        matrix=vstack([form.matrix[plain], extra], format="csr"),
        row_lower=np.concatenate([form.row_lower[plain], lower]),
        row_upper=np.concatenate([form.row_upper[plain], upper]),
        enforced={},
    )


def converse(
    solver_type: int,
    messages: list[bytes],
    backend: Backend,
    options: Options,
    stop: threading.Event,
    inherited: tuple[int, ...] = (),
) -> Conversation:
    """Runs the child, which keeps the open files `inherited`, to its end, to an interrupt, or to the end of our
    patience with its time limit."""
    state = Conversation()
    end = math.inf if options.left_s is None else time.monotonic() + options.left_s
    child_script = Path(__file__).with_name("mathopt_child.py")
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            [sys.executable, "-P", str(child_script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,  # Ctrl-C on the terminal must not reach it
            pass_fds=inherited,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            head = struct.pack("<Qd", solver_type, end)
            # A pipe holds 64 KiB: if the child is slow to start, the parent has to check its clock.
            sender = threading.Thread(target=send_all, args=(child.stdin, [head], messages), daemon=True)
            sender.start()
            listen(child, sender, backend, options, stop, end + LATE_S, state)
        finally:
            if child.poll() is None:
                child.kill()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            child.stdout.close()
            child.wait()
        if state.result is None and not state.killed and not state.error:
            complaints.seek(0)
            tail = complaints.read()[-2000:].decode(errors="replace").strip().splitlines()
            state.error = f"its process {ending(child.returncode)}" + (f": {tail[-1]}" if tail else "")
    return state


def send_all(stream: IO[bytes], head: list[bytes], messages: list[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError, ValueError):  # the child is gone; what it said last explains why
        for part in head + [piece for m in messages for piece in (struct.pack("<Q", len(m)), m)]:
            stream.write(part)
        stream.flush()


def listen(
    child: subprocess.Popen[bytes],
    sender: threading.Thread,
    backend: Backend,
    options: Options,
    stop: threading.Event,
    deadline: float,
    state: Conversation,
) -> None:
    """Reads frames until the result, an error, the end of the child, or a kill."""
    assert child.stdin is not None
    assert child.stdout is not None
    source = child.stdout.fileno()
    buffer = bytearray()
    asked = False
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while True:
            ready = selector.select(0.1)
            if ready:
                chunk = os.read(source, 1 << 20)
                if not chunk:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(GRACE_S)  # it has closed its end; what it says on leaving is the error
                    return
                buffer += chunk
                while len(buffer) >= 9 and len(buffer) >= 9 + (length := struct.unpack("<Q", buffer[1:9])[0]):
                    kind, text = buffer[:1], bytes(buffer[9 : 9 + length])
                    del buffer[: 9 + length]
                    if kind == b"L":
                        note_log(backend, text.decode(errors="replace"), state)
                    elif kind == b"R":
                        state.result = text
                        return
                    else:
                        state.error = text.decode(errors="replace")
                        return
            options.report(state.incumbent, state.bound)
            late = time.monotonic() > deadline
            deaf = asked or backend is Backend.HIGHS or sender.is_alive()
            if (late and deaf) or (stop.is_set() and deaf and not asked):
                state.killed, state.overdue = True, state.overdue or late
                child.kill()
                return
            if (late or stop.is_set()) and not asked:
                asked, state.overdue = True, late
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(b"i")
                    child.stdin.flush()
                deadline = time.monotonic() + GRACE_S
