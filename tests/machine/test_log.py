"""Events on a worker: one line of ``key=value`` each."""

import logging

from engine.machine.log import log


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
