"""A desk passes on what tasks cannot read; the driver reads it, from where it is or from the beginning."""

import asyncio
import threading

import pytest
import ray

from engine.machine.attempts import begin
from engine.messages.errors import EncodeError, InputError
from engine.retrieval.distribute import Desk, feed
from engine.retrieval.encode import Part, Shard

pytestmark = pytest.mark.usefixtures("ray_session")
KEYS = [f"key {n}" for n in range(4)]


def part(scans, *, keys=KEYS, fails=False):
    def scan():
        scans.append(1)
        if fails:
            raise InputError("broken JSON", "mend it", path="c.jsonl", line=7)
        return KEYS

    def cut(keys):
        return (Shard(key, [f"d of {key}"], [f"text of {key}"]) for key in keys)

    return Part(keys, scan, cut, anywhere=False)


def test_an_answer_is_kept_for_who_asks_again_until_the_shard_is_read():
    desk = Desk()

    async def story():
        asking = asyncio.ensure_future(desk.ask((0, "b")))
        for _ in range(2):  # a message that Ray repeats
            assert await desk.requests() == [(0, "b")]
        await desk.answer((0, "a"), [])  # of a task that has died
        await desk.answer((1, "b"), [])
        await asyncio.sleep(0.05)
        assert not asking.done()
        await desk.answer((0, "b"), ["reference"])
        assert await asking == await desk.ask((0, "b")) == ["reference"]
        desk.forget((0, "b"))
        again = asyncio.ensure_future(desk.ask((0, "b")))
        assert await desk.requests() == [(0, "b")]
        again.cancel()

    asyncio.run(story())


def test_a_part_is_read_once_unless_it_is_asked_for_from_an_earlier_shard():
    desk = ray.remote(max_concurrency=100)(Desk).remote()
    scans, broken = [], []
    parts = [part(scans), part(broken, fails=True), part([], keys=["key 9"])]
    feeder = threading.Thread(target=feed, args=(parts, desk), daemon=True)
    feeder.start()

    def asked(number, key):
        found = ray.get(list(ray.get(desk.ask.remote((number, key)))))
        ray.get(desk.forget.remote((number, key)))
        return [ray.cloudpickle.loads(one) for one in found]

    for key in KEYS[:3]:
        assert asked(0, key)[0].texts == [f"text of {key}"]
    assert len(scans) == 1
    assert asked(0, KEYS[1])[0].key == KEYS[1]  # the task was started again
    assert asked(0, KEYS[3])[0].key == KEYS[3]
    assert len(scans) == 2
    assert str(asked(1, KEYS[0])[0]).startswith("c.jsonl:7: broken JSON")
    assert asked(2, "key 9") == []
    ray.kill(desk)
    feeder.join(timeout=60)
    assert not feeder.is_alive()


def test_a_shard_or_a_part_that_kills_its_process_again_and_again_ends_the_work():
    desk = ray.remote(Desk).remote()
    for _ in range(3):
        begin(desk, "key 0", "the shard of 'd0'")
    begin(desk, (0, "key 0"), "part 1")
    with pytest.raises(EncodeError, match="died 3 times in the shard of 'd0'"):
        begin(desk, "key 0", "the shard of 'd0'")
    ray.get(desk.forget.remote("key 0"))
    begin(desk, "key 0", "the shard of 'd0'")
    ray.kill(desk)
