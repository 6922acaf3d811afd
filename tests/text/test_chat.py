"""Chat templates, rendered as transformers renders them."""

import json
from pathlib import Path
from typing import Any

import pytest

from archwright.spec.errors import UserError
from archwright.text.bpe import raw_bytes
from archwright.text.chat import render_chat
from archwright.text.companions import read_companions
from archwright.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

END, BEGIN, TURN = "<|endoftext|>", "<s>", "<|im_end|>"
USER = {"role": "user", "content": " What is <b>Perú</b>? "}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [USER, {"role": "assistant", "content": "Lima.\n", "name": None}, USER],
}
TEMPLATES = {
    "chatml": """\
{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
{{- '<|im_start|>system\nYou help.<|im_end|>\n' }}
    {% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{% endif %}
""",
    "dates": "{{- bos_token }}{% set at = strftime_now('%Y') if strftime_now is defined else '26' %}{{ at }}"
    "{% if tools is not none %}tools{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
    "json": "{% for m in messages %}{% if m.name is defined %}name{% endif %}{{ m | tojson }}"
    "{{ m | tojson(indent=2) }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}",
    "generation": "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% set ns.n = ns.n + 1 %}{% endgeneration %}{% else %}<{{ m.content }}>"
    "{% endif %}{% endfor %}{{ ns.n }}{{ pad_token is defined }}",
}


def both(folder: Path, template: str | dict[str, str]) -> tuple[Tokenizer, Any]:
    """Return a tokenizer with a chat template, and the one of transformers."""
    inner = raw_bytes([END, BEGIN, "<|im_start|>", TURN])
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, chat_template=template, bos_token=BEGIN, eos_token=TURN
    )
    theirs.save_pretrained(folder)
    return Tokenizer(inner, TURN, BEGIN, read_companions(folder)), theirs


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_are_rendered_and_encoded_as_by_transformers(
    template: str, chat: str, tmp_path: Path
) -> None:
    ours, theirs = both(tmp_path, TEMPLATES[template])
    given = {"tokenize": False, "add_generation_prompt": True}
    expected = theirs.apply_chat_template(CHATS[chat], **given)
    text = render_chat(ours, CHATS[chat])
    assert text == expected
    ids = theirs.apply_chat_template(CHATS[chat], add_generation_prompt=True)
    ids = ids["input_ids"] if hasattr(ids, "keys") else ids
    assert ours.encode(text, allowed_special="all").tolist() == ids


def test_the_template_called_default_of_several(tmp_path: Path) -> None:
    ours, _ = both(tmp_path, {"default": "d{{ messages[0].content }}", "tool_use": "t"})
    assert render_chat(ours, [{"role": "user", "content": "x"}]) == "dx"


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
def test_older_places_of_a_template(file: str) -> None:
    files = {file: json.dumps({"chat_template": "{{ messages[0]['content'] }}{{ eos_token }}"})}
    tokenizer = Tokenizer(raw_bytes([END]), END, files=files)
    assert render_chat(tokenizer, [{"role": "user", "content": "x"}]) == f"x{END}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "chat template: the tokenizer has none"),
        ("{{ raise_exception('Roles must alternate') }}", "chat template: Roles must alternate"),
        ("{% if %}", "chat template: Expected an expression"),
        ("{{ messages[0].content.nothing.more }}", "chat template: .* has no attribute 'nothing'"),
        ("{{ messages.append(1) }}", "chat template: access to attribute 'append' .* is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "chat template: .* unsafe"),
        ("{{ 1 / 0 }}", "chat template: division by zero"),
    ],
)
def test_templates_that_fail_are_one_line(template: str | None, said: str) -> None:
    files = {} if template is None else {"chat_template.jinja": template}
    tokenizer = Tokenizer(raw_bytes([END]), END, files=files)
    with pytest.raises(UserError, match=said):
        render_chat(tokenizer, [{"role": "user", "content": "x"}])


@pytest.mark.parametrize("messages", [[], [{"content": "x"}]])
def test_messages_have_roles(messages: list[dict[str, str]]) -> None:
    tokenizer = Tokenizer(raw_bytes([END]), END, files={"chat_template.jinja": "x"})
    with pytest.raises(UserError, match=r'^messages: found .*; expected objects with "role"'):
        render_chat(tokenizer, messages)
