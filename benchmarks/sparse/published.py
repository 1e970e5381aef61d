"""The theory and the speed-ups of "Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training",
compared with what its formulas and our prices give for synthetic traces of its models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.common import Row, Table, progress
from benchmarks.sparse.clusters import CLUSTERS, MOST, SLOW, SPEEDUPS, THROUGHPUTS, Pair, priced, throughput
from benchmarks.sparse.formulas import FORMULAS, Shape, dense
from benchmarks.sparse.traces import MODELS, NMT, PARTICIPANTS, Model
from treadle.planner.passes.sparse.schemes import SCHEMES, Scheme

POWER = 0.663
"""Densification m ** POWER is that of NMT with 128 participants, 24.9, which "36 % below dense" implies."""
CLOSE = 0.1
SHOWN = ("dense", "AGsparse", "SparCML", "Sparse PS", "Sparse PS, broadcast", "OmniReduce", "BP", "lower bound")
FORMULA = "over the dense gradient's bytes, bandwidth only, as published (benchmarks/sparse/formulas.py)"
SYNTHETIC = "densities, skewness and blocks are those of synthetic traces (benchmarks/sparse/traces.py)"


def tables() -> Iterator[Table]:
    """Zen's figure 3.7 from its formulas, and its speed-ups at 16 machines of 8 GPUs from our prices."""
    yield Table("The models as published, and as synthetic traces", [_traced(model) for model in MODELS], (SYNTHETIC,))
    for name, shape in CURVES.items():
        rows = [_costs(shape(n)) for n in PARTICIPANTS[1:]]
        yield Table(f"Figure 3.7, NMT, {name}: bytes over those of dense", rows, (FORMULA,))
    yield Table("Figure 3.7: what the paper says of it", list(_statements()), (FORMULA, SYNTHETIC))
    progress("prices")
    rows = [row for model in MODELS for row in _speedups(model)]
    yield Table(f"Time of the embedding's exchange: ratios, {SLOW.name}", rows, (*SLOW.notes, SYNTHETIC, missed(rows)))
    yield Table(f"The most of any model, {SLOW.name}", [_most(pair) for pair in MOST], SLOW.notes)
    rows = [_throughput(*key) for key in THROUGHPUTS]
    yield Table("Throughput over the best baseline", rows, (THROUGHPUT, SYNTHETIC, missed(rows)))
    yield Table(f"ms of every scheme, {SLOW.name}", [_all(scheme) for scheme in SCHEMES], (*SLOW.notes, SYNTHETIC))


THROUGHPUT = (
    "the time of computing is fitted to the published throughput over AllReduce; the MLP is exchanged densely by all; "
    "nothing overlaps"
)


def synthetic(participants: int, model: Model = NMT) -> Shape:
    """The shape of a trace's expected counts. Rows are longer than blocks, so that blocks are as dense as they are."""
    before, after = (float(model.present(m).mean()) for m in (1, participants))
    skewness = model.skewness(participants), model.skewness(participants, participants)
    return Shape(
        participants=participants,
        density=lambda m: float(model.present(m).mean()),
        skewness=skewness,
        blocks=(skewness[0] * before, skewness[1] * after),
    )


def power(participants: int) -> Shape:
    """Growth as a power, with the skewness of the trace as far as densities stay below 1."""
    traced = synthetic(participants)
    return Shape(participants, lambda m: NMT.density * m**POWER, traced.skewness, traced.blocks)


CURVES: dict[str, Callable[[int], Shape]] = {f"density d m^{POWER}": power, "synthetic trace": synthetic}


def _traced(model: Model) -> Row:
    return {
        "model": model.name,
        "M elements": model.rows * model.width / 1e6,
        "density %, published": 100 * model.density,
        "density %": 100 * float(model.present().mean()),
        "of 128, %": 100 * float(model.present(128).mean()),
        "growth": model.growth(128),
        "in the first of 8, %": 100 * model.skewness(8) / 8,
        "skewness of 128": model.skewness(128),
        "solved for": model.point,
    }


def _costs(shape: Shape) -> Row:
    whole = dense(shape)
    return {"participants": shape.participants, **{name: FORMULAS[name](shape) / whole for name in SHOWN}}


def relative(name: str, shape: Shape) -> float:
    return FORMULAS[name](shape) / dense(shape)


def _statements() -> Iterator[Row]:
    for curve, shape in CURVES.items():
        at = {n: shape(n) for n in PARTICIPANTS[1:]}
        loses = next((n for n in range(2, 129) if relative("AGsparse", Shape(n, at[2].density, (1, 1), (0, 0))) > 1), 0)
        yield _said(curve, "AGsparse loses to dense beyond", 40, loses - 1, loses - 1 == 40)
        worst = min(n for n in at if all(relative("Sparse PS", at[m]) > 1 for m in at if m >= n))
        yield _said(curve, "Sparse PS loses to dense from", None, worst, None)
        saved = 1 - relative("OmniReduce", at[128])
        yield _said(curve, "OmniReduce saves little beyond 64: % at 128", "marginal", 100 * saved, saved <= 0.15)
        for name, published in (("SparCML", 2.03), ("dense", 1.98)):
            found = FORMULAS[name](at[128])
            yield _said(curve, f"{name} at 128", published, found, abs(found / published - 1) <= 0.01)
        saved = 1 - relative("BP", at[128])
        yield _said(curve, "BP saves at 128, %", 36, 100 * saved, round(100 * saved) == 36)
        wins = [name for name in SHOWN[1:-1] if relative(name, at[128]) < 1]
        yield _said(curve, "wins at 128", "BP only", ", ".join(wins), wins == ["BP"])


def _said(curve: str, what: str, published: object, ours: object, met: bool | None) -> Row:
    verdict = None if met is None else "yes" if met else "MISSED"
    return {"curve": curve, "statement": what, "published": _text(published), "ours": _text(ours), "same": verdict}


def _text(value: object) -> str | None:
    return None if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _speedups(model: Model) -> Iterator[Row]:
    ns = priced(model, SLOW)
    for (scheme, over), published in SPEEDUPS[model.name].items():
        ours = ns[over] / ns[scheme]
        yield {
            "model": model.name,
            "scheme": scheme,
            "over": over,
            "published": published,
            "ours": ours,
            "ours / published": ours / published,
            "within 10 %": "yes" if abs(ours / published - 1) <= CLOSE else "MISSED",
        }


def _most(pair: Pair) -> Row:
    scheme, over = pair
    ratios = {}
    for model in MODELS:
        ns = priced(model, SLOW)
        ratios[model.name] = ns[over] / ns[scheme]
    name, most = max(ratios.items(), key=lambda each: each[1])
    return {"scheme": scheme, "over": over, "published": MOST[pair], "ours": most, "model": name}


def _throughput(model: Model, cluster: str) -> Row:
    over_dense, baseline, published = THROUGHPUTS[model, cluster]
    found = throughput(model, CLUSTERS[cluster], over_dense)
    return {
        "model": model.name,
        "cluster": cluster,
        "over AllReduce, published": over_dense,
        "fitted": found.over_dense,
        "computing, ms": found.computing_ms,
        "best baseline, published": baseline,
        "best baseline": found.best,
        "published": published,
        "ours": found.ours,
        "within 10 %": "yes" if abs(found.ours / published - 1) <= CLOSE else "MISSED",
    }


def _all(scheme: Scheme) -> Row:
    return {"scheme": scheme.name, **{model.name: priced(model, SLOW)[scheme.name] / 1e6 for model in MODELS}}


def missed(rows: list[Row]) -> str:
    return f"{sum(row['within 10 %'] != 'yes' for row in rows)} of {len(rows)} rows are missed by more than 10 %"
