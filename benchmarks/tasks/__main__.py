"""Write the made tasks as KILT JSONL.

python -m benchmarks.tasks OUT [--questions 300] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.tasks.make import MAKERS
from engine.sources.articles.read import read_source
from engine.sources.bundled import wikipedia_dump


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the files")
    parser.add_argument("--questions", type=int, default=300, help="of each task")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    articles = list(read_source(wikipedia_dump()))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, maker in MAKERS.items():
        questions = maker(articles, options.questions, options.seed)
        lines = [
            json.dumps(one.record(f"{name}-{i:04}"), ensure_ascii=False)
            for i, one in enumerate(questions, 1)
        ]
        (options.out / f"{name}.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
        print(f"{name}: {len(questions)} questions")


if __name__ == "__main__":
    main()
