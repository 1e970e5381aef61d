"""Programs for RDMA: their tables as golden text, what is refused, and both ends running over a card in software."""

import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.conftest import Golden
from treadle.codegen.server.verbs import verbs
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.planning import plan_server
from treadle.planner.passes.server.problem import MachineInterface, OptimizerName, ServerMachine, ServerProblem

NAMES = ("mlx5_0", "mlx5_1")
FLAGS = "CXXFLAGS=-O0 -Wall -Wextra -Werror"
THREE = ServerProblem(
    version=1,
    name='three "workers"\n#error',
    keys=(
        ServerKey(name="conv.weight", elements=30_000),
        ServerKey(name='head"; }\n#error', elements=777, dtype="float16"),
        ServerKey(name="stem", elements=1000, dtype="bfloat16"),
    ),
    workers=3,
    worker_rate=10**9,
    mode="ncc",
    machine=ServerMachine(
        name="box",
        domains=(1, 1),
        interfaces=tuple(MachineInterface(name=name, domain=place, rate=10**9) for place, name in enumerate(NAMES)),
    ),
    carrier="rdma",
    optimizer="sgd",
)
"""The functional oracle: a server of 2 interfaces with a core each, 3 workers that push 1, 2 and 3."""
headers = pytest.mark.skipif(
    shutil.which("g++") is None or not Path("/usr/include/infiniband/verbs.h").exists(), reason="needs libibverbs-dev"
)


def planned(problem: ServerProblem = THREE) -> Plan[ServerDecisions]:
    return plan_server(problem, options=ServerOptions(chunk_bytes=4096))


def write(plan: Plan[ServerDecisions], folder: Path) -> Path:
    for name, text in verbs(plan).files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.golden
def test_the_tables_are_those_of_the_plan(golden: Golden) -> None:
    golden("server/verbs/plan.h", verbs(planned()).files["plan.h"])


def test_workers_with_interfaces_of_their_own_name_them() -> None:
    plan = plan_server(THREE, options=ServerOptions(policy="worker-by-interface"))
    assert "WORKER_INTERFACES[WORKERS] = {0, 1, 0};" in verbs(plan).files["plan.h"]
    assert "{0, 0, 0, -1}," in verbs(plan).files["plan.h"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine": "wide"}, "expected tall for verbs"),
        ({"two_level": True}, "one level"),
        ({"problem": replace(THREE, synchronous=False)}, "a synchronous one"),
    ],
    ids=["wide", "levels", "asynchronous"],
)
def test_what_the_program_does_not_run_is_refused(changes: dict[str, object], expected: str) -> None:
    plan = planned()
    with pytest.raises(InputError, match=expected):
        verbs(replace(plan, decisions=replace(plan.decisions, **changes)))


@pytest.mark.parametrize("name", ["a card", 'mlx"', "-rf", "mlx5_0\n", "ü", "x" * 64])
def test_names_that_no_device_has_are_refused(name: str) -> None:
    machine = replace(THREE.machine, interfaces=(MachineInterface(name=name, domain=0, rate=10**9),))
    with pytest.raises(InputError, match="the name of a device"):
        verbs(planned(replace(THREE, machine=machine)))


@headers
def test_names_stay_data(tmp_path: Path) -> None:
    write(planned(), tmp_path)
    size = len(THREE.keys[1].name) + 1
    check = f'#include "plan.h"\nstatic_assert(__builtin_strlen(plan::KEYS[1].name) == {size - 1});\n'
    (tmp_path / "check.cpp").write_text(check)
    subprocess.run(["g++", "-std=c++17", "-fsyntax-only", "check.cpp"], cwd=tmp_path, check=True)


@headers
@pytest.mark.slow
def test_the_programs_end_with_one_line_without_a_card(tmp_path: Path) -> None:
    write(planned(), tmp_path)
    subprocess.run(["make", "-j2", FLAGS], cwd=tmp_path, check=True, capture_output=True)
    for command in (["./server", "0", "1", "1"], ["./worker", "0", "1", "localhost:1"]):
        environment = {"TREADLE_DEVICES": "no-such-card,no-such-card", "TREADLE_DEVICE": "no-such-card"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 5
        assert done.stderr.startswith("error: found no RDMA device no-such-card among ")
        assert done.stderr.count("\n") == 1


@headers
@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "settings", "weight"),
    [
        ("sgd", ("lr=0.5",), "7"),
        # The direction of each step is 1, and the ratio is the weight itself: it is halved three times.
        ("lamb", ("lr=0.5", "beta1=0.9", "beta2=0.999", "eps=1e-12"), "1.25"),
    ],
    ids=["sgd", "lamb"],
)
def test_both_ends_make_the_steps_of_the_plan_over_cards_in_software(
    optimizer: OptimizerName, settings: tuple[str, ...], weight: str, tmp_path: Path
) -> None:
    write(planned(replace(THREE, optimizer=optimizer)), tmp_path)
    card = Path(__file__).with_name("fake_verbs.cpp")
    subprocess.run(["g++", "-std=c++17", "-c", card, "-o", "card.o"], cwd=tmp_path, check=True)
    build = ["make", "-j2", FLAGS, "LDLIBS=card.o -ldl"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    assert run_all(tmp_path, settings) == [
        "server 0 made 3 versions of 2 slots\n",
        *["".join(f"{key.name} {weight}\n" for key in THREE.keys)] * 3,
    ]


def run_all(folder: Path, settings: tuple[str, ...]) -> list[str]:
    """What the server and its workers print after three steps."""
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    commands = [["./server", "0", port, "3", *settings]]
    commands += [["./worker", str(worker), "3", f"localhost:{port}"] for worker in range(3)]
    with ExitStack() as stack:
        running = [
            stack.enter_context(subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True))
            for command in commands
        ]
        for process in running:
            stack.callback(process.kill)
        return [process.communicate(timeout=200)[0] for process in running]
