"""`treadle profile` for models that rank configurations of learned indexes: learn one on this machine, list and show
what ships."""

from __future__ import annotations

import json
from pathlib import Path

from treadle.cli.json_output import print_json
from treadle.cli.output import live_line, note, print_table
from treadle.cli.signals import end_signals
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.index_model import IndexModel, RankingScore
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.scalars import many
from treadle.planner.documents.sources import SHIPPED, load_named
from treadle.planner.errors import InputError

FOLDER = SHIPPED[IndexModel]
KIND = "index-model"


def measure_index_model(minutes: float | None, output: str | None, as_json: bool) -> None:
    """Measure, learn, write the model, print how good its rankings are.

    Raises InputError without a file to write: nothing else is worth the time.
    """
    from treadle.probe.measure_index import MINUTES, measure_index

    if output is None:
        raise InputError("found --index only, expected a file for the model with it: -o FILE", where="--output")
    with end_signals() as ended, live_line() as show:
        found = measure_index(minutes=minutes or MINUTES, ended=lambda: ended() is not None, on_step=show)
        reason = ended()
    store.save(found.model, output)
    found.kept.unlink(missing_ok=True)
    if reason is not None:
        note(f"{reason}; the model is learned from what was measured until then")
    note(f"wrote {output}")
    if as_json:
        print_json("profile-measure-index", {"model": json.loads(store.dumps(found.model))})
        return
    _print_model(found.model)


def shipped_index_models() -> list[tuple[str, IndexModel]]:
    """Name and document of the models that ship with treadle."""
    return [(name, load_named(IndexModel, name)) for name in resources.names(FOLDER)]


def list_index_models() -> None:
    """Print the models that ship with treadle."""
    rows = [(name, each.training.traces, each.training.runs, each.machine) for name, each in shipped_index_models()]
    print_table("models of learned indexes", ("name", "traces", "runs", "machine"), rows)


def index_model_named(name: str) -> IndexModel | None:
    """The model in a file, or of a shipped name that `index/` precedes; None for the name or file of something else."""
    path, shipped = Path(name), name.removeprefix("index/")
    if path.is_file():
        is_model = store.kind_of(parse(store.read_text(path), name), name) == KIND
        return load_named(IndexModel, name) if is_model else None
    return load_named(IndexModel, shipped) if shipped != name and shipped in resources.names(FOLDER) else None


def show_index_model(model: IndexModel, as_json: bool) -> None:
    """Print what the model was learned from and how good it is."""
    if as_json:
        print_json("profile-show-index", {"model": json.loads(store.dumps(model))})
        return
    _print_model(model)


def _print_model(model: IndexModel) -> None:
    training = model.training
    rows = [
        ("machine", model.machine),
        ("learned from", f"{many(training.traces, 'trace')}, {many(training.runs, 'run')}, seed {training.seed}"),
        ("families", ", ".join(training.families)),
        ("a repeated run differs by", f"{training.repeat_spread:.1%}"),
        ("networks", len(model.networks)),
        ("classes of throughput", len(model.centres)),
        ("baseline", _baseline(model.baseline.thresholds)),
    ]
    print_table(f"model: {model.name}", ("what", ""), rows)
    print_table(
        "rankings of traces that nothing was learned from, of the model and of the baseline",
        ("family", "traces", "first is best", "lost by the first", "best of 3", "best of 10", "rank correlation"),
        [
            (each.family if who == "model" else f"{each.family}, baseline", each.traces, *_score(score))
            for each in model.validation
            for who, score in (("model", each.model), ("baseline", each.baseline))
        ],
    )


def _score(score: RankingScore) -> tuple[str, ...]:
    lost = (score.top_1, score.regret_1, score.regret_3, score.regret_10)
    return (*(f"{each:.1%}" for each in lost), f"{score.rank_correlation:.2f}")


def _baseline(thresholds: tuple[float, ...]) -> str:
    if not thresholds:
        return "one order for all shares of inserts"
    return f"if-else at {' and '.join(f'{each:.0%}' for each in thresholds)} inserts"
