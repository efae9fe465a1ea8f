"""Whose answers stored reads are: servers and functions, and what may stand behind the same name."""

import functools
import importlib
import sys

import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.machine.functions import code_of, load_named
from engine.machine.remote.api_settings import ApiSpec
from engine.reading import local
from engine.reading.backends import NamedExecutor
from engine.reading.function import reader_function
from tests.conftest import ScriptedReader
from tests.expected import as_expected, refused
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving
from tests.tables import inputs, say_last

READS = 7  # of these inputs, without equal ones


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def new_reads(store, executor=None, **options):
    """How many reads are made, and what is noted on those that are stored."""
    given = {"k": 3, "resamples": 0, "measures": "P@3"} | options
    result = evaluate(inputs(), Settings.of(**given), store=store, executor=executor)
    notes = [note.text for note in result.notes if note.code == "stored_reads" and note.amount]
    return result.readings["reader"].costs.done, " ".join(notes)


class Server:
    """One address, and what stands behind it now."""

    def __init__(self):
        self.model, self.server, self.said = "m", None, "OK"
        self.behaviour = Behaviour(
            self.say, model=lambda _: self.model, fingerprint=lambda _: self.server
        )

    def say(self, body):
        text = prompt_of(body)
        return Said(say_last(text) if "Passage: " in text else self.said)


@pytest.fixture
def asked(tmp_path):
    server = Server()
    with serving(server.behaviour) as url:

        def ask(path="/v1", reread=False, **now):
            vars(server).update(now)
            address = url.replace("/v1", path)
            return new_reads(tmp_path, reader="openai:m", base_url=address, reread=reread)

        yield ask


# What an address has behind it at first and then; what the stored reads are then: all taken (with a note or without), a
# refusal, or made by nobody.
ALIKE = [
    ({}, {}, False),
    ({"model": ""}, {"model": ""}, False),
    ({"model": "/models/m.gguf"}, {"model": "/models/m.gguf"}, False),
    ({"model": "m-2024-08-06"}, {"model": "m"}, False),
    ({"model": "m"}, {"model": "m-0613"}, False),
    ({"path": ""}, {"path": "/v1"}, False),
    ({"said": "OK"}, {"said": "Okay!"}, True),
    ({"server": "fp_0"}, {"server": "fp_1"}, True),
]
OTHERS = [
    ({"model": "alpha.gguf"}, {"model": "beta.gguf"}),
    ({"model": "m"}, {"model": "m-mini"}),
    ({"model": "m-2024-08-06"}, {"model": "m-2024-11-20"}),
    ({"model": "m", "server": "fp_0"}, {"model": "other", "server": "fp_1"}),
]


@pytest.mark.parametrize(("first", "then", "noted"), ALIKE)
def test_reads_of_the_same_model_are_taken(asked, first, then, noted):
    assert asked(**first) == (READS, "")
    new, said = asked(**then)
    assert new == 0
    assert bool(said) == noted
    as_expected(said)
    assert asked(**then)[0] == asked(**first)[0] == 0


@pytest.mark.parametrize(("first", "then"), OTHERS)
def test_reads_of_another_model_are_refused_or_made_anew(asked, first, then):
    assert asked(**first)[0] == READS
    with refused("reader.changed"):
        asked(**then)
    assert asked(reread=True) == (READS, "")
    assert asked()[0] == 0
    with refused("reader.changed"):
        asked(**first)
    assert asked(**then, reread=True)[0] == READS  # anew each time


def test_a_path_of_the_address_tells_servers_apart(asked):
    paths = ("/v1", "/a/v1", "/b/v1", "/a/v1", "/v1", "")
    assert [asked(path=path)[0] for path in paths] == [7, 7, 7, 0, 0, 0]


def of_before(self):
    return [
        self.settings.host, self.model, self.server, self.endpoint, self.system, self.parameters
    ]  # fmt: skip


def test_reads_of_before_are_taken_from_every_folder_that_is_known(asked, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(ApiSpec, "decisive", property(of_before))
        before.setattr(local, "keep", lambda folder, record: None)
        assert [asked(server=server)[0] for server in ("fp_0", "fp_1", "fp_0")] == [7, 7, 0]
    for path, server in (("/v1", "fp_1"), ("/v1", "fp_2"), ("/a/v1", "fp_0")):
        new, said = asked(path, server=server)
        assert new == 0
        as_expected(said)


def test_reads_that_were_to_be_made_anew_go_on_where_they_stopped(asked, monkeypatch):
    asked()
    with monkeypatch.context() as stopped:
        stopped.setattr(
            "engine.evaluation.read.score_shard",
            lambda *_: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            asked(reread=True)
    assert asked(reread=True)[0] == 0
    assert asked(reread=True)[0] == READS


BASE = '''
WORD = "Ann"

def helper():
    return WORD

def unrelated():
    word = 1

def ask(prompts):
    """Documentation."""
    return [helper() for word in prompts]  # a comment
'''
MADE = {
    "lambda": 'ask = lambda prompts: ["Ann" for _ in prompts]',
    "partial": "import functools\ndef f(p, word): return [word for _ in p]\n"
    'ask = functools.partial(f, word="Ann")',
    "closure": 'def make(w):\n    def ask(p): return [w for _ in p]\n    return ask\nask = make("Ann")',
    "object": "class R:\n    def __init__(self, w): self.w = w; self.n = 0\n"
    '    def __call__(self, p): self.n += 1; return [self.w for _ in p]\nask = R("Ann")',
    "method": "class R:\n    def read(self, p):\n        self.n = 1\n"
    '        return ["Ann" for _ in p]\nask = R().read',
    "decorated": "def d(f):\n    def g(p): return f(p)\n    return g\n"
    '@d\ndef ask(p): return ["Ann" for _ in p]',
    "async": 'async def ask(p): return ["Ann" for _ in p]',
}


@pytest.fixture
def in_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def load(content, folder="one"):
        path = tmp_path / folder / "llm.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        return load_named(f"{path}:ask")

    return load


def reads_of(function, store, **options):
    reader = functools.partial(reader_function(function).__class__, name="mine", version="1")
    return new_reads(store, reader="mine", functions=(reader(function),), **options)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('    """Documentation."""\n', ""),
        ("  # a comment", "  # another"),
        ("[helper() for word in prompts]", "[\n        helper() for word in prompts\n    ]"),
        ("word = 1", "word = 2"),
    ],
)
def test_reads_by_the_same_code_are_taken_wherever_it_is(in_file, tmp_path, old, new):
    assert reads_of(in_file(BASE), tmp_path / "store") == (READS, "")
    assert reads_of(in_file(BASE.replace(old, new), "two"), tmp_path / "store") == (0, "")


def test_reads_by_other_code_are_refused_or_made_anew(in_file, tmp_path):
    assert reads_of(in_file(BASE), tmp_path / "store")[0] == READS
    other = in_file(BASE.replace('"Ann"', '"Bo"'), "two")
    with refused("store.reader"):
        reads_of(other, tmp_path / "store")
    assert reads_of(other, tmp_path / "store", reread=True)[0] == READS
    assert reads_of(other, tmp_path / "store")[0] == 0


@pytest.mark.parametrize("kind", MADE)
def test_code_is_that_of_every_kind_of_function(in_file, kind):
    first, again = code_of(in_file(MADE[kind])), in_file(MADE[kind], "again")
    assert first.who == code_of(again).who != ""
    if kind != "async":
        again(["x"])  # what calls change is no code
    assert first.who == code_of(again).who
    assert first.who != code_of(in_file(MADE[kind].replace("Ann", "Bo"))).who


@pytest.mark.parametrize(
    "code",
    [
        "from mine_helper import word\ndef ask(p): return word(p)",
        "import mine_helper\ndef ask(p): return mine_helper.word(p)",
    ],
)
def test_code_of_the_users_own_modules_counts(in_file, tmp_path, monkeypatch, code):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for name in ("Ann", "Bo", "Ann"):
        (tmp_path / "mine_helper.py").write_text(f"def word(p):\n    return {name!r}\n")
        monkeypatch.delitem(sys.modules, "mine_helper", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        importlib.import_module("mine_helper")
        found.append(code_of(in_file(code)).who)
    assert found[0] == found[2] != found[1]


def test_code_without_source_and_reads_of_before_are_noted(in_file, tmp_path, monkeypatch):
    unseen = eval("lambda prompts: ['Ann' for _ in prompts]")
    assert reads_of(unseen, tmp_path / "a") == (READS, "")
    new, said = reads_of(unseen, tmp_path / "a")
    assert new == 0
    as_expected(said)
    with monkeypatch.context() as before:
        before.setattr(local, "keep", lambda folder, record: None)
        reads_of(in_file(BASE), tmp_path / "b")
    new, said = reads_of(in_file(BASE), tmp_path / "b")
    assert new == 0
    as_expected(said)


def test_executors_are_known_by_their_code(tmp_path):
    first = NamedExecutor(
        "gpt", lambda plan, units, spec: ScriptedReader(say_last)(plan, units, spec)
    )
    assert new_reads(tmp_path, first) == (READS, "")
    assert new_reads(tmp_path, first) == (0, "")

    def other(plan, units, spec):
        return ScriptedReader(lambda text: "Bo")(plan, units, spec)

    with refused("store.reader", text=False) as caught:
        new_reads(tmp_path, NamedExecutor("gpt", other))
    assert "code of gpt (" in str(caught.value)
