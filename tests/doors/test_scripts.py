"""Texts in any script: composed at every door, and counted in words wherever words are counted."""

import json
import unicodedata
from difflib import SequenceMatcher
from functools import partial
from types import SimpleNamespace

import polars as pl
import pytest

import engine
from engine import tables
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.labels.qrels import covered, label_by_text
from engine.messages.characters import spaced
from engine.reading.outputs import count_outputs
from engine.scoring.metrics import get_metric, match
from engine.sources.articles.read import read_source
from engine.sources.io.folders import folder_at
from engine.sources.passages import index as passage_index
from engine.sources.passages.cut import CutSettings, cut_words, passages
from engine.sources.passages.index import PassageMarks
from engine.sources.passages.read import passages_of, read_corpus
from engine.sources.queries.read import read_query_set, read_user_queries
from engine.sources.runs.read import read_runs_with_texts
from tests.tables import table_files

QUERY, ANSWER, TITLE = "Où est née Beyoncé ?", "Thủ đô Hà Nội", "서울"
TEXT = "München liegt in Bayern. 東京がある。 Beyoncé est née à Houston."
NFC, NFD = (partial(unicodedata.normalize, form) for form in ("NFC", "NFD"))
FORMS = [NFC, NFD]


def lines(path, *records):
    path.write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in records))
    return path


def as_csv(path, **columns):
    pl.DataFrame([columns]).write_csv(path)
    return path


def as_parquet(path, **columns):
    pl.DataFrame([columns]).write_parquet(path)
    return path


def squad(path, form):
    asked = {"id": "q", "question": form(QUERY), "answers": [{"text": form(ANSWER)}]}
    context = {"context": form(TEXT), "qas": [asked]}
    content = {"data": [{"title": form(TITLE), "paragraphs": [context]}]}
    path.write_text(json.dumps(content, ensure_ascii=False))
    return path


def plain(form):
    asked = {"id": "q", "query": form(QUERY), "answers": [form(ANSWER)]}
    return asked | {"provenance": [form(TITLE)], "place": form(TITLE)}


def kilt(form):
    output = [{"answer": form(ANSWER), "provenance": [{"title": form(TITLE)}]}]
    return {"id": "q", "input": form(QUERY), "output": output}


def passage(form):
    return {"id": "d", "title": form(TITLE), "text": form(TEXT)}


def query_set(path, **options):
    found = read_query_set(path, column="place" if options.pop("grouped", False) else None)
    return found.table.rows(), found.titles, found.groups, found.fields


def answered_apart(path, form):
    asked = lines(path / "q", {"id": "q", "query": form(QUERY)})
    answers = lines(path / "a", {"id": "q", "answers": [form(ANSWER)]})
    return read_query_set(asked, answers=answers).table.rows()


def texts_of_users(path, form):
    (path / "users.txt").write_text(form(QUERY))
    return read_user_queries(path / "users.txt").table.rows()


def cut_articles(source):
    return passages(read_source(source), cutting=CutSettings(words=4)).rows()


def dump(path, form):
    page = f"<page><title>{form(TITLE)}</title><ns>0</ns><id>7</id><revision><text>{form(TEXT)}"
    path.write_text(f"<mediawiki>{page}</text></revision></page></mediawiki>")
    return path


def in_runs(path):
    rows, corpus, _ = read_runs_with_texts([path])
    return rows.rows(), corpus.rows()


def of_python(path, form):
    """Dictionaries, with the answers by the texts of queries in the other form."""
    other = NFD if form is NFC else NFC
    result = engine.evaluate(
        {"q": form(QUERY)},
        {"d": form(TEXT), "e": "no"},
        {other(QUERY): ["e", "d"]},
        answers={other(QUERY): [form("Houston est née")], },
        annotators="containment",
        end_to_end=False,
        k=2,
        measures="P@2",
        store=path / "store",
        progress=False,
    )  # fmt: skip
    return result.labels.rows(), result.scores.rows()


DOORS = {
    "JSONL of queries": lambda path, form: query_set(lines(path / "q", plain(form)), grouped=True),
    "KILT": lambda path, form: query_set(lines(path / "q", kilt(form))),
    "CSV of queries": lambda path, form: query_set(
        as_csv(path / "q.csv", id="q", query=form(QUERY), answers=form(ANSWER))
    ),
    "Parquet of queries": lambda path, form: query_set(as_parquet(path / "q.parquet", **plain(form))),
    "SQuAD of queries": lambda path, form: query_set(squad(path / "q.json", form)),
    "answers apart": answered_apart,
    "users' questions": texts_of_users,
    "JSONL of passages": lambda path, form: read_corpus(lines(path / "c", passage(form))).rows(),
    "CSV of passages": lambda path, form: read_corpus(
        as_csv(path / "c.csv", **passage(form))
    ).rows(),
    "Parquet of passages": lambda path, form: read_corpus(
        as_parquet(path / "c.parquet", **passage(form), article_id=form(TITLE))
    ).rows(),
    "passages in memory": lambda path, form: next(passages_of([passage(form)], "passages")).rows(),
    "runs with texts": lambda path, form: in_runs(
        lines(path / "r", {"query_id": "q", "results": [{"title": form(TITLE), "text": form(TEXT)}]})
    ),
    "runs of texts": lambda path, form: in_runs(
        lines(path / "r", {"query_id": "q", "results": [form(TEXT)]})
    ),
    "JSONL of articles": lambda path, form: cut_articles(lines(path / "a.jsonl", passage(form))),
    "SQuAD of articles": lambda path, form: cut_articles(squad(path / "a.json", form)),
    "a dump": lambda path, form: cut_articles(dump(path / "a.xml", form)),
    "Python": of_python,
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_texts_are_read_composed_whatever_form_they_have(tmp_path, monkeypatch, door):
    found = []
    for form in FORMS:
        folder = tmp_path / form.args[0]
        folder.mkdir()
        monkeypatch.chdir(folder)
        found.append(DOORS[door](folder, form))
    assert found[0] == found[1]
    assert str(found[0]) == NFC(str(found[0]))


@pytest.mark.parametrize("of_queries", FORMS)
@pytest.mark.parametrize("of_others", FORMS)
def test_keys_that_are_texts_find_theirs_in_whatever_form(tmp_path, of_queries, of_others):
    asked = {"id": "q", "query": of_queries(QUERY), "answers": ["x"]}
    other = {"id": "r", "query": "other", "answers": ["x"]}
    queries = lines(tmp_path / "q", asked, other)
    corpus = lines(tmp_path / "c", {"id": "d", "text": of_queries(TEXT)}, {"id": "e", "text": "e"})
    run = lines(tmp_path / "r.json", {of_others(QUERY): {of_others(TEXT): 2, "e": 1}})
    judged = {"user_input": of_others(QUERY), "reference_contexts": [of_others(TEXT)]}
    qrels = lines(tmp_path / "j", judged)
    files = InputFiles(queries=queries, corpus=corpus, run=(run,), tables=table_files(qrels=qrels))
    whole = read_inputs(files, k=2)
    cut = partition(files, folder_at(tmp_path / "cut"), k=2, pairs_per_shard=1)
    shard = next(part for part in map(cut.read, range(len(cut.shards))) if part.runs.height)
    for inputs in (whole, shard):
        assert inputs.runs.select("query_id", "doc_id").rows() == [("q", "d"), ("q", "e")]
        assert inputs.corpus.filter(pl.col("doc_id") == "d")["text"].to_list() == [TEXT]
        assert inputs.queries.filter(pl.col("query_id") == "q")["query"].to_list() == [QUERY]
        material = SimpleNamespace(
            **vars(inputs), passages=inputs.corpus, pairs=inputs.runs.select("query_id", "doc_id")
        )
        labels = label_by_text(inputs.tables["qrels"], material)
        assert labels["label"].to_list() == [1, 0]


def test_an_index_of_passages_written_before_gives_composed_texts(tmp_path, monkeypatch):
    corpus = lines(tmp_path / "c", {"id": NFD("é"), "text": NFD(TEXT)})
    with monkeypatch.context() as before:
        before.setattr(
            passage_index,
            "scan_corpus",
            lambda *_, **__: [pl.DataFrame([(NFD("é"), "", NFD(TEXT), "d")], tables.CORPUS, orient="row")],
        )  # fmt: skip
        made = passage_index.index_corpus(corpus, folder_at(tmp_path / "index"), "key")
    # An id stays as it is.
    assert made.find([NFD("é")]).rows() == [(NFD("é"), "", TEXT, "d")]
    assert PassageMarks(made).look_up_texts(pl.Series([TEXT])).rows() == [(NFD("é"), TEXT)]


def test_ids_stay_as_they_are(tmp_path):
    corpus = lines(tmp_path / "c", *({"id": form("é"), "text": form("é")} for form in FORMS))
    assert read_corpus(corpus).select("doc_id", "text").rows() == [(NFC("é"), "é"), (NFD("é"), "é")]
    queries = lines(tmp_path / "q", *({"id": form("é"), "query": form("é?")} for form in FORMS))
    found = read_query_set(queries, need_answers=False).table
    assert found.select("query_id", "query").rows() == [("é", "é?"), (NFD("é"), "é?")]


# Real sentences: a text, an answer within it, and a first sentence of it that lacks that answer.
KINDS = {
    "Chinese": ("故宫在北京。", "天安门广场位于中华人民共和国首都北京市中心，占地四十四万平方米。", "天安门"),
    "Japanese": ("富士山は高い！", "「東京タワー」は、東京都港区芝公園にある総合電波塔である。", "港区"),
    "half width": ("富士山は高い｡", "東京ﾀﾜｰは東京都港区にある｡", "港区"),
    "Thai": ("เชียงใหม่อยู่ทางเหนือ ", "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", "เมืองหลวง"),
    "Lao": ("ຫຼວງພະບາງສວຍງາມ ", "ວຽງຈັນເປັນນະຄອນຫຼວງຂອງປະເທດລາວ", "ນະຄອນຫຼວງ"),
    "Khmer": ("សៀមរាបស្អាត។", "ភ្នំពេញជារាជធានីនៃប្រទេសកម្ពុជា។", "រាជធានី"),
    "Burmese": ("မန္တလေးသည် လှပသည်။", "နေပြည်တော်သည် မြန်မာနိုင်ငံ၏ မြို့တော်ဖြစ်သည်။", "မြို့တော်"),
    "English": ("It rains in Lima! ", "George Orwell wrote Animal Farm in 1945, in London.", "Animal Farm"),
    "Hindi": ("यह पुराना है। ", "नई दिल्ली भारत गणराज्य की राजधानी है।", "राजधानी"),
}  # fmt: skip
SPACED = {"English", "Hindi"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_matches_that_holds_the_answer_as_words(kind):
    before, sentence, answer = KINDS[kind]
    assert match(sentence, [answer]) == 1
    assert match(before, [answer]) == 0
    assert match(answer[1:], [answer]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_judged_texts_label_the_passages_that_cover_them(kind):
    before, sentence, answer = KINDS[kind]
    # The judged document is of an old cut; its first sentence has no answer, and the wrong cut holds that alone.
    corpus = {
        "whole": before + sentence,
        "right": f"{sentence} {before}",
        "wrong": before * 3,
        "quoted": f"({sentence})",
    }
    columns = {"query_id": "q", "doc_id": corpus["whole"], "label": 2.0}
    for by_text, doc in ((False, corpus["whole"]), (True, sentence)):
        material = SimpleNamespace(
            passages=pl.DataFrame({"doc_id": [*corpus], "text": [*corpus.values()]}),
            queries=pl.DataFrame({"query_id": ["q"], "answers": [[answer]]}),
            pairs=pl.DataFrame({"query_id": "q", "doc_id": [*corpus]}),
        )
        judged = pl.DataFrame([{**columns, "doc_id": doc, "by_text": by_text}])
        assert label_by_text(judged, material)["label"].to_list() == [2, 2, 0, 2]


@pytest.mark.parametrize(
    ("judged", "passage", "share"),
    [
        # In a row, 20 of 24 characters; four are chance.
        ("天安门广场位于中华人民共和国首都北京市中心占地大", "天安门广场位于中华人民共和国首都北京市中，又", 20 / 24),
        ("天安门广场位于", "天安门广", 0),
        ("in Lima", "He was born in Lima, Peru", 1),
        ("서울은 대한민국의 수도", "서울은 대한민국의 수도이다.", 1),
        ("art", "the party", 0),
        ("art", "the arts", 0),
        ("(art)", "the(art)s", 1),
    ],
)  # fmt: skip
def test_a_text_covers_by_its_string_or_its_longest_run(judged, passage, share):
    matcher = SequenceMatcher(None, (), spaced(passage).split(), autojunk=False)
    assert covered(spaced(judged).split(), matcher) == pytest.approx(share)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_have_so_many_words_and_all_of_the_text(kind):
    text = " ".join("".join(KINDS[kind][:2] * 40).split())
    pieces = cut_words(text, 50)
    if kind in SPACED:
        words = text.split()
        expected = [" ".join(words[place : place + 50]) for place in range(0, len(words), 50)]
        assert pieces == expected
        return
    letters = [sum(unicodedata.category(c)[0] == "L" for c in piece) for piece in pieces]
    assert set(letters[:-1]) == {50}
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert not any(
        unicodedata.category(piece[0])[0] == "M" or piece[0] in "。，" for piece in pieces
    )


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # A name in an English text is no more words than it was.
        ("The Forbidden City (紫禁城) in Beijing", ["The Forbidden City (紫禁城)", "in Beijing"]),
        # A word longer than a piece may be is cut, in whatever text.
        ("a b c d e f g h 紫禁城在北京市", ["a b c d", "e f g h", "紫禁城在", "北京市"]),
        ("北京 Beijing 2008年举办，", ["北京 Beijing 2008", "年举办，"]),
        ("서울은 대한민국의 수도이다 그리고 크다", ["서울은 대한민국의 수도이다 그리고", "크다"]),
    ],
)
def test_the_script_of_a_text_decides_what_its_words_are(text, pieces):
    assert cut_words(text, 4) == pieces


INVISIBLE = {
    "zero-width space": ("東\u200b京", "東京", True),
    "byte order mark": ("\ufeffParis", "Paris", True),
    "soft hyphen": ("Pa\u00adris", "Paris", True),
    "right-to-left mark": ("Paris\u200f", "Paris", True),
    "joiner between Latin letters": ("Pa\u200dris", "Paris", True),
    "in the answer": ("Paris", "Paris\u2060", True),
    "Persian non-joiner": ("می\u200cخواهم", "میخواهم", False),
    "Hindi joiner": ("क्\u200dष", "क्ष", False),
    "other words": ("Pa\u200bris", "Rome", False),
}


@pytest.mark.parametrize("kind", INVISIBLE)
def test_invisible_characters_count_among_what_looks_alike(kind):
    output, answer, is_marked = INVISIBLE[kind]
    reads = pl.DataFrame({
        "query_id": ["q"], "output": [output], "failure": [None], "read_key": ["k"],
        "output_tokens": [1], "thought": [None], "ended": ["stop"], "mass": [None],
    }, schema_overrides={"failure": pl.String, "thought": pl.String, "mass": pl.Float64})  # fmt: skip
    spec = SimpleNamespace(choices=(), scores="", most_new_tokens=8)
    queries = pl.DataFrame({"query_id": ["q"], "answers": [[answer]]})
    counted = count_outputs({"reader": (spec, reads)}, None, queries, get_metric("em"))
    assert counted.marked == is_marked
