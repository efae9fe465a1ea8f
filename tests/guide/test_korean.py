"""The four commands of docs/guide/korean.md, run as they stand there, on a small file and with made encoders."""

import json
import re
import shlex
from pathlib import Path

import polars as pl
import pytest

from engine.reading.prompting.prompts import read_template, styles
from engine.sources.runs.read import read_run
from tests.commands import erag
from tests.retrieval.tiny_encoder import save_tiny_bge_m3

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/korean.md").read_text()
COMMANDS = re.findall(r"```\n(.*?)```", PAGE, re.S)[0].replace("\\\n", " ").splitlines()
KLUE, KORQUAD = "klue-mrc-v1.1_dev.json", "KorQuAD_v1.0_dev.json"
# Title, context, question, answer: particles follow the answers in their contexts.
DATA = [
    ("제주도", "장마가 19일 제주도에서 시작됐다. 기상청은 다음 주에 비가 온다고 했다.", "장마는 어디서 시작됐나?", "제주도"),
    ("부산", "부산은 한국에서 가장 큰 항구이다. 해마다 영화제가 열린다.", "한국에서 가장 큰 항구는 어디인가?", "부산"),
    ("학교", "학교에서는 한국어를 가르친다. " + "학생들은 책을 읽는다. " * 30, "학교는 무엇을 가르치나?", "한국어"),
]  # fmt: skip


def write_data(path):
    """The questions in the layout of one of the two data sets."""
    entries = []
    for number, (title, context, question, answer) in enumerate(DATA, 1):
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        asked = {"question": question, "answers": answers}
        if path.name == KLUE:
            asked |= {"guid": f"dev_{number}", "is_impossible": False, "question_type": 1}
        else:
            asked |= {"id": f"dev_{number}"}
        entries.append({"title": title, "paragraphs": [{"context": context, "qas": [asked]}]})
    document = {"version": path.stem, "data": entries}
    path.write_text(json.dumps(document, ensure_ascii=False))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with both files and the encoders, where the commands are run."""
    for name in (KLUE, KORQUAD):
        write_data(tmp_path / name)
    words = sorted({word for row in DATA for text in row for word in text.split()})
    save_tiny_bge_m3(tmp_path / "BAAI/bge-m3", words)
    save_tiny_bge_m3(tmp_path / "intfloat/multilingual-e5-large", words, seed=8, pooling="mean")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the process of Lucene, which starts here
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("file", [KLUE, KORQUAD])
def test_four_commands_lead_to_the_dual_labels(place, capsys, file):
    assert [command.split()[1] for command in COMMANDS] == [
        "passages",
        "index",
        "retrieve",
        "evaluate",
    ]
    for command in COMMANDS:
        words = shlex.split(command.replace(KLUE, file))[1:]
        # On actors elsewhere; these few passages are encoded here.
        words += ["--actors", "0"] * (words[0] in ("index", "evaluate"))
        words += ["--workers", "1"] * (words[0] == "passages")
        assert erag(*words) == 0, capsys.readouterr().err
    corpus = pl.read_parquet("ko/corpus.parquet")
    assert corpus["text"].str.len_chars().max() <= 300
    assert corpus.filter(article_id="학교").height > 1
    names = ("bm25", "bge-m3", "multilingual-e5-large")
    for name in names:
        run = read_run(place / f"ko/runs/{name}.trec")
        assert run["run"].unique().to_list() == [name]
    # Kiwi finds "학교는" in "학교에서는": the first passage of BM25 is of the gold article, for each question.
    first = read_run(place / "ko/runs/bm25.trec").filter(rank=1).join(corpus, on="doc_id")
    assert dict(first.select("query_id", "article_id").rows()) == {
        f"dev_{number}": title for number, (title, *_) in enumerate(DATA, 1)
    }
    manifests = [
        json.loads((place / f"ko/indexes/{name}/erag-index.json").read_text()) for name in names
    ]
    shown = [json.dumps(manifest) for manifest in manifests]
    assert "kiwi" in shown[0]
    assert "cls" in shown[1]
    assert "passage: " in shown[2]
    labels = pl.concat(map(pl.read_parquet, (place / "ko/results").glob("dual_labels.parquet")))
    of_gold = labels.filter("document_label", "word_label")
    # Every answer is found in its gold article, in spite of the particles that follow it.
    assert of_gold["query_id"].n_unique() == 3


@pytest.mark.parametrize("task", ["short-answer", "judge", "abstain"])
def test_prompts_in_korean_come_with_the_engine(task):
    for style in ("chat-ko", "completion-ko"):
        assert style in styles(task)
        template, english = (
            read_template(style, task),
            read_template(style.removesuffix("-ko"), task),
        )
        assert re.search("[가-힣]", template.passage.literals[0])
        assert (template.choices, template.chat, template.order, template.stop) == (
            english.choices, english.chat, english.order, english.stop,
        )  # fmt: skip
