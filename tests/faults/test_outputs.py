"""No command writes over, or clears away, what it was given to read."""

import json
import os

import pytest

from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.sources.runs.export import exported_files, write_exports
from jobs import cli
from tests.commands import erag
from tests.conftest import make_labels, make_run
from tests.expected import as_expected, refused

# Per command: its options, and in which file or folder of them ``--out`` would write. ``{x}`` is a path
# in the test's folder, which holds whatever content the test gives it.
EVALUATE = "evaluate --queries {q} --corpus {c} --run {r} --no-end-to-end --out {OUT}"
TRAIN = "train --reader {e} --queries {q} --corpus {c} --run {r} --dev-queries {x} --dev-run {i} --out {OUT}"
ASK = "ask --run {r} {i} --queries {q} --corpus {c} --out {OUT}"
COLLISIONS = {
    "evaluate --run, in its exports": (EVALUATE, {"r": "OUT/exported/runs/mine.trec"}),
    "evaluate --run, its table": (EVALUATE, {"r": "OUT/downstream.parquet"}),
    "evaluate --queries": (EVALUATE, {"q": "OUT/query_scores.parquet"}),
    "evaluate --corpus": (EVALUATE, {"c": "OUT/reads.parquet"}),
    "evaluate --corpus, a folder": (EVALUATE, {"c/labels.parquet": "OUT/labels.parquet"}),
    "evaluate --qrels, in its exports": (
        EVALUATE + " --annotators qrels --qrels {x}", {"x": "OUT/exported/qrels/x.txt"},
    ),
    "evaluate --qrels, its table": (
        EVALUATE + " --annotators qrels --qrels {x}", {"x": "OUT/labels.parquet"},
    ),
    "evaluate --preferences": (
        EVALUATE + " --annotators preference --preferences {x}", {"x": "OUT/summary.json"},
    ),
    "evaluate --answers": (EVALUATE + " --answers {x}", {"x": "OUT/reads.parquet"}),
    "evaluate --outputs": (
        EVALUATE.replace("--no-end-to-end", "--outputs r={x}"), {"x": "OUT/downstream.parquet"},
    ),
    "evaluate --traces": (EVALUATE + " --traces {x}", {"x": "OUT/traces/steps.parquet"}),
    "evaluate --config": (EVALUATE + " --config {x}", {"x": "OUT/summary.json"}),
    "evaluate --data": (EVALUATE + " --data {x}", {"x": "OUT/data_sets.json"}),
    "evaluate --reader": (EVALUATE + " --reader {OUT}", {"x": "OUT/config.json"}),
    "evaluate --erag-reader": (EVALUATE + " --erag-reader {OUT}", {"x": "OUT/config.json"}),
    "evaluate --prompt": (EVALUATE + " --prompt {x}", {"x": "OUT/exported/prompt.txt"}),
    "evaluate --batch-in": (EVALUATE + " --reader openai:m --batch-in {x}", {"x": "OUT/reads.parquet"}),
    "evaluate --batch-out": (EVALUATE + " --reader openai:m --batch-out {q}", {"q": "q"}),
    "fuse --run": ("fuse --run {OUT} --run {r} --out {OUT}", {"r": "r.trec", "x": "OUT"}),
    "fuse --run, a link to it": ("fuse --run {link} --run {r} --out {OUT}", {"r": "r", "x": "OUT"}),
    "fuse --config": ("fuse --run {r} {r} --config {OUT} --out {OUT}", {"r": "r", "x": "OUT"}),
    "passages SOURCE": ("passages {OUT} --out {OUT}", {"x": "OUT.parquet"}),
    "passages, a folder": ("passages {s} --out {OUT}", {"s/x.parquet": "OUT.parquet"}),
    "index bm25 --corpus": ("index bm25 --corpus {c} --out {OUT}", {"c": "OUT/_0.parquet"}),
    "index dense --corpus": ("index dense --corpus {c} --out {OUT}", {"c": "OUT/c.parquet"}),
    "index dense --encoder": (
        "index dense --corpus {c} --encoder {OUT} --out {OUT}", {"c": "c", "x": "OUT/config.json"},
    ),
    "index several --corpus": ("index several --corpus {c} --out {OUT}", {"c": "OUT/bm25/c.parquet"}),
    "index several --encoder": (
        "index several --corpus {c} --encoder {OUT} --out {OUT}", {"c": "c", "x": "OUT/config.json"},
    ),
    "index several --config": (
        "index several --corpus {c} --config {x} --out {OUT}", {"c": "c", "x": "OUT/bm25/x.yaml"},
    ),
    "retrieve --queries": ("retrieve --index {i} --queries {OUT} --out {OUT}", {"x": "OUT"}),
    "retrieve --index": (
        "retrieve --index {OUT} {i} --queries {q} --out {OUT}", {"q": "q", "x": "OUT/segments_1"},
    ),
    "retrieve --corpus": (
        "retrieve --index {i} --queries {q} --corpus {OUT} --out {OUT}", {"q": "q", "x": "OUT"},
    ),
    "coverage --queries": (
        "coverage --queries {q} --user-queries {r} --out {OUT}", {"q": "OUT/coverage.parquet", "r": "r"},
    ),
    "coverage --user-queries": (
        "coverage --queries {r} --user-queries {q} --out {OUT}",
        {"q": "OUT/assignments.parquet", "r": "r"},
    ),
    "train --queries": (TRAIN, {"q": "OUT/training.json"}),
    "train --corpus": (TRAIN, {"c": "OUT/model/corpus.parquet"}),
    "train --run": (TRAIN, {"r": "OUT/checkpoints/r.trec"}),
    "train --dev-queries": (TRAIN, {"x": "OUT/training.html"}),
    "train --dev-run": (TRAIN + " --checkpoints {s}", {"i": "s/i.trec"}),
    "train --prompt": (TRAIN + " --prompt {s}", {"s": "OUT/model/prompt.txt"}),
    "train --reader": (TRAIN, {"e": "OUT/model/config.json"}),
    "train --config": (TRAIN + " --config {s}", {"s": "OUT/model/x.yaml"}),
    "ask --run": (ASK, {"r": "OUT"}),
    "ask --queries": (ASK, {"q": "OUT"}),
    "ask --corpus": (ASK, {"c": "OUT"}),
    "ask --results": (f"{ASK} --results {{OUT}}", {"x": "OUT/summary.json"}),
    "demo --config": ("demo --config {x} --out {OUT}", {"x": "OUT/corpus.parquet"}),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLISIONS)
def test_outputs_over_inputs_are_refused_before_anything_is_read(name, tmp_path, capsys):
    words, files = COLLISIONS[name]
    # ``OUT`` is the file where the command writes one, else the folder.
    single = next((file for file in files.values() if file in ("OUT", "OUT.parquet")), "OUT")
    places = {"OUT": tmp_path / single, "link": tmp_path / "link"}
    for name in ("q", "c", "r", "x", "i", "s", "e"):
        places[name] = tmp_path / files.get(name, name)
    for key, file in files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{passages} {query}" if "prompt" in file else "{}")
        if "/" in key:  # a file of a folder that is given: the same one, by a link
            (tmp_path / key).parent.mkdir(exist_ok=True)
            (tmp_path / key).symlink_to(path)
    (tmp_path / "link").symlink_to(places["OUT"])
    before = {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert erag(*words.format(**places).split()) == 2
    as_expected(capsys.readouterr().err)
    assert {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


# Options that name what is written, or what is read where nothing is written: of FOLDER the page is made again.
WRITTEN = {"out", "store", "name", "junit", "FOLDER"}
# A plan writes into the store alone.
NOT_WRITING = {"doctor", "plan"}


def commands(app, *names):
    for name in app:
        if not name.startswith("-"):
            found = app[name]
            if found.default_command:
                yield (*names, name), found
            else:
                yield from commands(found, *names, name)


def test_every_option_that_is_a_path_is_in_the_table():
    tested = " ".join(COLLISIONS)
    for names, command in commands(cli.app):
        for argument in command.assemble_argument_collection():
            option = next(iter(argument.names), "").removeprefix("--")
            if "Path" not in str(argument.hint) or option in WRITTEN or names[0] in NOT_WRITING:
                continue
            title = f"{' '.join(names)} --{option}"
            assert title in tested or option == "config", f"{title} is not tested above"


def test_one_file_by_two_names_is_found(tmp_path):
    (tmp_path / "in").mkdir()
    file, link = tmp_path / "in" / "a", tmp_path / "in" / "hard"
    file.write_text("x")
    os.link(file, link)
    (tmp_path / "soft").symlink_to(tmp_path / "in")
    for given in (
        file,
        link,
        tmp_path / "soft" / "a",
        tmp_path / "in" / ".." / "in" / "a",
        str(file),
    ):
        with refused("files.overwritten"):
            refuse_overlap(Inputs({"run": given}, {}), Outputs([file]))
    refuse_overlap(Inputs({"run": ["s3://bucket/a", tmp_path / "b", "c"]}, {}), Outputs([file]))
    refuse_overlap(
        Inputs({"run": None}, {"reader": "org/name"}), Outputs([file], [tmp_path / "in"])
    )


@pytest.mark.parametrize(
    ("given", "meets"),
    [
        ("memory://bucket/out/labels.parquet", True),
        ("memory://user:secret@bucket/out//labels.parquet", True),
        ("memory://bucket/out/exported/runs/a.trec", True),
        ("memory://bucket/out/exported", True),
        ("memory://bucket/out", True),  # it has such a file
        ("memory://bucket/out/own.parquet", False),
        ("memory://bucket/out2/labels.parquet", False),
        ("memory://other/out/labels.parquet", False),
        ("s3://bucket/out/labels.parquet", False),
    ],
)
def test_an_address_that_would_be_written_is_refused_as_input(given, meets):
    out = folder_at("memory://bucket/out/")
    out.write("labels.parquet", b"")
    out.write("own.parquet", b"")
    outputs = Outputs([out.place("labels.parquet")], [out.place("exported")])
    if not meets:
        refuse_overlap(Inputs({"run": [given]}, {}), outputs)
        return
    with refused("files.overwritten") as error:
        refuse_overlap(Inputs({"run": given}, {}), outputs)
    assert "secret" not in str(error.value)


def test_addresses_of_the_same_place_are_known_by_other_schemes():
    for one, other in (("s3a://b/x", "s3://b/x"), ("gcs://b/x", "gs://b//x/")):
        with refused("files.overwritten"):
            refuse_overlap(Inputs({"run": one}, {}), Outputs([other]))
        with refused("files.overwritten"):
            refuse_overlap(Inputs({}, {"reader": one}), Outputs(folders=[other]))


def test_exports_remove_what_an_earlier_export_wrote_and_nothing_else(tmp_path):
    run = make_run([("1", "x", 1)])
    write_exports([make_labels([("1", "x", 0.5)], "a")], [run], tmp_path)
    own = tmp_path / "qrels" / "own.txt"
    own.write_text("1 0 x 1\n")
    listed = {name.rpartition("/")[2] for name in exported_files(Folder(tmp_path))}
    assert listed == {"exported.json", "a.tsv", "a.parquet", "sys.trec"}
    write_exports([make_labels([("1", "x", 1.0)], "b")], [run], tmp_path)
    assert sorted(p.name for p in (tmp_path / "qrels").iterdir()) == ["b.txt", "own.txt"]
    # whatever stands in the list, nothing elsewhere is removed
    names = ["../a", "/etc/passwd", "qrels/../../a", "qrels/..", 5, "qrels/b.txt"]
    (tmp_path / "exported.json").write_text(json.dumps(names))
    assert list(exported_files(Folder(tmp_path))) == ["exported.json", "qrels/b.txt"]
