"""Gold articles that a KILT file names by title alone."""

import json
import re

import pytest

from engine.evaluation import score
from engine.evaluation.evaluate import check
from engine.evaluation.settings import Settings
from engine.evaluation.shards import Held
from engine.labels.registry import ANNOTATORS
from engine.messages.errors import InputError
from tests.commands import evaluate as run_command
from tests.tables import read_files

SETTINGS = Settings.of(k=3, annotators=("provenance",), end_to_end=False, measures="P@3")


@pytest.fixture
def gold(tmp_path):
    """Provenance labels of the listed passages, by document id, given its entries and the corpus."""

    def label(provenance, *passages):
        output = [{"answer": "x"}, {"provenance": provenance}]
        lines = {"q": [{"id": "1", "input": "who", "output": output}], "c": passages}
        for name, records in lines.items():
            text = "".join(json.dumps(record) + "\n" for record in records)
            (tmp_path / name).write_text(text)
        names = [passage["id"] for passage in passages]
        (tmp_path / "r").write_text("".join(f"1 Q0 {d} 1 {-i} s\n" for i, d in enumerate(names)))
        given = read_files(tmp_path / "q", tmp_path / "c", [tmp_path / "r"], k=3)
        check(Held(given), SETTINGS)
        pairs = score.pairs_to_label(given)
        made = score.label(ANNOTATORS["provenance"], given, SETTINGS, pairs, {})
        labels = dict(made.labels.select("doc_id", "label").iter_rows())
        traced = dict(made.traces.select("doc_id", "article_id").iter_rows())
        assert {d for d in traced if traced[d]} == {d for d in labels if labels[d]}
        return labels

    return label


def passage(name, title, **article):
    return {"id": name, "title": title, "text": "some text"} | article


ARUBA = passage("a", "Aruba", wikipedia_id="690")
NOVEL = passage("b", "1984", wikipedia_id="23454753")


def test_a_title_without_an_id_is_matched_with_the_passages_title(gold):
    # The corpus names its articles by page ids, which the question does not give.
    assert gold([{"title": "Aruba"}], ARUBA, NOVEL) == {"a": 1, "b": 0}
    both = [{"title": " Aruba "}, {"wikipedia_id": "23454753"}]
    assert gold(both, ARUBA, NOVEL) == {"a": 1, "b": 1}
    # Titles are not unique: both are gold.
    other = passage("c", "Aruba", wikipedia_id="7")
    assert gold([{"title": "Aruba"}], ARUBA, other) == {"a": 1, "c": 1}


def test_an_id_is_matched_as_an_id_whatever_the_title(gold):
    assert gold([{"wikipedia_id": "690", "title": "1984"}], ARUBA, NOVEL) == {"a": 1, "b": 0}


def test_a_title_of_digits_is_not_a_page_id(gold):
    page = passage("d", "Aruba", wikipedia_id="1984")
    assert gold([{"title": "1984"}], page, NOVEL) == {"d": 0, "b": 1}
    # The gold article is not listed, and page 1984 is another.
    assert gold([{"title": "1984"}, {"wikipedia_id": "690"}], page, ARUBA) == {"d": 0, "a": 1}


def test_a_title_is_matched_with_an_article_that_is_called_so(gold):
    section = passage("a", "Aruba: history", article_id="Aruba")
    assert gold([{"title": "Aruba"}], section, NOVEL) == {"a": 1, "b": 0}
    untitled = passage("a", "", article_id="Aruba")
    assert gold([{"title": "Aruba"}], untitled) == {"a": 1}


def test_titles_without_any_title_in_the_corpus_are_refused(gold, tmp_path):
    bare = passage("a", "", wikipedia_id="690")
    with pytest.raises(InputError) as caught:
        gold([{"title": "Aruba"}], bare)
    assert str(caught.value) == (
        f"{tmp_path / 'q'}:1: the gold articles of query '1' have a title and no id, and no listed passage "
        'has a title; add "wikipedia_id" to them, or titles to the corpus, or leave provenance out of '
        "`annotators`"
    )


def test_titles_do_not_matter_where_provenance_does_not(files, capsys):
    """Containment needs no gold articles."""
    text = re.sub('"wikipedia_id": "[^"]*"', '"title": "Aruba"', files["queries"].read_text())
    files["queries"].write_text(text)
    text = re.sub('"title": "[^"]*"', '"title": "", "article_id": "7"', files["corpus"].read_text())
    files["corpus"].write_text(text)
    options = ["--no-end-to-end", "--resamples", 0, "--annotators"]
    assert run_command(files, *options, "containment") == 0
    assert run_command(files, *options, "containment,provenance", "--overwrite") != 0
    assert "leave provenance out of --annotators" in capsys.readouterr().err
