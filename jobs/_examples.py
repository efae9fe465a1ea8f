"""Examples of every command, as its help shows them; tests parse each."""

from __future__ import annotations

from jobs._help import LONG

_EXAMPLES = {
    "demo": r"""
erag demo
erag demo --task claims --out claims-out
""",
    "passages": r"""
erag passages enwiki-latest-pages-articles.xml.bz2 --out corpus
erag passages articles.jsonl --out corpus.parquet --characters 300
""",
    "index": r"""
erag index bm25 --corpus corpus.parquet --out bm25
erag index dense --corpus corpus.parquet --out dense
""",
    "index bm25": r"""
erag index bm25 --corpus corpus.parquet --out bm25
erag index bm25 --corpus passages.jsonl --out bm25-ko --tokenizer kiwi
""",
    "index dense": r"""
erag index dense --corpus corpus.parquet --out dense
erag index dense --corpus corpus.parquet --out e5 \
    --encoder intfloat/multilingual-e5-base --passage-prefix "passage: "
""",
    "index several": r"""
erag index several --corpus corpus.parquet --out indexes \
    --encoder BAAI/bge-m3 intfloat/multilingual-e5-large=e5
""",
    "retrieve": r"""
erag retrieve --index bm25 --queries questions.jsonl --out bm25.trec --k 10
erag retrieve --index bm25 dense --queries questions.jsonl --fuse rrf \
    --out runs
""",
    "fuse": r"""
erag fuse --run bm25.trec dense.trec --out fused.trec --k 10
""",
    "plan": r"""
erag plan --queries questions.jsonl --corpus corpus.parquet --run bm25.trec \
    --reader /models/my-llm --pace results --price-per-hour 1.2
""",
    "evaluate": r"""
erag evaluate --queries questions.jsonl --corpus corpus.parquet \
    --run bm25.trec dense.trec --reader /models/my-llm --k 10 --out results
erag evaluate --queries questions.jsonl --corpus corpus.parquet \
    --run bm25.trec --out labels --annotators containment --no-end-to-end
erag evaluate --data nq.yaml claims.yaml --reader /models/my-llm --out table
ERAG_READER=/models/my-llm erag evaluate --config options.yaml --out results
""",
    "train": r"""
erag train --reader /models/t5-base --queries train.jsonl --run train.trec \
    --dev-queries dev.jsonl --dev-run dev.trec --corpus corpus.parquet \
    --out fid
erag train --config train.yaml --workers 4 --checkpoints s3://bucket/fid
""",
    "report": r"""
erag report results
erag report results --single-file
""",
    "repeat": r"""
erag repeat results
""",
    "compare": r"""
erag compare results/monday results/tuesday --out compare.html
""",
    "gate": r"""
erag gate --baseline main --candidate branch --margin 0.02
""",
    "ask": r"""
erag ask --queries questions.jsonl --corpus corpus.parquet \
    --run bm25.trec dense.trec --results results --out tasks.html
""",
    "coverage": r"""
erag coverage --queries questions.jsonl --user-queries asked.txt \
    --out coverage
""",
    "doctor": r"""
erag doctor
""",
}


def examples(command: str) -> str:
    """The examples of a command: what is typed into a shell."""
    return _EXAMPLES[command].strip()


def epilogue(command: str) -> str:
    """The end of a command's help, in Markdown."""
    more = f"`erag {command} --help-all` shows all options.\n\n" if command in LONG else ""
    return f"{more}Examples:\n\n```\n{examples(command)}\n```\n"
