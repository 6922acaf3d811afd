"""Chat templates of a tokenizer, rendered as transformers renders them."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from archwright.spec.errors import UserError
from archwright.text.companions import CONFIG, content, table
from archwright.text.json_table import first_line
from archwright.text.tokenizer import Tokenizer


def render_chat(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation as text, up to the start of the next answer.

    A message is an object such as {"role": "user", "content": "Hello"}.

    The text names special tokens: encode it with `allowed_special="all"`. It needs no begin-of-text token.

    Raises:
        UserError: no messages, no chat template, or a template that fails or refuses the messages.
    """
    template = _template(tokenizer)
    is_list = isinstance(messages, list | tuple) and bool(messages)
    if not (is_list and all(isinstance(m, Mapping) and "role" in m for m in messages)):
        shown = json.dumps(messages, default=str)[:80]
        raise UserError(f'messages: found {shown}; expected objects with "role" and "content"')
    named = [table(tokenizer.files, file) for file in ("special_tokens_map.json", CONFIG)]
    special = {
        name: content(token)
        for tokens in named
        for name, token in tokens.items()
        if name.endswith("_token") and content(token)
    }
    special.setdefault("eos_token", tokenizer.end_of_text_name)
    try:
        # Messages are copied as JSON, so that a template receives plain values only.
        filled = [{k: v for k, v in message.items() if v is not None} for message in messages]
        plain = json.loads(json.dumps(filled))
        compiled = _environment().from_string(template)
        absent = {"tools": None, "documents": None}
        return compiled.render(messages=plain, add_generation_prompt=True, **absent, **special)
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UserError(f"chat template: {first_line(error)}") from None


def _template(tokenizer: Tokenizer) -> str:
    """Return the default chat template: of chat_template.jinja, or of the older places."""
    files = tokenizer.files
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"]
    for name in ("chat_template.json", CONFIG):
        template = table(files, name).get("chat_template")
        if isinstance(template, list):
            by_name = {entry.get("name"): entry.get("template") for entry in template}
            template = by_name.get("default")
        if isinstance(template, str):
            return template
    raise UserError(
        "chat template: the tokenizer has none, as of a model that was not trained on conversations; give a plain "
        "prompt instead"
    )


class _Generation(Extension):
    """The block `{% generation %}`, which marks an answer for training; here only its content counts."""

    tags = {"generation"}  # noqa: RUF012 (of jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )

    def tojson(value: object, ensure_ascii: bool = False, **settings: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **settings)

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.now().astimezone().strftime(form)

    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment
