"""What is known of an evaluation while it reads."""

import pytest

from engine.evaluation.context import Context
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.partition import partition
from engine.evaluation.settings import Settings
from engine.evaluation.shards import Held
from engine.reading.protocol import ReadOutput
from engine.sources.io.folders import folder_at
from tests.conftest import ScriptedReader
from tests.report.page.results import say_last, write_inputs


class Reader(ScriptedReader):
    """Answers, but for what the passage B7 is in."""

    def __call__(self, plan, units, spec):
        texts = plan["inputs"].list.join("").to_list()
        for result in super().__call__(plan, units, spec):
            for place in range(len(result.outputs)):
                if "B7" in texts[result.unit.offset + place]:
                    result.outputs[place] = ReadOutput.failed("no room")
            yield result


@pytest.mark.parametrize(
    ("in_shards", "annotators"), [(False, "erag"), (True, "erag"), (False, "gain,erag")]
)
def test_means_so_far_become_those_of_the_results(tmp_path, in_shards, annotators):
    """Of eRAG's labels where all is held: a label of gain is made of two outputs."""
    files = write_inputs(tmp_path)
    more = {
        "measures": "P@2",
        "resamples": 0,
        "annotators": tuple(annotators.split(",")),
        "failed_reads": "skip",
    }
    settings = Settings.of(k=2, end_to_end_k=1, **more)
    asks, heard = [], []
    context = Context(
        store=tmp_path / "store",
        executor=Reader(say_last),
        on_known=asks.append,
        on_progress=lambda done, total: heard.append(asks[-1]()),
    )
    shards, folder = Held.of_files(files, k=2), None
    if in_shards:
        shards = partition(files, folder_at(tmp_path / "in"), k=2, pairs_per_shard=20)
        folder = folder_at(tmp_path / "work")
    (done,) = evaluate_shards(shards, [settings], context, folder).evaluations
    assert (heard[0].scores, heard[0].labels, heard[0].queries) == ({}, {}, [None, 0][in_shards])
    some = {
        n for known in heard for means in (known.scores, known.labels) for _, n in means.values()
    }
    assert len(some) > 4
    # B7 is the first of a list of the poor run. The shard that has it is not finished: it is read again next time.
    known = heard[-1]
    queries = 33 if in_shards else 40
    assert known.annotator == "erag"
    assert (known.failed, known.queries) == (1, 33 if in_shards else None)
    for run, n in (("good", queries), ("poor <&>", 33 if in_shards else 39)):
        mean, lists = known.scores[run]
        assert lists == n
        if not in_shards:
            assert mean == pytest.approx(done.downstream.filter(run=run)["value"].mean())
            # By hand: both runs list all passages; Ann is said of d but for multiples of 3, and of A<i>3, 30 to 39.
            ann = sum(1 for i in range(40) if i % 3 or str(i)[0] == "3")
            assert known.labels[run] == (pytest.approx(ann / 79), 79)
    assert known.labels["good"] == known.labels["poor <&>"]
    assert known.labels["good"][1] == (2 * 33 if in_shards else 79)
