"""AutoJudge's part of docs/guide/recipes.md on twenty topics, and by AutoJudge's commands; its coefficients and ours."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

# autojudge_base downloads NLTK's stop words when it is imported; nothing here is judged by them.
os.environ["NLTK_DATA"] = str(Path("nltk").absolute())
Path("nltk/tokenizers/punkt").mkdir(parents=True)
Path("nltk/corpora/stopwords").mkdir(parents=True)
Path("nltk/corpora/stopwords/english").write_text("the\n")

import own_llm  # noqa: E402
from autojudge_base import Report, load_report, load_requests_from_file  # noqa: E402
from autojudge_base.nugget_data import NuggetBank, NuggetBanks, NuggetQuestion  # noqa: E402
from autojudge_base.qrels.qrels import read_qrel_file  # noqa: E402
from autojudge_evaluate.evaluation import correlation, tauap_b  # noqa: E402
from erag_engine.statistics.runs import agreement  # noqa: E402

PROGRAMS = Path(sys.executable).parent
# The last town named is the answer: "Town1, not Town2" holds the answer Town1 and misleads.
Path("reader.py").write_text(
    "def read(prompts):\n"
    "    words = [one.replace('.', '').replace(',', '').split() for one in prompts]\n"
    "    return [([word for word in one if word[:4] == 'Town'] or ['?'])[-1] for one in words]\n"
)


def write(path, rows):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def response(run, n):
    """Run r is right on the topics from 4r on, and cites a passage that misleads on the others."""
    name, town = (f"good{n}", f"Town{n}") if n >= 4 * run else (f"bad{n}", f"Town{n + 1}")
    text = f"The capital of Land{n} is Town{n}{'' if n >= 4 * run else f', not Town{n + 1}'}."
    return {
        "metadata": {"team_id": "us", "run_id": f"run{run}", "narrative_id": f"t{n}"},
        "references": [name],
        "answer": [{"text": f"It is {town}.", "citations": [0]}],
        "documents": {name: {"id": name, "text": text}},
    }


write("topics.jsonl", ({"request_id": f"t{n}", "title": f"capital of Land{n}"} for n in range(20)))
write("answers.jsonl", ({"query_id": f"t{n}", "answers": [f"Town{n}"]} for n in range(20)))
for run in range(5):
    write(f"runs/run{run}", (response(run, n) for n in range(20)))
sys.path.insert(0, ".")
reports = [one for run in range(5) for one in load_report(Path(f"runs/run{run}"))]
assert all(isinstance(one, Report) and one.verify() for one in reports)
topics = load_requests_from_file(Path("topics.jsonl"))
names = {"responses": reports, "topics": topics, "answers": "answers.jsonl"}
exec("from reader import read\n" + own_llm.recipe(sys.argv[1], "AutoJudge"), names)
leaderboard = names["judge"].judge(reports, topics, None, qrels=names["qrels"])
ids = [topic.request_id for topic in topics]
names["qrels"].verify(ids)
leaderboard.verify("error", ids)
grades = {(row.topic_id, row.doc_id): row.grade for row in names["qrels"].rows}
assert all(grades["t5", name] == (name[:4] == "good") for name in ("good5", "bad5"))
assert (
    len(grades) == 16 * 4 + 4 * 2
)  # responses and passages of two kinds; on the last four topics all are right

SETTINGS = "{{annotators: {}, reader: reader.py:read, answers: answers.jsonl, filebase: '{}'}}"
for annotator in ("erag", "containment"):
    Path(f"{annotator}.yml").write_text(
        "judge_class: erag_engine.python.autojudge.Judge\njudge_uses_nuggets: false\n"
        f"qrels_uses_nuggets: false\nsettings: {SETTINGS.format(annotator, annotator)}\n"
        f"qrels_output: {annotator}.qrels\n"
    )


def command(program, *arguments):
    done = subprocess.run(
        [PROGRAMS / program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Their commands: the judge, whose output is verified there, agreement of its qrels, and of leaderboards with the truth.
TRUTH = {"run0": 0.9, "run1": 0.5, "run2": 0.7, "run3": 0.7, "run4": 0.1}
Path("truth").write_text(
    "".join(f"{run} {of} F {value}\n" for run, value in TRUTH.items() for of in (*ids, "all"))
)
for annotator in ("erag", "containment"):
    inputs = ["--rag-responses", "runs", "--rag-topics", "topics.jsonl"]
    command("auto-judge", "run", "--workflow", f"{annotator}.yml", *inputs)
    rows = [line.split() for line in Path(f"{annotator}.eval.txt").read_text().splitlines()]
    means = {(run, of): float(value) for run, topic, of, value in rows if topic == "all"}
    right = {f"run{r}": 1 - r / 5 for r in range(5)}
    cited = right if annotator == "erag" else dict.fromkeys(right, 1)
    assert all(math.isclose(means[r, "RESPONSE"], right[r]) for r in right), means
    assert all(math.isclose(means[r, "CITED"], cited[r]) for r in right), means
    wanted = [f"--correlation={name}" for name in ("kendall", "spearman", "tauap_b")]
    formats = ["--truth-format=ir_measures", "--eval-format=ir_measures"]
    command(
        "auto-judge-evaluate", "meta-evaluate", "--truth-leaderboard=truth", *formats,
        f"--input={annotator}.eval.txt", *wanted, f"--output={annotator}.jsonl",
    )  # fmt: skip
    for line in Path(f"{annotator}.jsonl").read_text().splitlines():
        row = json.loads(line)
        ours = agreement(TRUTH, {r: means[r, row["EvalMeasure"]] for r in TRUTH})
        theirs = (row["kendall"], row["spearman"], row["tauap_b"])
        if annotator == "containment" and row["EvalMeasure"] == "CITED":  # all runs are tied
            assert np.isnan([*ours.values()]).all()
            assert theirs == (None, None, -0.5)
        else:
            assert np.allclose([*ours.values()], theirs, rtol=0, atol=1e-9), (ours, row)
rows = read_qrel_file("erag.qrels").rows
assert {(row.topic_id, row.doc_id): row.grade for row in rows} == grades
shown = command(
    "auto-judge-evaluate", "qrel-evaluate", "--truth-qrels=containment.qrels", "--predict-qrels=erag.qrels"
)  # fmt: skip
# eRAG refuses the passage that misleads, of three that hold the answer; on four topics there is none.
assert [row.split()[2] for row in shown.splitlines()[1:21]].count("0.6667") == 16, shown

# Without reference answers: the mean over the questions of a topic's nuggets.
asked = [("which town?", "Town5"), ("which else?", "Nowhere")]
questions = [NuggetQuestion.from_lazy("t5", text, [own]) for text, own in asked]
bank = NuggetBank(query_id="t5")
bank.add_nuggets(questions)
banks = NuggetBanks.from_banks_list([bank])
of_one = [topic for topic in topics if topic.request_id == "t5"], reports[5:6]
judge = names["Judge"](reader=names["read"], scale=10)
(response, passage) = judge.create_qrels(of_one[1], of_one[0], None, banks).rows
assert (response.grade, passage.doc_id, passage.grade) == (5, "good5", 5)

# On 200 drawn leaderboards, most with ties, all three coefficients are theirs.
drawn, tied = np.random.default_rng(70), 0
for _ in range(200):
    runs, decimals = int(drawn.integers(3, 31)), int(drawn.integers(1, 4))
    x = drawn.random(runs).round(decimals)
    y = (x + drawn.normal(0, 0.3, runs)).round(decimals)
    ours = agreement(dict(enumerate(x)), dict(enumerate(y)))
    theirs = correlation(x, y, "kendall"), correlation(x, y, "spearman"), tauap_b(x, y)
    assert np.allclose([*ours.values()], theirs, rtol=0, atol=1e-12), (x, y)
    tied += len({*x}) < runs or len({*y}) < runs
assert tied > 100
# Where all runs of a leaderboard are tied, which have no order, theirs is a number.
assert np.isnan(agreement({1: 1, 2: 1, 3: 1}, {1: 1, 2: 2, 3: 3})["tau_ap_b"])
assert tauap_b([1, 1, 1], [1, 2, 3]) == -0.5
