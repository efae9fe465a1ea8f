"""Which cut of the bundled articles serves the reader best, by labels and by its score, at equal tokens of the prompt.

    python -m benchmarks.chunking [--tokens 800] [--questions 110] [--store DIR] [--quick] [--json FILE]

The articles are cut to 50, 100, 200 and 300 words and by 300 characters with an overlap of 20, each cut is searched with
BM25, and the bundled Fusion-in-Decoder reader reads the passages within the budget, alone and together. Means of
measures at the budget stand beside means at the first three ranks, with their order of the cuts compared with the
end-to-end score at the budget: tau over the cuts, and soft pairwise accuracy (``statistics.systems``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from benchmarks._harness import Line, make_parser, write_report
from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.reading.lengths import passage_tokens
from engine.reading.models.weights import BUNDLED_FID
from engine.reading.reader_settings import ReaderSettings
from engine.retrieval.bm25 import build_index, search
from engine.sources.articles.read import read_source
from engine.sources.bundled import questions, wikipedia_dump
from engine.sources.io.files import write_parquet
from engine.sources.passages.cut import CutSettings, passages
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.tables import (
    ANNOTATOR,
    DOC_ID,
    MEASURE,
    QUERY_ID,
    RANK,
    RUN,
    SOFT_ACCURACY,
    TEXT,
    TITLE,
    TOKENS,
    VALUE,
)

CUTS = {f"{words}-words": CutSettings(words=words) for words in (50, 100, 200, 300)}
CUTS["300-characters"] = CutSettings(characters=300, overlap=20)
# Ranks for measures without a budget, and most passages of a list.
RANKS, DEPTH = 3, 20
READER = ReaderSettings(reader=BUNDLED_FID, augmentation="fid")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, quick={"questions": 12, "tokens": 400})
    parser.add_argument("--tokens", type=int, default=800, help="the budget")
    parser.add_argument("--questions", type=int, default=110, help="how many, of 110")
    parser.add_argument("--store", type=Path, help="where LLM calls are cached, to go on later")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="erag-chunking-") as folder:
        made = measure(Path(folder), options.tokens, options.questions, options.store)
    for line in table(*made):
        print(line)
    evaluation, _ = made
    orders = evaluation.statistics.systems.to_dicts()
    best = next(row for row in orders if row[MEASURE] == f"Success@{options.tokens}tok")
    told = Line(
        "order of 5 cuts, eRAG Success against end to end: SPA", f"{best[SOFT_ACCURACY]:.2f}"
    )
    write_report(
        options,
        ("polars", "torch"),
        {"means": evaluation.means.to_dicts(), "systems": orders},
        [told],
    )


def measure(
    folder: Path, tokens: int, most: int, store: Path | None
) -> tuple[Evaluation, dict[str, tuple[int, float, float]]]:
    """The evaluation of all cuts; by cut its passages, tokens of a passage, and passages within the budget of a list."""
    queries = read_queries(questions("short-answer")).head(most)
    write_parquet(queries, folder / "queries.parquet")
    articles = list(read_source(wikipedia_dump()))
    sizes = {}
    for name, cutting in CUTS.items():
        corpus = passages(articles, cutting=cutting)
        write_parquet(corpus, folder / f"{name}.parquet")
        build_index(corpus, folder / name)
        run = search(folder / name, queries, k=DEPTH)
        listed = corpus.join(run.select(DOC_ID).unique(), on=DOC_ID, how="semi")
        lengths = passage_tokens(READER, listed.select(TITLE, TEXT).iter_rows())
        counted = listed.select(DOC_ID).with_columns(pl.Series(TOKENS, lengths))
        rows = run.join(counted, on=DOC_ID, maintain_order="left")
        within = pl.col(TOKENS).cum_sum().over(QUERY_ID) <= tokens
        held = rows.filter(within).height / queries.height
        sizes[name] = corpus.height, float(counted[TOKENS].mean() or 0), held  # type: ignore[arg-type]
        # Passages beyond both budget and ranks are not read.
        needed = rows.filter(within | (pl.col(RANK) <= RANKS)).drop(TOKENS)
        write_run(needed, folder / f"{name}.run.parquet")
    files = InputFiles(
        queries=folder / "queries.parquet",
        run=tuple(folder / f"{name}.run.parquet" for name in CUTS),
        corpora=tuple(folder / f"{name}.parquet" for name in CUTS),
    )
    at = [f"{kind}@{tokens}tok" for kind in ("Success", "nDCG", "P")]
    settings = Settings.of(
        reader=READER.reader,
        augmentation=READER.augmentation,
        k=DEPTH,
        end_to_end_k=f"{tokens}tok",
        measures=" ".join([*at, f"Success@{RANKS}", f"nDCG@{RANKS}", f"P@{RANKS}"]),
        annotators=("erag", "containment"),
        actors=0,
    )
    inputs = read_inputs(files, k=DEPTH)
    return evaluate(inputs, settings, store=store or folder / "store"), sizes


def table(evaluation: Evaluation, sizes: dict[str, tuple[int, float, float]]) -> Iterator[str]:
    """Sizes and scores of cuts, as Markdown; behind each measure its agreement on their order."""
    systems, means = evaluation.statistics.systems, evaluation.means
    whole = dict(evaluation.end_to_end.select(RUN, VALUE).iter_rows())
    columns = (ANNOTATOR, MEASURE, SOFT_ACCURACY)
    orders = {
        (annotator, measure): soft
        for annotator, measure, soft in systems.select(columns).iter_rows()
    }
    values = {
        (run, annotator, measure): value
        for run, annotator, measure, value in means.select(
            RUN, ANNOTATOR, MEASURE, VALUE
        ).iter_rows()
    }
    counts, lengths, held = zip(*sizes.values(), strict=True)
    runs = [f"bm25@{name}" for name in sizes]
    yield f"| | {' | '.join(sizes)} | agreement |"
    yield f"|{' --- |' * (len(sizes) + 2)}"
    for what, figures in (
        ("passages", [f"{count:,}" for count in counts]),
        ("tokens of a listed passage", [f"{length:.0f}" for length in lengths]),
        ("passages within the budget", [f"{most:.1f}" for most in held]),
        ("end to end, exact match", [f"{whole[run]:.3f}" for run in runs]),
    ):
        yield f"| {what} | {' | '.join(figures)} | |"
    for (annotator, measure), soft in orders.items():
        figures = [f"{values[run, annotator, measure]:.3f}" for run in runs]
        yield f"| {annotator} {measure} | {' | '.join(figures)} | {soft:.2f} |"


if __name__ == "__main__":
    main()
