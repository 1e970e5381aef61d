"""What the tool writes for small inputs, as digests: a restructuring changes none of them.

Every case is a list of command lines. What they write and print is compared with tests/golden/digests.json, and the
texts in `SHOWN` with tests/golden/<case>/<file> as well. `make golden` rewrites both.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import GOLDEN, Golden, digest_of
from treadle.cli.main import run
from treadle.planner.version import __version__

INPUTS = GOLDEN / "inputs"

TRAINING = "--trace step.json --hardware p3-v100-16gb"
WHOLE = "--trace adam.json --hardware p3-v100-16gb --workers 1"
ONLY_CONV = "--without out --without int --without grad-inplace --without rng"
BRIEF = "--population 8 --generations 4"
CALLED = "examples.models.masked_lm:tiny --hardware p3-v100-16gb"
LOOKS = ("check plan.json", "simulate --json plan.json", "report plan.json -o page.html")


def memory(options: str, *targets: str) -> tuple[str, ...]:
    return (f"plan memory {options} -o plan.json", *LOOKS, *generated(*targets))


def swap(options: str, *targets: str) -> tuple[str, ...]:
    return (f"plan swap {options} -o plan.json", *LOOKS, *generated(*targets))


def collective(options: str, *targets: str) -> tuple[str, ...]:
    return (f"plan collective {options} -o plan.json", *LOOKS, *generated(*targets))


def sparse(options: str, *targets: str) -> tuple[str, ...]:
    command = f"plan sparse --problem sparse-problem.yaml {options} -o plan.json"
    return (command, *LOOKS, *generated(*targets))


def server(options: str, *targets: str) -> tuple[str, ...]:
    command = f"plan server --problem server-problem.yaml {options} -o plan.json"
    return (command, *LOOKS, *generated(*targets))


def checkpoint(options: str, *targets: str) -> tuple[str, ...]:
    command = f"plan checkpoint --problem checkpoint-problem.yaml {options} -o plan.json"
    return (command, *LOOKS, *generated(*targets))


def tiling(options: str, *targets: str) -> tuple[str, ...]:
    return (f"plan tiling {options} -o plan.json", *LOOKS, *generated(*targets))


def aggregation(options: str, *targets: str) -> tuple[str, ...]:
    command = f"plan aggregation --problem aggregation-problem.yaml {options} -o plan.json"
    return (command, *LOOKS, *generated(*targets))


def index(*targets: str) -> tuple[str, ...]:
    return ("plan index --problem index-problem.yaml -o plan.json", *LOOKS, *generated(*targets))


def compression(options: str, *targets: str) -> tuple[str, ...]:
    command = f"plan compression --problem compression-problem.yaml {options} -o plan.json"
    return (command, *LOOKS, *generated(*targets))


def fusion(program: str, sizes: str, *targets: str, hardware: str = "switch4") -> tuple[str, ...]:
    command = f"plan fusion examples.fusion.{program}:program --hardware {hardware} {sizes} -o plan.json"
    return (command, *LOOKS, *generated("cuda", "torch", "nccl", *targets))


def generated(*targets: str) -> tuple[str, ...]:
    return tuple(f"generate plan.json --target {target} -o {target}" for target in targets)


CASES: dict[str, tuple[str, ...]] = {
    "capture": ("trace capture golden_model:step --optimizer adam -o captured.json",),
    "sketch": ("sketch new --hardware ndv2 --nodes 2 -o sketch.yaml",),
    # Memory: every method, every target, and what else decides.
    "memory/auto": memory(f"{TRAINING} --budget 0.8x", "torch", "torch-sac", "torch-compile"),
    **{
        f"memory/{method}": memory(f"{TRAINING} --budget 0.8x --method {method}")
        for method in ("heuristic", "segments", "windows", "full", "retention", "rounding")
    },
    "memory/leaving": memory(f"{TRAINING} --budget 0.9x --as-published {ONLY_CONV}"),
    "memory/keeping": memory(f"{TRAINING} --budget 0.9x --no-recompute --without conv --hold-gradients"),
    "memory/by-hand": memory("--problem memory-problem.yaml --budget 445"),
    "memory/sweep": (
        f"plan memory {TRAINING} --sweep 0.8x..1x:2 -o plans",
        "report plans/0.8x.plan.json plans/1x.plan.json -o page.html",
    ),
    "memory/called": (
        f"trace capture {CALLED} -o called.json",
        *memory("--trace called.json --budget 0.9x", "torch", "torch-sac", "torch-compile"),
    ),
    # Swapping: every method, allocator and target.
    "swap/called": (
        f"trace capture {CALLED} -o called.json",
        *swap(f"--trace called.json --hardware p3-v100-16gb --device-memory 0.8x {BRIEF} --workers 1", "torch-swap"),
    ),
    "swap/auto": swap(f"{WHOLE} --device-memory 0.7x {BRIEF}", "torch-swap", "torch-offload", "deepspeed"),
    "swap/genetic": swap(f"{WHOLE} --device-memory 0.7x {BRIEF} --method genetic --allocator pool"),
    "swap/faithful": swap(f"{WHOLE} --device-memory 0.9x {BRIEF} --as-published"),
    "swap/offset": swap(f"{WHOLE} --device-memory 0.7x {BRIEF} --allocator offset"),
    "swap/bytes": swap(f"{WHOLE} --device-memory 0.7x {BRIEF} --allocator bytes"),
    "swap/recompute": swap(f"{WHOLE} --device-memory 0.7x {BRIEF} --with-recompute", "torch-swap"),
    "swap/exact": swap("--problem swap-problem.yaml --method exact --workers 1"),
    # Collectives: every method, every collective, every target.
    **{
        f"collective/{method}": collective(f"{what} --method {method} --size 64KiB")
        for method, what in {
            "exact": "allgather --hardware ring4 --sketch ring",
            "milp": "allgather --hardware cpu-2x2",
            "recursive-doubling": "allreduce --hardware switch4",
            "binomial": "broadcast --hardware switch4 --root 1",
            "all-pairs": "alltoall --hardware switch4",
            "halving-doubling": "allreduce --hardware switch4",
            "two-level": "allreduce --hardware relay-2x2",
            "double-tree": "allreduce --hardware cpu-2x2",
            "ring": "allreduce --hardware ring4",
            "greedy": "allgather --hardware dgx1",
            "hierarchical": "allgather --hardware ndv2 --nodes 2",
            "trees": "allreduce --hardware dgx1",
        }.items()
    },
    **{
        f"collective/{name}": collective(f"{name} --hardware cpu-2x2 --method greedy --size 64KiB", "msccl-xml")
        for name in ("reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
    },
    "collective/alltoallv": collective("alltoallv --hardware line3 --pattern pattern.yaml", "msccl-xml"),
    "collective/auto": (
        *collective("allreduce --hardware ring4 --sketch ring --size 64KiB", "msccl-xml", "mscclpp-json", "cuda"),
        *(f"generate plan.json --runtime {name} -o {name}" for name in ("msccl", "rccl", "executor")),
        "check --runtime rccl msccl-xml/allreduce.xml",
        "simulate --json --hardware ring4 --size 1MiB msccl-xml/allreduce.xml",
    ),
    "collective/sizes": (
        "plan collective allreduce --hardware ring4 --sketch ring --sizes 1KiB,1MiB -o plans",
        "generate plans/selection.json --target nccl-tuner -o nccl-tuner",
        "generate plans/selection.json --target msccl-xml -o msccl-xml",
        "report plans/selection.json -o page.html",
    ),
    # Fusion: every program of the examples, every target.
    "fusion/sgd": fusion("sgd", "--bind N=4096", "nccl-device"),
    "fusion/adam": fusion("adam", "--bind N=4096", "nccl-device"),
    "fusion/adam-of-tensors": fusion("adam_f32", "--parts N=1500,1024,10", "nccl-device"),
    "fusion/lamb": fusion("lamb", "--parts N=1500,1024,10"),
    "fusion/attention": fusion("attention", "--bind B=2,S=16,H=32", "nccl-device", "tp-overlap"),
    "fusion/mlp": fusion("mlp", "--bind B=2,S=16,H=32", "nccl-device", "tp-overlap"),
    "fusion/matmul-rs": fusion("matmul_rs", "--bind T=256,H=128,F=64", "tp-overlap"),
    "fusion/ag-matmul": fusion("ag_matmul", "--bind T=256,H=128,F=64", "tp-overlap"),
    "fusion/moe": fusion("moe", "--bind T=64,H=32"),
    "fusion/pipeline": fusion("pipeline", "--bind B=2,S=16,H=32", hardware="cpu-2x2"),
    "fusion/rmsnorm": fusion("rmsnorm", "--bind T=64,H=32"),
    "fusion/muon": fusion("muon", "--bind M=64,N=64", "tp-overlap")[:1],
    "fusion/trace": ("plan fusion --trace step.json --hardware switch4 -o plans",),
    "fusion/sweep": ("plan fusion examples.fusion.sgd:program --hardware switch4 --sweep N=1K:1M -o plans",),
    # Compression: every method.
    "compression/joint": compression("", "ddp-hook"),
    "compression/espresso": compression("--method espresso --as-published"),
    "compression/cupcake": compression("--method cupcake"),
    "sparse/worker-order": sparse("", "ddp-hook"),
    "sparse/any-order": sparse("--any-order"),
    # Aggregation: without an embedding, whose last digits differ between machines.
    "aggregation/two-levels": aggregation("--levels 2", "msccl-xml", "mscclpp-json", "cuda"),
    "aggregation/flat": aggregation("--levels 1"),
    "server/by-key": server("--policy key-by-interface", "server-config"),
    "server/by-worker": server("--policy worker-by-interface --engine wide --chunk 16KiB"),
    "checkpoint/racks": checkpoint("", "checkpoint-config"),
    "checkpoint/ring": checkpoint("--placement ring --variant no-pipeline --every 2"),
    "tiling/exact": tiling("--problem tiling-program.yaml", "tiling-config", "jax"),
    "tiling/greedy": tiling("--problem tiling-program.yaml --tiling greedy", "tiling-config"),
    "tiling/layer": tiling("--problem tiling-layer.yaml", "tiling-config", "jax"),
    "tiling/dask": ("plan tiling --problem tiling-problem.yaml -o plan.json", *generated("dask")),
    "index/measured": index("index"),
    # Several passes at once.
    "job": ("plan job job.yaml --no-run -o out",),
}
"""Command lines by case, run in a folder with the files of tests/golden/inputs."""

SHOWN: dict[str, tuple[str, ...]] = {
    "memory/called": ("torch/step.py",),
    "fusion/sgd": ("cuda/schedule.cu", "torch/sgd.py", "nccl/schedule.cu"),
    "fusion/attention": (
        *("cuda/schedule.cu", "torch/attention.py", "nccl/schedule.cu"),
        *("nccl-device/fused_allreduce.cu", "tp-overlap/tp_comm_overlap.yaml"),
    ),
    "tiling/dask": ("dask/program.py",),
    "index/measured": ("index/example.cpp",),
}
"""Generated texts that are golden files, so that a change of theirs is a diff to read. Tables are cut short there."""

LONG = {"collective/auto", "collective/sizes", "fusion/muon"}
"""Cases that take more than 5 s."""

TABLE_ROWS = 24
"""Rows of a generated table that a golden file shows."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in LONG else case for case in CASES]
)
def test_nothing_that_is_written_changes(
    case: str, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(INPUTS, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    texts = {}
    for command in CASES[case]:
        assert run(shlex.split(command)) == 0, f"{command}: {capsys.readouterr().err}"
        printed = capsys.readouterr().out
        if command.startswith(("check", "simulate")):
            texts[command] = printed
    texts |= files_in(tmp_path)
    texts = without_version(texts)
    for name in SHOWN.get(case, ()):
        golden(f"{case}/{name}", with_short_tables(texts[name]))
    golden.digests(case, by_folder(texts))


def test_every_digest_has_its_case(golden: Golden) -> None:
    assert set(golden.known()) == set(CASES), "remove from tests/golden/digests.json what is no case any more"


def files_in(folder: Path) -> dict[str, str]:
    """What the commands wrote, by relative path."""
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (INPUTS / path.relative_to(folder)).exists() and path.suffix != ".pyc"
    }


def without_version(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts without the tool's version, and with names for the digests of each other, which depend on it."""
    names = {f"sha256:{digest_of(text)}": f"<digest of {name}>" for name, text in texts.items()}
    return {
        name: re.sub(r"sha256:[0-9a-f]{64}", lambda found: names.get(found[0], found[0]), text).replace(
            f"treadle {__version__}", "treadle"
        )
        for name, text in texts.items()
    }


def with_short_tables(text: str) -> str:
    """The text with the first rows of each table; a digest stands for the others."""

    def shortened(table: re.Match[str]) -> str:
        rows = table[2].splitlines(keepends=True)
        shown, others = rows[:TABLE_ROWS], rows[TABLE_ROWS:]
        rest = f"    // {len(others)} more rows, sha256 {digest_of(''.join(others))}\n" if others else ""
        return table[1] + "".join(shown) + rest

    return re.sub(r"^(TREADLE_TABLE .*\{\n)((?: +\{.*\n)+)", shortened, text, flags=re.MULTILINE)


def by_folder(texts: Mapping[str, str]) -> dict[str, str]:
    """The files of an artefact as one text."""
    together: dict[str, str] = {}
    for name, text in texts.items():
        folder = name.partition("/")[0]
        key = f"{folder}/" if f"{folder}/artefact.json" in texts else name
        together[key] = together.get(key, "") + (f"{name}\n{text}\n" if key != name else text)
    return together
