"""Chat templates: what they do with messages, and which tokens a prompt in them has."""

import pytest
from transformers import AutoTokenizer

from engine.reading.prompting.controls import around_message
from tests.expected import refused
from tests.reading.models.tiny_models import save_tokenizer

USER = "{% for m in messages if m.role == 'user' %}w5 {{ m.content }} w6{% endfor %}"
ALL = "{% for m in messages %}w5 {{ m.content | trim }} w6 {% endfor %}"
# Ends a system message's last word, as templates that look for commands in it do.
EDITED = "{% for m in messages %}w5 {{ m.content.replace('/no_think', '') }} {% endfor %}"
FIRST = "{{ messages[0].content }} w7 {{ messages[-1].content }}"
ENDED = "</s>" + ALL


def model(directory, template):
    save_tokenizer(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return tokenizer


@pytest.mark.parametrize("template", [USER, "w1 w2 " + USER])
def test_a_template_that_leaves_the_system_message_out_is_refused(template, tmp_path):
    model(tmp_path, template)
    assert around_message(tmp_path, "tiny")  # without one it is as good as others
    with refused("model.template"):
        around_message(tmp_path, "tiny", "w1 w2")


@pytest.mark.parametrize("template", [ALL, EDITED, FIRST, ENDED])
@pytest.mark.parametrize("system", ["w1", " w2 w3\n", "w2 /no_think"])
def test_tokens_are_those_of_the_template_whatever_the_tokenizer_adds(template, system, tmp_path):
    """The tokenizer ends every text with </s>; a prompt has it where the template writes it, and nowhere else."""
    tokenizer = model(tmp_path, template)
    head, tail = around_message(tmp_path, "tiny", system)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "w8 w9"}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    assert (
        tokenizer.encode(head + "w8 w9" + tail, add_special_tokens=False) == expected["input_ids"]
    )
