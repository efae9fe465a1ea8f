"""Prompts: templates with named fields, and the text that a reader receives for a query and its passages.

A template is the text of a prompt with the fields ``{passages}`` and ``{query}``; ``{{`` and ``}}`` stand for braces.
Optional settings in YAML (the keys of ``Template``) precede the text, between two lines ``---``. The folder
``templates`` holds the engine's own templates, by task and style.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

from engine.messages.errors import InputError
from engine.reading.prompting.controls import NONE, Controls
from engine.reading.protocol import THINK, Architecture, Augmentation
from engine.sources.io.files import is_text
from engine.sources.io.locations import require_file
from engine.sources.io.records import BOM, decode_line, read_document, read_settings

Task = Literal["short-answer", "claims", "dialogue"]
# Further purposes: judge relevance, decline to answer, generate a passage's question.
Purpose = Task | Literal["judge", "abstain", "question"]
JUDGE: Literal["judge"] = "judge"
ABSTAIN: Literal["abstain"] = "abstain"
# Prompts for the question that a passage answers; {query} stands last and is scored.
QUESTION: Literal["question"] = "question"
Order = Literal["best-first", "best-last"]

QUERY, PASSAGES, TITLE, TEXT, NUMBER = "query", "passages", "title", "text", "number"

_SHIPPED = Path(__file__).parent / "templates"
_FENCE = "---"
_WHOLE = re.compile(r"[1-9][0-9]{0,17}")
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}|[{}]")
# Takes the key, the problem, the remedy, and the kind of problem if the key does not name it.
_Fault = Callable[..., InputError]


@dataclass(frozen=True)
class Text:
    """Text with named fields: literals and fields alternate, literals first and last; any literal may be empty."""

    literals: tuple[str, ...]
    fields: tuple[str, ...]

    def fill(self, values: dict[str, str]) -> str:
        """The text with every field replaced."""
        parts = [self.literals[0]]
        for name, literal in zip(self.fields, self.literals[1:], strict=True):
            parts += [values[name], literal]
        return "".join(parts)

    def around(self, field: str) -> tuple[Text, Text]:
        """The text before and the text after the first occurrence of a field."""
        at = self.fields.index(field)
        before = Text(self.literals[: at + 1], self.fields[:at])
        return before, Text(self.literals[at + 1 :], self.fields[at + 1 :])


@dataclass(frozen=True)
class Template:
    """A template file.

    Attributes:
        name: as the user wrote it: a path, or the style of a template of the engine.
        digest: SHA-256 of the file.
        body: the prompt, with the fields ``passages`` (once) and ``query``.
        passage: one passage: ``title``, ``text``, ``number`` (its place in the prompt, from 1).
        untitled: one passage of a corpus without titles: ``text``, ``number``.
        order: whether the best passage stands first or last; None to let the reader decide.
        stop: strings; an answer ends before the first occurrence; in a chat not before its first word.
        thought: the beginning and the end of a thought before the answer.
        max_new_tokens: tokens generated at most; None for the task's number.
        max_input_tokens: longest input; 0 for the reader's own limit.
        chat: whether the prompt is a user's message in the model's own chat template.
        system: the system message of a chat; empty for none.
        choices: answers to choose from, or one answer whose probability is read; empty if the reader writes.
    """

    name: str
    path: Path
    digest: str
    body: Text
    passage: Text
    untitled: Text
    order: Order | None = None
    stop: tuple[str, ...] = ()
    thought: tuple[str, str] = THINK
    max_new_tokens: int | None = None
    max_input_tokens: int = 0
    chat: bool = False
    system: str = ""
    choices: tuple[str, ...] = ()


# Keys of the settings: all fields but name, path, digest and body.
_KEYS = tuple(field.name for field in fields(Template))[4:]


def styles(task: Purpose) -> list[str]:
    """The names of the templates that come with the engine."""
    return sorted(path.stem for path in (_SHIPPED / task).glob("*.txt"))


def read_template(name: str, task: Purpose) -> Template:
    """Read a template.

    Args:
        name: one of ``styles(task)``, or a path.
        task: decides whether ``choices`` are needed: some for a judge's prompt, one if the reader may decline.

    Raises:
        InputError: the file does not exist, or its content is invalid.
    """
    known = styles(task)
    path = _SHIPPED / task / f"{name}.txt" if name in known else Path(name)
    require_file(path, f"a prompt template, or one of {', '.join(known)}")
    data = read_document(path, "a prompt template")
    content = decode_line(path, 1, data.removeprefix(BOM)).replace("\r\n", "\n")
    settings, lines, body, first = _take_apart(content, path)

    def fault(key: str, problem: str, remedy: str, kind: str = "") -> InputError:
        return InputError(problem, remedy, f"prompt.{kind or key}", path=path, line=lines.get(key))

    for key in settings:
        if key not in _KEYS:
            raise fault(key, f"unknown key {key!r}", f"use some of {', '.join(_KEYS)}", "unknown")
    template = Template(
        name=name,
        path=path,
        digest=hashlib.sha256(data).hexdigest(),
        body=_body(body, path, first),
        **_passages(settings, path, lines, fault),
        order=_one_of(settings, "order", get_args(Order), fault),
        stop=_texts(settings, "stop", fault),
        thought=_thought(settings, fault),
        max_new_tokens=_number(settings, "max_new_tokens", fault),
        max_input_tokens=_number(settings, "max_input_tokens", fault) or 0,
        chat=_one_of(settings, "chat", ("true", "false"), fault) == "true",
        system=_string(settings, "system", fault) or "",
        choices=_choices(settings, fault),
    )
    if template.system and not template.chat:
        raise fault("system", "a system message and no chat", "add chat: true")
    if task == JUDGE and not template.choices:
        raise fault("choices", "a judge's prompt without choices", 'add choices: [" Yes", " No"]')
    if task == ABSTAIN and len(template.choices) != 1:
        problem = f"choices is {list(template.choices)} where the reader may decline"
        remedy = 'give the one text that declines: choices: [" NO-RESPONSE"]'
        raise fault("choices", problem, remedy)
    if task != ABSTAIN and len(template.choices) == 1:
        problem = f"choices is {list(template.choices)}"
        raise fault("choices", problem, "give two or more different texts")
    return template


def _take_apart(content: str, path: Path) -> tuple[dict[str, Any], dict[str, int], str, int]:
    """Settings, lines of the settings, the body, and its first line."""
    first, *lines = content.split("\n")
    if first.rstrip() != _FENCE:
        return {}, {}, content, 1
    end = next((i for i, line in enumerate(lines) if line.rstrip() == _FENCE), None)
    if end is None:
        remedy = f'close them with a line "{_FENCE}"'
        raise InputError("settings without an end", remedy, "prompt.unclosed", path=path, line=1)
    settings, places = read_settings("\n".join(lines[:end]), path, first_line=2)
    return settings, places, "\n".join(lines[end + 1 :]), end + 3


def _parse(text: str, allowed: tuple[str, ...], path: Path, line_at: Callable[[int], int]) -> Text:
    """Split a text at its fields; ``line_at`` maps a place in the text to a line of the file."""
    literals: list[str] = [""]
    fields: list[str] = []
    last = 0
    for match in _BRACES.finditer(text):
        literals[-1] += text[last : match.start()]
        last, name = match.end(), match[1]
        fault = partial(InputError, path=path, line=line_at(match.start()))
        if match[0] in ("{{", "}}"):
            literals[-1] += match[0][0]
        elif name is None:
            remedy = "write {{ or }} for a brace itself"
            raise fault("a brace without its other half", remedy, "prompt.brace")
        elif name not in allowed:
            known = ", ".join(f"{{{field}}}" for field in allowed)
            remedy = f"use {known}, and {{{{ and }}}} for braces themselves"
            raise fault(f"unknown field {{{name}}}", remedy, "prompt.field")
        else:
            fields.append(name)
            literals.append("")
    literals[-1] += text[last:]
    return Text(tuple(literals), tuple(fields))


def _body(text: str, path: Path, line: int) -> Text:
    line += text[: len(text) - len(text.lstrip())].count("\n")
    text = text.strip()
    body = _parse(text, (PASSAGES, QUERY), path, lambda at: line + text.count("\n", 0, at))
    if QUERY not in body.fields:
        raise InputError(
            "no {query} in the prompt", "write where the query goes", "prompt.query", path=path
        )
    if (times := body.fields.count(PASSAGES)) != 1:
        problem = "no {passages}" if not times else f"{{passages}} {times} times"
        remedy = "write once where the passages go"
        raise InputError(f"{problem} in the prompt", remedy, "prompt.passages", path=path)
    return body


def _passages(
    settings: dict[str, Any], path: Path, lines: dict[str, int], fault: _Fault
) -> dict[str, Text]:
    titled = _string(settings, "passage", fault)
    untitled = _string(settings, "untitled", fault)
    if titled is None:
        titled, untitled = "Passage: {title}. {text}\n", untitled or "Passage: {text}\n"
    # A line break within these is written \\n: all of a value counts as its key's line.
    parsed = {
        "passage": _parse(titled, (TITLE, TEXT, NUMBER), path, lambda _: lines.get("passage", 1))
    }
    if untitled is None:
        if TITLE in parsed["passage"].fields:
            remedy = "add untitled: how a passage without a title stands"
            raise fault("passage", "{title} in passage, and no untitled", remedy)
        untitled = titled
    parsed["untitled"] = _parse(untitled, (TEXT, NUMBER), path, lambda _: lines.get("untitled", 1))
    for key, text in parsed.items():
        if TEXT not in text.fields:
            raise fault(key, f"no {{text}} in {key}", "write where the passage's text goes")
    return parsed


def _string(settings: dict[str, Any], key: str, fault: _Fault) -> str | None:
    value = settings.get(key)
    if key in settings and not (isinstance(value, str) and value.strip() and is_text(value)):
        raise fault(key, f"{key} is {value!r}", "give a text, in quotes")
    return value


def _texts(settings: dict[str, Any], key: str, fault: _Fault) -> tuple[str, ...]:
    values = settings.get(key, [])
    values = values if isinstance(values, list) else [values]
    if not all(value and is_text(value) for value in values):
        raise fault(key, f"{key} is {values!r}", f'give texts: {key}: ["…", "…"]')
    return tuple(values)


def _thought(settings: dict[str, Any], fault: _Fault) -> tuple[str, str]:
    tags = _texts(settings, "thought", fault) or THINK
    if len(tags) != 2 or tags[0] == tags[1] or not all(tag.strip() for tag in tags):
        remedy = 'give what a thought begins and ends with: thought: ["<think>", "</think>"]'
        raise fault("thought", f"thought is {list(tags)}", remedy)
    return tags[0], tags[1]


def _number(settings: dict[str, Any], key: str, fault: _Fault) -> int | None:
    value = settings.get(key)
    if key not in settings:
        return None
    if not isinstance(value, str) or not _WHOLE.fullmatch(value):
        raise fault(key, f"{key} is {value!r}", "give a whole number, 1 or more", "limit")
    return int(value)


def _one_of(settings: dict[str, Any], key: str, known: tuple[str, ...], fault: _Fault) -> Any:
    value = settings.get(key)
    if key in settings and value not in known:
        raise fault(key, f"{key} is {value!r}", f"use {' or '.join(known)}")
    return value


def _choices(settings: dict[str, Any], fault: _Fault) -> tuple[str, ...]:
    values = _texts(settings, "choices", fault)
    # Compared without the spaces around them, which the tokenizer needs and outputs lack.
    different = {value.strip() for value in values} - {""}
    if values and len(different) < len(values):
        raise fault("choices", f"choices is {list(values)}", "give two or more different texts")
    return values


# Stands for data in a prompt whose own control strings are counted; no tokenizer knows it.
_NO_DATA = "\ue000"

# Many lists hold the same passage: cleaned texts of at most so many characters are cached, some 30 MB in all.
_REMEMBERED = 2_000

_TEXTS = ("body", "passage", "untitled")

DEFAULT_STYLE: dict[Architecture, str] = {"causal": "completion", "encoder-decoder": "t5"}


@dataclass(frozen=True)
class Prompt:
    """A template, completed for one kind of reader.

    Attributes:
        best_last: whether passages stand in reverse order, the best one next to the question.
        fused: whether each passage makes an input of its own (Fusion-in-Decoder).
        shares_query: whether reads of a query share the text before the passages as a piece (decoder-only).
        head, tail: text of the model's chat template before and after the user's message.
        controls: strings that the reader's tokenizer takes for control tokens; data must not contain them.
    """

    template: Template
    best_last: bool
    fused: bool
    shares_query: bool
    max_new_tokens: int
    head: str = ""
    tail: str = ""
    controls: Controls = NONE

    def described(self) -> dict[str, Any]:
        """The parts of prompts, ready for JSON; ``of`` restores all but ``controls``."""
        names = ("best_last", "fused", "shares_query", "max_new_tokens", "head", "tail")
        texts = {name: asdict(getattr(self.template, name)) for name in _TEXTS}
        return texts | {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Prompt:
        """The prompt that ``described`` describes; further keys are ignored."""
        body, passage, untitled = (Text(*map(tuple, described[name].values())) for name in _TEXTS)
        values = {f.name: described[f.name] for f in fields(cls) if f.name in described}
        return cls(Template("", Path(), "", body, passage, untitled), **values)

    @property
    def prefix(self) -> str:
        """The beginning of every prompt, examples included."""
        return self.head + self.template.body.literals[0]

    @property
    def digest(self) -> str:
        """SHA-256 of the template's file."""
        return self.template.digest

    @property
    def tail_marker(self) -> str:
        """The text right after the passages, which must stay in a prompt that is cut. The separator of passages
        (a line's end) precedes it, so that the marker is not found within a passage.
        """
        _, after = self.template.body.around(PASSAGES)
        literal = after.literals[0] + ("" if after.fields else self.tail)
        ends = [text.literals[-1] for text in (self.template.passage, self.template.untitled)]
        spaces = {end[len(end.rstrip()) :] for end in ends}
        return (spaces.pop() if len(spaces) == 1 else "") + literal if literal else ""

    def target(self, text: str) -> str:
        """A text as the reader would write it after the prompt: a blank precedes it, except after a chat template's
        tail and in encoder-decoder readers.
        """
        text = self.controls.as_text(text.strip())
        return " " * (self.shares_query and not self.template.chat) + text

    def render(self, query: str, passages: Sequence[tuple[str, str]]) -> list[str]:
        """The inputs of a read: the pieces of a prompt, or one prompt per passage (fused).

        A prompt is one string, or two if ``shares_query`` and the query precedes the passages: the text before the
        first passage, and the rest. Control strings in data are broken (``controls``).

        Args:
            query: the question, claim or conversation.
            passages: (title, text) in rank order, best first; none is a read without passages.
        """
        if self.fused and len(passages) > 1:
            return [text for passage in passages for text in self.render(query, [passage])]
        ordered = reversed(passages) if self.best_last else passages
        short = all(len(text) <= _REMEMBERED for passage in passages for text in passage)
        clean = partial(_clean if short else _clean.__wrapped__, self.controls)
        query = self.controls.as_text(query.strip())
        data = [(clean(title), clean(text)) for title, text in ordered]
        pieces = self._filled(query, data)
        if (count := self.controls.count("".join(pieces))) and count > self._own(query, data):
            # The end of a piece of data and the text after it form a control string together.
            spaced = [(_apart(title), _apart(text)) for title, text in data]
            pieces = self._filled(_apart(query), spaced)
        return pieces

    def _filled(self, query: str, passages: Sequence[tuple[str, str]]) -> list[str]:
        """The pieces of a prompt, from clean data in the order of the prompt."""
        shown = "".join(self._passage(i, *passage) for i, passage in enumerate(passages, 1))
        before, after = self.template.body.around(PASSAGES)
        values = {QUERY: query}
        start = before.fill(values)
        text = start + shown + after.fill(values)
        # A field at the very start or end of the prompt may be filled by text with spaces around it.
        cut = max(0, len(start) - (len(text) - len(text.lstrip())))
        text = text.strip()
        pieces = [self.head + text[:cut], text[cut:] + self.tail]
        shared = self.shares_query and QUERY in before.fields and all(pieces)
        return pieces if shared else ["".join(pieces)]

    def _own(self, query: str, passages: Sequence[tuple[str, str]]) -> int:
        """The number of control strings in the prompt itself, with placeholders for data."""
        other = [(bool(title) * _NO_DATA, bool(text) * _NO_DATA) for title, text in passages]
        return self.controls.count("".join(self._filled(bool(query) * _NO_DATA, other)))

    def _passage(self, number: int, title: str, text: str) -> str:
        template = self.template.passage if title else self.template.untitled
        return template.fill({TITLE: title, TEXT: text, NUMBER: str(number)})


@lru_cache(maxsize=8_192)
def _clean(controls: Controls, data: str) -> str:
    """A title or text without control strings, in one line: a line break would look like the passage's end."""
    return controls.as_text(" ".join(data.split()))


def _apart(data: str) -> str:
    return f" {data} " if data else data


def make_prompt(
    template: Template,
    task: Purpose,
    architecture: Architecture,
    augmentation: Augmentation,
    *,
    head: str = "",
    tail: str = "",
    controls: Controls = NONE,
) -> Prompt:
    """Complete a template for a kind of reader; defaults fill its gaps. Arguments are as in ``Prompt``.

    The default ``order`` makes a prompt that is too long lose the worst passages first: decoder-only readers get the
    best passage last, encoder-decoder readers first.

    Raises:
        InputError: the end of a long prompt could not be distinguished from its passages.
    """
    causal = architecture == "causal"
    if task == QUESTION:  # the question is scored, and no part of the prompt
        before, after = template.body.around(PASSAGES)
        literals = (*before.literals, after.literals[0].rstrip())
        template = replace(template, body=Text(literals, (*before.fields, PASSAGES)))
    most = template.max_new_tokens
    if most is None:
        # Choosing needs no decoding; other prompts take the number of the task's own template.
        chooses = template.choices or task in (JUDGE, ABSTAIN, QUESTION)
        usual = None if chooses else read_template(DEFAULT_STYLE[architecture], task)
        most = (usual and usual.max_new_tokens) or 1
    prompt = Prompt(
        template=template,
        best_last=causal if template.order is None else template.order == "best-last",
        fused=augmentation == "fid",
        shares_query=causal,
        max_new_tokens=most,
        head=head,
        tail=tail,
        controls=controls,
    )
    _, after = template.body.around(PASSAGES)
    if causal and after.fields and not prompt.tail_marker.strip():
        raise InputError(
            "only blanks between {passages} and {query}: in a prompt that is too long, where the "
            "question begins would not be known",
            "write something there, as in Question: {query}",
            "prompt.blank",
            path=template.path,
        )
    return prompt
