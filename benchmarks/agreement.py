"""Agreement with the eRAG package: its ``eval`` from run to scores, beside ours, value by value.

    python -m benchmarks.agreement [--data DIR] [--questions 50] [--again] [--store DIR]
        [--reader bundled-fid] [--json FILE]

``--data`` is a directory with ``queries.jsonl`` and ``corpus.jsonl`` as the engine reads them; without it, the
demo's questions and passages. BM25 finds
ten passages for each question; then each side makes its labels and scores:

- the engine: ``evaluate``, annotator erag, with the downstream metrics em and f1;
- the package: ``erag.eval``, with a ``text_generator`` that has the same reader read the texts that the
  package hands over, and a ``downstream_metric`` that is SQuAD's script as transformers has it, so that no
  line of the engine's scoring takes part. The reads are asked for anew, from these texts alone; a read
  that is in the store under the hash of reader and text is the same read, and is not done twice, unless
  ``--again`` gives the package's reads a separate, empty store.

Every value of every query and measure must agree within 1e-9; otherwise the exit status is 1.

The package's conventions, and what follows for the comparison:

- Only a query's own list is judged, in recall and in ideal rankings too: ``relevant="list"`` here.
- Where every label of every query is 0 or 1 it computes pytrec_eval's measures. Otherwise it knows two, P
  (the mean of the labels) and success (the largest), and fails where a cutoff exceeds a list: with f1
  cutoffs end at the shortest list.
- It keys queries by their text, so that of two questions with one text it can hold one list and one set of
  answers. The first of them is compared, the others are left out and counted.
- It names passages by their place in a list, so that two with one text stay two; each is read and
  labelled, here with one read for both.
- A query without results has no values there and counts 0 here: left out and counted.
- It knows no titles. A passage is handed over as its title and its text on a line each, and the
  generator takes it apart again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks._harness import Line, make_parser, write_report
from benchmarks._reads import get_reads
from engine import tables
from engine.evaluation.assess import Evaluation
from engine.evaluation.evaluate import evaluate
from engine.evaluation.inputs import EvaluationInputs, InputFiles, read_inputs
from engine.evaluation.settings import Settings
from engine.machine.model_files import cache_directory
from engine.machine.pool import PoolSettings
from engine.ranking.measures import Measure
from engine.reading.executors import Executor
from engine.reading.models.weights import BUNDLED, BUNDLED_FID
from engine.reading.plan import wanted_reads
from engine.reading.prompting.prompts import Prompt
from engine.reading.protocol import ReaderSpec
from engine.retrieval import bm25
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.tables import (
    ANSWERS,
    DOC_ID,
    DOC_IDS,
    FAILURE,
    MEASURE,
    OUTPUT,
    QUERY,
    QUERY_ID,
    RANK,
    TEXT,
    TITLE,
    VALUE,
)

DEPTH = 10
TOLERANCE = 1e-9
_CUTOFFS = (1, 3, 5, 10)
# The package's names of our kinds of measures, with a cutoff and without.
_CUT = {"P": "P", "R": "recall", "AP": "map_cut", "nDCG": "ndcg_cut", "Success": "success"}
_WHOLE = {"P": "P", "Success": "success", "AP": "map", "RR": "recip_rank", "nDCG": "ndcg"}

# What the package exchanges, by query text.
Passages = dict[str, list[str]]
Outputs = dict[str, str]
Answers = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Agreement:
    """What was compared under one downstream metric.

    Attributes:
        measures: ours, by their names here.
        left_out: queries without results, or with the text of an earlier one.
        values: of single queries, and one mean of each measure.
        largest: the largest absolute difference.
        where: measure and query text of the largest, empty where all are equal.
        reused, done: the package's reads, from the store and by the reader.
    """

    metric: str
    measures: tuple[str, ...]
    queries: int
    left_out: int
    values: int
    largest: float
    where: str
    reused: int
    done: int


class Generator:
    """The package's ``text_generator``: our reader on the texts that the package hands over."""

    def __init__(
        self, spec: ReaderSpec, prompt: Prompt, store: Path, executor: Executor | None
    ) -> None:
        self.spec, self.prompt, self.store, self.executor = spec, prompt, store, executor
        self.reused = self.done = 0

    def __call__(self, asked: Passages) -> Outputs:
        queries = pl.DataFrame(
            [(text, text, [], []) for text in asked], schema=tables.QUERIES, orient="row"
        )
        documents = {document for listed in asked.values() for document in listed}
        corpus = pl.DataFrame(
            [(document, *take_apart(document), "") for document in documents],
            schema=tables.CORPUS,
            orient="row",
        )
        lists = pl.DataFrame(
            list(asked.items()),
            schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)},
            orient="row",
        )
        wanted = wanted_reads(
            lists, queries, corpus, prompt=self.prompt, fingerprint=self.spec.fingerprint
        )
        reads, costs = get_reads(
            wanted, self.spec, self.store, pool=PoolSettings(actors=0), executor=self.executor
        )
        if reads[FAILURE].is_not_null().any():
            raise SystemExit(f"{reads[FAILURE].count()} reads failed")
        self.reused += costs.reused
        self.done += costs.done
        return dict(reads.select(QUERY_ID, OUTPUT).iter_rows())


def put_together(title: str, text: str) -> str:
    """A passage as one text: prompts show titles in one line, so that the first line's end ends it."""
    return f"{' '.join(title.split())}\n{text}"


def take_apart(document: str) -> tuple[str, str]:
    title, _, text = document.partition("\n")
    return title, text


def squad_metric(name: str) -> Callable[[Outputs, Answers], dict[str, float]]:
    """The package's ``downstream_metric``: SQuAD's exact match or F1, the best over the answers."""
    from transformers.data.metrics import squad_metrics

    score = {"em": squad_metrics.compute_exact, "f1": squad_metrics.compute_f1}[name]

    def score_all(outputs: Outputs, expected: Answers) -> dict[str, float]:
        return {
            query: max(
                # As that script does: answers of which nothing is left do not count.
                score(a, output)
                for a in expected[query]
                if squad_metrics.normalize_answer(a)
            )
            for query, output in outputs.items()
        }

    return score_all


def compare_with_package(
    inputs: EvaluationInputs,
    settings: Settings,
    *,
    store: Path,
    package_store: Path | None = None,
    executor: Executor | None = None,
) -> Agreement:
    """Evaluate the one run of ``inputs`` by the engine and by the package, and compare all values.

    Args:
        settings: reader, metric (em or f1) and k; the rest follows from the package's conventions.
        store: the read store.
        package_store: that of the package's reads; by default the same.
        executor: does the reads instead of the reader, as in ``evaluate``.
    """
    from erag import eval as evaluate_by_package

    texts: dict[str, str] = {}  # the first query of each text, by text
    for query_id, text in inputs.queries.select(QUERY_ID, QUERY).iter_rows():
        texts.setdefault(text, query_id)
    listed = _listed(inputs)
    texts = {text: query_id for text, query_id in texts.items() if query_id in listed}
    lists = {text: listed[query_id] for text, query_id in texts.items()}
    ours, measures = _evaluate(inputs, settings, lists.values(), store, executor)
    read = ours.readings["reader"]
    generator = Generator(read.spec, read.prompt, package_store or store, executor)
    answers = dict(inputs.queries.select(QUERY_ID, ANSWERS).iter_rows())
    theirs: dict[str, Any] = evaluate_by_package(
        lists,
        {text: answers[query_id] for text, query_id in texts.items()},
        generator,
        squad_metric(settings.reader.metric_name),
        set(measures.values()),
    )
    own = {(m, q): v for m, q, v in ours.query_scores.select(MEASURE, QUERY_ID, VALUE).iter_rows()}
    differences = {
        (measure, text): abs(own[measure, query_id] - theirs["per_input"][text][there])
        for measure, there in measures.items()
        for text, query_id in texts.items()
    }
    if len(texts) == inputs.queries.height:  # else the means are of other queries
        scores = dict(ours.means.select(MEASURE, VALUE).iter_rows())
        for measure, there in measures.items():
            differences[measure, "mean"] = abs(scores[measure] - theirs["aggregated"][there])
    largest = max(differences, key=lambda place: differences[place])
    return Agreement(
        metric=settings.reader.metric_name,
        measures=tuple(measures),
        queries=len(texts),
        left_out=inputs.queries.height - len(texts),
        values=len(differences),
        largest=differences[largest],
        where=": ".join(largest) if differences[largest] else "",
        reused=generator.reused,
        done=generator.done,
    )


def _listed(inputs: EvaluationInputs) -> dict[str, list[str]]:
    """Passages as the package is given them, best first, by query id."""
    rows = inputs.runs.join(inputs.corpus, on=DOC_ID).sort(QUERY_ID, RANK)
    listed: dict[str, list[str]] = {}
    for query_id, title, text in rows.select(QUERY_ID, TITLE, TEXT).iter_rows():
        listed.setdefault(query_id, []).append(put_together(title, text))
    return listed


def _evaluate(
    inputs: EvaluationInputs,
    settings: Settings,
    lists: Any,
    store: Path,
    executor: Executor | None,
) -> tuple[Evaluation, dict[str, str]]:
    """Our evaluation, and the package's names of its measures."""
    shortest = min(map(len, lists))
    if settings.reader.metric == "em":
        cutoffs = [k for k in _CUTOFFS if k <= settings.ranking.k]
        named = [Measure(kind) for kind in ("AP", "RR", "nDCG")]
        kinds: tuple[str, ...] = ("P", "R", "Success", "AP", "nDCG")
    else:
        cutoffs = [k for k in _CUTOFFS if k <= shortest]
        named = [Measure("P"), Measure("Success")]
        kinds = ("P", "Success")
    named += [Measure(kind, k) for kind in kinds for k in cutoffs]
    settings = settings.but(
        measures=" ".join(map(str, named)),
        annotators=("erag",),
        relevant="list",
        end_to_end=False,
        resamples=0,
    )
    evaluation = evaluate(inputs, settings, store=store, executor=executor)
    return evaluation, {str(measure): _name(measure) for measure in named}


def _name(measure: Measure) -> str:
    if measure.cutoff is None:
        return _WHOLE[measure.kind]
    return f"{_CUT[measure.kind]}_{measure.cutoff}"


def demo_data(directory: Path) -> Path:
    """The demo's questions and passages, as files."""
    from benchmarks._bundled import bundled_corpus
    from engine.sources.bundled import questions

    shutil.copy(questions("short-answer"), directory / "queries.jsonl")
    bundled_corpus().write_ndjson(directory / "corpus.jsonl")
    return directory


def search(data: Path, questions: int, directory: Path) -> EvaluationInputs:
    """The first questions with what BM25 finds for them."""
    from engine.sources.passages.read import read_corpus

    queries = read_queries(data / "queries.jsonl").head(questions)
    bm25.build_index(read_corpus(data / "corpus.jsonl"), directory / "index")
    write_run(bm25.search(directory / "index", queries, k=DEPTH), directory / "bm25.trec")
    files = InputFiles(
        queries=data / "queries.jsonl",
        corpus=data / "corpus.jsonl",
        run=(directory / "bm25.trec",),
        limit=questions,
    )
    return read_inputs(files, k=DEPTH)


def main(options: Sequence[str] | None = None) -> None:
    # The small reader: what is compared is made of its outputs, whatever they are. Of the first eight questions some F1
    # lies between 0 and 1; where none does, the package takes its measures from pytrec_eval, and fails at "P".
    parser = make_parser(__doc__, quick={"questions": 8, "reader": BUNDLED_FID})
    parser.add_argument("--data", type=Path)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--reader", choices=[BUNDLED, BUNDLED_FID], default=BUNDLED)
    parser.add_argument("--again", action="store_true", help="do the package's reads anew")
    parser.add_argument("--store", type=Path, help="read store; by default that of erag evaluate")
    arguments = parser.parse_args(options)
    store = arguments.store or cache_directory() / "reads"
    with tempfile.TemporaryDirectory() as name:
        data = arguments.data or demo_data(Path(name))
        inputs = search(data, arguments.questions, Path(name))
        agreements = [
            compare_with_package(
                inputs,
                Settings.of(
                    k=DEPTH,
                    metric=metric,
                    actors=0,
                    reader=arguments.reader,
                    augmentation="fid" if arguments.reader == BUNDLED_FID else "in-prompt",
                ),
                store=store,
                package_store=Path(name) / "reads" if arguments.again else None,
            )
            for metric in ("em", "f1")
        ]
    print(f"{inputs.queries.height} questions, BM25, {DEPTH} passages each; "
          "the package's eval against the engine")  # fmt: skip
    print(f"{'metric':8}{'measures':>9}{'queries':>9}{'left out':>10}{'values':>8}"
          f"{'largest difference':>20}{'reads':>8}{'done':>6}")  # fmt: skip
    for row in agreements:
        print(f"{row.metric:8}{len(row.measures):9}{row.queries:9}{row.left_out:10}{row.values:8}"
              f"{row.largest:20.1e}{row.reused + row.done:8}{row.done:6}")  # fmt: skip
    worst = max(agreements, key=lambda row: row.largest)
    print(f"{sum(row.values for row in agreements)} values, largest difference {worst.largest:.1e}"
          f"{f' ({worst.metric}, {worst.where})' if worst.where else ''}")  # fmt: skip
    figures = {"agreement": [asdict(row) for row in agreements]}
    compared = (
        f"the eRAG package: {sum(row.values for row in agreements)} values, largest difference"
    )
    page = [Line(compared, f"{worst.largest:.1e}", f"{TOLERANCE:g} at most")]
    write_report(arguments, ("erag", "polars"), figures, page)
    if worst.largest > TOLERANCE:
        sys.exit(f"they differ by more than {TOLERANCE:g}")


if __name__ == "__main__":
    main()
