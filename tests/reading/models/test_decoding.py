"""When an answer ends (at stop strings, with tokenizers of many kinds), and choices."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.reading.answers import Rule, rule_of
from engine.reading.models.decoding import Continuation, Writer, grows
from engine.reading.models.encoder_decoder import EncoderDecoderReader, _EncoderRead
from engine.reading.protocol import ReaderSpec
from tests.expected import refused


class Letters:
    """A tokenizer whose tokens are characters."""

    def decode(self, tokens, *, skip_special_tokens):
        return "".join(map(chr, tokens))

    def encode(self, text, *, add_special_tokens):
        return list(map(ord, text))


def spec(**fields):
    base = {
        "weights": "w", "architecture": "causal", "dtype": "float32", "max_new_tokens": 20,
        "stop": ("\n",), "max_input_tokens": 0, "path": "p", "parameters": 1, "name": "n",
    }  # fmt: skip
    return ReaderSpec(**(base | fields))


def logits_for(text):
    rows = torch.zeros(len(text), 128)
    for row, letter in enumerate(text):
        rows[row, ord(letter)] = 1.0
    return rows


def written(text, **fields):
    """What becomes of an answer to which the model would add ``text``, and how many tokens it took."""
    writer = Writer(spec(**fields), Letters(), frozenset({0}))
    answer = Continuation()
    for letter in text:
        if not writer.write([answer], logits_for(letter)):
            break
    return rule_of(spec(**fields)).parts(answer.text).answer, len(answer.tokens)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Paris\nQuestion", (" Paris", 7)),
        ("\nParis\n", ("", 1)),  # a line that ends at once is an empty answer
        ("Paris", ("Paris", 5)),
        ("Par\0is", ("Par", 3)),  # the end token is not part of the answer
        ("\0", ("", 0)),
        ("a" * 30, ("a" * 20, 20)),
    ],
)
def test_answers_end_at_an_end_token_or_a_stop_string(text, expected):
    assert written(text) == expected


def test_the_first_of_several_stop_strings_ends_an_answer():
    assert written("one two. three", stop=(". ", " t")) == ("one", 5)
    assert written("ab\0", stop=()) == ("ab", 2)


def test_only_answers_that_go_on_are_named():
    writer = Writer(spec(), Letters(), frozenset({0}))
    answers = [Continuation() for _ in range(4)]
    assert writer.write(answers, logits_for("a\n\0b")) == [0, 3]
    assert [answer.text for answer in answers] == ["a", "\n", "", "b"]


def test_choices_compare_first_tokens_only():
    writer = Writer(spec(choices=("yes", "no")), Letters(), frozenset({0}))
    logits = torch.full((2, 128), 50.0)  # whatever else the model would say
    logits[:, ord("y")] = torch.tensor([1.0, -1.0])
    logits[:, ord("n")] = 0.0
    answers = [Continuation(), Continuation()]
    assert writer.write(answers, logits) == []
    assert [answer.text for answer in answers] == ["yes", "no"]
    assert [answer.confidence for answer in answers] == pytest.approx([0.7310586, 0.2689414])
    assert writer.most == 0


def test_a_single_choice_is_weighed_against_all_tokens():
    writer = Writer(spec(choices=("no",)), Letters(), frozenset({0}))
    logits = torch.zeros(2, 128)
    logits[0, ord("n")] = 10.0
    logits[1, ord("x")] = 10.0
    answers = [Continuation(), Continuation()]
    assert writer.write(answers, logits) == []
    assert [answer.text for answer in answers] == ["no", ""]
    most, other = torch.tensor([10.0, 0.0]).exp()
    below = most + 127 * other
    assert [a.confidence for a in answers] == pytest.approx([float(most / below), float(1 / below)])


@pytest.mark.parametrize("choices", [("yes", "yesterday"), ("yes", "")])
def test_choices_that_first_tokens_do_not_tell_apart_are_refused(choices):
    with refused("model.choices"):
        Writer(spec(choices=choices), Letters(), frozenset({0}))


@pytest.mark.parametrize("choices", [(), ("yes", "no")])
def test_logits_that_are_not_numbers_are_an_error(choices):
    writer = Writer(spec(choices=choices), Letters(), frozenset({0}))
    logits = torch.zeros(2, 128)
    logits[1, 5] = torch.nan
    with pytest.raises(ArithmeticError, match="not numbers"):
        writer.write([Continuation(), Continuation()], logits)


# Pieces of words: marks that a tokenizer may move a space from, and others.
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


def write(tokenizer, tokens, stop):
    """What becomes of an answer that the model would write so."""
    writer = Writer(
        spec(stop=stop, max_new_tokens=8), tokenizer, frozenset({tokenizer.eos_token_id})
    )
    answer = Continuation()
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
    answer = write(tokenizer, tokens, stop)
    assert (answer.tokens, Rule(stop).parts(answer.text).answer) == (expected, text)


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


def write_together(tokenizer, rows, stop):
    """What becomes of reads that T5's loop decodes together, if a model would write them so."""
    script = Script(tokenizer, rows)
    reader = object.__new__(EncoderDecoderReader)  # without a model
    ends = frozenset({tokenizer.eos_token_id})
    reader._writer = Writer(spec(stop=stop, max_new_tokens=8), tokenizer, ends)
    reader._model, reader._start = script, script.start
    reader._rule, reader._special = Rule(stop), ends
    return reader._decode([_EncoderRead([]) for _ in rows], None, {}), script.steps


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


@pytest.mark.parametrize("name", ["sentence pieces", "sentence pieces, cleaned", "with bytes"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_stop_strings_end_reads_in_the_loop_of_t5(name, data):
    """Reads that are decoded together."""
    tokenizer = TOKENIZERS[name]
    stop = data.draw(st.sampled_from([(), ("\n",), (". ",), ("end", "?!"), (" the x",)]))
    rows = [some_tokens(tokenizer, data) for _ in range(data.draw(st.integers(1, 4)))]
    reads, steps = write_together(tokenizer, rows, stop)
    assert steps <= 9
    assert [read.output for read in reads] == [in_full(tokenizer, row, stop) for row in rows]


def test_tokenizers_whose_text_may_change_are_told_apart():
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


def test_the_kind_of_decoder_is_read_from_the_tokenizer():
    kinds = {
        name: (json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] or {}).get("type")
        for name, tokenizer in TOKENIZERS.items()
    }
    assert set(kinds.values()) == {"ByteLevel", "Sequence", "Metaspace", None}
