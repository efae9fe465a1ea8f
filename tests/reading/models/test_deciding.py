"""Reads that end when they are decided: with tokenizers of many kinds, no label changes, and reads do end."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.reading.models import deciding
from engine.reading.models.deciding import Deciding, certain_cleaned, grows
from engine.reading.models.decoding import Stops, Writer, Written
from engine.reading.models.encoder_decoder import EncoderDecoderReader, _Read
from engine.scoring.metrics import get_metric
from tests.reading.models.test_decoding import spec

METRICS = ("em", "em-char", "accuracy")
# Pieces of words: beginnings of articles, marks that a tokenizer may move a space from, and others.
PIECES = [
    *("a", "an", "t", "the", "he", "T", "The", "x", "is", "Is", "y", "e", "n", "v", "Σ", "σ", "ς", "İ"),
    *(".", ",", "?", "!", "'", "'s", "n't", "'ve", "'re", "'m", "-", "–", "\n", "end", "é", "서", "울"),
]  # fmt: skip
END = "</s>"


def fast(tokenizer, **options):
    """As transformers has it; the end token is special."""
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, **options)


def byte_level():
    """As the bundled reader's: a character may be several tokens, and shows as U+FFFD before its last."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [encoded(f" {piece}") for piece in PIECES if len(piece) < 3 and piece.isascii()]
    vocabulary = dict.fromkeys([*letters, *words])
    tokenizer = Tokenizer(
        models.BPE({token: place for place, token in enumerate(vocabulary)}, merges=[])
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def encoded(text):
    """A text as byte-level tokens write it."""
    ((token, _),) = pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text)
    return token


def with_bytes():
    """As Llama's: pieces that begin with a mark for a space, and single bytes for what is in no piece."""
    pieces = [*PIECES, *(f"▁{piece}" for piece in PIECES), "▁"]
    vocabulary = dict.fromkeys([*pieces, *(f"<0x{byte:02X}>" for byte in range(256))])
    tokenizer = Tokenizer(
        models.BPE(
            {token: place for place, token in enumerate(vocabulary)}, merges=[], byte_fallback=True
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def sentence_pieces():
    """As T5's."""
    pieces = dict.fromkeys([*PIECES, *(f"▁{piece}" for piece in PIECES), "▁", "<unk>"])
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def words():
    """As the tests' tiny models': tokens are joined by spaces."""
    pieces = dict.fromkeys([*PIECES, "<unk>"])
    return Tokenizer(
        models.WordLevel({piece: place for place, piece in enumerate(pieces)}, unk_token="<unk>")
    )


TOKENIZERS = {
    "byte level": fast(byte_level()),
    "byte level, told to clean": fast(byte_level(), clean_up_tokenization_spaces=True),
    "byte level, cleaned": fast(
        byte_level(),
        clean_up_tokenization_spaces=True,
        clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True,
    ),
    "with bytes": fast(with_bytes()),
    "sentence pieces": fast(sentence_pieces()),
    "sentence pieces, cleaned": fast(sentence_pieces(), clean_up_tokenization_spaces=True),
    "words": fast(words()),
    "words, cleaned": fast(words(), clean_up_tokenization_spaces=True),
}


def write(tokenizer, tokens, metric, references, stop):
    """What becomes of an answer that the model would write so, if these references decide it."""
    writer = Writer(
        spec(metric=metric, stop=stop, max_new_tokens=8),
        tokenizer,
        frozenset({tokenizer.eos_token_id}),
    )
    (goal,) = writer.deciding.goals([references], 1)
    answer = Written(goal=goal)
    for token in [*tokens, tokenizer.eos_token_id]:
        logits = torch.zeros(1, len(tokenizer))
        logits[0, token] = 1.0
        if not writer.write([answer], logits):
            break
    return answer


def some_tokens(tokenizer, data):
    """Tokens of any kind; with bytes, more often those that belong together."""
    any_token = st.integers(0, len(tokenizer) - 1)
    vocabulary = tokenizer.get_vocab()
    euro = [
        [vocabulary[name] for name in names]
        for names in (list(encoded("€")), ["<0xE2>", "<0x82>", "<0xAC>"])
        if all(name in vocabulary for name in names)
    ]
    chunk = st.lists(any_token, min_size=1, max_size=1)
    chunks = st.lists(st.one_of(chunk, chunk, *map(st.just, euro)), min_size=1, max_size=8)
    return [token for part in data.draw(chunks) for token in part]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_ending_a_decided_read_changes_no_label(name, data):
    tokenizer = TOKENIZERS[name]
    metric = data.draw(st.sampled_from(METRICS))
    stop = data.draw(st.sampled_from([(), ("\n",), (". ",), ("end", "?!"), (" the x",)]))
    tokens = some_tokens(tokenizer, data)
    whole = write(tokenizer, tokens, metric, None, stop)
    others = [tokenizer.decode(some_tokens(tokenizer, data), skip_special_tokens=True)]
    near = data.draw(
        st.sampled_from([whole.text, whole.text.strip(), whole.text[:3], whole.text.lower(), "x"])
    )
    references = data.draw(st.sampled_from([[near], [near, *others], others]))
    cut = write(tokenizer, tokens, metric, references, stop)
    score = get_metric(metric)
    assert score(cut.text.strip(), references) == score(whole.text.strip(), references)
    if cut.decided:
        assert score(whole.text.strip(), references) == 0
        assert cut.tokens == whole.tokens[: len(cut.tokens)]
    else:
        assert cut.tokens == whole.tokens
        assert cut.text == whole.text


class Script:
    """A decoder that writes given tokens, row by row, and looks at what it is told of the last ones."""

    def __init__(self, tokenizer, rows):
        self.vocabulary, self.start = len(tokenizer), tokenizer.eos_token_id
        self.rows = [[self.start, *tokens, tokenizer.eos_token_id] for tokens in rows]
        self.alive, self.steps = list(range(len(rows))), 0

    def decoding(self, encodings, parts):
        assert len(parts) == len(self.rows)
        return self

    def step(self, latest):
        assert latest == [self.rows[row][self.steps] for row in self.alive]
        self.steps += 1
        logits = torch.zeros(len(latest), self.vocabulary)
        for place, row in enumerate(self.alive):
            logits[place, self.rows[row][self.steps]] = 1.0
        return logits

    def keep(self, going):
        self.alive = [self.alive[place] for place in going]


def write_together(tokenizer, rows, metric, references, stop):
    """What becomes of reads that T5's loop decodes together, if a model would write them so."""
    made = spec(metric=metric, stop=stop, max_new_tokens=8)
    script = Script(tokenizer, rows)
    reader = object.__new__(EncoderDecoderReader)  # without a model
    reader._spec, reader._tokenizer, reader._model = made, tokenizer, script
    reader._deciding, reader._stops = Deciding(made, tokenizer), Stops(tokenizer, stop)
    reader._choices, reader._start = [], script.start
    reader._end_tokens, reader._special = {tokenizer.eos_token_id}, {tokenizer.eos_token_id}
    goals = reader._deciding.goals(references, len(rows))
    return reader._decode([_Read([], goal) for goal in goals], None, {}), script.steps


@pytest.mark.parametrize("name", ["sentence pieces", "sentence pieces, cleaned", "with bytes"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ending_decided_reads_in_the_loop_of_t5_changes_no_label_of_any(name, data):
    """Reads that are decoded together, each with references of its own, or with none."""
    tokenizer = TOKENIZERS[name]
    metric = data.draw(st.sampled_from(METRICS))
    stop = data.draw(st.sampled_from([(), ("\n",), (". ",), ("end", "?!"), (" the x",)]))
    rows = [some_tokens(tokenizer, data) for _ in range(data.draw(st.integers(1, 4)))]
    whole, _ = write_together(tokenizer, rows, metric, None, stop)
    score = get_metric(metric)
    references = []
    for row, read in zip(rows, whole, strict=True):
        assert (read.output, read.decided) == (in_full(tokenizer, row, stop), False)
        near = data.draw(st.sampled_from([read.output, read.output[:3], read.output.lower(), "x"]))
        other = data.draw(st.sampled_from([known.output for known in whole]))
        references.append(data.draw(st.sampled_from([[near], [near, other], [other], None])))
    cut, steps = write_together(tokenizer, rows, metric, references, stop)
    assert steps <= 9
    for read, full, known in zip(cut, whole, references, strict=True):
        if read.decided:
            assert score(read.output, known) == score(full.output, known) == 0
            assert read.output_tokens <= full.output_tokens
        else:
            assert read == full


def in_full(tokenizer, tokens, stop):
    """An answer of at most 8 tokens, by a look at the whole text after every token."""
    text = ""
    for size in range(1, 9):
        if tokenizer.eos_token_id in tokens[:size] or size > len(tokens):
            break
        text = tokenizer.decode(tokens[:size], skip_special_tokens=True)
        if places := [text.find(one) for one in stop if one in text]:
            return text[: min(places)].strip()
    return text.strip()


def test_a_read_that_is_decided_leaves_the_loop_of_t5_and_the_others_go_on():
    tokenizer = TOKENIZERS["sentence pieces"]
    x, y = (tokenizer.get_vocab()[f"▁{letter}"] for letter in "xy")
    rows, references = [[x, y, x], [x, y], [y, y, y]], [["y"], ["x y"], ["y y x", "y y y y"]]
    reads, steps = write_together(tokenizer, rows, "em", references, ())
    told = [(read.output, read.output_tokens, read.decided) for read in reads]
    assert told == [("x", 1, True), ("x y", 2, False), ("y y y", 3, False)]
    assert steps == 4  # three tokens of the last, and its end


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_stop_strings_end_an_answer_at_the_token_that_completes_the_first(name, data):
    """Against a look at the whole text after every token."""
    tokenizer = TOKENIZERS[name]
    tokens = some_tokens(tokenizer, data)
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    stops = [" ", "\n", ". ", "x", " the", "€", "ab", *([text[-3:], text[1:3]] if text else [])]
    stop = tuple(
        data.draw(st.lists(st.sampled_from([s for s in stops if s]), max_size=3, unique=True))
    )
    expected, text = [], ""
    for token in tokens[:8]:
        if token == tokenizer.eos_token_id:
            break
        expected.append(token)
        text = tokenizer.decode(expected, skip_special_tokens=True)
        places = [at for one in stop if (at := text.find(one)) >= 0]
        if places:
            text = text[: min(places)]
            break
    answer = write(tokenizer, tokens, "f1", None, stop)
    assert (answer.tokens, answer.text) == (expected, text)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_reads_end_where_no_reference_can_be_met(name):
    tokenizer = TOKENIZERS[name]
    piece = tokenizer.get_vocab()
    x, y = (piece.get(f"▁{letter}", piece.get(f"Ġ{letter}", piece.get(letter))) for letter in "xy")
    answer = write(tokenizer, [x, y, x, x], "em", ["y x"], ("\n",))
    assert (answer.decided, answer.tokens) == (True, [x])
    answer = write(tokenizer, [x, y, x, x], "em", ["x y y", "x yen"], ("\n",))
    assert (answer.decided, answer.tokens) == (True, [x, y, x])
    answer = write(tokenizer, [x, y, x, x], "em", ["x y x", "x y x x"], ("\n",))
    assert (answer.decided, answer.tokens) == (False, [x, y, x, x])
    # What a character that is not complete stands for is not known, and may stand in a reference.
    answer = write(tokenizer, [x, y], "em", ["\ufffd"], ("\n",))
    assert (answer.decided, answer.tokens) == (False, [x, y])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_texts_of_reads_are_those_that_the_tokenizer_gives_each(name):
    tokenizer = TOKENIZERS[name]
    reader = Deciding(spec(metric="em"), tokenizer)
    written = [[i % 40, (7 * i) % 40, (3 * i) % 11] for i in range(60)]
    assert [text.shown for text in reader.texts(written)] == [
        tokenizer.decode(tokens, skip_special_tokens=True) for tokens in written
    ]
    assert [text.raw for text in reader.texts(written)] == [
        tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for tokens in written
    ]
    assert reader.texts([]) == []


class CountedTokenizer:
    """A tokenizer that counts how often it is asked for a text; many asked for together count once."""

    def __init__(self, tokenizer):
        self.calls = self.sequences = 0
        self._tokenizer = tokenizer
        self.backend_tokenizer = self

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def decode(self, tokens, **options):
        self.calls += 1
        return self._tokenizer.decode(tokens, **options)

    def decode_batch(self, sequences, **options):
        self.calls += 1
        self.sequences += len(sequences)
        return self._tokenizer.backend_tokenizer.decode_batch(sequences, **options)


def test_the_texts_of_all_reads_that_may_be_decided_are_made_by_one_call_a_step(monkeypatch):
    """Of 90 reads 30 go on to the end, and 60, of two goals, end with their second token."""
    tokenizer = TOKENIZERS["sentence pieces"]
    piece = tokenizer.get_vocab()
    x, y, n = (piece[f"▁{letter}"] for letter in "xyn")
    counted = CountedTokenizer(tokenizer)
    monkeypatch.setattr(deciding, "grows", lambda _: True)
    writer = Writer(spec(metric="em", stop=(), max_new_tokens=4), counted, frozenset({0}))
    ((goal,), (other,)) = (writer.deciding.goals([[one]], 1) for one in ("x y x y", "x n"))
    answers = [Written(goal=goal if i < 60 else other) for i in range(90)]
    looked = []
    alive = list(range(90))
    for step in range(4):
        tokens = [(x, y)[step % 2] if i < 30 or i >= 60 else (x, n)[step % 2] for i in alive]
        logits = torch.zeros(len(alive), len(tokenizer))
        logits[range(len(alive)), tokens] = 1.0
        before = counted.calls
        alive = [alive[place] for place in writer.write([answers[i] for i in alive], logits)]
        looked.append(counted.calls - before)
    assert [len(answer.tokens) for answer in answers] == [4] * 30 + [2] * 60
    assert looked == [1, 1, 1, 30]  # at the end, each of those that got there
    assert counted.sequences == 1 + 2 + 1  # what several have written is looked at once


def test_a_character_of_several_tokens_is_waited_for():
    for name in ("byte level", "with bytes"):
        tokenizer = TOKENIZERS[name]
        vocabulary = tokenizer.get_vocab()
        names = list(encoded("€")) if name == "byte level" else ["<0xE2>", "<0x82>", "<0xAC>"]
        first, second, third = (vocabulary[name] for name in names)
        answer = write(tokenizer, [first, second, third], "accuracy", ["€"], ())
        assert (answer.text, answer.decided) == ("€", False)
        answer = write(tokenizer, [first, second, third], "accuracy", ["£"], ())
        assert (answer.decided, answer.tokens) == (True, [first, second, third])


@settings(max_examples=300, deadline=None)
@given(st.text(" .?!,'ntmsver x", max_size=24), st.integers(0, 24))
def test_what_is_certain_of_a_cleaned_text_stays(text, end):
    clean = TOKENIZERS["words, cleaned"].clean_up_tokenization
    certain = certain_cleaned(text[:end])
    assert clean(text).startswith(certain)
    assert clean(text[:end]).startswith(certain)
    # A few characters at the end at most are left open.
    assert len(clean(text[:end])) - len(certain) <= 3 or " " in clean(text[:end])[len(certain) :]


def test_the_replacements_are_those_of_transformers():
    clean = TOKENIZERS["words, cleaned"].clean_up_tokenization
    for pattern, replacement in deciding._CLEANED.items():
        assert clean(f"x{pattern}x") == f"x{replacement}x"


def test_tokenizers_whose_text_may_change_end_no_read():
    pieces = {"[UNK]": 0, "do": 1, "##n": 2, "not": 3}
    pieced = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    pieced.decoder = decoders.WordPiece()
    assert not grows(fast(pieced))
    replaced = with_bytes()
    replaced.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("▁▁", " ")])
    assert not grows(fast(replaced))

    class Own(PreTrainedTokenizerFast):
        def _decode(self, *args, **kwargs):
            return super()._decode(*args, **kwargs)[::-1]

    assert not grows(Own(tokenizer_object=words()))
    assert all(grows(tokenizer) for tokenizer in TOKENIZERS.values())
    x = pieces["do"]
    answer = write(fast(pieced), [x, x], "em", ["y"], ())
    assert (answer.decided, answer.tokens) == (False, [x, x])


@pytest.mark.parametrize("changed", [{"choices": ("x", "y")}, {"code": "c"}, {"metric": ""}])
def test_choices_code_of_models_and_readers_without_a_metric_end_no_read(changed):
    reader = Deciding(spec(**{"metric": "em"} | changed), TOKENIZERS["words"])
    assert reader.goals([["y"]], 1) == [None]
    assert Deciding(spec(metric="em"), TOKENIZERS["words"]).goals([["y"], None], 2)[1] is None


def test_the_kind_of_decoder_is_read_from_the_tokenizer():
    kinds = {
        name: (json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] or {}).get("type")
        for name, tokenizer in TOKENIZERS.items()
    }
    assert set(kinds.values()) == {"ByteLevel", "Sequence", "Metaspace", None}
