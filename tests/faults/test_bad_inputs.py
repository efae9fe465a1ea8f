"""Bad inputs, as users give them: each ends in exit status 2 and one line, and nothing is written.

The table is extended by a line: what is wrong, the command, the name and the content of the bad file, and a
part of what is said about it. In a command, ``{bad}`` is the bad file, ``{out}`` and ``{store}`` are where
results would go, and ``{queries}``, ``{corpus}``, ``{run}``, ``{other}``, ``{qrels}`` are good files. A file
without content is not there.
"""

import gzip
import io
import json
import os
import struct

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import erag

FUSE = "fuse --run {bad} --run {other} --out {out}/f.trec"
FUSED = "fuse --run {run} --run {other} --out {out}/f.trec"
_LABELS = "--no-end-to-end --out {out} --store {store} --annotators"
EVALUATE = "evaluate --queries {queries} --corpus {corpus} --run {run} " + _LABELS + " containment"
NO_CORPUS = EVALUATE.replace(" --corpus {corpus}", "").replace("{run}", "{bad}")
QUERIES = EVALUATE.replace("{queries}", "{bad}")
CORPUS = EVALUATE.replace("{corpus}", "{bad}")
RUN = EVALUATE.replace("{run}", "{bad}")
QRELS = EVALUATE.replace("containment", "qrels --qrels {bad}")
PREFERENCES = EVALUATE.replace("containment", "preference --preferences {bad}")
CONFIG = "fuse --config {bad} --run {run} --run {other} --out {out}/f.trec"
CONFIG_EVALUATE = EVALUATE + " --config {bad}"
PASSAGES = "passages {bad} --out {out}.parquet"
INDEX = "retrieve --index {bad} --queries {queries} --out {out}/r.trec"
READER = "evaluate --queries {queries} --corpus {corpus} --run {run} --out {out} --store {store} --reader {bad}"
PROMPT = READER.replace("{bad}", "bundled --prompt {bad}")


def parquet(**columns):
    """The bytes of a Parquet file."""
    stream = io.BytesIO()
    pl.DataFrame(columns).write_parquet(stream)
    return stream.getvalue()


def doubled(**columns):
    """The bytes of a Parquet file that has its first column twice."""
    table, stream = pa.table(columns), io.BytesIO()
    arrays = [table.column(0), *table.columns]
    pq.write_table(pa.Table.from_arrays(arrays, names=[table.column_names[0], *table.column_names]), stream)  # fmt: skip
    return stream.getvalue()


def run(**changed):
    columns = {"query_id": ["1", "1"], "doc_id": ["a", "b"], "rank": [1, 2], "score": [2.0, 1.0]}
    return parquet(**columns | changed)


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def safetensors(header):
    content = json.dumps(header).encode()
    return struct.pack("<Q", len(content)) + content


def manifest(**changed):
    good = {"kind": "bm25", "passages": 1, "corpus": "c", "versions": {}, "format": 2}
    good["settings"] = {"language": "en", "tokenizer": None, "tokenizer_version": None}
    return {"erag-index.json": json.dumps(good | changed)}


def model(config, weights=None):
    files = {"config.json": config if isinstance(config, str) else json.dumps(config)}
    return files | ({} if weights is None else {"model.safetensors": weights})


GOOD = run()
LONG = "x" * 1_000_000
DEEP = "[" * 100_000
CAUSAL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
HEAD = "query_id,query,answers\n"
FRONT = "{passages}{query}"

# What is wrong, command, name of the bad file, its content, part of the message.
TABLE = [
    # runs
    ("no such run", FUSE, "r.trec", None, "no such file"),
    ("a run of blank lines", FUSE, "r.trec", "\n \n", "the run is empty"),
    ("five columns", FUSE, "r.trec", "1 Q0 a 1 2\n", ":1: 5 columns, a TREC run has 6"),
    ("an HTML page", FUSE, "r.trec", "<!DOCTYPE html>\n<html></html>\n", ":1: not a text file that is read here"),
    ("a score beyond single precision", FUSE, "r.trec", "1 Q0 a 1 -1e300 x\n", ":1: score '-1e300'"),
    ("a document twice", FUSE, "r.trec", "1 Q0 a 1 2 x\n1 Q0 a 2 1 x\n", ":2: query '1' lists document 'a' twice"),
    ("two systems", FUSE, "r.trec", "1 Q0 a 1 2 x\n1 Q0 b 2 1 y\n", "holds several systems"),
    ("the name of another run", FUSE, "r.trec", "1 Q0 a 1 2 other\n", "the run is called 'other'"),
    ("Latin-1", FUSE, "r.trec", "1 Q0 \xe9 1 2 x\n".encode("latin-1"), ":1: not UTF-8 text"),
    ("bytes of a program", FUSE, "r.trec", b"\x7fELF\x02\x01\x01\0" * 9, "columns"),
    ("a score of 1 MB", FUSE, "r.trec", f"1 Q0 a 1 {LONG} x\n", ":1: score 'xxx"),
    ("gzip cut short", FUSE, "r.trec.gz", gzip.compress(b"1 Q0 a 1 2 x\n")[:-9], "cannot be read"),
    ("gzip under another name", FUSE, "r.trec", gzip.compress(b"1 Q0 a 1 2 x\n"), ":1: not UTF-8 text"),
    ("a spreadsheet", QUERIES, "q.csv", b"PK\x03\x04\x14", ":1: not a text file that is read here"),
    ("a PDF document", CORPUS, "c.jsonl", b"%PDF-1.7\n%\xe2\xe3", ":1: not a text file that is read here"),
    ("no gzip", FUSE, "r.trec.gz", "1 Q0 a 1 2 x\n", ":1: cannot be read"),
    ("a directory as run", FUSE, "r", {"x": "1"}, "is a directory"),
    ("a device without end", FUSE.replace("{bad}", "/dev/zero"), "r", None, "/dev/zero: is a device"),
    ("a name of 300 letters", FUSE, "r" * 300, None, "File name too long"),
    ("a name with NUL", FUSE, "r\0", None, "holds the character U+0000"),
    ("broken JSON", FUSE, "r.json", '{"1": {"a": 1}', ":1: broken JSON"),
    ("a query twice in JSON", FUSE, "r.json", '{"1": {"a": 1}, "1": {"b": 1}}', "the key '1' is given twice"),
    ("a list with a document twice", FUSE, "r.json", '{"1": ["a", "a"]}', "lists document 'a' twice"),
    ("NaN in JSON", FUSE, "r.json", '{"1": {"a": NaN}}', "nan of document 'a'"),
    ("infinity in JSON", FUSE, "r.json", '{"1": {"a": 1, "b": -Infinity}}', "score '-inf'"),
    ("a score of 400 digits", FUSE, "r.json", '{"1": {"a": 1%s}}' % ("0" * 400), "is not a number"),
    ("a score of 9,000 digits", FUSE, "r.json", '{"1": {"a": %s}}' % ("9" * 9000), "broken JSON"),
    ("JSON of brackets", FUSE, "r.json", '{"1": ' + DEEP, "nested too deep"),
    ("half a surrogate", FUSE, "r.json", '{"\\ud800": {"a": 1}}', "is not valid text"),
    ("a query without a list", FUSE, "r.json", '{"1": 5}', "neither a dictionary nor a list"),
    ("JSON of nothing", FUSE, "r.json", "{}", "the run is empty"),
    ("no Parquet", FUSE, "r.parquet", "1 Q0 a 1 2 x\n", "not a readable Parquet file"),
    ("Parquet with a column twice", FUSE, "r.parquet", doubled(query_id=["1"], doc_id=["a"]), "'query_id' is given twice"),
    ("Parquet without documents", FUSE, "r.parquet", parquet(query_id=["1"], rank=[1], score=[1.0]), "lists an object, which has neither an id nor a text"),
    ("a run in Parquet without queries", FUSE, "r.parquet", parquet(doc_id=["a"], rank=[1]), "names no query"),
    ("records without a query", FUSE, "r.jsonl", '{"query_id": "1", "results": ["a"]}\n{"results": ["a"]}\n', ":2: names no query"),
    ("records with a query in floats", FUSE, "r.json", '[{"query_id": 1.0, "results": ["a"]}]', ":1: names the query 1.0; write ids as strings"),
    ("records that list a number", FUSE, "r.jsonl", '{"query_id": "1", "results": [2.5]}\n', ":1: query '1' lists 2.5, which has neither"),
    ("records that list nothing of a passage", FUSE, "r.jsonl", '{"query_id": "1", "results": [{"score": 5}]}\n', ":1: query '1' lists an object, which has neither"),
    ("records with an id in floats", FUSE, "r.jsonl", '{"query_id": "1", "results": [{"id": 5.0}]}\n', ":1: a passage of query '1' has the id or title 5.0"),
    ("records with a text that is a number", FUSE, "r.jsonl", '{"query_id": "1", "results": [{"id": "a", "text": 5}]}\n', ":1: a passage of query '1' has the text 5"),
    ("records of a run whose name is half a surrogate", FUSE, "r.jsonl", '{"query_id": "1", "doc_id": "a", "run": "\\ud800"}\n', ":1: the run is called '\\ud800'; write its name as a string"),
    ("records without a list", FUSE, "r.jsonl", '{"query_id": "1", "results": null}\n', ":1: results is None; write a list"),
    ("records with an object for a list", FUSE, "r.jsonl", '{"query_id": "1", "results": {"a": 1}}\n', ":1: results is an object; write a list"),
    ("ids in lists in Parquet", FUSE, "r.parquet", run(doc_id=[["a"], ["b"]]), "doc_id holds List(String); write String"),
    ("texts in objects in Parquet", CORPUS, "c.parquet", parquet(id=["a"], text=[{"x": "a"}]), "text holds Struct({'x': String}); write String"),
    ("records with a score NaN", FUSE, "r.jsonl", '{"query_id": "1", "doc_id": "a", "score": NaN}\n', ":1: score nan of query '1' is not a number"),
    ("records with a rank of words", FUSE, "r.jsonl", '{"query_id": "1", "doc_id": "a", "rank": "1"}\n', ":1: the rank '1' of query '1'"),
    ("records with a rank twice", FUSE, "r.jsonl", '{"query_id": "1", "doc_id": "a", "rank": 1}\n{"query_id": "1", "doc_id": "b", "rank": 1}\n', ":2: query '1' lists rank 1 twice (see line 1)"),
    ("records of which some have scores", FUSE, "r.jsonl", '{"query_id": "1", "doc_id": "a", "score": 1}\n{"query_id": "1", "doc_id": "b"}\n', ":2: document 'b' of query '1' has no score, and others have"),
    ("half a surrogate in a record", FUSE, "r.jsonl", '{"query_id": "1", "results": [{"id": "a", "text": "\\ud800"}]}\n', ":1: a passage of query '1' holds half a surrogate pair"),
    ("broken JSON in a record", FUSE, "r.jsonl", '{"query_id": "1", "results": ["a"]}\n{"query_id":\n', ":2: broken JSON"),
    ("no corpus and no texts", NO_CORPUS, "r.trec", "1 Q0 a 1 2 x\n2 Q0 a 1 2 x\n", ":1: document 'a' of query '1' without a text in any run; give --corpus"),
    ("no corpus and a text of some", NO_CORPUS, "r.jsonl", '{"query_id": "1", "results": [{"id": "a", "text": "x"}, "b"]}\n', "document 'b' of query '1' without a text in any run"),
    ("two texts of one passage", NO_CORPUS, "r.jsonl", '{"query_id": "1", "results": [{"id": "a", "text": "x"}]}\n{"query_id": "2", "results": [{"id": "a", "text": "y"}]}\n', "r.jsonl:2: passage 'a' of query '2' has another text than in {bad}:1 (query '1')"),
    ("two titles of one passage", NO_CORPUS, "r.json", '{"1": [{"id": "a", "text": "x", "title": "T"}], "2": [{"id": "a", "text": "x", "title": "U"}]}', "r.json: passage 'a' of query '2' has another title than in {bad} (query '1')"),
    ("Parquet without rows", FUSE, "r.parquet", run(query_id=[], doc_id=[], rank=[], score=[]), "the run is empty"),
    ("Parquet with a rank twice", FUSE, "r.parquet", run(rank=[1, 1]), "lists rank 1 twice"),
    ("Parquet with a document twice", FUSE, "r.parquet", run(doc_id=["a", "a"]), "lists document 'a' twice"),
    ("Parquet with a score NaN", FUSE, "r.parquet", run(score=[1.0, float("nan")]), "score 'nan' is not a number that single precision holds (document 'b' of query '1')"),
    ("a run of other queries", RUN, "r.trec", "9 Q0 a 1 2 x\n", "lists none of the 2 queries"),
    ("an id that only looks equal", RUN, "r.trec", "e\u0301 Q0 a 1 2 x\n", r"it has 'e\u0301'"),
    ("a document that the corpus lacks", RUN, "r.trec", "1 Q0 z 1 2 x\n", ":1: document 'z' of query '1' not in the corpus"),
    # queries
    ("no such queries", QUERIES, "q.jsonl", None, "no such file"),
    ("a query without id", QUERIES, "q.jsonl", lines({"input": "x"}), ":1: a query without an id"),
    ("an id with a space", QUERIES, "q.jsonl", lines({"id": "1 2", "input": "x"}), "contains white space"),
    ("a key twice", QUERIES, "q.jsonl", '{"id": "1", "input": "x", "input": "y"}\n', ":1: the key 'input' is given twice"),
    ("no answers", QUERIES, "q.jsonl", lines({"id": "1", "input": "x"}), ":1: query '1' has no answers"),
    ("a list in a line", QUERIES, "q.jsonl", "[1, 2]\n", ":1: a JSON int, not an object"),
    ("a line of brackets", QUERIES, "q.jsonl", '{"id": ' + DEEP + "\n", ":1: broken JSON (brackets are nested too deep)"),
    ("a column of CSV twice", QUERIES, "q.csv", "query_id,query,answers,answers\n1,x,a,b\n", ":1: the column 'answers' is given twice"),
    ("a carriage return in a row of CSV", QUERIES, "q.csv", "query,answers\nx,\ra\n", ":2: broken quotes or line ends"),
    ("SQuAD with a key twice", QUERIES, "q.json", '{"data": [], "data": []}', "the key 'data' is given twice"),
    ("Parquet without queries", QUERIES, "q.parquet", parquet(query_id=["1"], answers=[["x"]]), "lacks a column query, question"),
    ("a JSON array that goes on", QUERIES, "q.json", '[{"id": "1", "query": "x", "answers": "a"}]\n[]', ":2: broken JSON (Extra data"),
    ("TriviaQA's document without a list", QUERIES, "q.json", '{"Data": {}}', '"Data" is not a list of objects'),
    ("queries in broken Parquet", QUERIES, "q.parquet", b"PAR1" + bytes(50) + b"PAR1", "not a readable Parquet file"),
    ("a directory without queries", QUERIES, "d", {"x.txt": ""}, "is a directory without queries.jsonl"),
    # corpora
    ("no such corpus", CORPUS, "c.jsonl", None, "no such file"),
    ("a passage with id 1.0", CORPUS, "c.jsonl", '{"id": 1.0, "text": "x"}\n', ":1: the id 1.0"),
    ("half a surrogate in a passage", CORPUS, "c.jsonl", '{"id": "a", "text": "\\udc00"}\n', ":1: passage 'a' holds half a surrogate pair"),
    ("a directory without a corpus", CORPUS, "d", {"x.txt": ""}, "a directory without *.parquet"),
    # judgments, preferences
    ("qrels of three columns", QRELS, "q.txt", "1 a 1\n", ":1: 3 columns, TREC qrels have 4"),
    ("a label in words", QRELS, "q.txt", "1 0 a good\n", ":1: label 'good' is not a finite number"),
    ("an infinite label", QRELS, "q.txt", "1 0 a inf\n", ":1: label inf is not a finite number"),
    ("a judgment twice", QRELS, "q.txt", "1 0 a 1\n1 0 a 0\n", ":2: query '1' judges document 'a' twice"),
    ("no judgments", QRELS, "q.txt", "", "holds no judgments"),
    ("judgments of other queries", QRELS, "q.txt", "9 0 a 1\n", "judges none of the 2 queries"),
    ("labels in JSON given twice", QRELS, "q.json", '{"1": {"a": 1, "a": 0}}', "the key 'a' is given twice"),
    ("lists as judgments", QRELS, "q.json", '{"1": ["a"]}', "query '1' has no labels"),
    ("infinite labels in Parquet", QRELS, "q.parquet", parquet(query_id=["1"], doc_id=["a"], label=[float("inf")]), "not a finite number"),
    ("judgments in broken Parquet", QRELS, "q.parquet", GOOD[:100], "not a readable Parquet file"),
    ("no preferences", PREFERENCES, "p.jsonl", "", "holds no judgments"),
    ("half a surrogate in a preference", PREFERENCES, "p.jsonl", '{"query_id": "1", "shown": ["\\ud800", "b"], "best": "b"}\n', ":1: ['\\ud800', 'b'] cannot be the passages shown"),
    ("half a surrogate in its query", PREFERENCES, "p.jsonl", '{"query_id": "\\ud800", "shown": ["a", "b"], "best": "b"}\n', ":1: a judgment without a query id"),
    ("a preference for what was not shown", PREFERENCES, "p.jsonl", lines({"query_id": "1", "shown": ["a", "b"], "best": "c"}), ":1: the best passage 'c' was not shown"),
    ("one passage shown", PREFERENCES, "p.jsonl", lines({"query_id": "1", "shown": ["a"], "best": "a"}), ":1: ['a'] cannot be the passages shown"),
    ("a list of 10,000 shown", PREFERENCES, "p.jsonl", lines({"query_id": "1", "shown": [LONG] * 9, "best": "a"}), "cannot be the passages shown"),
    # files of options
    ("no such options", CONFIG, "o.yaml", None, "no such file"),
    ("a rounded k", CONFIG, "o.yaml", "k: 2.5\n", "--k is '2.5', from"),
    ("a k in words", CONFIG, "o.yaml", "k: ten\n", "unable to convert"),
    ("a date as seed", CONFIG_EVALUATE, "o.yaml", "seed: 2026-99-99\n", ":1: 'seed' is 2026-99-99, which"),
    ("a program", CONFIG, "o.yaml", "name: !!python/name:os.system\n", "which YAML takes for something else"),
    ("a number as key", CONFIG, "o.yaml", "5: x\n", "[5]"),
    ("an alias of itself", CONFIG, "o.yaml", "name: &a [*a]\n", ":1: 'name' is neither a value nor a list"),
    ("a key that is its value", CONFIG, "o.yaml", "&a ? *a\n: x\n", "broken YAML"),
    ("20,000 brackets", CONFIG, "o.yaml", "name: " + "[" * 20_000, "nested too deep"),
    ("an open quote in YAML", CONFIG, "o.yaml", "name: 'x\n", "broken YAML"),
    ("NUL in YAML", CONFIG, "o.yaml", "k: 1\nname: \0\n", "broken YAML"),
    ("YAML in Latin-1", CONFIG, "o.yaml", b"k: 1\nname: \xe9\n", ":2: not UTF-8 text"),
    ("options within options", CONFIG, "o.yaml", "k: 1\nconfig: other.yaml\n", ":2: a file of options within a file of options"),
    ("an unknown option", CONFIG, "o.yaml", "kk: 1\n", "[kk]"),
    # options of the command line
    ("k 1e2", FUSED + " --k 1e2", "", None, "Invalid value for --k"),
    ("k 0", FUSED + " --k 0", "", None, "--k is 0; use 1 or more"),
    ("k of 20 digits", FUSED + " --k 99999999999999999999", "", None, "--k is too large a number"),
    ("k of 5,000 digits", FUSED + f" --k {'9' * 5000}", "", None, "--k is '9999"),
    ("confidence with underscores", EVALUATE + " --confidence 0.9_5", "", None, "--confidence is '0.9_5'; give a number"),
    ("memory of 400 digits", EVALUATE + f" --memory {'9' * 400}", "", None, "is not a size"),
    ("memory in words", EVALUATE + " --memory much", "", None, "'much' is not a size"),
    ("an output of 300 letters", FUSED + "x" * 300, "", None, "a name of more than 255 bytes"),
    ("an output with NUL", FUSED + "\0", "", None, "holds the character U+0000"),
    ("a folder of 300 letters", FUSED.replace("{out}", "{out}/" + "x" * 300), "", None, "a name of more than 255 bytes"),
    ("a store with NUL", EVALUATE.replace("{store}", "{store}\0"), "", None, "holds the character U+0000"),
    ("an output that is compressed", FUSED + ".gz", "", None, "results are written uncompressed"),
    ("an address as output", FUSED.replace("{out}", "gs://bucket"), "", None, "the driver for gs:// is not installed"),
    ("an unknown command", "evaluat", "", None, "evaluat"),
    ("a threshold of 40 KB", EVALUATE + f" --measures P(rel={'x' * 40_000})@2", "", None, "threshold 'xxx"),
    ("a cutoff of 5,000 digits", EVALUATE + f" --measures P@{'9' * 5000}", "", None, "unknown measure 'P@999"),
    ("an unknown annotator", EVALUATE + ",nobody", "", None, "nobody"),
    # articles
    ("no articles", PASSAGES, "a.jsonl", "", "no article"),
    ("an article with id 1.0", PASSAGES, "a.jsonl", '{"id": 1.0, "text": "x"}\n', ":1: the id 1.0"),
    ("plain text as articles", PASSAGES, "a.txt", "hello\n", ":1: starts with"),
    # indexes, readers, prompts
    ("a directory that is no index", INDEX, "i", {"x": ""}, "is not an index"),
    ("a manifest of 100,000 brackets", INDEX, "i", {"erag-index.json": DEEP}, "nested too deep"),
    ("a manifest that is a list", INDEX, "i", {"erag-index.json": "[]"}, "is not a manifest"),
    ("a manifest with a key twice", INDEX, "i", {"erag-index.json": '{"kind": "bm25", "kind": "dense"}'}, "the key 'kind' is given twice"),
    ("a manifest of another version", INDEX, "i", manifest(format=1), "is not a manifest of this version"),
    ("a manifest without settings", INDEX, "i", manifest(settings={}), "is not a manifest of this version"),
    ("a manifest whose kind is a list", INDEX, "i", manifest(kind=["bm25"]), "is not a manifest of this version"),
    ("a manifest with passages in words", INDEX, "i", manifest(passages="many"), "is not a manifest of this version"),
    ("a reader without a name", READER.replace("{bad}", "''"), "", None, "--reader is empty"),
    ("a reader without config", READER, "m", {"model.safetensors": b""}, "holds no config.json"),
    ("architectures 5", READER, "m", model({"model_type": "llama", "architectures": 5}), "architectures is 5"),
    ("a model type that is a list", READER, "m", model({"model_type": ["t5"]}), "model_type is ['t5']"),
    ("a config of brackets", READER, "m", model(DEEP), "nested too deep"),
    ("a config with a key twice", READER, "m", model('{"model_type": "t5", "model_type": "llama"}'), "the key 'model_type' is given twice"),
    ("a config that is a list", READER, "m", model("[]"), "is not a JSON object"),
    ("a reader without weights", READER, "m", model(CAUSAL), "holds no *.safetensors"),
    ("safetensors whose header is a list", READER, "m", model(CAUSAL, safetensors([])), "is not a safetensors file"),
    ("safetensors whose entry is a number", READER, "m", model(CAUSAL, safetensors({"a": 5})), "is not a safetensors file"),
    ("safetensors with a shape in words", READER, "m", model(CAUSAL, safetensors({"a": {"shape": ["x"]}})), "is not a safetensors file"),
    ("safetensors of two bytes", READER, "m", model(CAUSAL, b"ab"), "is not a safetensors file"),
    ("safetensors of 2^63 bytes", READER, "m", model(CAUSAL, struct.pack("<Q", 2**63)), "is not a safetensors file"),
    ("no such GGUF file", READER, "m.gguf", None, "no such file"),
    ("a prompt with a key twice", PROMPT, "p.txt", "---\nstop: a\nstop: b\n---\n" + FRONT, ":3: the key 'stop' is given twice"),
    ("a prompt with an octal number", PROMPT, "p.txt", "---\nmax_new_tokens: 010\n---\n" + FRONT, ":2: 'max_new_tokens' is 010, which"),
]  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Files that can be used, by their placeholders."""
    directory = tmp_path_factory.mktemp("good")
    contents = {
        "queries": lines(*({"id": i, "input": f"what is {i}", "output": [{"answer": "x"}]} for i in "12")),
        "corpus": lines({"id": "a", "text": "x"}, {"id": "b", "text": "y"}),
        "run": "1 Q0 a 1 2 mine\n1 Q0 b 2 1 mine\n2 Q0 a 1 2 mine\n",
        "other": "1 Q0 b 1 2 other\n",
        "qrels": "1 0 a 1\n",
    }  # fmt: skip
    for name, content in contents.items():
        (directory / name).write_text(content)
    return {name: directory / name for name in contents}


def written(path, content):
    """Write what a row of the table has: a file, or a directory of files by name."""
    if isinstance(content, dict):
        path.mkdir()
        for name, inside in content.items():
            written(path / name, inside)
    elif content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def listing(directory):
    return sorted(path.relative_to(directory) for path in directory.rglob("*"))


@pytest.mark.parametrize(
    ("command", "name", "content", "words"),
    [pytest.param(*row[1:], id=row[0]) for row in TABLE],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(
    good, tmp_path, capfd, command, name, content, words
):
    written(tmp_path / name, content)
    before = listing(tmp_path)
    places = {"bad": tmp_path / name, "out": tmp_path / "out", "store": tmp_path / "store"} | good
    arguments = [word.format(**places) if word != "''" else "" for word in command.split(" ")]
    assert erag(*arguments) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("erag: ")
    assert printed.err.count("\n") == 1
    assert words.replace("{bad}", str(tmp_path / name)) in printed.err
    assert len(printed.err) < 2500
    # An option is named as one; every other fault has its file.
    named = not content or "--" in words or os.fspath(tmp_path / name) in printed.err
    assert named or isinstance(content, dict)
    assert listing(tmp_path) == before


def test_the_table_has_as_many_rows_as_is_promised():
    assert len({row[0] for row in TABLE}) == len(TABLE) >= 150
