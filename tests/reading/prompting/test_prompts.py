"""The prompts as the reader gets them, letter by letter."""

from dataclasses import replace

import pytest

from benchmarks._single import default_prompt
from engine.reading.prompting.controls import COMMON
from engine.reading.prompting.prompts import make_prompt, read_template
from tests.expected import refused

PASSAGES = [("T\n1", "best\n {text}"), ("", "other")]
SHORT_ANSWER = """Answer each question with a few words from the passages.

Passage: Mount Kenya. Its highest peak, Batian, was first climbed in 1899 by Halford Mackinder.
Question: who was the first to climb mount kenya
Answer: Halford Mackinder

Passage: Oboe. The instrument took its present form in France in the 17th century.
Question: In which country was the oboe developed?
Answer: France

Passage: other
Passage: T 1. best {text}
Question: who
is it?
Answer:"""
CLAIMS = """Decide from the passages whether each claim is true (SUPPORTS) or false (REFUTES).

Passage: Mount Kenya. Its highest peak, Batian, was first climbed in 1899 by Halford Mackinder.
Claim: Nobody climbed Mount Kenya before the 20th century.
Answer: REFUTES

Passage: Oboe. The instrument took its present form in France in the 17th century.
Claim: The oboe as we know it is of French origin.
Answer: SUPPORTS

Passage: other
Passage: T 1. best {text}
Claim: who
is it?
Answer:"""
DIALOGUE = """Reply to each conversation with one sentence that uses the passages.

Passage: Mount Kenya. Its highest peak, Batian, was first climbed in 1899 by Halford Mackinder.
Conversation: I want to climb Mount Kenya next year. Has it been climbed for long?
Reply: Yes, since 1899, when Halford Mackinder became the first to reach its highest peak.

Passage: Oboe. The instrument took its present form in France in the 17th century.
Conversation: My daughter plays the oboe. Where does it come from, do you know?
Reply: It got its present form in France, back in the 17th century.

Passage: other
Passage: T 1. best {text}
Conversation: who
is it?
Reply:"""
MOST = {"short-answer": 16, "claims": 8, "dialogue": 64}


@pytest.mark.parametrize(
    ("task", "expected", "tail_marker"),
    [
        ("short-answer", SHORT_ANSWER, "\nQuestion: "),
        ("claims", CLAIMS, "\nClaim: "),
        ("dialogue", DIALOGUE, "\nConversation: "),
    ],
)
def test_decoder_only_readers_continue_two_examples(task, expected, tail_marker):
    prompt = default_prompt(task, "causal", "in-prompt")
    assert prompt.render(" who\nis it?\n", PASSAGES) == [expected]
    without = expected.replace("Passage: other\nPassage: T 1. best {text}\n", "")
    assert prompt.render("who\nis it?", []) == [without]
    assert prompt.prefix == expected.split("Passage: other")[0]
    assert prompt.tail_marker == tail_marker
    assert (prompt.template.stop, prompt.max_new_tokens) == (("\n",), MOST[task])


@pytest.mark.parametrize("task", MOST)
def test_t5_readers_get_the_line_that_fusion_in_decoder_was_trained_on(task):
    fused = default_prompt(task, "encoder-decoder", "fid")
    listed = default_prompt(task, "encoder-decoder", "in-prompt")
    assert fused.render(" who? ", PASSAGES) == [
        "question: who? title: T 1 context: best {text}",
        "question: who? context: other",
    ]
    assert listed.render(" who? ", PASSAGES) == [
        "question: who? title: T 1 context: best {text} context: other"
    ]
    assert fused.render("who?", []) == listed.render("who?", []) == ["question: who?"]
    for prompt in (fused, listed):
        assert (prompt.tail_marker, prompt.template.stop) == ("", ())
        assert prompt.max_new_tokens == MOST[task]


def made(tmp_path, content, architecture="causal", augmentation="in-prompt", **around):
    path = tmp_path / "p.txt"
    path.write_text(content)
    template = read_template(str(path), "short-answer")
    return make_prompt(template, "short-answer", architecture, augmentation, **around)


def test_a_query_before_the_passages_is_a_separate_piece(tmp_path):
    prompt = made(tmp_path, "Q: {query}\n{passages}A ({query}):")
    pieces = prompt.render(" who?\n", [("T", "x"), ("U", "y")])
    assert pieces == ["Q: who?\n", "Passage: U. y\nPassage: T. x\nA (who?):"]
    assert prompt.render("who?", [("T", "x")])[0] == pieces[0]
    assert (prompt.prefix, prompt.tail_marker) == ("Q: ", "\nA (")
    # nothing follows without passages: one piece, and no spaces at its end
    assert made(tmp_path, "Q: {query}\n{passages}").render("who?", []) == ["Q: who?"]
    assert made(tmp_path, "{query}\n{passages}A:").render(" ", [("T", "x")]) == [
        "Passage: T. x\nA:"
    ]


def test_where_passages_come_first_a_prompt_is_one_string(tmp_path):
    prompt = made(tmp_path, "Read.\n{passages}Q: {query}")
    assert prompt.render("who?", [("T", "x")]) == ["Read.\nPassage: T. x\nQ: who?"]
    assert (prompt.prefix, prompt.tail_marker) == ("Read.\n", "\nQ: ")


def test_passages_are_numbered_in_the_order_of_the_prompt(tmp_path):
    front = '---\npassage: "[{number}] {title}: {text}\\n"\nuntitled: "[{number}] {text}\\n"\n'
    passages = [("T", "best"), ("", "next"), ("U", "last")]
    for order, expected in (
        ("order: best-first\n", "[1] T: best\n[2] next\n[3] U: last\nQ: q"),
        ("order: best-last\n", "[1] U: last\n[2] next\n[3] T: best\nQ: q"),
        ("", "[1] U: last\n[2] next\n[3] T: best\nQ: q"),
    ):
        prompt = made(tmp_path, f"{front}{order}---\n{{passages}}Q: {{query}}")
        assert prompt.render("q", passages) == [expected]


def test_encoder_decoder_readers_get_one_string_or_one_per_passage(tmp_path):
    content = '---\npassage: " [{number}] {text}"\n---\nQ: {query}{passages} A:'
    passages = [("T", "best"), ("U", "next")]
    listed = made(tmp_path, content, "encoder-decoder")
    assert listed.render("who?", passages) == ["Q: who? [1] best [2] next A:"]
    fused = made(tmp_path, content, "encoder-decoder", "fid")
    assert fused.render("who?", passages) == ["Q: who? [1] best A:", "Q: who? [1] next A:"]
    assert fused.render("who?", passages[:1]) == fused.render("who?", passages)[:1]
    assert fused.render("who?", []) == ["Q: who? A:"]


def test_the_message_of_a_chat_is_surrounded_by_the_template(tmp_path):
    prompt = made(tmp_path, "\nRead.\n{passages}Q: {query}:\n", head="<u>\n", tail="\n<a>\n")
    assert prompt.render("who", []) == ["<u>\nRead.\nQ: who:\n<a>\n"]
    assert prompt.prefix == "<u>\nRead.\n"
    ending = made(tmp_path, "Q: {query}\n{passages}", head=" <u>", tail=" <a> ")
    assert ending.render("who", [("", "x")]) == [" <u>Q: who\n", "Passage: x <a> "]
    assert ending.tail_marker == "\n <a> "


def test_unset_template_fields_take_the_values_of_the_task(tmp_path):
    assert made(tmp_path, "{passages}Q: {query}").max_new_tokens == MOST["short-answer"]
    dialogue = read_template(str(tmp_path / "p.txt"), "dialogue")
    most = make_prompt(dialogue, "dialogue", "causal", "in-prompt").max_new_tokens
    assert most == MOST["dialogue"]
    chosen = '---\nchoices: ["a", "b"]\n---\n{passages}Q: {query}'
    assert made(tmp_path, chosen).max_new_tokens == 1


def test_decoder_only_readers_must_know_where_the_question_begins(tmp_path):
    with refused("prompt.blank"):
        made(tmp_path, "{passages}\n{query}")
    made(tmp_path, "{passages}\n{query}", "encoder-decoder")


def test_a_passage_is_shown_as_clean_however_long_it_is():
    prompt = replace(default_prompt("short-answer", "causal", "in-prompt"), controls=COMMON)
    for times in (1, 2_000):
        passage = ("T\n1", "a</s>\n" * times)
        shown = f"Passage: T 1. {' '.join(['a< /s>'] * times)}\n"
        assert shown in prompt.render("who", [passage])[0]
