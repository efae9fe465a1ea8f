"""A desk hands out pieces of work, counts who takes them, and keeps its maker from running ahead."""

import asyncio

import pytest

from engine.machine.attempts import new_attempt
from engine.messages.errors import EncodeError
from engine.retrieval.tickets import TicketQueue, WorkItem

pytestmark = pytest.mark.usefixtures("ray_session")
ZERO, ONE = WorkItem("the shard of 'd0'", []), WorkItem("the shard of 'd1'", [])


def test_a_piece_that_kills_every_actor_ends_the_work():
    """Ray hands a ticket out again and again; the desk counts, and says which piece it is."""
    desk = TicketQueue(room=2)

    async def story():
        assert await desk.needs(0, False) == []
        await desk.offer(0, ZERO)
        await desk.offer(1, ONE)
        for _ in range(3):
            assert await desk.take(0, new_attempt()) == ZERO
        same = new_attempt()
        for _ in range(5):  # a message that Ray repeats is one attempt
            assert await desk.take(1, same) == ONE
        assert desk.tally().repeated == 1
        with pytest.raises(EncodeError, match="died 3 times in the shard of 'd0'"):
            await desk.take(0, new_attempt())
        told = asyncio.ensure_future(desk.needs(2, True))
        assert await desk.take(2, new_attempt()) is None
        told.cancel()

    asyncio.run(story())


def test_the_driver_waits_while_the_desk_is_full_unless_an_actor_waits():
    desk = TicketQueue(room=1)

    async def story():
        await desk.offer(0, ZERO)
        waiting = asyncio.ensure_future(desk.needs(1, False))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        taking = asyncio.ensure_future(desk.take(1, new_attempt()))  # whatever the order of tickets
        assert await waiting == []
        await desk.offer(1, ONE)
        assert await taking == ONE

    asyncio.run(story())
