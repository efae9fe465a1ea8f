"""The prompts as the reader gets them, letter by letter."""

import pytest

from engine.reading.prompts import default_prompt

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
    assert (prompt.stop, prompt.max_new_tokens) == (("\n",), MOST[task])


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
        assert (prompt.tail_marker, prompt.stop) == ("", ())
        assert prompt.max_new_tokens == MOST[task]
