"""Pools are decided from the nodes: how many actors, what each takes, what can never be; Ray starts while inputs are cut."""

import contextlib
import functools
import math
import threading
import time

import pytest

from engine.machine import cluster, nodes, pool
from engine.machine.nodes import Needs, Node
from engine.machine.pool import Pool, PoolSettings
from engine.messages.errors import InputError, ReadError
from tests.expected import as_expected, refused

GIB = 2**30
ONE_GPU = Needs(1.0, 1.0, 0, None)


def node(cpus=4, gpus=0, memory=16 * GIB, kinds=(), **more):
    return Node(cpus, gpus, memory, frozenset(kinds), **more)


@pytest.fixture
def decided(monkeypatch):
    """``decide`` on a cluster of given nodes, joined or of this machine alone."""

    def decide(
        settings, alive, *, promised=None, joined=True, actor_bytes=4 * GIB, budget=0, share=1.5
    ):
        monkeypatch.setattr(nodes, "alive", lambda: alive)
        monkeypatch.setattr(nodes, "promised", lambda: promised)
        monkeypatch.setattr(cluster, "is_joined", lambda: joined)
        resources = [{"Alive": True, "Resources": {"CPU": node.cpus}} for node in alive]
        monkeypatch.setattr("ray.nodes", lambda: resources)
        if share is not None:
            monkeypatch.setattr(cluster, "cpus_per_actor", lambda actors: share)
        monkeypatch.setattr(pool, "machine_memory", lambda: 18 * GIB)
        gpus = {"GPU": sum(node.gpus for node in alive)}
        monkeypatch.setattr("ray.cluster_resources", lambda: gpus)
        return pool.decide(settings, actor_bytes, budget=budget)

    return decide


@pytest.mark.parametrize(
    ("actors", "bounds"),
    [(None, (1, None)), (0, (0, 0)), (3, (3, 3)), ("3", (3, 3)), ("2:8", (2, 8)), ("4:4", (4, 4))],
)
def test_actors_are_a_number_or_a_range(actors, bounds):
    assert PoolSettings(actors=actors).bounds() == bounds


@pytest.mark.parametrize("actors", [-1, "two", "0:4", "4:2", "1:", ":3", "1-3", "1.5", "٣"])
def test_other_actors_are_refused(actors):
    with refused("cluster.actors"):
        PoolSettings(actors=actors)


@pytest.mark.parametrize("gpus", [-0.5, 1.5, math.nan, math.inf])
def test_gpus_are_a_fraction_or_a_whole_number(gpus):
    with refused("cluster.gpus" if gpus == 1.5 else "settings.value"):
        PoolSettings(gpus_per_actor=gpus)
    assert PoolSettings(gpus_per_actor=0.25).gpus_per_actor == 0.25
    assert PoolSettings(gpus_per_actor=4).gpus_per_actor == 4


def test_no_actor_takes_no_cpu_and_no_type_of_gpu_goes_without_gpu():
    with refused("settings.value"):
        PoolSettings(cpus_per_actor=0)
    with refused("cluster.accelerator"):
        PoolSettings(gpus_per_actor=0, accelerator_type="L4")


def test_this_machine_alone_has_as_many_actors_as_cpus_and_memory_allow(decided):
    # (18 - 2) GiB by 4 GiB each are 4, of 6 CPUs; by 2 GiB they are 8, and 6 CPUs.
    four = decided(PoolSettings(), [node(6)], joined=False)
    assert (four.least, four.most, four.start) == (4, 4, 4)
    assert four.needs == Needs(1.5, 0.0, 0, None)
    assert decided(PoolSettings(), [node(6)], joined=False, budget=2 * GIB).start == 6


def test_this_machine_alone_has_an_actor_for_each_gpu_and_never_more(decided):
    assert decided(PoolSettings(), [node(6, 2)], joined=False) == Pool(2, 2, 2, ONE_GPU)
    with refused("cluster.oversubscribed"):
        decided(PoolSettings(actors=3), [node(6, 2)], joined=False)
    halves = decided(PoolSettings(actors=4, gpus_per_actor=0.5), [node(6, 2)], joined=False)
    assert halves.start == 4


@pytest.mark.parametrize(
    ("gpus", "alive", "cpus"),
    [
        (None, [(16, 4)], 1.0),
        (0.25, [(16, 4)], 0.25),
        (4.0, [(16, 4)], 5.0),  # its process, and one for each GPU
        (None, [(16, 0), (16, 4), (3, 4)], 0.5),  # of 3 CPUs, one is left to the tasks that plan
        (None, [(1, 1)], 0.0),
        (None, [(4, 0), (math.inf, math.inf)], 1.0),  # a type of nodes that does not state its own
    ],
)
def test_an_actor_with_gpus_has_cpus_of_its_own_and_leaves_one_to_planning(
    decided, gpus, alive, cpus
):
    nodes = [node(*has) for has in alive]
    assert decided(PoolSettings(gpus_per_actor=gpus), nodes).needs.cpus == cpus
    asked = decided(PoolSettings(gpus_per_actor=gpus, cpus_per_actor=0.75), nodes)
    assert asked.needs.cpus == 0.75


def test_a_cluster_has_room_by_the_memory_of_its_nodes_and_not_of_the_drivers(decided):
    # Ten nodes of 16 CPUs and 64 GiB: 16 of 4 GiB each; the driver's machine has 18 GiB.
    large = [node(16, memory=64 * GIB) for _ in range(10)]
    found = decided(PoolSettings(), large)
    assert (found.least, found.most, found.start) == (1, None, 160)
    assert found.needs.memory == 4 * GIB
    assert decided(PoolSettings(), large, budget=8 * GIB).start == 80


def test_memory_is_never_asked_for_beyond_what_a_node_has(decided):
    found = decided(PoolSettings(), [node(4, 1, memory=8 * GIB)], actor_bytes=20 * GIB)
    assert found.needs.memory == 8 * GIB
    assert found.start == 1


def test_memory_is_that_of_the_nodes_that_an_actor_fits_on(decided):
    mixed = [node(4, 1, 8 * GIB, ["L4"]), node(4, 1, 64 * GIB, ["T4"])]
    chosen = decided(PoolSettings(accelerator_type="L4"), mixed, actor_bytes=20 * GIB)
    assert chosen.needs.memory == 8 * GIB
    # What nodes to come will have is not known: nothing is asked for.
    head = [node(4, is_head=True)]
    assert decided(PoolSettings(gpus_per_actor=1), head).needs.memory == 0
    promised = [node(8, 4, math.inf)]
    assert decided(PoolSettings(), head, promised=promised).needs.memory == 0


def test_a_range_starts_with_what_there_is_room_for(decided):
    gpus = [node(4, 2), node(4, 1)]
    assert decided(PoolSettings(actors="1:8"), gpus).start == 3
    assert decided(PoolSettings(actors="1:2"), gpus).start == 2
    five = decided(PoolSettings(actors="5:8"), gpus)
    assert (five.least, five.most, five.start) == (5, 8, 5)


def test_a_head_alone_waits_for_gpus_that_are_asked_for_or_promised(decided):
    head = [node(4, is_head=True)]
    asked = decided(PoolSettings(actors="1:4", gpus_per_actor=1), head)
    assert (asked.needs.gpus, asked.start) == (1, 1)
    promised = decided(PoolSettings(), head, promised=[node(8, 4, math.inf, ["L4"])])
    assert (promised.needs.gpus, promised.most) == (1, None)
    assert decided(PoolSettings(), head).needs.gpus == 0


@pytest.mark.parametrize("actors", [None, 3, "1:16"])
def test_actors_without_gpus_never_fit_a_head_that_offers_no_cpu(decided, actors):
    head = node(0, is_head=True)
    needs = decided(PoolSettings(actors=actors), [head], share=None).needs
    assert (needs.cpus, needs.gpus) == (1, 0)
    assert not head.fits(needs)


def test_what_can_never_be_hosted_is_refused(decided):
    gpus = [node(4, 4, kinds=["T4"])]
    with refused("cluster.node"):
        decided(PoolSettings(gpus_per_actor=8), gpus)
    with refused("cluster.node"):
        decided(PoolSettings(accelerator_type="L4"), gpus)
    # An autoscaler may add such nodes, and knows of no others.
    large = [node(8, 8, math.inf, ["L4"])]
    assert decided(PoolSettings(gpus_per_actor=8), gpus, promised=large).needs.gpus == 8
    with refused("cluster.node"):
        decided(PoolSettings(accelerator_type="H100"), [node()], promised=large)
    # Nodes may join a cluster without GPUs, but not this machine.
    assert decided(PoolSettings(gpus_per_actor=2), [node()]).needs.gpus == 2
    with refused("cluster.node"):
        decided(PoolSettings(gpus_per_actor=1), [node()], joined=False)
    with refused("cluster.node"):
        decided(PoolSettings(cpus_per_actor=32), [node()])


def test_more_actors_than_fit_are_refused_unless_nodes_may_join(decided):
    gpus = [node(4, 2)]
    with refused("cluster.oversubscribed"):
        decided(PoolSettings(actors=5), gpus)
    assert decided(PoolSettings(actors=5, gpus_per_actor=1), gpus).start == 5
    assert decided(PoolSettings(actors=5), gpus, promised=[node(4, 2, most=3)]).start == 5


def test_more_actors_than_an_autoscaler_may_ever_host_are_refused(decided):
    # A head, 12 of 16 promised nodes there.
    alive = [node(0, is_head=True), *[node(6, 1)] * 12]
    promised = [node(6, 1, math.inf, most=4), node(6, 1, math.inf, most=12)]
    for actors in (100, "17:100"):
        asked = PoolSettings(actors=actors, gpus_per_actor=1)
        with refused("cluster.size"):
            decided(asked, alive, promised=promised)
    assert decided(PoolSettings(actors=16), alive, promised=promised).start == 16
    assert decided(PoolSettings(actors="1:100"), alive, promised=promised).most == 100
    halves = PoolSettings(actors=32, gpus_per_actor=0.5)
    assert decided(halves, alive, promised=promised).start == 32
    # GPUs of the head count beside those to come; a type without a bound has no end.
    head = [node(4, 1, is_head=True)]
    assert decided(PoolSettings(actors=17), head, promised=promised).start == 17
    endless = [node(6, 1, math.inf, most=math.inf)]
    assert decided(PoolSettings(actors=100), alive, promised=endless).start == 100
    # Actors without GPUs share the CPUs that come, unless each is given some.
    cpus = [node(8, memory=math.inf, most=2)]
    assert decided(PoolSettings(actors=100), [node(0, is_head=True)], promised=cpus).start == 100
    with refused("cluster.size"):
        decided(PoolSettings(actors=5, cpus_per_actor=4), [node(0, is_head=True)], promised=cpus)


def test_no_job_has_more_actors_than_tasks():
    assert Pool(2, None, 8, ONE_GPU).at_most(3) == Pool(2, 3, 3, ONE_GPU)
    assert Pool(4, 4, 4, ONE_GPU).at_most(3) == Pool(3, 3, 3, ONE_GPU)
    assert Pool(1, 9, 2, ONE_GPU).at_most(100) == Pool(1, 9, 2, ONE_GPU)


def test_work_is_cut_for_the_pool_as_it_may_become():
    assert Pool(1, 16, 1, ONE_GPU).foreseen == 16
    assert Pool(3, 3, 3, ONE_GPU).foreseen == 3
    assert Pool(1, None, 2, ONE_GPU).foreseen == 8  # of one without a bound, some growth


def test_ray_is_told_what_was_decided():
    needs = Needs(2.0, 0.5, 3 * GIB, "L4")
    options = pool.pool_options(Pool(1, 8, 2, needs))
    strategy = options["compute"]
    assert (strategy.min_size, strategy.max_size, strategy.initial_size) == (1, 8, 2)
    assert (options["num_cpus"], options["num_gpus"], options["memory"]) == (2, 0.5, 3 * GIB)
    assert options["accelerator_type"] == "L4"
    assert not {"memory", "accelerator_type"} & pool.pool_options(Pool(1, 8, 2, ONE_GPU)).keys()
    assert pool.pool_options(Pool(1, None, 2, ONE_GPU))["compute"].max_size == math.inf


def test_an_input_error_on_a_worker_is_one_here():
    from ray.exceptions import RayError

    error = InputError("begins two answers; alike", "take another", path="small")
    told = f"The actor died\n  File x, line 1\n{InputError.__module__}.InputError: {error}\n"
    with pytest.raises(InputError) as caught, pool.reported("reading", ReadError, ONE_GPU):
        raise RayError(told)
    assert str(caught.value) == str(error)
    assert caught.value.remedy == "take another"
    with pytest.raises(ReadError) as failed, pool.reported("reading", ReadError, ONE_GPU):
        raise RayError("The actor died\nValueError: broken\n")
    as_expected(str(failed.value))


@pytest.mark.usefixtures("ray_session")
def test_nodes_of_the_first_actors_are_asked_for_and_no_longer_than_inputs_are_cut(
    decided, monkeypatch
):
    import ray

    cancelled, cancel, remote, made = [], ray.cancel, ray.remote, []

    def counted(**options):
        made.append(options)
        return remote(**options)

    monkeypatch.setattr(ray, "remote", counted)
    monkeypatch.setattr(ray, "cancel", lambda task: cancelled.append(task) or cancel(task))
    monkeypatch.setattr(cluster, "is_joined", lambda: False)
    with pool.first_nodes_requested(PoolSettings(actors=3)):
        assert made == cancelled == []  # this machine alone finds none
    nodes_there = [node(4), node(4, 1, kinds=["L4"])]
    for settings, gpus, least in (
        (PoolSettings(actors="2:9", accelerator_type="L4"), 1.0, 2),
        (PoolSettings(gpus_per_actor=0), 0.0, 1),
    ):
        decided(settings, nodes_there)  # sets the nodes
        made.clear()
        cancelled.clear()
        with pool.first_nodes_requested(settings):
            (options,) = made
            assert (options["num_gpus"], options["num_cpus"]) == (gpus, 1.0 if gpus else 1.5)
            assert options.get("accelerator_type") == settings.accelerator_type
            assert cancelled == []
        assert len(cancelled) == least


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(pool, "_BESIDE", 0.05)


def waits(seconds, tidied=None):
    """Cuts for a while and reports now and then, as ``partition.partition`` does."""

    def cut(on_progress):
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                on_progress("runs", 1)
                time.sleep(0.01)
            return "partition"
        finally:
            if tidied is not None:
                tidied.set()

    return cut


def beside(cut, begin, on_progress=lambda what, done: None):
    return pool._beside(cut, on_progress, begin)


def test_both_are_under_way_at_a_time():
    seen, here = [], []
    made = beside(
        waits(0.3),
        lambda: (here.append(threading.current_thread()), time.sleep(0.2)),
        lambda what, done: seen.append((time.monotonic(), threading.current_thread())),
    )
    assert made == "partition"
    assert here == [threading.main_thread()]
    assert threading.main_thread() not in {thread for _, thread in seen}


def test_nothing_is_started_for_what_is_cut_already():
    assert beside(lambda on_progress: "there", pytest.fail) == "there"


@pytest.mark.parametrize(("seconds", "begin"), [(0, pytest.fail), (0.2, lambda: None)])
def test_inputs_that_are_refused_at_once_or_later_are_told(seconds, begin):
    def refused(on_progress):
        time.sleep(seconds)
        raise InputError("no score", "add one", path="run.txt", line=3)

    with pytest.raises(InputError, match="no score"):
        beside(refused, begin)


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError("Ray did not start")])
def test_cutting_ends_and_tidies_up_when_the_start_ends(end):
    tidied = threading.Event()

    def begin():
        raise end

    begun = time.monotonic()
    with pytest.raises(type(end) if isinstance(end, Exception) else end):
        beside(waits(60, tidied=tidied), begin)
    assert tidied.is_set()
    assert time.monotonic() - begun < 5


def test_errors_of_progress_are_told():
    def broken(what, done):
        raise OSError("nobody reads standard error")

    with pytest.raises(OSError, match="nobody reads"):
        beside(waits(60), lambda: None, broken)


@pytest.mark.parametrize("actors", [0, 2])
def test_a_reader_that_cannot_be_is_refused_while_inputs_are_cut(actors, monkeypatch):
    """Minutes before: cutting ends as soon as the readers are looked at, and these after Ray started."""
    order, tidied = [], threading.Event()

    def cut(on_progress):
        return waits(60, tidied=tidied)(on_progress)

    def check():
        order.append("check")
        raise InputError("no such model", "name one", path="reader")

    monkeypatch.setattr("engine.machine.cluster.start_ray", lambda: order.append("Ray"))
    begun = time.monotonic()
    with pytest.raises(InputError, match="no such model"):
        pool.beside_ray(cut, PoolSettings(actors=actors), check=check)
    assert order == (["Ray", "check"] if actors else ["check"])
    assert tidied.is_set() == bool(actors)
    assert time.monotonic() - begun < 5


def test_the_first_nodes_are_asked_for_once_all_is_checked_and_until_inputs_are_cut(monkeypatch):
    order, asked = [], threading.Event()

    @contextlib.contextmanager
    def nodes(pool):
        order.append(("asked", pool.actors))
        asked.set()
        yield
        order.append("let go")

    def cut(on_progress):
        assert asked.wait(60)
        order.append("cut")

    monkeypatch.setattr("engine.machine.cluster.start_ray", lambda: order.append("Ray"))
    monkeypatch.setattr(pool, "first_nodes_requested", nodes)
    check = functools.partial(order.append, "check")
    pool.beside_ray(cut, PoolSettings(actors=2), check=check)
    assert order == ["Ray", "check", ("asked", 2), "cut", "let go"]
