"""Functions of a user's reach the actors of other nodes with their code."""

import pytest

from tests.cluster.function_scene import N
from tests.cluster.play import play


@pytest.mark.slow
def test_functions_reach_nodes_that_have_none_of_their_files(tmp_path):
    found = play("functions", tmp_path, of="tests.cluster.function_scene")
    # The files were gone, and each node worked in a folder of its own.
    assert found["places"] == sorted(found["nodes"])
    # Every passage alone, and every list of two: each prompt once.
    assert found["done"] == [3 * N, 0]
    assert found["prompts"] == 3 * N
    assert (found["equal"], found["calls_again"]) == (True, 0)
    labels = {
        (row["query_id"], row["annotator"], row["doc_id"]): row["label"] for row in found["labels"]
    }
    # Query 2 is "query 1", whose answer begins with b: so does the output for its first passage, of 9
    # letters, and not that for its second, of 19.
    documents = sorted(
        doc for query, _, doc in labels if query == "2" and ("2", "erag", doc) in labels
    )
    by = {
        name: sorted(labels["2", name, doc] for doc in set(documents)) for name in ("erag", "short")
    }
    assert by == {"erag": [0.0, 1.0], "short": [0.0, 1.0]}
