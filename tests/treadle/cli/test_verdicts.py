"""A plan's own word counts for nothing: report, simulate and check find out for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tests.planner.passes.collective.build import line, switch
from tests.planner.passes.memory.instances import instance
from treadle.cli.main import run
from treadle.passes.memory import section
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes import room
from treadle.planner.passes.collective.bound import PROVED_BY_SOLVER
from treadle.planner.passes.memory.bound import SENTENCES, least_time
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule
from treadle.planner.passes.memory.planning import decide, plan_memory
from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.passes.memory.relaxation import priced_bound
from treadle.report.sections import certificates, inputs_table, plan_section

CHAIN = MemoryProblem(
    version=1,
    budget_bytes=450,
    base={"parameters": 40},
    fwd=(
        ForwardNode(op="a", out_bytes=100, impls=(Forward(time_ns=10),)),
        ForwardNode(op="b", out_bytes=100, inputs=(0,), impls=(Forward(time_ns=5),)),
        ForwardNode(op="c", out_bytes=100, inputs=(1,), impls=(Forward(time_ns=5),)),
        ForwardNode(op="d", out_bytes=10, inputs=(2,), impls=(Forward(time_ns=5),)),
    ),
    bwd=(
        BackwardNode(op="d'", out_grad_bytes=100, live_grad_bytes=10, impls=(Backward(needs=(2,), time_ns=10),)),
        BackwardNode(op="c'", out_grad_bytes=100, live_grad_bytes=100, impls=(Backward(needs=(1,), time_ns=10),)),
        BackwardNode(op="b'", out_grad_bytes=100, live_grad_bytes=100, impls=(Backward(needs=(0,), time_ns=10),)),
        BackwardNode(op="a'", out_grad_bytes=40, live_grad_bytes=100, impls=(Backward(time_ns=20),)),
    ),
)


def plan(collective: str, file: str, *inputs: str) -> Plan:
    inputs = inputs or ("--hardware", "mesh4", "--sketch", "mesh")
    assert run(["plan", "collective", collective, *inputs, "--size", "64K", "--method", "milp", "-o", file]) == 0
    return store.load(file, Plan)


def broken_collective(file: str) -> None:
    made = plan("allreduce", file)
    transfers = made.decisions.transfers[1:]
    store.save(structs.replace(made, decisions=structs.replace(made.decisions, transfers=transfers)), file)


def broken_memory(file: str) -> None:
    made = plan_memory(CHAIN)
    program = made.decisions.program[:-1]
    store.save(structs.replace(made, decisions=structs.replace(made.decisions, program=program)), file)


@pytest.mark.parametrize("breaking", [broken_collective, broken_memory])
@pytest.mark.parametrize(
    "command", [["report", "p.json", "-o", "page.html"], ["simulate", "p.json", "--perfetto", "out.json"]]
)
def test_rejected_plans_are_neither_shown_nor_simulated(
    here: Path, capsys: pytest.CaptureFixture[str], breaking, command: list[str]
) -> None:
    breaking("p.json")
    capsys.readouterr()
    assert run(["check", "p.json"]) == 1
    findings = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert run(command) == 1
    out, err = capsys.readouterr()
    *listed, last = err.splitlines()
    assert listed == findings
    assert last == f"error: p.json: rejected: {many(len(findings), 'finding')}"
    assert out == ""
    assert not Path(command[-1]).exists()


def test_the_page_shows_the_verdict_that_report_found(here: Path) -> None:
    made = plan("allreduce", "p.json")
    forged = structs.replace(made.certificate, checker="a stranger")
    store.save(structs.replace(made, certificate=forged), "p.json")
    assert run(["report", "p.json", "-o", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "<td>accepted</td>" in page
    assert "a stranger" not in page


def test_the_table_of_certificates_checks_what_it_shows(here: Path) -> None:
    broken_memory("p.json")
    table = certificates({"mine": store.load("p.json", Plan)})
    assert table.rows[0][:2] == ("mine", "rejected: 1 finding")


def forge(file: str) -> None:
    made = store.load(file, Plan)
    assert not made.certificate.optimal
    least = made.certificate.objective
    proof = made.certificate
    words, terms = proof.argument.replace(f"{proof.lower_bound:g} ns", f"{least:g} ns"), {"path": int(least)}
    proof = structs.replace(proof, argument=words, lower_bound=least, gap=0.0, optimal=True, terms_ns=terms)
    store.save(structs.replace(made, certificate=proof), file)


def test_a_sentence_that_states_other_times_than_its_terms_is_rejected(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = plan("broadcast", "p.json", "--hardware", "ring4", "--sketch", "ring")
    least = f"{made.certificate.lower_bound:g} ns"
    assert least in made.certificate.argument
    words = made.certificate.argument.replace(least, "1 ns")
    store.save(structs.replace(made, certificate=structs.replace(made.certificate, argument=words)), "p.json")
    assert run(["check", "p.json"]) == 1
    assert "certificate: the sentence of its argument states [1] ns, its terms" in capsys.readouterr().out


def test_a_bound_that_its_own_argument_contradicts_is_rejected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof = plan("broadcast", "p.json", "--hardware", "ring4", "--sketch", "ring").certificate
    forge("p.json")
    forged = store.load("p.json", Plan)
    certificate = structs.replace(forged.certificate, terms_ns=proof.terms_ns)
    store.save(structs.replace(forged, certificate=certificate), "p.json")
    assert run(["check", "p.json"]) == 1
    finding = f"lower bound {proof.objective:g} ns, the terms of its argument add up to {proof.lower_bound:g} ns"
    assert finding in capsys.readouterr().out


def test_a_forged_bound_of_a_collective_is_no_proof(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = plan("broadcast", "p.json", "--hardware", "ring4", "--sketch", "ring")
    bound = made.certificate.lower_bound
    forge("p.json")
    capsys.readouterr()
    assert run(["check", "p.json"]) == 0
    assert "it claims to be optimal" in capsys.readouterr().out
    assert run(["check", "--fresh", "p.json"]) == 1
    finding = f"certificate: lower bound {made.certificate.objective:g} ns, the inputs prove only {bound:g} ns"
    assert finding in capsys.readouterr().out


def test_a_bound_that_only_a_solver_proved_stays_a_claim(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(switch(4), "machine.json")
    made = plan("broadcast", "p.json", "--hardware", "machine.json", "--sketch", "mesh")
    assert made.certificate.argument == PROVED_BY_SOLVER
    capsys.readouterr()
    assert run(["check", "--fresh", "p.json"]) == 0
    assert "; it claims to be optimal for these pieces; inputs hardware, sketch checked)" in capsys.readouterr().out
    proof = structs.replace(made.certificate, argument="It is so.")
    store.save(structs.replace(made, certificate=proof), "p.json")
    assert run(["check", "--fresh", "p.json"]) == 1
    assert "the inputs prove only" in capsys.readouterr().out


def test_optimal_is_said_of_a_bound_that_was_derived_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("allgather", "p.json", "--hardware", "ring4", "--sketch", "ring").certificate.optimal
    capsys.readouterr()
    assert run(["check", "--fresh", "p.json"]) == 0
    assert (
        "(allgather plan of 4 ranks; optimal for these pieces; inputs hardware, sketch checked)"
        in capsys.readouterr().out
    )


def test_optimal_for_these_pieces_or_for_all(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No cut of an allgather on two ranks into pieces saves time; the bound of the MILP covers its own cut only."""
    store.save(line(2), "machine.json")
    given = ["plan", "collective", "allgather", "--hardware", "machine.json", "--sketch", "mesh", "-o", "p.json"]
    for method, words in (("milp", "optimal for these pieces"), ("all-pairs", "optimal")):
        assert run([*given, "--method", method, "--size", "1M"]) == 0
        scope = "these pieces" if method == "milp" else "all pieces"
        found = store.load("p.json", Plan)
        assert found.certificate.scope == scope
        out = capsys.readouterr().out
        assert f"lower bound over {scope} " in out
        assert f" us ({words})\n" in out
        claimed = structs.replace(found, certificate=structs.replace(found.certificate, scope="any order"))
        store.save(claimed, "claimed.json")
        assert run(["check", "claimed.json"]) == 1
        assert "found the scope 'any order', expected all pieces or these pieces" in capsys.readouterr().out
        assert run(["check", "--fresh", "p.json"]) == 0
        assert f"; {words}; inputs" in capsys.readouterr().out
        assert run(["report", "p.json", "-o", "page.html"]) == 0
        capsys.readouterr()
        assert f"proved {words}<" in Path("page.html").read_text()


def test_bounds_of_memory_plans_are_claims_above_what_every_plan_takes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = plan_memory(CHAIN)
    store.save(everything, "all.json")
    tight = plan_memory(structs.replace(CHAIN, budget_bytes=everything.decisions.exact_peak_bytes - 1))
    assert tight.decisions.objective_ns > everything.decisions.objective_ns
    store.save(tight, "tight.json")
    capsys.readouterr()
    assert run(["check", "all.json", "tight.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "all.json: accepted (memory plan; optimal)",
        "tight.json: accepted (memory plan; it claims to be optimal)",
    ]
    assert run(["report", "all.json", "tight.json", "-o", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "it claims to be optimal" in page


@pytest.mark.parametrize(
    ("status", "optimal", "changes", "words"),
    [
        ("optimal", True, {}, "proved optimal"),
        ("feasible", False, {}, "gap target of 50.00% reached"),
        ("feasible", False, {"options": {"gap": 0.01}}, "gap target or deterministic limit (feasible)"),
        ("feasible", False, {"options": {}}, "gap target or deterministic limit (feasible)"),
        (
            "routing optimal, contiguity optimal",
            False,
            {"options": {}},
            "on its own (routing optimal, contiguity optimal)",
        ),
        ("none", False, {}, "limit before the solver found a plan"),
        (None, False, {}, "not recorded"),
        ("feasible", False, {"limit_fired": True}, "wall-clock limit"),
        ("feasible", False, {"interrupted": True}, "interrupted"),
    ],
)
def test_the_page_says_how_the_search_ended(
    status: str | None, optimal: bool, changes: dict[str, object], words: str
) -> None:
    made = plan_memory(CHAIN)
    gap = 0.0 if optimal else 0.2
    proof = structs.replace(made.certificate, gap=gap, optimal=optimal)
    origin = structs.replace(made.provenance, **{"solver_status": status, "options": {"gap": 0.5}, **changes})
    table = inputs_table({"mine": structs.replace(made, certificate=proof, provenance=origin)})
    assert table.rows[0][3] == words


def test_the_backward_pass_starts_after_the_forward_instructions_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second implementation of a is twice as slow and the only one that runs."""
    node = CHAIN.fwd[0]
    slow = structs.replace(
        CHAIN, fwd=(structs.replace(node, impls=(node.impls[0], Forward(time_ns=20))), *CHAIN.fwd[1:])
    )
    made = plan_memory(slow)
    program = tuple(
        structs.replace(step, impl=1) if isinstance(step, RunForward) and step.node == 0 else step
        for step in made.decisions.program
    )
    drawn: dict[str, int] = {}
    draw = section.memory_svg
    monkeypatch.setattr(
        section,
        "memory_svg",
        lambda points, **given: (drawn.update(ends=given["forward_ends_ns"]), draw(points, **given))[1],
    )
    plan_section("mine", structs.replace(made, decisions=structs.replace(made.decisions, program=program)))
    assert drawn == {"ends": 35}


def test_what_a_plan_alone_proves_is_never_more_than_what_plans_take() -> None:
    """Runs in place take less than their implementation alone would."""
    for seed in range(60):
        made = decide(problem := instance(seed), least_peak_schedule(problem))
        assert room("memory").least_ns(made) <= made.objective_ns
        assert room("memory").least_ns(made) == least_time(problem)


def test_the_bound_of_a_linear_program_is_derived_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tight = plan_memory(structs.replace(CHAIN, budget_bytes=430))
    bound = priced_bound(tight.decisions.problem)
    assert bound is not None
    assert room("memory").least_ns(tight.decisions) < bound <= tight.decisions.objective_ns

    def claiming(lower_bound: int) -> Plan:
        gap = 1 - lower_bound / tight.certificate.objective
        proof = structs.replace(
            tight.certificate,
            lower_bound=lower_bound,
            gap=gap,
            argument=SENTENCES["priced"],
            optimal=lower_bound == truth,
        )
        return structs.replace(tight, certificate=proof)

    truth = tight.decisions.objective_ns
    store.save(claiming(bound), "proved.json")
    store.save(claiming(bound + 2), "raised.json")
    assert run(["check", "proved.json"]) == 0
    assert "it claims" not in capsys.readouterr().out
    assert run(["check", "raised.json"]) == 1
    assert f"the problem proves only {bound} ns" in capsys.readouterr().out
