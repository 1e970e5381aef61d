"""The solver door: every backend against brute force, honest statuses and bounds, Ctrl-C, missing backends."""

from __future__ import annotations

import builtins
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.planner.errors import CheckFailed, InputError, LimitError, MissingBackendError
from treadle.planner.solver import Backend, Limit, Model, Progress, Status, max_flow, relative_gap, solve
from treadle.planner.solver.interface import RawResult
from treadle.planner.solver.interrupt import stop_on_signals
from treadle.planner.solver.mathopt_log import Running, last_digit, note_log, read_improving
from treadle.planner.solver.verdict import judge

OPEN = [Backend.CP_SAT, Backend.HIGHS, Backend.SCIP]
MIP = [Backend.HIGHS, Backend.SCIP]
# A MIP solve starts a process (about 0.1 s), so those backends see fewer examples.
EXAMPLES = {Backend.CP_SAT: 60, Backend.HIGHS: 15, Backend.SCIP: 15}


def with_gurobi(backends: list[Backend]) -> list:
    try:
        import gurobipy  # noqa: F401
    except ImportError:
        return [*backends, pytest.param(Backend.GUROBI, marks=pytest.mark.skip(reason="gurobipy is not installed"))]
    return [*backends, Backend.GUROBI]


@st.composite
def small_models(draw: st.DrawFn) -> Model:
    """Up to 4 variables of up to 4 values, up to 4 rows, some of them enforced by a literal or its negation."""
    model = Model("small")
    n = draw(st.integers(1, 4))
    coefs = st.integers(-5, 5)
    for _ in range(n):
        lower = draw(st.integers(-2, 1))
        model.int_var(lower, lower + draw(st.integers(0, 3)))
    switch = model.bool_var()
    for _ in range(draw(st.integers(0, 4))):
        terms = [(v, draw(coefs)) for v in draw(st.lists(st.integers(0, n), min_size=1, max_size=4))]
        lower = draw(st.integers(-8, 4))
        upper = draw(st.sampled_from([lower, lower + 3, math.inf]))
        model.add_linear(terms, lower, upper, enforced_by=draw(st.sampled_from([None, switch, ~switch])))
    model.minimize([(v, draw(coefs)) for v in range(n + 1)], offset=draw(st.integers(-3, 3)))
    return model


def activity(model: Model, row: int, point: tuple[int, ...]) -> float:
    span = slice(model.row_start[row], model.row_start[row + 1])
    return sum(c * point[v] for v, c in zip(model.row_vars[span], model.row_coefs[span], strict=True))


def holds(model: Model, point: tuple[int, ...]) -> bool:
    for row in range(len(model.row_lower)):
        literal = model.enforced.get(row)
        active = literal is None or (point[literal] == 1 if literal >= 0 else point[~literal] == 0)
        if active and not model.row_lower[row] <= activity(model, row, point) <= model.row_upper[row]:
            return False
    return True


def brute_force(model: Model) -> float | None:
    ranges = [range(int(lo), int(up) + 1) for lo, up in zip(model.lower, model.upper, strict=True)]
    costs = [
        model.offset + sum(c * point[v] for v, c in model.cost.items())
        for point in itertools.product(*ranges)
        if holds(model, point)
    ]
    return min(costs, default=None)


@pytest.mark.parametrize("backend", with_gurobi(OPEN))
def test_agrees_with_brute_force(backend: Backend) -> None:
    @settings(max_examples=EXAMPLES.get(backend, 60))
    @given(small_models())
    def agrees(model: Model) -> None:
        expected = brute_force(model)
        solution = solve(model, backend=backend)
        if expected is None:
            assert solution.status is Status.INFEASIBLE
            assert (solution.objective, solution.gap, list(solution.values)) == (None, None, [])
            return
        assert solution.status is Status.OPTIMAL
        assert solution.objective == expected == solution.bound
        assert solution.gap == 0
        assert all(isinstance(v, int) for v in solution.values)
        assert holds(model, tuple(solution.values))

    agrees()


def numbers(state: int) -> Iterator[int]:
    """1..99 from a linear congruential generator: the same on every Python."""
    while True:
        state = (1103515245 * state + 12345) % 2**31
        yield 1 + (state >> 8) % 99


def hard_knapsack(items: int = 150, rows: int = 30) -> Model:
    """A multidimensional knapsack far beyond what a second of search can close."""
    model = Model("hard knapsack")
    xs = [model.bool_var() for _ in range(items)]
    draw = numbers(12345)
    for _ in range(rows):
        weights = [next(draw) for _ in xs]
        model.add_linear(list(zip(xs, weights, strict=True)), ub=sum(weights) // 2)
    model.minimize([(x, -next(draw)) for x in xs])
    return model


def assignment(costs: list[list[int]]) -> Model:
    n = len(costs)
    model = Model("assignment")
    x = [[model.bool_var(f"x{i},{j}") for j in range(n)] for i in range(n)]
    for i in range(n):
        model.add_linear([(x[i][j], 1) for j in range(n)], 1, 1)
        model.add_linear([(x[j][i], 1) for j in range(n)], 1, 1)
    model.minimize([(x[i][j], costs[i][j]) for i in range(n) for j in range(n)])
    return model


@pytest.mark.parametrize("backend", with_gurobi(OPEN))
def test_assignment(backend: Backend) -> None:
    costs = [[(7 * i * i + 11 * j * (i + 3)) % 23 for j in range(5)] for i in range(5)]
    best = min(sum(costs[i][p[i]] for i in range(5)) for p in itertools.permutations(range(5)))
    assert solve(assignment(costs), backend=backend).objective == best


@pytest.mark.parametrize("backend", with_gurobi(MIP))
def test_continuous_variables(backend: Backend) -> None:
    """min 2a + 3b, a + b >= 4, a <= 2.5 by hand: a = 2.5, b = 1.5, objective 9.5; with b integer: a = 2, b = 2, 10."""
    for integer, objective, values in ((False, 9.5, [2.5, 1.5]), (True, 10, [2, 2])):
        model = Model()
        a = model.continuous(0, 2.5)
        b = model.int_var(0, 9) if integer else model.continuous()
        model.add_linear([(a, 1), (b, 1)], lb=4)
        model.minimize([(a, 2), (b, 3)])
        solution = solve(model, backend=backend)
        assert solution.status is Status.OPTIMAL
        assert solution.objective == pytest.approx(objective)
        assert list(solution.values) == pytest.approx(values)


@pytest.mark.parametrize("backend", with_gurobi(MIP))
def test_unbounded(backend: Backend) -> None:
    model = Model()
    x, y = model.continuous(), model.bool_var()
    model.add_linear([(x, 1), (y, 1)], lb=1)
    model.minimize([(x, -1)])
    assert solve(model, backend=backend).status is Status.UNBOUNDED
    model.add_linear([(y, 1)], lb=2)
    assert solve(model, backend=backend).status is Status.INFEASIBLE


@pytest.mark.parametrize("backend", with_gurobi(OPEN))
def test_feasibility_only_and_empty_models(backend: Backend) -> None:
    model = Model()
    assert solve(model, backend=backend).status is Status.OPTIMAL
    x, y = model.int_var(0, 9), model.int_var(0, 9)
    model.add_linear([(x, 1), (y, 1)], 17)
    solution = solve(model, backend=backend)
    assert solution.status is Status.OPTIMAL
    assert (solution.objective, sum(solution.values) >= 17) == (0, True)
    model.add_linear([], lb=1)
    assert solve(model, backend=backend).status is Status.INFEASIBLE


@pytest.mark.parametrize("backend", with_gurobi(OPEN))
def test_hints_are_accepted(backend: Backend) -> None:
    """Right, partial and impossible hints all leave the optimum where it is."""
    costs = [[3, 1, 9], [4, 8, 2], [1, 5, 7]]
    plain = solve(assignment(costs), backend=backend)
    for hints in (dict(enumerate(plain.values)), {0: 1}, dict.fromkeys(range(9), 1)):
        model = assignment(costs)
        for var, value in hints.items():
            model.hint(var, value)
        assert solve(model, backend=backend).objective == plain.objective == 4


@pytest.mark.parametrize(
    ("backend", "limit"),
    [(Backend.CP_SAT, Limit.DETERMINISTIC), (Backend.HIGHS, Limit.NODES), (Backend.SCIP, Limit.NODES)],
)
def test_deterministic_limits_give_identical_results(backend: Backend, limit: Limit) -> None:
    runs = [solve(hard_knapsack(), backend=backend, deterministic_limit=0.2, node_limit=20) for _ in range(2)]
    for solution in runs:
        assert solution.status is Status.FEASIBLE
        assert solution.limit_fired is limit
        assert solution.bound is not None
        assert solution.bound < solution.objective
        assert solution.gap == relative_gap(solution.objective, solution.bound) > 0
        assert not solution.interrupted
    first, second = runs
    assert first.values == second.values
    assert (first.objective, first.bound) == (second.objective, second.bound)


def test_several_cp_sat_workers_are_deterministic() -> None:
    runs = [solve(hard_knapsack(40, 8), backend="cp_sat", workers=2, deterministic_limit=0.3) for _ in range(2)]
    assert runs[0].values == runs[1].values
    assert runs[0].bound == runs[1].bound


@pytest.mark.parametrize("backend", OPEN)
def test_wall_clock_limit_is_recorded(backend: Backend) -> None:
    solution = solve(hard_knapsack(), backend=backend, time_limit_s=0.7)
    assert solution.limit_fired is Limit.TIME
    assert solution.status is Status.FEASIBLE
    assert solution.bound <= solution.objective


@pytest.mark.parametrize("backend", with_gurobi(OPEN))
def test_stops_within_the_asked_gap_and_does_not_call_it_optimal(backend: Backend) -> None:
    solution = solve(hard_knapsack(), backend=backend, gap=0.05, time_limit_s=60)
    assert solution.status is Status.FEASIBLE
    assert 0 < solution.gap <= 0.05
    assert solution.limit_fired is None


@pytest.mark.parametrize("backend", OPEN)
def test_progress_is_reported_in_the_calling_thread(backend: Backend) -> None:
    seen: list[Progress] = []
    threads = set()

    def report(progress: Progress) -> None:
        seen.append(progress)
        threads.add(threading.current_thread())

    model = hard_knapsack()
    model.offset = 1000
    solution = solve(model, backend=backend, time_limit_s=1.5, on_progress=report)
    assert threads == {threading.current_thread()}
    last = [p for p in seen if p.gap is not None][-1]
    assert solution.objective <= last.incumbent
    assert last.bound <= solution.bound + 1e-6 * abs(solution.bound)
    assert last.gap == relative_gap(last.incumbent, last.bound)
    assert [p.elapsed_s for p in seen] == sorted(p.elapsed_s for p in seen)


@pytest.mark.parametrize("backend", OPEN)
def test_an_error_in_the_callback_ends_the_solve(backend: Backend) -> None:
    def fail(progress: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        solve(hard_knapsack(), backend=backend, time_limit_s=60, on_progress=fail)


INTERRUPTED_RUN = """
import signal, sys, threading
from tests.planner.solver.test_solver import hard_knapsack
from treadle.planner.solver import solve

before = signal.getsignal(signal.SIGINT)

def report(progress):
    if progress.gap is not None and progress.elapsed_s > 0.5:
        print("ready", flush=True)

solution = solve(hard_knapsack(), backend=sys.argv[1], time_limit_s=100, on_progress=report)
assert signal.getsignal(signal.SIGINT) is before
print("end", solution.status, solution.interrupted, solution.limit_fired, solution.bound <= solution.objective,
      len(solution.values))
"""


@pytest.mark.parametrize("backend", with_gurobi(OPEN))
def test_ctrl_c_returns_the_best_so_far(backend: Backend) -> None:
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_RUN, backend], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert out.decode().splitlines()[-1] == "end feasible True None True 150", err.decode()
    assert err == b""


@pytest.mark.parametrize("backend", OPEN)
def test_ctrl_c_before_any_solution_is_a_limit_error(backend: Backend) -> None:
    """Market split, 6 equations in 50 binaries: no solution is found in minutes, nor is it proved that none exists."""
    model = Model("market split")
    xs = [model.bool_var() for _ in range(50)]
    draw = numbers(7)
    for _ in range(6):
        weights = [next(draw) for _ in xs]
        model.add_linear(list(zip(xs, weights, strict=True)), sum(weights) // 2, sum(weights) // 2)
    presses = iter([signal.SIGINT])  # a second one would end the process of the tests

    def press(progress: Progress) -> None:
        for number in presses:
            signal.raise_signal(number)

    message = rf"market split: interrupted after .* s, before {backend} found a solution"
    with pytest.raises(LimitError, match=message):
        solve(model, backend=backend, time_limit_s=60, on_progress=press)


def test_sigterm_stops_a_solve_and_the_pass_around_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as outer, stop_on_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        assert outer.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_second_ctrl_c_is_a_keyboard_interrupt() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_works_outside_the_main_thread() -> None:
    results: list[Status] = []
    handler = signal.getsignal(signal.SIGINT)

    def work() -> None:
        results.extend(solve(assignment([[1, 2], [3, 1]]), backend=b).status for b in OPEN)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [Status.OPTIMAL] * 3
    assert signal.getsignal(signal.SIGINT) is handler


def test_auto_takes_cp_sat_for_enforced_integer_models_and_highs_otherwise() -> None:
    model = Model()
    x, y = model.bool_var(), model.int_var(0, 5)
    model.add_linear([(y, 1)], 2)
    model.minimize([(y, 1)])
    assert solve(model).backend is Backend.HIGHS
    model.add_linear([(y, 1)], 3, enforced_by=~x)
    assert solve(model).backend is Backend.CP_SAT
    model.add_linear([(model.continuous(0, 1), 1), (y, 0.5)], ub=7)
    assert solve(model).backend is Backend.HIGHS


def test_duplicate_terms_add_up_and_zero_terms_vanish() -> None:
    for backend in OPEN:
        model = Model()
        x, y = model.int_var(0, 9), model.int_var(0, 9)
        model.add_linear([(x, 1), (x, 1), (y, 1), (y, -1)], 5)
        model.minimize([(x, 1), (x, 1), (y, 1)])
        assert list(solve(model, backend=backend).values) == [3, 0]


def test_input_errors_say_what_is_wrong() -> None:
    model = Model("m")
    x = model.int_var(0, 2, "count")
    with pytest.raises(InputError, match=r"m: late has bounds \[3, 1\], expected lower <= upper, both finite"):
        model.int_var(3, 1, "late")
    with pytest.raises(InputError, match="both finite"):
        model.int_var(0, math.inf)
    with pytest.raises(InputError, match="row 0 is enforced by count, expected a 0-1 variable"):
        model.add_linear([(x, 1)], 1, enforced_by=x)
    with pytest.raises(InputError, match="objective names variable 7"):
        model.minimize([(7, 1)])
    with pytest.raises(InputError, match="hint names variable -1"):
        model.hint(-1, 0)
    with pytest.raises(InputError, match="solver backend 'cplex', expected one of auto, cp_sat"):
        solve(model, backend="cplex")
    bad = Model("bad")
    bad.add_linear([(bad.bool_var(), 1)], 0)
    bad.add_linear([(3, 1)], 0)
    with pytest.raises(InputError, match="bad: row 1 has variable 3"):
        solve(bad)
    infinite = Model("inf")
    infinite.add_linear([(infinite.bool_var(), math.nan)], 0)
    with pytest.raises(InputError, match="coefficient nan"):
        solve(infinite)
    fractional = Model()
    fractional.add_linear([(fractional.bool_var(), 0.5)], 0)
    with pytest.raises(InputError, match="CP-SAT takes integer variables"):
        solve(fractional, backend="cp_sat")


def test_big_m_needs_finite_bounds() -> None:
    model = Model("open")
    b, x = model.bool_var(), model.continuous()
    model.add_linear([(x, 1)], ub=3, enforced_by=b)
    model.minimize([(x, -1), (b, -1)])
    with pytest.raises(InputError, match="row 0 is enforced but a variable in it has no finite bound"):
        solve(model, backend="highs")


def test_a_solution_that_breaks_a_row_is_refused() -> None:
    """A solver's integrality tolerance hides 5 bytes of a budget of 10^9: rounding shows them."""
    model = Model("budget")
    x = model.bool_var()
    model.add_linear([(x, 10**9)], ub=10**9 - 5)
    model.minimize([(x, -1)])
    raw = RawResult(candidates=[[1 - 5e-9]], bound=-1.0)
    with pytest.raises(CheckFailed, match="budget: the solution of highs breaks row 0 by 5;"):
        judge(model, model.matrix_form(), raw, Backend.HIGHS, 0.0, interrupted=False)
    with pytest.raises(CheckFailed, match="row -1"):
        judge(model, model.matrix_form(), RawResult([[0.4]], -1.0), Backend.HIGHS, 0.0, interrupted=False)
    second = judge(model, model.matrix_form(), RawResult([[1.0], [0.0]], -1.0), Backend.HIGHS, 0.0, interrupted=False)
    assert (second.status, second.objective, list(second.values)) == (Status.FEASIBLE, 0, [0])


def test_a_whole_hint_that_holds_survives_a_search_that_finds_nothing() -> None:
    model = Model("hinted")
    x, y = model.int_var(0, 3), model.int_var(0, 3)
    model.add_linear([(x, 1), (y, 1)], lb=2)
    model.minimize([(x, 1), (y, 1)])
    for hint, status in (((3, 0), Status.FEASIBLE), ((2, 0), Status.OPTIMAL), ((1, 0), Status.UNKNOWN)):
        model.hint(x, hint[0])
        model.hint(y, hint[1])
        solution = judge(model, model.matrix_form(), RawResult([], 2.0), Backend.HIGHS, 0.0, interrupted=False)
        assert solution.status is status
        assert tuple(solution.values) == (hint if solution.found else ())


def test_a_bound_above_its_own_solution_is_refused() -> None:
    model = Model("contradiction")
    x = model.int_var(0, 9)
    model.minimize([(x, 1)])
    with pytest.raises(CheckFailed, match="bound of 9 above its solution of 5"):
        judge(model, model.matrix_form(), RawResult([[5.0]], 9.0), Backend.HIGHS, 0.0, interrupted=False)


def test_missing_gurobi_ends_in_exit_code_5(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_gurobi(name: str, *args: object, **kwargs: object) -> object:
        if name == "gurobipy":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_gurobi)
    with pytest.raises(MissingBackendError, match=r"pip install 'treadle\[gurobi\]'") as caught:
        solve(assignment([[1]]), backend="gurobi")
    assert caught.value.exit_code == 5


def test_size_limited_gurobi_licence_is_named() -> None:
    pytest.importorskip("gurobipy", reason="gurobipy is not installed")
    with pytest.raises(MissingBackendError, match="2500 variables, 2 rows"):
        solve(hard_knapsack(2500, 2), backend="gurobi", node_limit=1)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("raise SystemExit('no memory left')", "its process ended with exit code 1: no memory left"),
        ("import os, sys; sys.stdin.buffer.read(100); os.kill(os.getpid(), 9)", r"was killed by signal 9 \(SIG"),
        ("import os, time; os.close(0); os.close(1); time.sleep(0.3); raise SystemExit('late')", "exit code 1: late"),
    ],
)
def test_a_solver_process_that_dies_is_reported(
    script: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mathopt_child.py").write_text(script)
    monkeypatch.setattr("treadle.planner.solver.mathopt.__file__", str(tmp_path / "mathopt.py"))
    with pytest.raises(LimitError, match=f"hard knapsack: highs ended without a result: .*{message}"):
        solve(hard_knapsack(), backend="highs")


@pytest.mark.parametrize("backend", ["highs", "scip"])
@pytest.mark.parametrize("script", ["", "import sys; sys.stdin.buffer.read()"], ids=["never reads", "reads"])
def test_a_solver_that_never_looks_at_its_clock_is_ended(
    backend: str, script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mathopt_child.py").write_text(f"{script}\nimport time; time.sleep(600)")
    monkeypatch.setattr("treadle.planner.solver.mathopt.__file__", str(tmp_path / "mathopt.py"))
    for name in ("LATE_S", "GRACE_S"):
        monkeypatch.setattr(f"treadle.planner.solver.mathopt.{name}", 0.1)
    solution = solve(hard_knapsack(), backend=backend, time_limit_s=0.1)
    assert (solution.status, solution.limit_fired) == (Status.UNKNOWN, Limit.TIME)


def test_a_killed_run_leaves_no_solver_and_no_file_behind(tmp_path: Path) -> None:
    code = (
        "import psutil\n"
        "from tests.planner.solver.test_solver import hard_knapsack\n"
        "from treadle.planner.solver import solve\n"
        "report = lambda p: print(*[c.pid for c in psutil.Process().children()], flush=True)\n"
        "solve(hard_knapsack(), backend='highs', time_limit_s=100, on_progress=report)\n"
    )
    root = Path(__file__).parents[3]
    where = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, env=where, stdout=subprocess.PIPE) as process:
        children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(children) == 1
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert not list(tmp_path.iterdir())


def test_cp_sat_says_when_numbers_are_too_large() -> None:
    model = Model("huge")
    x = model.int_var(0, 2**61)
    model.add_linear([(x, 1000)], 5, enforced_by=model.bool_var())
    with pytest.raises(InputError, match=r"huge: CP-SAT refuses the model: .*overflow"):
        solve(model, backend="cp_sat")


def test_import_loads_no_solver() -> None:
    code = (
        "import sys, treadle.planner.solver; "
        "print([m for m in ('ortools', 'gurobipy', 'highspy', 'scipy', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, check=True)
    assert out.stdout == b"[]\n"


HIGHS_LOG = """Attempting to find feasible solution by solving MIP for user-supplied values of 20 / 150 variables
        Nodes      |    B&B Tree     |            Objective Bounds              |  Dynamic Constraints |       Work
Src  Proc. InQueue |  Leaves   Expl. | BestBound       BestSol              Gap |   Cuts   InLp Confl. | LpIters
 S       0       0         0   0.00%   -5079.179072    -4694              8.21%       82      2      0       36
Solving report
  Gap               0.595% (tolerance: 0.01%)
 z       0       0         0   0.00%   -inf            -90                Large        0      0      0        0
 R       0       0         0   0.00%   -5445.359964    -5232              4.08%        0      0      0       25
"""


def test_highs_log_gives_incumbent_and_a_sound_bound() -> None:
    state = Running()
    note_log(Backend.HIGHS, "\n".join(HIGHS_LOG.splitlines()[:4]), state)
    assert (state.incumbent, state.bound) == (-4694, None)  # the bound is that of the hint's sub-problem
    note_log(Backend.HIGHS, "\n".join(HIGHS_LOG.splitlines()[4:]), state)
    assert state.incumbent == -5232
    assert state.bound == pytest.approx(-5445.359965, abs=1e-9)
    assert state.bound < -5445.359964


def test_scip_log_gives_incumbent_and_a_sound_bound() -> None:
    state = Running()
    row = "  1.6s|   300 |   251 |  5151 |  15.9 |   106M |  16 | 103 | 153 |  35 | 107 |  1 | 112 | 229 "
    note_log(Backend.SCIP, row + "|-5.441588e+03 |      --      |    Inf |   5.72%", state)
    assert (state.incumbent, state.bound) == (None, pytest.approx(-5441.589))
    note_log(Backend.SCIP, row + "|-5.440000e+03 |-5.415000e+03 |   0.49%|   5.72%", state)
    assert (state.incumbent, state.bound) == (-5415, pytest.approx(-5440.001))
    assert last_digit("-5.44e+03") == 10
    assert last_digit("12") == 1


def test_improving_solutions_are_read_last_first() -> None:
    assert read_improving("", 2) == []
    text = (
        "Objective 5\n# Columns 2\n 1\n 0.5\nObjective 4\n# Columns 2\nx0 0\nx1 1\n# Columns 1\n 9\n# Columns 2\n 7\n"
    )
    assert read_improving(text, 2) == [[0, 1], [1, 0.5]]


@given(
    st.integers(2, 6).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2, st.integers(0, 9)), max_size=14)
        )
    )
)
def test_max_flow_equals_the_least_cut(case: tuple[int, list[tuple[int, int, int]]]) -> None:
    n, arcs = case
    value, side = max_flow(n, arcs, 0, n - 1)

    def cut(nodes: frozenset[int]) -> int:
        return sum(c for a, b, c in arcs if a in nodes and b not in nodes)

    least = min(cut(frozenset((0, *rest))) for k in range(n - 1) for rest in itertools.combinations(range(1, n - 1), k))
    assert value == least == cut(side)
    assert 0 in side
    assert n - 1 not in side


def test_max_flow_refuses_nonsense() -> None:
    for arcs, source, sink in (([(0, 1, -1)], 0, 1), ([(0, 5, 1)], 0, 1), ([(0, 1, 1)], 1, 1)):
        with pytest.raises(InputError, match="max flow"):
            max_flow(2, arcs, source, sink)
    with pytest.raises(InputError, match="64 bits"):
        max_flow(2, [(0, 1, 2**62)] * 3, 0, 1)
