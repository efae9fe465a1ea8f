"""What happens to a pool, and on a worker, becomes one line each, and totals."""

import logging

from engine.machine import ray_internals
from engine.machine.nodes import Needs, Node
from engine.machine.watch import Observer, PoolTotals, Start, Tally, log
from tests.expected import as_expected

HEAD = Node(4, 0, 1.0, frozenset(), id="head0000ffff", address="10.0.0.1", is_head=True)
ONE, TWO = (
    Node(4, gpus, 1.0, frozenset(), id=f"{gpus}" * 12, address=f"10.0.0.{gpus + 1}")
    for gpus in (1, 2)
)


def observed(*looks):
    """The lines and the totals of looks: nodes, tally, seconds."""
    lines = []
    totals = PoolTotals()
    observer = Observer(Needs(0, 1, 0, None), lines.append, totals)
    for look in looks:
        observer.see(*look)
    observer.end(looks[-1][2])
    return lines, totals


def test_nodes_that_come_and_go_are_told_once():
    lines, totals = observed(
        ([HEAD, ONE], None, 0), ([HEAD, ONE, TWO], None, 2), ([HEAD, TWO], None, 4), ([HEAD, TWO], None, 6)
    )  # fmt: skip
    as_expected(lines)
    assert (totals.lost_nodes, totals.joined_nodes, totals.waited_seconds) == (1, 1, 0)


def test_waiting_is_told_at_once_and_then_ever_more_rarely():
    lines, totals = observed(*(([HEAD], None, seconds) for seconds in range(0, 421, 2)))
    as_expected(lines)
    assert totals.waited_seconds == 420


def test_an_autoscaler_that_does_nothing_is_told_with_its_last_lines(tmp_path):
    (tmp_path / "monitor.log").write_text("started\n")
    (tmp_path / "monitor.err").write_text("Traceback\n\nFileNotFoundError: example.yaml\n")
    lines = []
    observer = Observer(
        Needs(0, 1, 0, None), lines.append, PoolTotals(),
        lambda: "2 pending" if seconds < 200 else "1 pending", lambda: ray_internals._tail(tmp_path),
    )  # fmt: skip
    for seconds in range(0, 1000, 2):
        observer.see([HEAD], None, seconds)
    as_expected([line for line in lines if "status" in line])
    (tmp_path / "monitor.err").write_text("\n")
    assert ray_internals._tail(tmp_path) == "monitor.log: started"


def test_waiting_ends_when_a_node_fits():
    lines, totals = observed(([HEAD], None, 0), ([HEAD, ONE], None, 10), ([HEAD, ONE], None, 20))
    as_expected(lines[-1])
    assert totals.waited_seconds == 10


def test_restarts_and_repeated_units_are_added_up():
    first, again = Start("a", "n" * 12, 1, False), Start("a", "m" * 12, 2, True)
    lines, totals = observed(
        ([ONE], Tally("x", [first], 0), 0),
        ([ONE], Tally("x", [first, again], 2), 2),
        ([ONE], Tally("x", [first, again], 3), 4),
    )
    as_expected(lines)
    assert (totals.restarted_actors, totals.repeated_units) == (1, 3)


def test_counts_go_on_where_the_counter_was_lost():
    again = Start("a", "m" * 12, 2, True)
    _, totals = observed(
        ([ONE], Tally("x", [again], 2), 0), ([ONE], None, 2), ([ONE], Tally("y", [again], 1), 4)
    )
    assert (totals.restarted_actors, totals.repeated_units) == (2, 3)


def test_nodes_that_are_there_and_yet_start_no_actor_are_told_of_once():
    started = Tally("x", [Start("a", "n", 1, False)], 0)
    lines, _ = observed(*(([ONE], Tally("x", [], 0), seconds) for seconds in range(0, 400, 2)))
    as_expected(lines)
    assert observed(*(([ONE], started, seconds) for seconds in range(0, 400, 2)))[0] == []


def test_actors_are_alive_on_nodes_that_are_there_and_lost_once():
    one, two = (Start(name, node.id, 1, False) for name, node in (("a", ONE), ("b", TWO)))
    moved = Start("b", ONE.id, 2, True)
    nodes, starts = [ONE, TWO], [one, two]
    looks = [(nodes, Tally("x", starts, 0), 0)]
    assert [(t.actors, t.lost_actors) for _, t in [observed(*looks)]] == [(2, 0)]
    looks.append(([ONE], Tally("x", starts, 0), 2))
    assert [(t.actors, t.lost_actors) for _, t in [observed(*looks)]] == [(1, 1)]
    # It was started again elsewhere, and then the ledger, which begins to count anew.
    looks.append(([ONE], Tally("x", [*starts, moved], 0), 4))
    looks.append(([ONE], Tally("y", [], 0), 6))
    assert [(t.actors, t.lost_actors) for _, t in [observed(*looks)]] == [(2, 1)]


def test_an_event_is_one_line_whatever_its_values_hold(caplog):
    with caplog.at_level(logging.INFO, "erag"):
        log("load_ended", reader="my llm", seconds=1.5, error="a\nb=s3://me:secret@host/x", none="")
    assert caplog.messages == [
        'event=load_ended reader="my llm" seconds=1.5 error="a\\nb=s3://***@host/x" none=""'
    ]


def test_nothing_is_printed_in_the_drivers_process(capfd):
    import ray

    ran = ray.is_initialized()

    log("load_started", reader="mine")
    assert ray.is_initialized() == ran
    assert capfd.readouterr() == ("", "")
