"""Plans of arrays as programs of Dask: NumPy's results in any chunks, on a cluster, and where a worker dies."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from msgspec.structs import replace

from tests.treadle.runtime.tiling.hand_made import HandMade
from tests.treadle.runtime.tiling.test_planned_moves import W, X, program
from treadle import array as ta
from treadle.codegen.python_form import require_form
from treadle.codegen.tiling.dask_program import FILE_NAME, dask_program
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
from treadle.planner.passes.tiling.problem import MeshAxis

pytest.importorskip("dask.array")
pytest.importorskip("distributed")


def compiled(plan: Plan):
    """The function of the generated program, which has the form of such programs."""
    text = dask_program(plan, "plan.json").files[FILE_NAME]
    require_form("dask", text, FILE_NAME)
    names = {}
    exec(compile(text, FILE_NAME, "exec"), names)
    return names["program"]


def planned(function, *args, workers: int, method: str = "sweep", dup_bytes: int = 0):
    problem, values = ta.captured(function, *args)
    problem = replace(problem, mesh=(MeshAxis(name="w", size=workers),), dup_bytes=dup_bytes)
    return plan_tiling(problem, options=TilingOptions(method=method)), values


@pytest.mark.parametrize(("workers", "method", "dup_bytes"), [(3, "worst", 0), (2, "greedy", 10**6)])
def test_any_chunks_give_what_numpy_gives(workers, method, dup_bytes, monkeypatch):
    import dask

    from treadle.runtime.tiling import dask_tiles

    monkeypatch.setattr(dask_tiles, "CHUNK_BYTES", 64)  # eight elements
    plan, values = planned(program, X, W, workers=workers, method=method, dup_bytes=dup_bytes)
    tiled = compiled(plan)(values)
    with dask.config.set(scheduler="sync"):
        for array, expected in zip(tiled.values(), program(X, W), strict=True):
            found = dask_tiles.assembled(array).compute()
            assert np.allclose(found, np.asarray(expected))


def test_a_plan_of_a_model_is_refused_by_name():
    plan, _ = planned(program, X, W, workers=2)
    problem = plan.decisions.problem
    rule = replace(problem.nodes[2], operator="rule", id="mm")
    nodes = (*problem.nodes[:2], rule, *problem.nodes[3:])
    other = replace(plan, decisions=replace(plan.decisions, problem=replace(problem, nodes=nodes)))
    with pytest.raises(InputError, match=r"mm is an operator of a model.*--target dtensor"):
        dask_program(other, "plan.json")


def test_names_of_arrays_stay_data():
    plan, _ = planned(program, X, W, workers=2)
    problem = replace(plan.decisions.problem, name='"""\nimport os  # \\', outputs=plan.decisions.problem.outputs)
    compiled(replace(plan, decisions=replace(plan.decisions, problem=problem)))


def dies_once(tile, *, marker):
    """Negate a tile; the first process that comes here dies of it."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
        return -tile


def big():
    """A program on 512 MB."""
    x = ta.ones((10_000, 10_000)) * 2.0
    return (x - ta.mean(x, axis=0)).sum() + x.sum()


@pytest.mark.slow
def test_a_cluster_moves_about_what_the_plan_says_and_outlives_a_worker(tmp_path):
    from treadle.runtime.tiling.dask_cluster import cluster, run_on

    x, w = np.random.default_rng(1).random((60, 40)), np.arange(40.0)
    plan, values = planned(program, x, w, workers=2, method="row")
    hand = HandMade((2,))
    hand.value("x", x, ["S0"])
    hand.add("y", "map", f"{__name__}:dies_once", ["x"], x.shape, ["S1"], params={"marker": str(tmp_path / "died")})
    hand.add("s", "fold", "sum", ["y"], (40,), ["S0"], axes=(0,))
    dying = replace(plan, decisions=hand.plan("s"))
    with cluster(2) as client:
        found = run_on(client, compiled(plan), values)
        assert np.allclose(run_on(client, compiled(dying), {}).outputs["s"], -x.sum(0))
    for name, expected in zip(plan.decisions.problem.outputs, program(x, w), strict=True):
        assert np.allclose(found.outputs[name], np.asarray(expected)), name
    assert (tmp_path / "died").exists()
    assert sum(found.received_bytes.values()) == pytest.approx(plan.decisions.moved_bytes, rel=0.1)


@pytest.mark.slow
def test_arrays_may_be_larger_than_the_memory_of_all_workers():
    from treadle.runtime.tiling.dask_cluster import cluster, run_on

    plan, _ = planned(big, workers=2)
    with cluster(2, memory_bytes=240 * 2**20) as client:
        found = run_on(client, compiled(plan), {})
        peaks = client.run(peak_bytes)
    assert list(found.outputs.values()) == [2.0 * 10_000 * 10_000]
    assert sum(peaks.values()) < 10_000 * 10_000 * 8


def peak_bytes() -> int:
    """What this process has held at most."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
