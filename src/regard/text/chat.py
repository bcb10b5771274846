"""Chat templates: Jinja texts that turn a conversation into a prompt. They are not trusted and run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import read_json
from regard.settings import Table, shown
from regard.text.tokenizer import CONFIG_FILE, HUGGINGFACE_ROLES, Tokenizer

TEMPLATE_FILE = "chat_template.jinja"
MOST_REPEATS = 1000


def chat_template(directory: Path, config: Table) -> str | None:
    """The template of a model: of a run's task, of its config, or of its files; None if it has none."""
    task = config.get("task")
    found = (task.get("template") if isinstance(task, dict) else None) or config.get("chat_template")
    if found is None and (file := directory / TEMPLATE_FILE).is_file():
        return file.read_text(encoding="utf-8")
    if found is None and (directory / CONFIG_FILE).is_file():
        found = read_json(directory / CONFIG_FILE).get("chat_template")
    if isinstance(found, list):  # named ones
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], tokenizer: Tokenizer, name: str, answer: bool = True
) -> str:
    """A conversation as a text. With `answer` it ends where the next answer begins. `name` is for errors."""
    from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    for place, message in enumerate(messages):
        if not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise InputError(f"messages[{place}] ({shown(message)}) needs the texts role and content")

    def refuse(message: str) -> None:
        raise TemplateError(message)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sized = isinstance(left, Sized) != isinstance(right, Sized)  # a text or list, repeated
            if operator == "**" or (sized and (right if isinstance(left, Sized) else left) > MOST_REPEATS):
                raise MemoryError
            return super().call_binop(context, operator, left, right)

        def unsafe_undefined(self, obj: Any, attribute: str) -> Any:  # by default it would print nothing
            raise SecurityError(f"access to {attribute}")

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    # What templates of Hugging Face may use; tools and documents are always defined there.
    environment.filters["tojson"] = _json  # Jinja's own escapes HTML
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    names = {role: tokenizer.token(number) for role, number in tokenizer.roles.items()}
    given: dict[str, Any] = {theirs: names.get(role, "") for role, theirs in HUGGINGFACE_ROLES.items()}
    given |= {"tools": None, "documents": None, "add_generation_prompt": answer}
    try:
        return environment.from_string(template).render(messages=[dict(message) for message in messages], **given)
    except SecurityError as error:
        raise InputError(f"the chat template of {name} is unsafe and was stopped ({error}); use another one") from None
    except TemplateSyntaxError as error:
        raise InputError(
            f"the chat template of {name} is not a Jinja template (line {error.lineno}: {error}); use another one"
        ) from None
    except (RecursionError, MemoryError):
        raise InputError(
            f"the chat template of {name} needs too much memory and was stopped; use another one"
        ) from None
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        problem = f"the chat template of {name} refuses these messages ({error})"
        raise InputError(f"{problem}; change their order, or use another template") from None


def _json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def chat_parts(template: str, messages: Sequence[Mapping[str, str]], tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    """A conversation in parts, each with whether it is an answer, as a model writes it; the last part is one."""
    parts: list[tuple[str, bool]] = []
    done = ""
    for end, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = (
            render_chat(template, messages[: end + answered], tokenizer, "task.template", answer=not answered)
            for answered in (False, True)
        )
        if not before.startswith(done) or not after.startswith(before):
            raise InputError(
                "task.template writes earlier messages in another way when an answer follows; give a template that "
                "only adds text"
            )
        if after == before:
            raise InputError("task.template leaves out what the assistant answers; give one that writes it")
        parts += [(before[len(done) :], False), (after[len(before) :], True)]
        done = after
    return parts
