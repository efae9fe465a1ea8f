"""The page of ``erag ask``, in a real browser, from the files to the evaluation of what it saved (docs/guide/asking.md)."""

import json
from dataclasses import replace

import polars as pl
import pytest

import erag_engine
from engine import tables
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs, InputFiles
from engine.inputs.read import read_inputs
from engine.python.input_forms import UserInputs, inputs_of
from engine.report.findings import read_findings
from engine.report.page.asking import write_ask_page
from engine.sources.runs.qrels import read_preferences
from tests.commands import erag
from tests.conftest import framed
from tests.expected import as_expected, refused

SCRIPT = "<script>document.title = 'ran'</script><img src=x onerror=\"document.title='ran'\">"
QUERIES = {f"q{i:02}": f"question {i} {SCRIPT}" for i in range(24)}
# Both runs find the answer where i is a multiple of 4; else one of them: dense where i is odd.
FOUND = {one: ("bm25", "dense") if i % 4 == 0 else (("bm25", "dense")[i % 2],) for i, one in enumerate(QUERIES)}  # fmt: skip
NAMES = ("bm25", "dense")


def answered(prompts):
    """The LLM: it finds the one answer where a passage has it."""
    return ["Oslo" if "Oslo" in prompt else "I do not know" for prompt in prompts]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Queries, a corpus and two runs of two passages each, and the results of both kinds of evaluation."""
    folder = tmp_path_factory.mktemp("asked")
    rows = [{"query_id": one, "query": text, "answers": ["Oslo"]} for one, text in QUERIES.items()]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    passages, runs = {}, {name: {} for name in NAMES}
    for one, by in FOUND.items():
        for name in NAMES:
            # The common passage comes first; where both find the answer, that is all they list.
            ids = [f"{one}-common"] if len(by) == 2 else [f"{one}-common", f"{one}-{name}"]
            runs[name][one] = ids
            for id_ in ids:
                text = "Oslo lies there." if id_.endswith(by) or len(by) == 2 else "Nothing."
                passages[id_] = {"id": id_, "title": f"T {SCRIPT}", "text": f"{text} {SCRIPT}"}
    lines = "".join(json.dumps(row) + "\n" for row in passages.values())
    (folder / "c.jsonl").write_text(lines)
    for name, lists in runs.items():
        rows = [
            f"{one} Q0 {id_} {rank} {-rank} {name}\n"
            for one, ids in lists.items()
            for rank, id_ in enumerate(ids)
        ]
        (folder / f"{name}.trec").write_text("".join(rows))
    given = [folder / "q.jsonl", folder / "c.jsonl", [folder / f"{name}.trec" for name in NAMES]]
    more = {"annotators": ("containment", "erag"), "metric": "match", "k": 2, "resamples": 0}
    erag_engine.evaluate(*given, reader=answered, **more).save(folder / "answers")
    labels = {"annotators": ("containment",), "end_to_end": False, "k": 2, "resamples": 0}
    erag_engine.evaluate(*given, **labels).save(folder / "labels")
    return folder


def ask(files, out, *more, runs=None):
    runs = [part for run in runs or [files / f"{name}.trec" for name in NAMES] for part in ("--run", run)]  # fmt: skip
    return erag("ask", *runs, "--queries", files / "q.jsonl", "--corpus", files / "c.jsonl", "--out", out, *more)  # fmt: skip


def content(path):
    """What the page was given."""
    text = path.read_text().partition('type="application/json"')[2]
    return json.loads(text.partition(">")[2].partition("</script>")[0])


def test_tasks_are_of_queries_that_tell_runs_apart(files, tmp_path, capsys):
    assert ask(files, tmp_path / "t.html", "-n", 9) == 0
    as_expected(capsys.readouterr().out)
    data = content(tmp_path / "t.html")
    assert data["design"] == {"strata": {"all": 18}, "queries": 24}
    assert sum(task["random"] for task in data["tasks"]) == 3
    assert all(len(FOUND[task["query_id"]]) == 1 for task in data["tasks"])
    # Of each run the first passage that the other lacks, and no other text.
    shown = {(one["query_id"], one["run"], one["output"]) for one in data["sides"]}
    assert shown == {(t["query_id"], n, f"{t['query_id']}-{n}") for t in data["tasks"] for n in NAMES}  # fmt: skip
    assert {one["doc_id"] for one in data["passages"]} == {one for _, _, one in shown}
    first = [one["run"] for one in data["sides"]]
    ask(files, tmp_path / "same.html", "-n", 9)
    ask(files, tmp_path / "other.html", "-n", 9, "--seed", 1)
    assert content(tmp_path / "same.html") == data
    assert [one["run"] for one in content(tmp_path / "other.html")["sides"]] != first


def test_passages_that_all_runs_list_are_not_asked_about(files, tmp_path, capsys):
    """The same passages in another order, and the beginning of another run's list, are not asked about."""
    lists = (files / "dense.trec").read_text().splitlines()
    turned = [
        line.replace(" 0 0 ", " 1 -1 ") if " 0 0 " in line else line.replace(" 1 -1 ", " 0 0 ")
        for line in lists
    ]
    cut = [line for line in lists if " 0 0 " in line]
    for name, rows in (("turned", turned), ("cut", cut)):
        other = tmp_path / f"{name}.trec"
        other.write_text("".join(row.replace(" dense", f" {name}") + "\n" for row in rows))
        assert ask(files, tmp_path / "t.html", runs=(files / "dense.trec", other)) == 2
        as_expected(capsys.readouterr().err)


def test_strata_are_by_the_run_that_labels_prefer(files, tmp_path):
    for results, of_answers in (("labels", False), ("answers", True)):
        assert ask(files, tmp_path / "t.html", "--results", files / results) == 0
        data = content(tmp_path / "t.html")
        assert data["of_answers"] is of_answers
        # 6 of 24 are even without being multiples of 4, 12 are odd.
        assert data["design"] == {"strata": {"bm25": 6, "dense": 12}, "queries": 24}
        assert len(data["tasks"]) == 18
    assert {one["output"] for one in data["sides"]} == {"Oslo", "I do not know"}
    # An answer comes with all passages that it was made from.
    assert {len(one["doc_id"]) for one in data["sides"]} == {2}


def test_where_labels_disagree_is_asked_more_often_and_of_a_stratum_all_alike(tmp_path):
    n, draws = 300, 20
    queries = pl.DataFrame({"query_id": [f"{i}" for i in range(n)], "query": "?", "answers": [["a"]] * n, "provenance": [[]] * n}, schema=tables.QUERIES)  # fmt: skip
    rows = [(f"{i}", f"{i}-{run}", 1, 1.0, run) for i in range(n) for run in NAMES]
    inputs = EvaluationInputs(
        queries=queries,
        corpus=tables.empty(tables.CORPUS),
        runs=pl.DataFrame(rows, schema=tables.RUNS, orient="row"),
        k=1,
    )
    # Of every three queries one where both prefer dense, one where they disagree, one that has no difference.
    value = {"x": lambda i, run: i % 3 != 2 and run == "dense", "y": lambda i, run: i % 3 == 0 and run == "dense"}  # fmt: skip
    labels = [
        (f"{i}", f"{i}-{run}", name, float(of(i, run)))
        for name, of in value.items()
        for i in range(n)
        for run in NAMES
    ]

    class Labels:
        wholes = ()

        def table(self, name):
            if name == "labels":
                return framed(labels, tables.LABELS)
            return queries.select("query_id", "query")

    counts, random, of_query = {}, {}, {}
    for seed in range(draws):
        write_ask_page(inputs, Labels(), tmp_path / "t.html", tasks=60, seed=seed)
        for task in content(tmp_path / "t.html")["tasks"]:
            name = task["stratum"]
            counts[name] = counts.get(name, 0) + 1
            random[name] = random.get(name, 0) + task["random"]
            # 100 queries of each, of which 60 tasks are 1 : 1.25 : 1. The first label gives dense a share of 1, 1 and 1/2 of
            # the preference, the other one 1, 1/2 and 1/2: 1, 3/4 and 1/2, which is 3/4 on average.
            odds, label = {"dense": (1, 0.25), "dense, disputed": (1.25, 0)}.get(name, (1, -0.25))
            assert task["probability"] == pytest.approx(60 * odds / 325)
            assert task["labels"] == pytest.approx({"bm25": -label, "dense": label})
            of_query[int(task["query_id"]) // 150] = of_query.get(int(task["query_id"]) // 150, 0) + 1  # fmt: skip
    assert counts.keys() == {"dense", "dense, disputed", "bm25 and dense"}
    for name, odds in (("dense", 1), ("dense, disputed", 1.25), ("bm25 and dense", 1)):
        # To one task in each draw, and on average exactly; of the third that is random, all alike.
        assert counts[name] / draws == pytest.approx(60 * odds / 3.25, abs=0.5)
        assert random[name] / draws == pytest.approx(20 / 3, abs=0.5)
    assert of_query[0] / (60 * draws) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    "change",
    [
        ["-n", "0"],
        ["--k", "0"],
        ["--k", "1"],
        ["--run", "{0}/dense2.trec", "--run", "{0}/dense3.trec"],
        ["--results", "{0}/nowhere"],
    ],
)
def test_bad_input_is_one_line(files, tmp_path, capsys, change):
    for name in ("dense2", "dense3"):
        text = (files / "dense.trec").read_text().replace(" dense\n", f" {name}\n")
        (files / f"{name}.trec").write_text(text)
    more = [one.format(files) for one in change]
    assert ask(files, tmp_path / "t.html", *more) == 2
    as_expected(capsys.readouterr().err)
    assert not (tmp_path / "t.html").exists()


def test_results_of_other_lists_are_refused(files, tmp_path, capsys):
    lists = [line.split() for line in (files / "dense.trec").read_text().splitlines()]
    turned = [[*row[:3], 1 - int(row[3]), row[3], "dense"] for row in lists]
    for name, rows in (("dense", turned), ("third", lists)):
        other = tmp_path / f"{name}.trec"
        other.write_text("".join(" ".join(map(str, row[:5])) + f" {name}\n" for row in rows))
        given = {"runs": (files / "bm25.trec", other)}
        assert ask(files, tmp_path / "t.html", "--results", files / "answers", **given) == 2
        as_expected(capsys.readouterr().err)


def test_labels_of_one_passage_a_query_are_of_these_runs(tmp_path):
    """Judgments that never compare the passages of both runs leave queries without labels; of other passages they are refused."""
    ids = [f"q{i}" for i in range(120)]

    def lists(shift):
        listed = [(one, ids[place - shift]) for place, one in enumerate(ids)]
        return {run: {one: {f"{of}-x": 2.0, f"{of}-{run}": 1.0} for one, of in listed} for run in "ab"}  # fmt: skip

    queries = pl.DataFrame({"query_id": ids, "query": ids})
    corpus = {f"{one}-{name}": "text" for one in ids for name in "xab"}
    qrels = {one: {f"{one}-{'ab'[place % 2]}": 1} for place, one in enumerate(ids)}
    options = {"annotators": ("qrels",), tables.END_TO_END: False, "k": 2, "resamples": 0}
    result = erag_engine.evaluate(queries, corpus, lists(0), qrels=qrels, **options)
    result.save(tmp_path / "labels")
    found, settings = read_findings(tmp_path / "labels", None), Settings.of(**options)
    these, others = (inputs_of(UserInputs(queries, corpus, lists(by)), settings) for by in (0, 1))
    as_expected(write_ask_page(these, found, tmp_path / "t.html", tasks=9, seed=0))
    data = content(tmp_path / "t.html")
    assert data["design"] == {"strata": {"without labels": 120}, "queries": 120}
    assert [task["labels"] for task in data["tasks"]] == [{"a": 0, "b": 0}] * 9
    with refused("results.unlabelled"):
        write_ask_page(others, found, tmp_path / "other.html", tasks=9, seed=0)


def test_results_in_shards_keep_no_answers(files, tmp_path):
    runs = tuple(files / f"{name}.trec" for name in NAMES)
    asked = InputFiles(queries=files / "q.jsonl", corpus=files / "c.jsonl", run=runs)
    found = read_findings(files / "answers", None)
    found = replace(found, summary={**found.summary, "shards": 2})
    with refused("results.shards"):
        write_ask_page(read_inputs(asked, k=2), found, tmp_path / "t", tasks=9, seed=0)
    assert not (tmp_path / "t").exists()


@pytest.fixture
def opened(browser):
    """A page that said nothing and asked for nothing but itself."""
    with browser.new_context(viewport={"width": 1100, "height": 900}) as context:
        page, said, asked = context.new_page(), [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        yield page
        assert said == []
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def counted(page):
    return page.locator("#count").inner_text()


def saved(page, path, click):
    with page.expect_download() as download:
        click()
    assert download.value.suggested_filename == "preferences.jsonl"
    download.value.save_as(path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def best_side(page, word):
    """The number of the side that has a word."""
    texts = page.locator(".side").all_inner_texts()
    return 1 + next(place for place, text in enumerate(texts) if word in text)


def test_passages_from_the_page_to_the_evaluation(files, tmp_path, opened, capsys):
    assert ask(files, tmp_path / "t.html", "--results", files / "labels", "-n", 12) == 0
    page = opened
    page.goto((tmp_path / "t.html").as_uri())
    assert counted(page) == "Question 1 of 12, 0 judged"
    assert page.locator("#save").is_disabled()
    assert SCRIPT in page.locator("#query").inner_text()
    assert "bm25" not in page.locator("main").inner_text()
    # The keyboard: the passage with the answer, a mistake that is undone, none, equally good.
    page.keyboard.press("3")  # there is no third
    assert counted(page) == "Question 1 of 12, 0 judged"
    for _ in range(4):
        page.keyboard.press(str(best_side(page, "Oslo")))
    page.keyboard.press("1")
    page.keyboard.press("u")
    assert counted(page) == "Question 5 of 12, 4 judged"
    page.keyboard.press("0")
    page.keyboard.press("=")
    # Another process of the browser keeps what was judged, a moment later.
    page.wait_for_timeout(500)
    page.reload()  # half way
    assert counted(page) == "Question 7 of 12, 6 judged"
    # The mouse.
    for _ in range(3):
        page.locator(".side button").nth(best_side(page, "Oslo") - 1).click()
    page.locator("#none").click()
    page.locator("#back").click()
    assert page.locator("#none").get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert counted(page) == "Question 12 of 12, 10 judged"
    page.keyboard.press("ArrowLeft")
    for _ in range(2):
        page.keyboard.press(str(best_side(page, "Oslo")))
    assert "save the file" in page.locator("#done").inner_text()
    lines = saved(page, tmp_path / "p.jsonl", lambda: page.keyboard.press("s"))
    assert page.title() == "Which is better? erag-engine"
    data = content(tmp_path / "t.html")
    assert [line["query_id"] for line in lines] == [task["query_id"] for task in data["tasks"]]
    assert [line["random"] for line in lines] == [task["random"] for task in data["tasks"]]
    assert sum(line["best"] is None for line in lines) == 2
    assert sum(isinstance(line["best"], list) for line in lines) == 1
    winners = {line["query_id"]: line["best"] for line in lines if isinstance(line["best"], str)}
    assert winners == {one: f"{one}-{FOUND[one][0]}" for one in winners}
    # What the page saved is what an evaluation reads.
    given = ("--run", files / "bm25.trec", "--run", files / "dense.trec", "--queries", files / "q.jsonl", "--corpus", files / "c.jsonl")  # fmt: skip
    more = ("--annotators", "preference", "--preferences", tmp_path / "p.jsonl", "--no-end-to-end")
    capsys.readouterr()
    assert erag("evaluate", *given, *more, "--k", "2", "--out", tmp_path / "out", "--full") == 0
    assert "What people prefer" in capsys.readouterr().out
    labels = pl.read_parquet(tmp_path / "out" / "labels.parquet")
    assert labels.filter(pl.col("label") > 0).height == 9 + 2
    (row,) = pl.read_parquet(tmp_path / "out" / "preferred.parquet").to_dicts()
    # By stratum, the mean of 1 for bm25, -1 for dense and 0, weighed by 6 and 12 of 24 queries.
    by_hand = 0
    for stratum, size in (("bm25", 6), ("dense", 12)):
        of = [line for line in lines if line["drawn"]["stratum"] == stratum]
        sign = 1 if stratum == "bm25" else -1
        by_hand += size / 24 * sign * sum(isinstance(x["best"], str) for x in of) / len(of)
    assert (row["criterion"], row["run"], row["run_b"]) == ("passages", "bm25", "dense")
    assert (row["n"], row["of"]) == (12, 24)
    assert row["difference"] == pytest.approx(by_hand)
    assert row["low"] < by_hand < row["high"]


def test_answers_with_criteria_where_the_browser_keeps_nothing(files, tmp_path, opened):
    assert ask(files, tmp_path / "t.html", "--results", files / "answers", "-n", 6) == 0
    page = opened
    page.add_init_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error('blocked'); }})")  # fmt: skip
    page.goto((tmp_path / "t.html").as_uri())
    page.get_by_text("This browser does not let the page keep your judgments").wait_for()
    for place in range(6):
        right = best_side(page, "Oslo")
        page.get_by_role("group", name="Most correct").get_by_label(f"Answer {right}").check()
        if place == 0:
            page.get_by_role("group", name="Most dense").get_by_label("equally").check()
            page.get_by_role("group", name="Most detailed").get_by_label("none").check()
            page.locator("summary").first.click()
            assert "T <script>" in page.locator("details[open]").inner_text()
        page.keyboard.press(str(3 - right) if place == 0 else str(right))
    lines = saved(page, tmp_path / "p.jsonl", page.locator("#save").click)
    assert len(lines) == 6
    assert {tuple(sorted(line["answers"])) for line in lines} == {("I do not know", "Oslo")}
    assert lines[0]["criteria"] == {"correct": "Oslo", "dense": lines[0]["answers"], "detailed": None}  # fmt: skip
    assert lines[0]["best"] == "I do not know"
    result = erag_engine.evaluate(
        files / "q.jsonl",
        files / "c.jsonl",
        [files / f"{name}.trec" for name in NAMES],
        annotators=("containment", "preference"),
        preferences=tmp_path / "p.jsonl",
        end_to_end=False,
        k=2,
    )
    found = {row["criterion"]: row for row in result.summary["preferred"]}
    assert {name: row["n"] for name, row in found.items()} == {
        "answers": 6,
        "answers correct": 6,
        "answers dense": 1,
        "answers detailed": 1,
    }
    assert found["answers dense"]["difference"] == 0
    # Dense answers right twice as often where runs differ: strata of 6 and 12 of 24 queries.
    strata = {line["drawn"]["stratum"] for line in lines}
    assert strata == {"bm25", "dense"}
    assert found["answers correct"]["difference"] == pytest.approx(6 / 24 - 12 / 24)


def test_runs_that_give_the_same_are_one_side(files, tmp_path, opened):
    text = (files / "dense.trec").read_text().replace(" dense\n", " twin\n")
    (tmp_path / "twin.trec").write_text(text)
    assert ask(files, tmp_path / "t.html", "--run", tmp_path / "twin.trec", "-n", 3) == 0
    opened.goto((tmp_path / "t.html").as_uri())
    assert opened.locator(".side").count() == 2
    assert not opened.locator("#third").is_visible()
    for _ in range(3):
        opened.keyboard.press(str(best_side(opened, "Passage 1")))
    for line in saved(opened, tmp_path / "p.jsonl", lambda: opened.keyboard.press("s")):
        one = line["query_id"]
        sides = dict(zip(line["shown"], line["runs"], strict=True))
        assert sides[f"{one}-bm25"] == ["bm25"]
        assert sorted(sides[f"{one}-dense"]) == ["dense", "twin"]
        assert line["drawn"]["probability"] == pytest.approx(3 / 18)
    rows = read_preferences(tmp_path / "p.jsonl")
    assert set(rows.filter(run="dense", run_b="twin")["value"]) == {0}


@pytest.mark.parametrize("results", [None, "answers"])
def test_axe_finds_no_fault_and_nothing_is_wider_than_the_window(files, tmp_path, opened, results):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    more = ["--results", files / results] if results else []
    assert ask(files, tmp_path / "t.html", *more) == 0
    page = opened
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto((tmp_path / "t.html").as_uri())
    page.keyboard.press("1")
    page.keyboard.press("ArrowLeft")
    for detail in page.locator("summary").all():
        detail.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = axe.run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"][:120]) for one in found] == []
