"""Prompts: how a query and its passages become the text that a reader is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.reading.protocol import Augmentation

Task = Literal["short-answer", "claims", "dialogue"]
Architecture = Literal["causal", "encoder-decoder"]


@dataclass(frozen=True)
class Prompt:
    """A prompt template.

    Attributes:
        prefix: what every prompt begins with, examples included.
        passage: one passage, with the fields ``title`` and ``text``.
        untitled: one passage of a corpus without titles, with the field ``text``.
        body: what follows the prefix, with the fields ``passages`` and ``query``.
        best_last: whether passages stand in reverse order, the best one next to the question.
        fused: whether each passage makes an input of its own (Fusion-in-Decoder).
        stop: generation ends before the first of these strings.
        max_new_tokens: tokens generated at most.
        tail_marker: what the part begins with that must not be cut from a prompt that is too long.
    """

    prefix: str
    passage: str
    untitled: str
    body: str
    best_last: bool
    fused: bool
    stop: tuple[str, ...]
    max_new_tokens: int
    tail_marker: str = ""

    def render(self, query: str, passages: Sequence[tuple[str, str]]) -> list[str]:
        """The inputs of one read: one string, or one per passage where the prompt is fused.

        Args:
            query: the question, claim or conversation.
            passages: (title, text) in rank order, best first; none is a read without passages.
        """
        if self.fused and len(passages) > 1:
            return [text for passage in passages for text in self.render(query, [passage])]
        ordered = list(reversed(passages)) if self.best_last else list(passages)
        shown = "".join(self._passage(title, text) for title, text in ordered)
        body = self.body.format(passages=shown, query=query.strip())
        return [(self.prefix + body).strip()]

    def _passage(self, title: str, text: str) -> str:
        # Line breaks inside a passage would look like the end of it.
        title, text = " ".join(title.split()), " ".join(text.split())
        return (
            self.passage.format(title=title, text=text)
            if title
            else self.untitled.format(text=text)
        )


# Examples are a fixed part of the task's definition: written for it, about nothing in the sample.
_SHORT_ANSWER = """Answer each question with a few words from the passages.

Passage: Mount Kenya. Its highest peak, Batian, was first climbed in 1899 by Halford Mackinder.
Question: who was the first to climb mount kenya
Answer: Halford Mackinder

Passage: Oboe. The instrument took its present form in France in the 17th century.
Question: In which country was the oboe developed?
Answer: France

"""

_CLAIMS = """Decide from the passages whether each claim is true (SUPPORTS) or false (REFUTES).

Passage: Mount Kenya. Its highest peak, Batian, was first climbed in 1899 by Halford Mackinder.
Claim: Nobody climbed Mount Kenya before the 20th century.
Answer: REFUTES

Passage: Oboe. The instrument took its present form in France in the 17th century.
Claim: The oboe as we know it is of French origin.
Answer: SUPPORTS

"""

_DIALOGUE = """Reply to each conversation with one sentence that uses the passages.

Passage: Mount Kenya. Its highest peak, Batian, was first climbed in 1899 by Halford Mackinder.
Conversation: I want to climb Mount Kenya next year. Has it been climbed for long?
Reply: Yes, since 1899, when Halford Mackinder became the first to reach its highest peak.

Passage: Oboe. The instrument took its present form in France in the 17th century.
Conversation: My daughter plays the oboe. Where does it come from, do you know?
Reply: It got its present form in France, back in the 17th century.

"""

_MAX_NEW_TOKENS: dict[Task, int] = {"short-answer": 16, "claims": 8, "dialogue": 64}


def default_prompt(task: Task, architecture: Architecture, augmentation: Augmentation) -> Prompt:
    """The prompt for a task, by the kind of model that reads it.

    Decoder-only models continue two worked examples. Encoder-decoder models get the line that
    Fusion-in-Decoder was trained on: ``question: … title: … context: …``.
    """
    if architecture == "causal":
        prefix, cue = {
            "short-answer": (_SHORT_ANSWER, "Question: {query}\nAnswer:"),
            "claims": (_CLAIMS, "Claim: {query}\nAnswer:"),
            "dialogue": (_DIALOGUE, "Conversation: {query}\nReply:"),
        }[task]
        return Prompt(
            prefix=prefix,
            passage="Passage: {title}. {text}\n",
            untitled="Passage: {text}\n",
            body="{passages}" + cue,
            best_last=True,
            fused=False,
            stop=("\n",),
            max_new_tokens=_MAX_NEW_TOKENS[task],
            tail_marker=f"\n{cue.split('{', 1)[0]}",
        )
    fused = augmentation == "fid"
    return Prompt(
        prefix="",
        passage=" title: {title} context: {text}",
        untitled=" context: {text}",
        body="question: {query}{passages}",
        best_last=False,
        fused=fused,
        stop=(),
        max_new_tokens=_MAX_NEW_TOKENS[task],
    )
