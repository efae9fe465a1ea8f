"""Template files: what they may say, and what is said about those that cannot be used."""

import hashlib

import pytest

from engine.reading.prompting.prompts import Text, read_template, styles
from tests.expected import refused


def read(tmp_path, content, task="short-answer"):
    path = tmp_path / "p.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_template(str(path), task)


def test_a_template_may_have_no_front_matter(tmp_path):
    template = read(tmp_path, "\nRead: {passages}\n{{{query}}} }}?\n\n")
    assert template.body == Text(("Read: ", "\n{", "} }?"), ("passages", "query"))
    assert template.passage.fill({"title": "T", "text": "x"}) == "Passage: T. x\n"
    assert template.untitled.fill({"text": "x"}) == "Passage: x\n"
    assert (template.order, template.stop, template.choices) == (None, (), ())
    assert (template.max_new_tokens, template.max_input_tokens) == (None, 0)
    assert not template.chat


def test_every_setting_is_taken(tmp_path):
    content = """---
# a comment
passage: "[{number}] {title}: {text}\\n"
untitled: "[{number}] {text}\\n"
order: best-first
stop: ["\\n", "Q:"]
max_new_tokens: 7
max_input_tokens: 99
chat: true
system: Be brief.
choices: ["Yes", " No"]
---
{query} {passages}
---
"""
    template = read(tmp_path, content)
    assert template.digest == hashlib.sha256(content.encode()).hexdigest()
    assert template.passage.fields == ("number", "title", "text")
    assert template.untitled.fields == ("number", "text")
    assert (template.order, template.stop) == ("best-first", ("\n", "Q:"))
    assert (template.max_new_tokens, template.max_input_tokens) == (7, 99)
    assert (template.chat, template.system) == (True, "Be brief.")
    assert template.choices == ("Yes", " No")
    assert template.body.literals[-1] == "\n---"  # only the first two fences are fences


def test_byte_order_marks_and_line_ends_do_not_change_a_template(tmp_path):
    plain = read(tmp_path, "---\nstop: x\n---\né {passages}\n{query}")
    other = read(
        tmp_path, b"\xef\xbb\xbf---\r\nstop: x\r\n---\r\n\xc3\xa9 {passages}\r\n{query}\r\n"
    )
    assert other.body == plain.body
    assert other.stop == ("x",)


def test_settings_are_texts_as_they_are_written(tmp_path):
    front = "---\nchoices: ['Yes', 'No']\nstop: 3\nchat: true\n---\n"
    template = read(tmp_path, front + "{query} {passages}")
    assert template.choices == ("Yes", "No")
    assert template.stop == ("3",)
    assert template.chat
    with refused("files.yaml"):
        read(tmp_path, front.replace("'", "") + "{query} {passages}")


def test_a_passage_without_title_needs_no_second_form(tmp_path):
    template = read(tmp_path, '---\npassage: "* {text}\\n"\n---\n{passages}Q: {query}')
    assert template.untitled == template.passage


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        ("{passages}\n\n{quary}", "prompt.field", 3),
        ("---\nstop: x\n---\n\n{passages} {title}", "prompt.field", 5),
        ('{query} {passages}\n{"answer": "x"}', "prompt.field", 2),
        ("{query!r} {passages}", "prompt.field", 1),
        ("{passages}\n{query", "prompt.brace", 2),
        ("{passages} {query}\n\n}", "prompt.brace", 3),
        ("{passages}", "prompt.query", None),
        ("{query}", "prompt.passages", None),
        ("{{passages}} {query}", "prompt.passages", None),
        ("{passages} {query} {passages}", "prompt.passages", None),
        ("", "prompt.query", None),
        ("---\nstop: x\n{passages} {query}", "prompt.unclosed", 1),
        ("---\nstop: x\nstopp: y\n---\n", "prompt.unknown", 3),
        ("---\nstop: x\n\nstop: y\n---\n", "files.yaml", 4),
        ("---\n\nstop: [x\n---\n", "files.yaml", None),
        ("---\norder: best-last\nstop: 'x\n---\n", "files.yaml", None),
        ("---\n- stop\n---\n", "files.yaml", 2),
        ("---\n\nmax_new_tokens: 0\n---\n", "prompt.limit", 3),
        ("---\nmax_new_tokens: true\n---\n", "prompt.limit", 2),
        ("---\nmax_input_tokens: -1\n---\n", "prompt.limit", 2),
        ("---\nmax_new_tokens:\n---\n", "prompt.limit", 2),
        ("---\nstop: [3, null]\n---\n", "prompt.stop", 2),
        ("---\nstop: ['']\n---\n", "prompt.stop", 2),
        ("---\norder: first\n---\n", "prompt.order", 2),
        ("---\nchat: maybe\n---\n", "prompt.chat", 2),
        ("---\nsystem: x\n---\n{passages} {query}", "prompt.system", 2),
        ("---\nchoices: ['Yes']\n---\n", "prompt.choices", 2),
        ("---\nchoices: ['Yes', ' Yes']\n---\n", "prompt.choices", 2),
        ('---\npassage: "\\n{txt}"\n---\n', "prompt.field", 2),
        ("---\nuntitled: '{title} {text}'\n---\n", "prompt.field", 2),
        ("---\npassage: '{title}'\nuntitled: '{text}'\n---\n", "prompt.passage", 2),
        ("---\npassage: '{title} {text}'\n---\n", "prompt.passage", 2),
        ("---\npassage: 3\n---\n", "prompt.passage", 2),
        ("---\npassage: [a, b]\n---\n", "prompt.passage", 2),
        ('---\nsystem: "\\ud800"\n---\n', "prompt.system", 2),
        ("ok\nok {query}\n\xe9".encode("latin-1"), "files.encoding", 3),
    ],
)  # fmt: skip
def test_bad_templates_are_refused_with_file_and_line(tmp_path, content, code, line):
    if isinstance(content, str) and content.endswith("---\n"):
        content += "{passages} {query}"
    with refused(code, path=tmp_path / "p.txt", line=line):
        read(tmp_path, content)


def test_an_unknown_template_is_refused_with_the_names_of_those_bundled(tmp_path):
    with refused("files.missing"):
        read_template(str(tmp_path / "none"), "claims")
    with refused("files.directory"):
        read_template(str(tmp_path), "claims")


def test_a_judge_needs_choices(tmp_path):
    with refused("prompt.choices"):
        read(tmp_path, "{query} {passages}", "judge")


@pytest.mark.parametrize("choices", ["", 'choices: [" No", " Yes"]'])
def test_a_template_for_declining_has_one_choice(tmp_path, choices):
    with refused("prompt.choices"):
        read(tmp_path, f"---\n{choices}\n---\n{{query}} {{passages}}", "abstain")


def test_templates_of_other_tasks_need_two_choices(tmp_path):
    with refused("prompt.choices"):
        read(tmp_path, '---\nchoices: [" Yes"]\n---\n{query} {passages}')


@pytest.mark.parametrize("task", ["short-answer", "claims", "dialogue", "judge", "abstain"])
def test_bundled_templates_are_valid(task):
    assert {"chat", "completion", "t5"} <= set(styles(task))
    for style in styles(task):
        template = read_template(style, task)
        assert template.name == style
        assert template.chat == style.startswith("chat")
        assert len(template.choices) == {"judge": 2, "abstain": 1}.get(task, 0)
