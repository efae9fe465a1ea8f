"""The made tasks of Table 1, and the table made of kept cells."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import yaml

from benchmarks import _release, table_one
from benchmarks.tasks import cutoffs, make, train
from benchmarks.tasks.retrieve import late
from benchmarks.tasks.sentences import facts, is_alone
from engine import tables
from engine.evaluation.settings import Settings
from engine.evaluation.study import Condition
from engine.reading.prompting.prompts import read_template
from engine.report import across_data_sets as across
from engine.sources.articles.read import Article
from engine.sources.runs.export import load_labels
from tests.conftest import make_run
from tests.expected import refused

PLACES = ("Aruba", "Angola", "Albania", "Algeria", "Andorra", "Alaska")
PEOPLE = ("Vera Lund", "Omar Diaz", "Nils Holm", "Rosa Prat", "Ivan Petrov", "Lena Voss")
SURNAMES = ("Arden", "Barlow", "Corvin", "Delmar", "Everett", "Farrow")


@pytest.fixture(scope="module")
def articles():
    """Six articles of eighteen sentences; every person stands in each, and each has six names of its own."""
    made = []
    for i, place in enumerate(PLACES):
        lines = []
        for j, (person, surname) in enumerate(zip(PEOPLE, SURNAMES, strict=True)):
            year = 1800 + 20 * i + 3 * j
            lines += [
                f"{person} visited the harbour of {place} in the summer of {year}.",
                f"{place} received {100 + 40 * j + i} ships from the company of {person} each winter.",
                f"The mayor of the town gave the old lighthouse to Clara {surname}{place.lower()} in {year + 1}.",
            ]
        made.append(Article(str(i), place, "\n".join(lines)))
    return made


@pytest.mark.parametrize("name", make.MAKERS)
def test_made_questions_follow_their_seed_and_have_answers_in_their_articles(articles, name):
    maker, texts = make.MAKERS[name], {one.title: one.text for one in articles}
    made = maker(articles, 10, 0)
    assert made == maker(articles, 10, 0)
    assert made != maker(articles, 10, 1)
    assert len({one.text for one in made}) == 10
    for one in made:
        where = " ".join(texts[title] for title in one.articles)
        assert all(sentence in where for sentence in one.sentences)
        assert name == "claims" or one.answers[0] in where
        assert name in ("claims", "dialogue") or one.answers[0] not in one.text
        record = one.record("x-1")
        assert record["output"][0] == {"answer": one.answers[0]}


def test_claims_are_balanced_and_a_refuted_one_differs_from_its_sentence_by_a_value(articles):
    made = make.claims(articles, 20, 0)
    by_label = {label: [one for one in made if one.answers == (label,)] for label in ("SUPPORTS", "REFUTES")}  # fmt: skip
    assert [len(some) for some in by_label.values()] == [10, 10]
    assert all(one.text == one.sentences[0] for one in by_label["SUPPORTS"])
    for one in by_label["REFUTES"]:
        new, old = one.text.split(), one.sentences[0].split()
        assert sum(a != b for a, b in zip(new, old, strict=True)) == 1
    assert len({one.sentences for one in made}) == 20
    chosen = read_template(table_one.PROMPTS["claims", "bundled"], "claims").choices
    assert {choice.strip() for choice in chosen} == set(by_label)


def test_sentences_that_lean_on_others_are_left_out():
    assert is_alone("Huntsville served as the capital of Alabama from 1819 to 1820.")
    assert not is_alone("He served as the governor of Alabama from 1819 to 1820.")
    assert not is_alone("The Anarchist Reader, Fontana Press, London and New York, 1977.")
    text = "Its capital was moved to Cahaba by the state in 1820.\nThe state chose its capital Cahaba in the year 1820."
    assert facts([Article("1", "Alabama", text)]) == []
    assert len(facts([Article("1", "Alabama", text)], alone=False)) == 2


@pytest.mark.parametrize("begin", [2, 21])
def test_the_bad_run_has_the_late_ranks_of_another(begin):
    run = make_run([(q, f"d{rank}", rank) for q in ("q1", "q2") for rank in range(1, 31)])
    found = late(run, k=2, begin=begin)
    assert found.select("query_id", "doc_id", "rank", "run").rows() == [
        (q, f"d{begin + i}", 1 + i, "late") for q in ("q1", "q2") for i in (0, 1)
    ]


def test_what_is_trained_on_is_neither_evaluated_nor_development(articles, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "wikipedia_dump", lambda: None)
    monkeypatch.setattr(train, "read_source", lambda source: articles)
    monkeypatch.setattr(train, "MOST", 10)
    monkeypatch.setattr(train, "_DEVELOPMENT", 2)
    monkeypatch.setitem(train.SIZES, "claims", train.Size(6, 1, rounds=2))
    evaluated = make.claims(articles, 10, train.SEED)
    parts = [[json.loads(line) for line in part] for part in train.made("claims")]
    texts = [{one["input"] for one in part} for part in parts]
    assert len(parts[0]) > 6  # another value makes another claim
    assert len(parts[1]) == 2
    assert not texts[0] & texts[1]
    assert not (texts[0] | texts[1]) & {one.text for one in evaluated}
    titles = [
        f"a{i // 2}" for i in range(20)
    ]  # of the 10th and 11th question one article is asked about
    lines = [
        json.dumps({"id": f"q{i}", "output": [{"provenance": [{"title": title}]}]})
        for i, title in enumerate(["a", *titles])
    ]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    learned, development = train.asked(tmp_path)
    assert [json.loads(line)["id"] for line in development] == ["q11", "q12"]
    assert len(learned) == 8
    listed = make_run([(q, f"{q}-{name}", 1) for q in ("q1", "q2") for name in ("bm25", "dense")])
    listed = listed.with_columns(run=pl.col("doc_id").str.slice(3))
    found = train.by_turns(listed, pl.Series(["q1", "q2"]))
    assert found["doc_id"].to_list() == ["q1-bm25", "q2-dense"]


def evaluation(k, queries, labels, runs, downstream, **more):
    """An evaluation by the bundled reader, as far as cells hold it."""
    return SimpleNamespace(
        settings=Settings.of(reader="bundled-fid", augmentation="fid", k=k),
        readings={"reader": SimpleNamespace(spec=SimpleNamespace(fingerprint="f"))},
        queries=queries,
        undefined=tables.empty(tables.UNDEFINED),
        labels=labels,
        inputs=SimpleNamespace(runs=runs),
        downstream=downstream,
        **more,
    )


def test_a_kept_cell_gives_the_table_and_is_not_read_again(tmp_path, capsys):
    ids = [f"q{i}" for i in range(12)]
    runs = pl.DataFrame({"run": "bm25", "query_id": ids, "rank": 1, "doc_id": "d"})
    labels = pl.concat(
        pl.DataFrame({"query_id": ids, "doc_id": "d", "annotator": name, "label": [float(i % step == 0) for i in range(12)]})
        for name, step in (("erag", 2), ("containment", 3))
    )  # fmt: skip
    scores = labels.select(
        pl.lit("bm25").alias("run"), "annotator", pl.lit("P@5").alias("measure"), "query_id", pl.col("label").alias("value")
    )  # fmt: skip
    whole = scores.filter(annotator="erag").select("run", "query_id", "value")
    done = evaluation(5, 12, labels, runs, whole, query_scores=scores)
    table_one.keep("nq", "bundled-fid", done, tmp_path)
    kept = pl.read_parquet(tmp_path / "nq-bundled-fid-labels.parquet")
    assert kept.columns == ["run", "query_id", "rank", "doc_id", "erag", "containment"]
    # Without data it could not be read.
    options = SimpleNamespace(questions=12, cells=tmp_path, work=tmp_path, data=None)
    table_one.make_cell("nq", "bundled-fid", options)
    assert "kept from before" in capsys.readouterr().out
    found = across.together(list(table_one.cells(tmp_path)), table_one.BOOTSTRAP)
    assert across.grid(found).rows[0][:3] == ["bm25", "erag", "P@5"]
    # eRAG's scores are the end-to-end scores here, and containment's are others.
    assert dict(found.correlations.select("annotator", "tau").iter_rows())["erag"] == pytest.approx(
        1
    )
    assert json.loads((tmp_path / "nq-bundled-fid.json").read_text())["queries"] == 12
    # Readers of one way have no Figure 3.
    text = "\n".join(table_one.page(found, table_one.means(tmp_path), table_one.by_way(tmp_path)))
    assert "less that by" not in text
    with refused("replay.reader"):
        table_one.make_cell("nq", "trained-fid", options)
    with refused("replay.reader"):
        table_one.make_cell("nq", "fid-2m", options)
    # Read in two ways: in-prompt the labels agree with the score in fewer questions.
    table_one.keep("nq", "trained-fid", done, tmp_path)
    done.downstream = whole.with_columns(pl.Series("value", [float(i % 3 == 0) for i in range(12)]))
    table_one.keep("nq", "trained-in-prompt", done, tmp_path)
    ways = table_one.by_way(tmp_path)
    # Every second and every third of 12 questions: 2 of 6 and 2 of the other 6, a tau of 0.
    assert [row[:3] + [row[3].split()[0]] for row in ways.rows] == [["nq", "bm25", "P@5", "+1.00"]]
    text = "\n".join(table_one.page(found, table_one.means(tmp_path), ways))
    assert "erag agrees best" in text
    assert "less that by trained-in-prompt" in text
    command = ["--tasks", "claims", "--readers", "bundled-fid", "--cells", str(tmp_path)]
    table_one.main(command)
    assert "claims-bundled-fid: left out" in capsys.readouterr().out


def test_a_cell_of_cutoffs_gives_the_figure_and_is_not_read_again(tmp_path, capsys):
    ids = [f"q{i:02}" for i in range(40)]
    runs = make_run([(q, f"{q}-{rank}", rank) for q in ids for rank in range(1, 51)])
    # The first passage answers every second question, the third one every fourth.
    answered = [(q, f"{q}-{rank}", float(i % (rank + 1) == 0 and rank in (1, 3))) for i, q in enumerate(ids) for rank in range(1, 51)]  # fmt: skip
    labels = pl.DataFrame(answered, schema=["query_id", "doc_id", "label"], orient="row")
    evaluations = {}
    for k in sorted(cutoffs.CUTOFFS, reverse=True):
        # With up to five passages the reader is right where the first one answers, beyond where the third does.
        right = [float(i % (2 if k <= 5 else 4) == 0) for i in range(40)]
        whole = pl.DataFrame({"query_id": ids, "value": right, "k": k})
        of_erag = labels.with_columns(pl.lit("erag").alias("annotator"))
        evaluations[Condition("r", "fid", k)] = evaluation(k, 40, of_erag, runs, whole)
    done = SimpleNamespace(evaluations=evaluations, main=next(iter(evaluations)))
    cutoffs.keep("two-hop", "bm25", done, tmp_path)
    options = ["--cells", str(tmp_path), "--work", str(tmp_path), "--tasks", "two-hop"]
    cutoffs.main([*options, "--questions", "40"])
    printed = capsys.readouterr().out
    assert "two-hop-bm25: kept from before" in printed
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("| two-hop")]  # fmt: skip
    assert all(row[:3] == ["two-hop", "bm25", "40"] for row in rows)
    figures = {tuple(row[3:5]): row[5:] for row in rows}
    assert figures["(mean score)", "em"] == 3 * ["0.500"] + 3 * ["0.250"]
    # Success is the first label. Where it is 1, 10 of 20 questions are right beyond five passages, else none: a tau of 0.58.
    success = figures["erag", "Success@k"]
    assert [cell[:4] for cell in success] == 3 * ["1.00"] + 3 * ["0.58"]
    # From the third passage on P is 0 for 20, 1 / k for 10 and 2 / k for 10: 400 / sqrt(400 * 500), then 300 / sqrt(300 * 500).
    assert [cell[:4] for cell in figures["erag", "P@k"]] == [
        "1.00",
        "0.89",
        "0.89",
        "0.77",
        "0.77",
        "0.77",
    ]
    assert all("[" in cell for cell in success)
    with refused("replay.reader"):
        cutoffs.main([*options, "--questions", "41"])


def test_a_released_cell_is_scored_by_ir_measures_to_the_figures_of_the_findings(
    tmp_path, monkeypatch, capsys
):
    """With the code that the release shows, which imports nothing of the engine."""
    for path in table_one.CELLS.glob("trivia-bundled-fid*"):
        shutil.copy(path, tmp_path)
    table_one.main(["--release", f"{tmp_path}/out", "--cells", f"{tmp_path}", "--shown-only"])
    monkeypatch.chdir(tmp_path / "out")
    (code,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.S)
    assert "erag_engine" not in code
    findings = (Path(__file__).parent.parent / "docs/findings.md").read_text()
    table = findings.split("## The table")[1].split("\n### ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]  # fmt: skip
    place = next(i for i, head in enumerate(rows[0]) if head.startswith("trivia "))
    shown = {(row[0], row[1]): float(row[place].split()[0]) for row in rows[2:]}
    assert len(shown) == 12
    scored = {}
    for run, annotator in shown:
        names = f'cell, run, annotator = "trivia-bundled-fid", "{run}", "{annotator}"'
        exec(compile(re.sub("cell, run, annotator = .*", names, code), "README.md", "exec"), {})
        scored[run, annotator] = round(float(capsys.readouterr().out), 2)
    assert scored == shown
    kept = pl.read_parquet(table_one.CELLS / "trivia-bundled-fid-labels.parquet")
    pairs = kept.unique(["query_id", "doc_id"])
    found = load_labels("trivia-bundled-fid").filter(annotator="erag")
    assert sorted(found["label"]) == sorted(pairs["erag"])


def test_a_release_says_what_cells_lack_and_is_refused_beyond_its_size(tmp_path, monkeypatch):
    (tmp_path / "cutoffs").mkdir()
    for path in (table_one.CELLS / "cutoffs").glob("nq-bm25*"):
        shutil.copy(path, tmp_path / "cutoffs")
    options = ["--release", f"{tmp_path}/out", "--cells", f"{tmp_path}", "--shown-only"]
    table_one.main(options)
    cell = tmp_path / "out/cutoffs/nq-bm25"
    metadata = yaml.safe_load((cell / "ir_metadata.yaml").read_text())
    assert [one for one in metadata["data"]["not kept"] if one.startswith("ids of documents")]
    labels = pl.read_parquet(cell / "labels.parquet")
    assert labels.columns == ["query_id", "rank", "annotator", "label"]
    assert labels.height == 300 * 50 * 3
    monkeypatch.setattr(_release, "MOST_BYTES", 1000)
    with refused("release.size", text=False):
        table_one.main(options)


@pytest.mark.slow
def test_a_release_has_the_reads_of_stored_lists_that_are_read_anew(tmp_path, capsys):
    cells, name = tmp_path / "cells", "trivia-bundled-fid"
    cells.mkdir()
    kept = pl.read_parquet(table_one.CELLS / f"{name}-labels.parquet")
    first = kept["query_id"].unique().sort().head(5)
    for part in ("labels", "scores"):
        table = pl.read_parquet(table_one.CELLS / f"{name}-{part}.parquet")
        table.filter(pl.col("query_id").is_in(first.implode())).write_parquet(cells / f"{name}-{part}.parquet")  # fmt: skip
    stored = json.loads((table_one.CELLS / f"{name}.json").read_text())
    (cells / f"{name}.json").write_text(json.dumps(stored | {"queries": 5}))
    table_one.main(["--cells", f"{cells}", "--work", f"{tmp_path}", "--release", f"{tmp_path}/out"])
    equal, listed = re.search(r"(\d+) of (\d+) listed", capsys.readouterr().out).groups()
    assert listed == "100"  # five of four runs for each question
    assert int(equal) >= 95  # another precision turns single answers
    cell = tmp_path / "out/read-anew" / name
    reads = pl.read_parquet(cell / "reads.parquet")
    pairs = kept.filter(pl.col("query_id").is_in(first.implode())).unique(["query_id", "doc_id"])
    assert reads.filter(pl.col("doc_ids").list.len() == 1).height == pairs.height
    assert reads.filter(pl.col("doc_ids").list.len() == 5).height <= 20
    reader = yaml.safe_load((cell / "ir_metadata.yaml").read_text())["method"]["readers"]["reader"]
    assert reader["weights_sha256"]
    assert reader["decoding"]["greedy"]
    names = ["run", "annotator", "measure", "query_id"]
    scores, before = (pl.read_parquet(path) for path in (cell / "scores.parquet", cells / f"{name}-scores.parquet"))  # fmt: skip
    assert sorted(scores.select(names).rows()) == sorted(before.select(names).rows())
