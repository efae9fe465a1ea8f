"""Table 1 of the eRAG paper on five tasks: agreement of labels with the end-to-end score, by four retrievers.

    python -m benchmarks.table_one [--data DIR] [--tasks nq,trivia,two-hop,claims,dialogue]
        [--readers bundled-fid,bundled] [--questions 100] [--work DIR] [--cells DIR] [--shown-only] [--release DIR] [--json FILE]

A cell is a task with a reader. Its results are kept in ``benchmarks/cells`` (``--cells``): the labels of every listed passage,
the scores of every query, and the settings. A stored cell with as many questions is not read again, on any
machine; LLM calls are also cached in the folder of ``--work``, so that an interrupted cell resumes.
``--shown-only`` reads nothing. The table needs the cells alone. ``--release`` writes all cells into a folder for others, and reads
one cell anew, for its reads (not with ``--shown-only``).

``nq`` are questions of people, the first of ``queries.jsonl`` in ``--data``, over its ``corpus.jsonl``; the other four
tasks are made from the bundled articles by rules (``benchmarks.tasks``). Retrievers: BM25, dense vectors of the bundled
encoder, both fused by reciprocal ranks, and a deliberately bad run: BM25's passages of ranks 21 to 25, for ``nq`` ranks 2 to 6,
since its corpus has a single passage for most answers, and readers answered 0 or 1 question from later ranks.
For the paper's Figure 2 ``fid-2m``, ``fid-5m`` and ``fid-8m`` are trained as ``bundled-fid`` is, for an eighth of its steps:
``python -m benchmarks.bundled_reader.make --size 2m --hours 0.12 --out build/table-one/training/fid-2m``. Their cells are in ``benchmarks/cells/sizes``.
``bundled-fid`` writes answers, but never a verdict, so it has no claims; the decoder ``bundled`` chooses between the
verdicts of a claim (``tasks/claims.txt``); ``trained-fid`` and ``trained-in-prompt`` are ``bundled-fid``, trained further for each task (``benchmarks.tasks.train``).
With both, the paper's Figure 3 follows the table: eRAG's tau with Fusion-in-Decoder less eRAG's tau in-prompt.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks import _release
from benchmarks._harness import Line, make_parser, write_report
from benchmarks.tasks.make import MAKERS
from benchmarks.tasks.retrieve import LATE, retrieve
from engine import tables
from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs, InputFiles
from engine.inputs.read import read_inputs
from engine.messages.errors import InputError
from engine.report import across_data_sets as across
from engine.report import layout
from engine.report.layout import Grid
from engine.report.page.render import markdown
from engine.sources.articles.read import read_source
from engine.sources.bundled import wikipedia_dump
from engine.sources.io.files import write_parquet
from engine.sources.passages.cut import passages
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.statistics.bounded import holm
from engine.statistics.comparison import compare_cells, correlate_cells, read_cells
from engine.statistics.correlation import Bootstrap
from engine.statistics.table import analyse, primary_measures
from engine.tables import (
    ANNOTATOR,
    DATA_SET,
    DOC_ID,
    LABEL,
    MEASURE,
    METHOD,
    OUTPUT,
    QUERY_ID,
    RANK,
    RUN,
    SCORE,
    TAU,
    VALUE,
    K,
    difference_of,
    p_of,
)

CELLS = Path(__file__).parent / "cells"
DEPTH, MOST, SEED = 5, 300, 0
RUNS = ("bm25", "dense", "rrf", "late")
# First rank of a task's bad run, if not late: the corpus of nq has a single passage for most answers.
LATE_OF = {"nq": 2}
# Stands for an annotator in the table of scores.
END_TO_END = "end to end"
_SHORT = Settings.of(
    k=DEPTH, annotators=("erag", "containment", "provenance"), actors=0, resamples=0
)
_LONG = _SHORT.but(annotators=("erag", "provenance"))
TASKS: Mapping[str, Settings] = {
    "nq": _SHORT,
    "trivia": _SHORT,
    "two-hop": _SHORT,
    "claims": _LONG.but(task="claims", metric="accuracy"),
    "dialogue": _LONG.but(task="dialogue", metric="f1", measures=f"nDCG@{DEPTH} P@{DEPTH} Success@{DEPTH}"),
}  # fmt: skip
READERS: Mapping[str, Mapping[str, Any]] = {
    "bundled-fid": {"reader": "bundled-fid", "augmentation": "fid"},
    "bundled": {"reader": "bundled", "augmentation": "in-prompt"},
    "trained-fid": {"augmentation": "fid"},
    "trained-in-prompt": {"augmentation": "in-prompt"},
} | {f"fid-{size}": {"augmentation": "fid"} for size in ("2m", "5m", "8m")}
# The two ways in the paper's Figure 3.
WAYS = ("trained-fid", "trained-in-prompt")
# All passages in one prompt, as long as five inputs of Fusion-in-Decoder.
IN_PROMPT = Path(__file__).parent / "tasks" / "in-prompt.txt"
# Prompts for choosing the answer: the small decoder seldom writes a verdict, so its column would be empty.
PROMPTS = {("claims", "bundled"): str(Path(__file__).parent / "tasks" / "claims.txt")}
# Cells to leave out: a reader that never writes verdicts is never right. Trained for claims, it writes them.
WITHOUT = frozenset([("claims", "bundled-fid")])
# The cell that is read anew for a release: of a made task, by a bundled reader.
READ_ANEW = ("trivia", "bundled-fid")
# The paper's order: eRAG first. The order of the others varies by task in the paper.
FIRST = "erag"
BOOTSTRAP = Bootstrap(resamples=4000)


@dataclass(frozen=True)
class Kept:
    """Provenance of a cell, for its file beside the tables.

    Attributes:
        task, reader, augmentation, metric, k: settings of the evaluation.
        queries: number of queries, the first ones of the task.
        undefined: annotators and measures without a meaning, with the reason.
        fingerprint: of the reader.
    """

    task: str
    reader: str
    augmentation: str
    metric: str
    k: int
    queries: int
    undefined: Sequence[Sequence[str]]
    fingerprint: str


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, quick={"shown_only": True})
    parser.add_argument("--data", type=Path, help="folder of nq: queries.jsonl and corpus.jsonl")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--readers", default="bundled-fid")
    parser.add_argument("--questions", type=int, default=100, help=f"of each task, at most {MOST}")
    parser.add_argument("--work", type=Path, default=Path("build/table-one"))
    parser.add_argument("--cells", type=Path, default=CELLS, help="folder of the cells")
    parser.add_argument("--shown-only", action="store_true", help="read nothing")
    parser.add_argument("--release", type=Path, help="folder for all cells, for others")
    options = parser.parse_args(arguments)
    if options.release:
        release(options)
        return
    for task in options.tasks.split(","):
        for reader in [] if options.shown_only else options.readers.split(","):
            if (task, reader) in WITHOUT:
                print(f"{task}-{reader}: left out, since this reader never writes a verdict")
            else:
                make_cell(task, reader, options)
    found = across.together(list(cells(options.cells)), BOOTSTRAP)
    for line in page(found, means(options.cells), by_way(options.cells)):
        print(line)
    figures = [Line(name, value) for name, value in summary(found).items()]
    write_report(options, ("polars", "scipy"), found.content(), figures)


def make_cell(task: str, reader: str, options: argparse.Namespace) -> None:
    """Evaluate a task with a reader, and store the results, unless a cell with as many questions exists.

    Args:
        options: ``questions``, ``cells``, ``work`` and ``data``, as in the command.
    """
    name = f"{task}-{reader}"
    if is_kept(name, options):
        return
    settings = settings_of(task, reader, options.work)
    inputs = listed(inputs_of(task, options.work, options.data), settings, options.questions)
    done = evaluate(inputs, settings, store=options.work / "store")
    keep(task, reader, done, options.cells)
    print(f"{name}: {done.queries} questions, {done.seconds:.0f} s", flush=True)


def release(options: argparse.Namespace) -> None:
    """Write all stored cells for others, and read one anew, unless ``shown_only``.

    Args:
        options: ``release``, ``cells``, ``work`` and ``shown_only``, as in the command.
    """
    paths, name = list(_release.stored(options.cells)), "-".join(READ_ANEW)
    read = "No cell was read anew, so there are no reads."
    for path in paths:
        out = options.release / path.relative_to(options.cells).with_suffix("")
        _release.export_stored(path, out)
        if path != options.cells / f"{name}.json" or options.shown_only:
            continue
        # Beside the stored cell, which has the figures of the findings whatever the precision here.
        out = options.release / "read-anew" / name
        before, kept = read_kept(path)
        with tempfile.TemporaryDirectory() as folder:
            done = read_lists(before, kept.queries, Path(folder), options.work)
        _release.export_evaluated(done, scores_of(done), out)
        equal = before.join(labels_by_rank(done), on=before.columns, how="semi").height
        spec = done.readings["reader"].spec
        reader = (
            "the same reader"
            if spec.fingerprint == kept.fingerprint
            else "one of another fingerprint"
        )
        read = (
            f"The lists of `{name}` were read anew, with {reader} ({spec.dtype}): `read-anew/{name}` has the labels, scores "
            f"and reads (`{_release.READS}`), its `ir_metadata.yaml` says how. {equal} of {before.height} listed passages have the labels of the stored cell."
        )
        print(read)
    _release.explain(options.release, len(paths), read, END_TO_END)


def read_kept(path: Path) -> tuple[pl.DataFrame, Kept]:
    """The labels of a stored cell by run and rank, and its provenance."""
    return pl.read_parquet(_release.beside(path, "labels")), Kept(**json.loads(path.read_text()))


def read_lists(ranked: pl.DataFrame, questions: int, folder: Path, work: Path) -> Evaluation:
    """Evaluate stored lists of ``READ_ANEW`` again, with texts and reads in a new folder.

    Args:
        ranked: run, query, rank and document of every listed passage.
        work: the folder of trained readers.
    """
    task, settings = READ_ANEW[0], settings_of(*READ_ANEW, work)
    write_texts(task, folder, None)
    runs = [folder / f"{name}.parquet" for name in RUNS]
    scored = ranked.with_columns((-pl.col(RANK)).cast(pl.Float64).alias(SCORE))
    for name, path in zip(RUNS, runs, strict=True):
        write_run(scored.filter(pl.col(RUN) == name).select(list(tables.RUNS)), path)
    files = {"queries": folder / f"{task}.jsonl", "corpus": folder / "corpus.parquet", "run": runs}
    return evaluate(listed(files, settings, questions), settings, store=folder / "store")


def is_kept(name: str, options: argparse.Namespace) -> bool:
    """Whether a cell with as many questions is stored, which is printed."""
    there = options.cells / f"{name}.json"
    kept = there.exists() and json.loads(there.read_text())["queries"] >= options.questions
    if kept:
        print(f"{name}: kept from before")
    return bool(kept)


def listed(files: Mapping[str, Any], settings: Settings, questions: int) -> EvaluationInputs:
    """The first questions of a task with their lists, and the parts that the settings need."""
    found = InputFiles(
        **files,
        limit=questions,
        **settings.input_needs(),
    )
    return read_inputs(found, k=settings.ranking.k)


def inputs_of(task: str, work: Path, data: Path | None) -> dict[str, Any]:
    """The files of a task: questions, passages and runs, made if missing."""
    folder = work / ("nq" if task == "nq" else "made")
    corpus, queries = folder / "corpus.parquet", folder / f"{task}.jsonl"
    begin = LATE_OF.get(task, LATE)
    # Named by its first rank: a folder may have a bad run of other ranks.
    names = [f"late-{begin}" if name == "late" and begin != LATE else name for name in RUNS]
    runs = tuple(folder / f"{task}-{name}.parquet" for name in names)
    files = {"queries": queries, "corpus": corpus, "run": runs}
    if all(path.exists() for path in (corpus, queries, *runs)):
        return files
    folder.mkdir(parents=True, exist_ok=True)
    found = write_texts(task, folder, data)
    listed = retrieve(found, read_queries(queries), k=DEPTH, indexes=folder, begin=begin)
    for name, path in zip(RUNS, runs, strict=True):
        write_run(listed.filter(pl.col(RUN) == name), path)
    return files


def write_texts(task: str, folder: Path, data: Path | None) -> pl.DataFrame:
    """Write questions and passages of a task into a folder; the passages."""
    if task == "nq":
        if data is None:
            raise InputError(
                "the task nq without --data", "name the folder of its two files", "settings.data"
            )
        lines = (data / "queries.jsonl").read_text(encoding="utf-8").splitlines()[:MOST]
        found = read_corpus(data / "corpus.jsonl")
    else:
        articles = list(read_source(wikipedia_dump()))
        made = MAKERS[task](articles, MOST, SEED)
        lines = [json.dumps(one.record(f"{task}-{i:04}")) for i, one in enumerate(made, 1)]
        found = passages(articles)
    (folder / f"{task}.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    write_parquet(found, folder / "corpus.parquet")
    return found


def model_of(task: str, way: str, work: Path) -> Path:
    """The directory of the model that ``benchmarks.tasks.train`` trains for a task."""
    return work / "training" / f"{task}-{way}" / "model"


def settings_of(task: str, reader: str, work: Path) -> Settings:
    """Settings for a task with a reader; a reader trained for the task is read from ``work``."""
    way = READERS[reader]["augmentation"]
    prompt = PROMPTS.get((task, reader))
    if "reader" in READERS[reader]:
        return TASKS[task].but(**READERS[reader], prompt=prompt)
    of_size = reader.startswith("fid-")
    model = work / "training" / reader / "model" if of_size else model_of(task, way, work)
    if not model.exists():
        command = f"benchmarks.tasks.train --tasks {task} --ways {way}"
        if of_size:
            size = reader.removeprefix("fid-")
            command = (
                f"benchmarks.bundled_reader.make --size {size} --hours 0.12 --out {model.parent}"
            )
        raise InputError(
            f"no {reader} for {task}: {model} is not there",
            f"train it: python -m {command}",
            "replay.reader",
        )
    if way == "in-prompt":
        prompt = str(IN_PROMPT)
    return TASKS[task].but(reader=str(model), augmentation=way, prompt=prompt)


def keep(task: str, reader: str, done: Evaluation, folder: Path) -> None:
    """Write the tables of a cell, and its provenance."""
    made = kept_of(task, reader, done)
    write_cell(f"{task}-{reader}", labels_by_rank(done), scores_of(done), made, folder)


def scores_of(done: Evaluation) -> pl.DataFrame:
    """The scores of every query, and of its whole list (``END_TO_END`` in the place of an annotator)."""
    whole = done.downstream.select(RUN, QUERY_ID, VALUE).with_columns(
        pl.lit(END_TO_END).alias(ANNOTATOR), pl.lit(done.settings.reader.metric_name).alias(MEASURE)
    )
    return pl.concat([done.query_scores, whole.select(list(tables.QUERY_SCORES))])


def kept_of(task: str, reader: str, done: Evaluation) -> Kept:
    """The provenance of a cell made by an evaluation."""
    settings, spec = done.settings, done.readings["reader"].spec
    undefined = [list(row) for row in done.undefined.iter_rows()]
    of_settings = settings.reader.augmentation, settings.reader.metric_name, settings.ranking.k
    return Kept(task, reader, *of_settings, done.queries, undefined, spec.fingerprint)


def labels_by_rank(done: Evaluation) -> pl.DataFrame:
    """The labels of every listed passage: run, query, rank, document, and a column by annotator."""
    wide = done.labels.pivot(ANNOTATOR, index=[QUERY_ID, DOC_ID], values=LABEL)
    ranked = done.inputs.runs.select(RUN, QUERY_ID, RANK, DOC_ID)
    return ranked.join(wide, on=[QUERY_ID, DOC_ID], how="left").sort(RUN, QUERY_ID, RANK)


def write_cell(
    name: str, labels: pl.DataFrame, scores: pl.DataFrame, made: Kept, folder: Path
) -> None:
    """Write the two tables of a cell, and its provenance, which marks it as kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, table in (("labels", labels), ("scores", scores)):
        path = folder / f"{name}-{part}.parquet"
        table.write_parquet(path, compression="zstd", compression_level=19)
    (folder / f"{name}.json").write_text(json.dumps(asdict(made), indent=1) + "\n")


def cells(folder: Path) -> Iterator[across.Cell]:
    """The stored cells of a folder, tasks in the order of the table, with their statistics."""
    made = [Kept(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    places = {(task, reader): i for i, (task, reader) in enumerate((t, r) for r in READERS for t in TASKS)}  # fmt: skip
    for one in sorted(made, key=lambda one: places[one.task, one.reader]):
        ranked, whole = kept_scores(folder, one.task, one.reader)
        undefined = pl.DataFrame(one.undefined, schema=tables.UNDEFINED, orient="row")
        primary = primary_measures(ranked.select(ANNOTATOR, MEASURE).iter_rows())
        # Run by run: runs are not compared here, which would take most of the time.
        found = [
            analyse(ranked.filter(run=run), whole.filter(run=run), BOOTSTRAP, undefined=undefined)
            for run in ranked[RUN].unique(maintain_order=True)
        ]
        correlations, comparisons = (
            pl.concat(getattr(each, name) for each in found)
            for name in ("correlations", "comparisons")
        )
        task, n = TASKS[one.task].reader.task, one.queries
        yield across.Cell(
            one.task, one.reader, one.augmentation, task, n, primary, correlations, comparisons
        )


def kept_scores(folder: Path, task: str, reader: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The query scores of a kept cell, and its end-to-end scores (``tables.DOWNSTREAM``, without outputs)."""
    scores = pl.read_parquet(folder / f"{task}-{reader}-scores.parquet")
    is_whole = pl.col(ANNOTATOR) == END_TO_END
    whole = scores.filter(is_whole).with_columns(
        pl.lit(DEPTH, pl.Int64).alias(K), pl.lit("").alias(OUTPUT)
    )
    return scores.filter(~is_whole), whole.select(list(tables.DOWNSTREAM))


def by_way(folder: Path) -> Grid:
    """Figure 3: eRAG's tau by readers trained with Fusion-in-Decoder, less in-prompt tau, if both cells are stored.

    Both taus are over the same questions; Holm's correction is over the rows.
    """
    made: list[dict[str, Any]] = []
    for task in TASKS:
        if not all((folder / f"{task}-{reader}.json").exists() for reader in WAYS):
            continue
        # Readers take the place of runs in the comparison.
        sides = [
            [frame.with_columns(pl.col(RUN).alias(DATA_SET), pl.lit(reader).alias(RUN)) for frame in kept_scores(folder, task, reader)]
            for reader in WAYS
        ]  # fmt: skip
        ranked, whole = (pl.concat(frames) for frames in zip(*sides, strict=True))
        names = ranked.select(ANNOTATOR, MEASURE).iter_rows()
        ranked = ranked.filter(annotator=FIRST, measure=primary_measures(names)[FIRST])
        for run in ranked[DATA_SET].unique(maintain_order=True):
            both = list(read_cells(*(frame.filter(data_set=run).drop(DATA_SET) for frame in (ranked, whole))))  # fmt: skip
            correlated = correlate_cells(both, BOOTSTRAP)
            (row,) = compare_cells(both, correlated, BOOTSTRAP).iter_rows(named=True)
            made.append(row | {"task": task, RUN: run})
    p_values = holm([row[p_of(TAU)] for row in made])
    rows = [
        [row["task"], row[RUN], row[MEASURE], layout.interval(row, TAU, difference_of(TAU), plus="+"), layout.p_value(p)]
        for row, p in zip(made, p_values, strict=True)
    ]  # fmt: skip
    head = ["task", "run", "measure", "difference", f"p (Holm, {len(rows)} rows)"]
    caption = layout.methods_line(row[METHOD] for row in made)
    title = f"{layout.KENDALL} of {FIRST} by {WAYS[0]}, less that by {WAYS[1]}:"
    return Grid("by way", caption, head, rows, 3, title)


def summary(found: across.DataSetComparison) -> dict[str, str]:
    """The first figures: the answer, and the order of annotators in each column."""
    answer = across.answer(found)
    return {"answer": answer.headline} | dict(
        line.rstrip(".").split(": ", 1) for line in answer.reasons
    )


def means(folder: Path) -> pl.DataFrame:
    """The mean end-to-end score of every run by task and reader."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        one = Kept(**json.loads(path.read_text()))
        scores = pl.read_parquet(path.with_name(f"{path.stem}-scores.parquet"))
        whole = scores.filter(pl.col(ANNOTATOR) == END_TO_END)
        values = whole.group_by(RUN, maintain_order=True).agg(pl.col(VALUE).mean().round(3))
        rows.append({"task": one.task, "reader": one.reader, "metric": one.metric, "n": str(one.queries)} | dict(values.iter_rows()))  # fmt: skip
    return pl.DataFrame(rows)


def page(found: across.DataSetComparison, ends: pl.DataFrame, ways: Grid) -> Iterator[str]:
    """The table as Markdown, with explanations."""
    yield across.answer(found).headline
    yield ""
    yield from ("| " + " | ".join(map(str, row)) + " |" for row in [ends.columns, *ends.iter_rows()])  # fmt: skip
    yield ""
    grids = [across.grid(found, primary=True), *across.all_grids(found)]
    for one in [*grids, ways] if ways.rows else grids:
        yield markdown(one)
    yield from (f"- {line}" for line in (*across.answer(found).reasons, *across.notes(found)))
    yield ""
    yield from (f"- {line}" for line in across.missing_cells(found))


if __name__ == "__main__":
    main()
