"""Two worked examples, one for each fault that dual labels tell apart, from SQuAD documents on.

Both are written twice, in English as SQuAD is and in Korean as KLUE-MRC is; the figures are the same.
"""

import json

import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.labels.dual import PROBABILITIES
from engine.report.printed import full_lines
from engine.sources.articles.read import read_source
from engine.sources.io.files import write_parquet
from engine.sources.passages.cut import passages
from engine.sources.runs.read import write_run
from tests.conftest import make_run
from tests.expected import as_expected, refused
from tests.tables import findings_of, read_files

# Contexts by name, under their titles, each a passage: island and mountain are of one document, city
# and port of another; hikers hold the answer of q1, ships that of q3, and are of wrong documents.
CONTEXTS = {
    "english": {
        "Jeju Island": {
            "island": "Jeju Island lies south of the peninsula. Its capital is Jeju City.",
            "mountain": "Hallasan on Jeju Island is the highest mountain of South Korea.",
        },
        "Busan": {
            "city": "Busan is the second largest city of South Korea.",
            "port": "Most of the containers of South Korea pass the port of Busan.",
        },
        "Hiking": {"hikers": "In winter many people climb Hallasan."},
        "Singapore": {"ships": "Singapore reloads more containers than any other port."},
    },
    "korean": {
        "제주도": {
            "island": "제주도는 한반도 남쪽에 있는 섬이다. 도청은 제주시에 있다.",
            "mountain": "제주도의 한라산은 남한에서 가장 높다.",
        },
        "부산광역시": {
            "city": "부산은 한국에서 두 번째로 큰 도시이다.",
            "port": "부산항은 한국 컨테이너의 대부분을 다룬다.",
        },
        "등산": {"hikers": "겨울에는 많은 사람이 한라산에 오른다."},
        "싱가포르": {"ships": "싱가포르는 어느 항구보다 컨테이너를 많이 옮겨 싣는다."},
    },
}
# Asked of the context that they stand beside.
QUESTIONS = {
    "english": {
        "mountain": ("q1", "which mountain of south korea is the highest", "Hallasan"),
        "island": ("q2", "what is the capital of jeju island", "Jeju City"),
        "port": ("q3", "what passes the port of busan", "containers"),
        "city": ("q4", "how large a city is busan", "second largest"),
    },
    "korean": {
        "mountain": ("q1", "남한에서 가장 높은 산은?", "한라산"),
        "island": ("q2", "제주도청은 어디에 있는가?", "제주시"),
        "port": ("q3", "부산항이 한국에서 대부분을 다루는 것은?", "컨테이너"),
        "city": ("q4", "부산은 한국에서 몇 번째로 큰 도시인가?", "두 번째"),
    },
}
ID = {"english": "id", "korean": "guid"}
WORDS = {"english": "tokens", "korean": "substring"}

# A retriever that always finds the right document, and puts the wrong part of it first for q1 and q3.
RIGHT_DOCUMENT = {
    "q1": ["island", "mountain"],  # Doc, not Word | both
    "q2": ["island", "mountain"],  # both
    "q3": ["city", "port"],  # Doc, not Word | both
    "q4": ["city", "hikers"],  # both
}
# A retriever that goes by words, and finds the answer's in wrong documents for q1 and q3.
RIGHT_WORDS = {
    "q1": ["hikers", "island"],  # Word, not Doc | Doc comes in: both, in two passages
    "q2": ["island", "hikers"],  # both
    "q3": ["ships", "hikers"],  # Word, not Doc
    "q4": ["port", "ships"],  # Doc, not Word
}


def worked(tmp_path, language, listed, words):
    """The dual table's values by cutoff, and the evaluation."""
    data = [
        {"title": title, "paragraphs": [paragraph(language, *item) for item in contexts.items()]}
        for title, contexts in CONTEXTS[language].items()
    ]
    squad = tmp_path / "squad.json"
    squad.write_text(json.dumps({"data": data}, ensure_ascii=False), encoding="utf-8")
    corpus = passages(read_source(squad))
    write_parquet(corpus, tmp_path / "corpus.parquet")
    names = [name for contexts in CONTEXTS[language].values() for name in contexts]
    ids = dict(zip(names, corpus["doc_id"], strict=True))
    rows = [(q, ids[name], rank) for q in listed for rank, name in enumerate(listed[q], 1)]
    write_run(make_run(rows), tmp_path / "run.trec")
    inputs = read_files(squad, tmp_path / "corpus.parquet", [tmp_path / "run.trec"], k=2)
    of_dual = {"annotators": ("dual",), "dual_words": words, "measures": "Success@2"}
    settings = Settings.of(k=2, **of_dual, end_to_end=False, resamples=0)
    result = evaluate(inputs, settings, store=tmp_path)
    found = {
        (row["k"], row["probability"]): row["value"] for row in result.further["dual"].to_dicts()
    }
    return {k: [found[k, name] for name in PROBABILITIES] for k in (1, 2)}, result


def paragraph(language, name, context):
    query_id, question, answer = QUESTIONS[language].get(name, (None, None, None))
    start = context.find(answer) if answer else 0
    answers = [{"text": answer, "answer_start": start}]
    asked = [{ID[language]: query_id, "question": question, "answers": answers}]
    return {"context": context, "qas": asked if query_id else []}


@pytest.mark.parametrize("language", CONTEXTS)
def test_the_right_document_without_the_answer(tmp_path, language):
    found, result = worked(tmp_path, language, RIGHT_DOCUMENT, WORDS[language])
    # @1 Doc in 4 of 4, Word in q2 and q4, both there: 4/4, 2/4, 2/4; 2/4 by 2/4; 2/4 by 4/4.
    # Every answer is of a right document, every second right document lacks the answer.
    assert found[1] == pytest.approx([1, 1 / 2, 1 / 2, 1, 1 / 2])
    # @2 the other part of the document is there, too.
    assert found[2] == pytest.approx([1, 1, 1, 1, 1])
    assert result.query_scores["value"].to_list() == [1, 1, 1, 1]


@pytest.mark.parametrize("language", CONTEXTS)
def test_the_answers_words_in_a_wrong_document(tmp_path, language):
    found, result = worked(tmp_path, language, RIGHT_WORDS, WORDS[language])
    # @1 Doc in q2 and q4, Word in q1 to q3, both in q2: 2/4, 3/4, 1/4; 1/4 by 3/4; 1/4 by 2/4.
    # Two of three answers are of wrong documents.
    assert found[1] == pytest.approx([1 / 2, 3 / 4, 1 / 4, 1 / 3, 1 / 2])
    # @2 Doc in q1, q2 and q4, Word in q1 to q3, both in q1 and q2: 3/4, 3/4, 2/4; 2/4 by 3/4, twice.
    assert found[2] == pytest.approx([3 / 4, 3 / 4, 1 / 2, 2 / 3, 2 / 3])
    # One passage that is both: in q2 alone, not in q1.
    assert dict(result.query_scores.select("query_id", "value").rows()) == {
        "q1": 0, "q2": 1, "q3": 0, "q4": 0,
    }  # fmt: skip


def test_particles_hide_korean_answers_from_tokens(tmp_path):
    found, result = worked(tmp_path, "korean", RIGHT_DOCUMENT, "tokens")
    # 한라산은, 제주시에, 컨테이너의, 번째로: no answer stands between two spaces.
    assert found[2][:3] == [1, 0, 0]
    assert result.traces["answer"].null_count() == result.traces.height
    as_expected([line for line in full_lines(findings_of(result)) if "Korean particles" in line])
    _, result = worked(tmp_path, "korean", RIGHT_DOCUMENT, "substring")
    assert not any("Korean particles" in line for line in full_lines(findings_of(result)))
    assert set(result.traces["answer"].drop_nulls()) == {"한라산", "제주시", "컨테이너", "두 번째"}


def test_a_way_to_look_for_answers_that_nobody_uses_is_refused():
    with refused("settings.annotator"):
        Settings.of(dual_words="substring")
