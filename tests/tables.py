"""The queries, corpus and run of the evaluations that tests compute by hand."""

from dataclasses import replace

from engine import tables
from engine.inputs import read
from engine.inputs.files import EvaluationInputs, InputFiles
from engine.inputs.read import read_inputs
from engine.labels.registry import input_tables
from engine.report.findings import Findings
from engine.report.study_report import summarize_study
from engine.report.summary import jsonable, summarize
from tests.conftest import framed, make_run

# Three queries; the second and third have the same text and different answers.
_QUERIES = [
    ("q1", "first question", ["Ann"], ["A1"]),
    ("q2", "same question", ["Bo"], ["A2"]),
    ("q3", "same question", ["Cy"], []),
]
_CORPUS = [
    ("d1", "A1", "says Ann", "A1"),
    ("d2", "A2", "says Bo", "A2"),
    ("d3", "A3", "says Cy", "A3"),
    ("d4", "A1", "says nothing", "A1"),
]
QUERIES, CORPUS = framed(_QUERIES, tables.QUERIES), framed(_CORPUS, tables.CORPUS)
RUN = make_run(
    [("q1", "d4", 1), ("q1", "d1", 2), ("q1", "d2", 3)]
    + [("q2", "d2", 1), ("q2", "d3", 2), ("q3", "d2", 1), ("q3", "d3", 2)]
)


def inputs_of(queries, corpus, runs):
    """Inputs from the rows of their tables."""
    return EvaluationInputs(
        queries=framed(queries, tables.QUERIES),
        corpus=framed(corpus, tables.CORPUS),
        runs=framed(runs, tables.RUNS),
    )


def inputs(runs=RUN, queries=QUERIES):
    return EvaluationInputs(queries=queries, corpus=CORPUS, runs=runs)


def label_rows(labels):
    """Query, document, annotator and label of each row."""
    return labels.select("query_id", "doc_id", "annotator", "label").rows()


def say_last(prompt):
    """Answers with the name in the passage nearest to the question, if that passage has one."""
    passage = [line for line in prompt.splitlines() if line.startswith("Passage: ")][-1]
    return passage.partition("says ")[2] or "no idea"


def with_qrels(*rows):
    return replace(inputs(), tables={"qrels": framed(rows, tables.QRELS)})


def amount(result, code):
    """How many things an evaluation's notes of a code are about; 0 without such a note."""
    return sum(note.amount for note in result.notes if note.code == code)


def findings_of(result, study=None):
    """What an evaluation found, the first of a study, as it would be written."""
    content = summarize(result, {})
    if study is None:
        return Findings.of(result, content)
    content["study"] = jsonable(summarize_study(study, dict.fromkeys(study.evaluations, ".")))
    others = list(study.evaluations.values())[1:]
    return Findings.of(result, content, study=study, conditions=[*map(findings_of, others)])


def table_files(corpora=(), **paths):
    """The files that annotators need, of ``InputFiles``."""
    return read.table_files(paths, input_tables(), corpora)


def read_files(queries, corpus, runs, *, k, **more):
    """Inputs from files, as ``read_inputs`` reads them."""
    return read_inputs(InputFiles(queries=queries, corpus=corpus, run=tuple(runs), **more), k=k)
