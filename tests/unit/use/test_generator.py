"""Generation with loaded models: texts, stop strings, streams, frames, chat templates, errors."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import write_decoder, write_encoder
from typer.testing import CliRunner, Result

import regard
from regard.cli.app import app
from regard.cli.predict import fitting
from regard.decoding.continuation import Written
from regard.decoding.settings import GenerateKeywords, GenerateOptions
from regard.errors import InputError, RegardError, SettingsError, WeightsError
from regard.use.generator import Generator, TextStream, foreign_frame, run_frame
from regard.use.model import load
from regard.weights.convert import convert

PROMPT = "ein Hund läuft"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def model(place: Path) -> Generator:
    loaded = load(place, "cpu")
    assert isinstance(loaded, Generator)
    return loaded


def test_forms_of_results(model: Generator) -> None:
    text = model.generate(PROMPT, tokens=12)
    assert isinstance(text, str)
    assert model.generate([PROMPT, "und"], tokens=12)[0] == text
    full = model.generate(PROMPT, tokens=12, details=True)
    assert full.text == text
    assert full.finish == "length"
    assert len(full.ids) == len(full.tokens) == len(full.logprobs) == 12
    assert full.score == pytest.approx(sum(full.logprobs))
    assert model.text(full.ids) == text
    assert model.generate(PROMPT, tokens=12, echo=True) == PROMPT + text
    asked = model.generate(PROMPT, tokens=3, logprobs=2, temperature=0.0)
    assert [len(each) for each in asked.alternatives] == [2, 2, 2]
    assert asked.logprobs == pytest.approx([max(each.values()) for each in asked.alternatives])
    greedy = model.generate(PROMPT, tokens=12, temperature=0.0)
    for least in (1e-9, 1e-39, 1e-300):  # the last one is 0 as a float32
        assert model.generate(PROMPT, tokens=12, temperature=least) == greedy
    assert "".join(model.stream(PROMPT, tokens=12)) == text
    assert {*GenerateKeywords.__annotations__, "n", "logprobs", "details"} == set(GenerateOptions.model_fields)


def test_samples_depend_on_the_seed_and_their_number_only(model: Generator) -> None:
    alone = model.generate(PROMPT, n=3, tokens=8, seed=5)
    assert len({each.text for each in alone}) == 3
    among = model.generate(["Katze", PROMPT, "und"], n=3, tokens=8, seed=5, rows=2)
    assert [each.text for each in among[1]] == [each.text for each in alone]
    assert model.generate(PROMPT, tokens=8, seed=5) == alone[0].text != model.generate(PROMPT, tokens=8, seed=6)
    for draft in ("lookup", str(model.directory)):
        assert model.generate(PROMPT, tokens=20, temperature=0.0, draft=draft) == model.generate(
            PROMPT, tokens=20, temperature=0.0
        )


def test_stop_strings_and_held_back_text(model: Generator) -> None:
    """Any text in any split of tokens: the parts join to the text before the first stop string."""
    draw = random.Random(0)
    text = "Der Hund läuft – über die 🐕 Straße, und dann: ENDE. Nicht mehr."
    ids = model.tokenizer.ids([text])[0]
    for stops in ((), ("ENDE",), ("🐕",), ("Straße, und",), ("xyz", ", u"), ("nichts davon",), ("läu", "Hund lä")):
        cut = min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))
        for _ in range(5):
            stream = TextStream(model, PROMPT, GenerateOptions(stop=stops))
            parts, left = [], list(ids)
            while left and stream.finish is None:
                count = draw.randint(1, 3)
                some, left = left[:count], left[count:]
                parts.append(stream.add([Written(token, -1.0, []) for token in some], None if left else "length"))
            assert "".join(parts) == text[:cut]
            found = stream.generation()
            assert found.text == text[:cut]
            assert found.finish == ("length" if cut == len(text) else "stop")
            assert model.text(found.ids).startswith(text[:cut])
            assert not any(part.endswith("\ufffd") for part in parts)
    echoed = TextStream(model, "ENDE ", GenerateOptions(stop=("ENDE",), echo=True))
    assert echoed.add([Written(token, -1.0, []) for token in ids], "length") == "ENDE " + text[: text.find("ENDE")]


def test_lines_of_a_running_text(model: Generator) -> None:
    """A model that was trained line by line goes on after a line; one of whole documents ends."""
    end = model.tokenizer.role("end")
    task = {"kind": "language", "context": 16, "across": True}
    frame = run_frame(model.network, model.tokenizers, {"task": task, "data": {"kind": "text"}})
    assert (frame.line, frame.ends, frame.slide, frame.limit) == (end, frozenset(), True, 16)
    lines = Generator("lines", model.directory, model.network, model.tokenizers, {}, frame)
    ids = lines.ids("ein Hund\nund")
    assert ids == [*model.tokenizer.ids(["ein Hund"])[0], end, *model.tokenizer.ids(["und"])[0]]
    assert lines.text(ids) == "ein Hund\nund"
    assert lines.ids("") == [end]
    assert len(lines.generate(PROMPT, tokens=40, details=True).ids) == 40
    stopped = lines.generate(PROMPT, tokens=40, slide=False, details=True)
    assert len(stopped.ids) == 16 - len(lines.ids(PROMPT)) + 1
    files = {"task": task, "data": {"kind": "text", "document": "file"}}
    assert run_frame(model.network, model.tokenizers, files).ends == {end}
    alone = run_frame(model.network, model.tokenizers, {"task": task | {"across": False}})
    assert alone.opening == (model.tokenizer.role("start"),)
    assert not alone.slide
    with pytest.raises(InputError, match="more than the context"):
        lines.generate(PROMPT * 20)


def test_what_a_hugging_face_directory_states(model: Generator, tmp_path: Path) -> None:
    stated = {"temperature": 0.6, "top_p": 0.9, "top_k": 0, "eos_token_id": [2, 3], "repetition_penalty": 1.1}
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    given = (model.network, model.tokenizers, {"max_position_embeddings": 64, "eos_token_id": 1})
    frame = foreign_frame(tmp_path, *given)
    assert frame.ends == {2, 3}
    assert frame.limit == 64
    assert frame.defaults == GenerateOptions(temperature=0.6, top_p=0.9, repetition=1.1)
    for wrong in ({"temperature": "hot"}, {"top_p": 3}, {"eos_token_id": "x"}):
        (tmp_path / "generation_config.json").write_text(json.dumps(wrong))
        with pytest.raises(WeightsError, match=next(iter(wrong))):
            foreign_frame(tmp_path, *given)


TEMPLATE = """{{ bos_token }}{% for message in messages %}
{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""


def test_chat_templates(model: Generator) -> None:
    with pytest.raises(InputError, match="no chat template"):
        model.chat_prompt([{"role": "user", "content": "a"}])
    talk = [{"role": "user", "content": "Hallo"}, {"role": "assistant", "content": "Ja?"}]
    model.template = TEMPLATE
    start = model.tokenizer.token(model.tokenizer.role("start"))
    one = model.chat_prompt([{"role": "user", "content": PROMPT}])
    assert model.generate(PROMPT, tokens=5, chat=True) == model.generate(one, tokens=5, special=True)
    assert model.chat_prompt(talk) == f"{start}user: Hallo\nassistant: Ja?\nassistant:"
    unsafe = (
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
    )
    for model.template in unsafe:
        with pytest.raises(InputError, match="unsafe"):
            model.chat_prompt(talk)
    for model.template in (
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10**18 }}",
        "{{ [0] * 100000000 }}",  # would fit into memory once
        "{{ 1000000 * messages[0].content }}",
        "{{ 9 ** 9 ** 9 }}",  # no signal ends it
    ):
        with pytest.raises(InputError, match="too much memory"):
            model.chat_prompt(talk)
    model.template = "{{ '- ' * 3 }}{{ 2 * 3 }}"
    assert model.chat_prompt(talk) == "- - - 6"
    model.template = "{{ strftime_now('%Y') | length }}"
    assert model.chat_prompt(talk) == "4"
    model.template = "{% if tools is not none or documents is not none %}no{% endif %}{{ pad_token }}{{ unk_token }}"
    special = model.tokenizer.roles
    assert model.chat_prompt(talk) == "".join(
        model.tokenizer.token(special[role]) for role in ("pad", "unknown") if role in special
    )
    model.template = "{{ {'b': '<é>', 'a': 1} | tojson }}"
    assert model.chat_prompt(talk) == '{"b": "<é>", "a": 1}'
    for model.template in ("{{ raise_exception('roles must alternate') }}", "{{ 1 / 0 }}", "{{ strftime_now(2) }}"):
        with pytest.raises(InputError, match="refuses"):
            model.chat_prompt(talk)
    for model.template in ("{% if %}", "one\n{{ messages[0]"):
        with pytest.raises(InputError, match=r"not a Jinja template \(line \d"):
            model.chat_prompt(talk)
    with pytest.raises(InputError, match=r"messages\[0\]"):
        model.chat_prompt([{"role": "user"}])
    model.template = None


def generate(place: Path | str, *arguments: str, given: str | None = None, verb: str = "generate") -> Result:
    return CliRunner().invoke(app, [verb, str(place), "--device", "cpu", *arguments], input=given)


def test_command(place: Path, model: Generator, tmp_path: Path) -> None:
    assert generate(place, PROMPT, "--tokens", "9").stdout == model.generate(PROMPT, tokens=9) + "\n"
    rows = generate(place, "--tokens", "9", "--n", "2", "--json", given=f"{PROMPT}\nund\n").stdout.splitlines()
    assert [json.loads(row)["text"] for row in rows] == [
        each.text for row in model.generate([PROMPT, "und"], tokens=9, n=2) for each in row
    ]
    result = generate(place, "--tokens", "9", "--output", str(tmp_path / "out"), given=f"{PROMPT}\n")
    assert result.exit_code == 0, result.exception
    assert (tmp_path / "out").read_text("utf-8") == model.generate(PROMPT, tokens=9).replace("\n", " ") + "\n"


def test_mistakes(place: Path, tmp_path: Path) -> None:
    wrong: list[tuple[type[RegardError], str, tuple[str, ...]]] = [
        (SettingsError, "top_p", ("--top-p", "0")),
        (SettingsError, "temperature", ("--temperature", "-1")),
        (SettingsError, "min_p", ("--min-p", "2")),
        (SettingsError, "stop", ("--stop", "")),
        (WeightsError, "unknown", ("--draft", "nothing")),
        (SettingsError, "not both", ("--input", "x")),
    ]
    for kind, message, arguments in wrong:
        error = generate(place, PROMPT, *arguments).exception
        assert isinstance(error, kind), (arguments, error)
        assert message in str(error)
    assert "unknown" in str(generate("nothing", PROMPT).exception)
    encoder = write_encoder(tmp_path / "encoder")
    assert "cannot generate" in str(generate(encoder, PROMPT).exception)
    with pytest.raises(InputError, match="kind encoder and cannot generate"):
        regard.load(encoder, "cpu").generate("a")
    other = write_decoder(tmp_path / "other")
    (other / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        regard.load(other, "cpu").generate("a")


def test_chat_command(place: Path, tmp_path: Path) -> None:
    directory = write_decoder(tmp_path / "chat")
    assert "no chat template" in str(generate(directory, verb="chat", given="").exception)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    convert(directory, tmp_path / "int8", "int8")
    small = load(tmp_path / "int8", "cpu")
    assert isinstance(small, Generator)
    assert small.template == TEMPLATE
    result = generate(
        directory, "--tokens", "5", "--system", "kurz", given="Hallo\n/reset\nHallo\n/exit\n", verb="chat"
    )
    assert result.exit_code == 0, result.exception
    first, second, *_ = result.stdout.split("\n")
    model = load(directory, "cpu")
    assert isinstance(model, Generator)
    talk = [{"role": "system", "content": "kurz"}, {"role": "user", "content": "Hallo"}]
    expected = model.generate(model.chat_prompt(talk), tokens=5, special=True)
    assert result.stdout == f"{expected}\n" * 2, (first, second)


def test_a_message_that_is_too_long_does_not_end_a_chat(tmp_path: Path) -> None:
    directory = write_decoder(tmp_path / "chat")
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    with (directory / "config.toml").open("a") as file:
        file.write('\n[task]\nkind = "language"\ncontext = 60\n')
    given = f"{'ein Hund ' * 100}\nHallo\n"
    result = generate(directory, "--tokens", "5", verb="chat", given=given)
    assert result.exit_code == 1, result.exception
    assert "too many for the context" in result.stderr
    assert result.stdout.strip()  # the answer to the second message


def test_a_conversation_that_is_too_long(model: Generator) -> None:
    """The oldest turns are dropped, and the instructions and the last message stay."""
    long = Generator("long", model.directory, model.network, model.tokenizers, {}, replace(model.frame, limit=120))
    long.template = TEMPLATE
    first = [{"role": "system", "content": "kurz"}]
    talk = [{"role": role, "content": "ein Hund läuft"} for role in ("user", "assistant") * 4] + [
        {"role": "user", "content": "und?"}
    ]
    prompt, dropped = fitting(long, first, talk, 20)
    assert dropped % 2 == 0
    assert dropped > 0
    assert prompt == long.chat_prompt([*first, *talk[dropped:]])
    assert len(long.ids(prompt, special=True)) + 20 <= 120
    with pytest.raises(InputError, match="too many for the context"):
        fitting(long, first, [{"role": "user", "content": "ein Hund " * 200}], 20)
