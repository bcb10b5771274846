"""Writes the generated pages of docs/ (`make docs`). A test checks that they are up to date."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import annotated_types
import tomli_w

import regard
from regard.blocks import recording
from regard.blocks import settings as blocks
from regard.blocks.kernels import BACKENDS
from regard.data import settings as data
from regard.decoding import settings as decoding
from regard.decoding.settings import TranslateOptions
from regard.models import settings as models
from regard.serving.settings import PageSettings, Serving
from regard.settings import Settings, describe, kind_of, variants
from regard.tasks import augmentation, image, translate
from regard.tasks.recipe import AnyText
from regard.tasks.task import all_tasks
from regard.text import settings as text
from regard.training import settings as training

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cases"))
import attention_support as support

INTRODUCTION = """\
# Settings

Made from the settings classes by `make docs`; edit those, not this page.

A model is one value: a table of settings whose `kind` chooses the family. Where a setting has variants, its own table
has a `kind` too, and each kind has its own keys:

```toml
kind = "decoder"
width = 256
attention = { heads = 4, kv_heads = 2 }

[position]
kind = "rotary"
base = 500_000.0
```

A recipe is such a file with a task and a table for each of its parts: `[data]`, `[text]`, `[model]`, `[train]`
([training.md](training.md)).

- **Overrides** are dotted: `attention.kv_heads=2` on the command line, `settings.changed({"attention.kv_heads": 2})` in
  Python. Overriding a `kind` resets its table to the new kind's defaults.
- **`none`** stands for "empty" where a type below allows it: `attention.window = "none"`.
- **Nothing is guessed.** An unknown key or kind stops with the nearest known one; a value of the wrong type is refused,
  not converted (a whole number is accepted where a float is asked for).
"""

PARTS: list[tuple[str, str, list[type[Settings]]]] = [
    ("Families", "The `kind` of a model.", list(variants(models.AnyModel).values())),
    ("What every family has", "", [blocks.Core]),
    ("What every Transformer has", "In addition to the above.", [blocks.Body]),
    (
        "What the text families have",
        "In encoder-decoder, encoder and decoder, in addition to the above.",
        [models._Vocabulary, models._Text],
    ),
    ("What all models that translate have", "In encoder-decoder, recurrent and convolutional.", [models.Seq2Seq]),
    ("Attention", "The table `attention`.", [blocks.Attention]),
    ("Latent attention", "The table `attention.latent`.", [blocks.Latent]),
    ("Attention of recurrent models", "The table `attention`, in recurrent.", [blocks.StateAttention]),
    ("Feed-forward", "The table `ffn`.", list(variants(blocks.FeedForward).values())),
    ("Norms", "The tables `norm` and `attention.qk_norm`.", list(variants(blocks.Norm).values())),
    ("Positions of text", "The table `position`.", list(variants(blocks.TextPosition).values())),
    (
        "Stretching rotary positions",
        "The table `position.scaling`, where `position.kind` is `rotary`.",
        list(variants(blocks.RotaryScaling).values()),
    ),
    (
        "Positions of images",
        "The table `position` of a vision model; `none` is described above.",
        [kind for kind in variants(blocks.ImagePosition).values() if kind is not blocks.NoPosition],
    ),
    ("Initial weights", "The table `initial`.", list(variants(blocks.Initial).values())),
    (
        "Heads",
        "A table `heads.NAME` each; vision has `classification` and `pooling`.",
        list(variants(models.TextHead).values()),
    ),
    (
        "Data",
        "The table `data` of a recipe; its `kind` is the format of the files, or an embedded corpus. All kinds that "
        "are read from files have these settings:",
        [data.FromFiles],
    ),
    ("All kinds of text", "", [data.Texts]),
    ("All kinds of parallel text", "Also for the grammar.", [data.Pairs]),
    ("Parallel text from files", "", [data.PairsFromFiles]),
    ("All kinds with labels", "Labelled text, tagged words and images.", [data.UnseenLabels]),
    ("Kinds of data", "The `kind` of data.", list(variants(data.AnyData).values())),
    ("Filters", "The table `data.filters` of parallel, raw and labelled text.", [data.Filters]),
    ("Filters of parallel text", "", [data.PairFilters]),
    ("Filters of raw and labelled text", "", [data.TextFilters]),
    (
        "Text",
        "The table `text` of a recipe; its `kind` says how texts become tokens. What every kind has:",
        [text.TextSettings],
    ),
    ("Kinds of tokenizers", "The `kind` of text.", list(variants(AnyText).values())),
    ("Special tokens", "The table `text.special`.", [text.SpecialTokens]),
    ("Special tokens of bytes", "Where `text.kind` is byte-bpe or bytes.", [text.ByteSpecialTokens]),
    ("Special tokens of wordpiece", "Where `text.kind` is wordpiece.", [text.BertSpecialTokens]),
    (
        "Tasks",
        'The `task` of a recipe: a name (`task = "translate"`), or a table whose `kind` is the name.',
        [task.settings_type for task in all_tasks().values()],
    ),
    (
        "Consistency of translations",
        "The table `task.consistency`: a second pass over each batch that must agree with the first.",
        [translate.SimCut],
    ),
    ("Augmentation of images", "The table `task.augment` of image classification.", [augmentation.Augmentation]),
    ("Distillation", "The table `task.teacher` of image classification.", [image.Teacher]),
    ("Validation by translating", "The table `task.bleu` of a translation.", [translate.Bleu]),
    ("Training", "The table `train` of a recipe; it needs a budget.", [training.Train]),
    (
        "Optimisers",
        "The table `train.optimizer`; without a `kind` it is that of the default.",
        list(variants(training.Optimizer).values()),
    ),
    (
        "Schedules",
        "The table `train.schedule`; without a `kind` it is that of the default, with "
        f"a warm-up of {training.Train().schedule.warmup} of the budget.",
        list(variants(training.Schedule).values()),
    ),
    ("Low-rank adaptation", "The table `train.lora`.", [training.Lora]),
    ("Decoding", "How a model's output is searched.", list(variants(decoding.Search).values())),
    ("Length penalties", "The table `length` of a beam.", list(variants(decoding.LengthPenalty).values())),
    ("Rules of decoding", "What an output may and must not be.", [decoding.Rules]),
    ("Translating", "What can be asked of a translation: keywords of `translate` in Python.", [TranslateOptions]),
    ("Generating", "What can be asked of a text: keywords of `generate` in Python.", [decoding.GenerateOptions]),
    ("Serving", "Overrides of `regard serve`.", [Serving]),
    ("Looking", "Of the page that `regard look` serves; `port` is an option of the command.", [PageSettings]),
]

SHARED = (
    blocks.Core,
    blocks.Body,
    models._Vocabulary,
    models._Text,
    models.Seq2Seq,
    data.FromFiles,
    data.Texts,
    data.Pairs,
    data.PairsFromFiles,
    data.UnseenLabels,
    data.Filters,
    text.TextSettings,
    text.SpecialTokens,
)
"""Classes whose fields are described once, and not again with each class that inherits them."""


def settings_page() -> str:
    """The reference of every setting, as Markdown."""
    lines = [INTRODUCTION]
    for title, where, classes in PARTS:
        lines += [f"## {title}", ""]
        lines += [where, ""] if where else []
        for cls in classes:
            if kind := kind_of(cls):
                lines += [f"### `{kind}`", "", (cls.__doc__ or "").strip(), ""]
            rows = list(_rows(cls))
            if rows:
                lines += ["| setting | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _rows(cls: type[Settings]) -> Iterator[str]:
    """A table row for each field that the class itself declares; what it inherits is described with its parent."""
    shared = {name for base in SHARED if base is not cls and issubclass(cls, base) for name in base.__annotations__}
    for name, kind, meaning in describe(cls):
        if name not in shared or name in cls.__annotations__:
            bounded = re.sub(r"\b(int|float)\b", rf"\1{_limits(cls, name)}", kind)
            cells = f"`{name}`", bounded, _default(cls, name), meaning
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(cls: type[Settings], name: str) -> str:
    """The default on one line; of a table only its kind, since its own keys have defaults of their own below."""
    field = cls.model_fields[name]
    if field.is_required():
        return "required"
    if isinstance(field.default, Settings):
        return f'`kind = "{kind}"`' if (kind := kind_of(type(field.default))) else "its own"
    value = field.get_default(call_default_factory=True)
    if value is None or value == {}:
        return "`none`" if value is None else "`{}`"
    text = tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
    return f"`{re.sub(r',? *]', ']', ' '.join(text.split()).replace('[ ', '['))}`"


def _limits(cls: type[Settings], name: str) -> str:
    """The bounds of a number as a reader would say them: " ≥ 0 and < 1"."""
    field = cls.model_fields[name]
    found = [*field.metadata, *_metadata(field.annotation)]
    signs = [("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")]
    bounds = [f"{sign} {getattr(bound, key):g}" for bound in found for key, sign in signs if _bounds(bound, key)]
    return " " + " and ".join(dict.fromkeys(bounds)) if bounds else ""


def _bounds(bound: object, key: str) -> bool:
    return isinstance(bound, getattr(annotated_types, key.capitalize()))


def _metadata(annotation: Any) -> Iterator[Any]:
    """What stands in `Annotated` at any depth, down to nested settings classes."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        for item in metadata:
            yield from getattr(item, "metadata", [item])
        yield from _metadata(inner)
    else:
        for argument in get_args(annotation):
            yield from _metadata(argument)


def support_page() -> str:
    """A row for each layout and rule, a column for each position, the initials of the backends in each cell."""
    works = set(support.cells())
    lines = [
        "# Supported combinations of attention",
        "",
        "Generated by `make docs`; do not edit. Every letter is tested: **r**eference and **s**dpa in",
        "`tests/properties/`, **f**lex and **v**arlen (GPU only) by `bench/attention_backends.py`.",
        "",
        *(f"- `{name}`: {meaning}" for name, meaning in support.LAYOUTS.items()),
        "",
        "An empty cell has no meaning: images are full and see everything, positions do not apply across sequences,",
        "and a cache needs a visibility that never looks ahead.",
        "",
        "| layout | visibility | " + " | ".join(support.POSITIONS) + " |",
        "|---" * (len(support.POSITIONS) + 2) + "|",
    ]
    for layout in support.LAYOUTS:
        for rule in support.RULES:
            marks = [
                " ".join(b[0] for b in BACKENDS if support.Cell(layout, rule, position, b) in works)
                for position in support.POSITIONS
            ]
            lines.append(f"| {layout} | {rule} | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"


TAPS_INTRODUCTION = """\
# What can be recorded

Generated by `make docs`; do not edit. [Recording](recording.md) explains how to use it.

`EMBEDDING` is `source` or `target` in an encoder-decoder and `embedding` elsewhere; `STACK` is `encoder` or `decoder`;
`N` is the number of a layer, from 0; `ATTENTION` is `attention` or, in the decoder of an encoder-decoder, also `cross`;
`HEAD` is the name of a head.

| name | shape | meaning |
|---|---|---|
"""
TAPS_NOTES = """
- `B`: sequences of the batch
- `T`: tokens (or patches) of each sequence
- `K`: keys
- `D`: width
- `H`: heads
- `G`: key/value heads, possibly fewer
- `E`: size of a head
- `V`: size of a head's values
- `F`: hidden size of the feed-forward
- `X`: experts
- `C`: vocabulary or classes

In a packed batch `B, T` is one dimension, `N`; scores and weights are `[R, H, T, K]`, with one row for each row of the
batch (`Packed.width`), in which sequences do not see each other. A query that sees nothing has weights of zero.
"""


TAPS = (
    ("EMBEDDING", recording.EMBEDDING_TAPS),
    ("STACK", (recording.STACK_INPUT,)),
    ("STACK.N.ATTENTION", recording.ATTENTION_TAPS),
    ("STACK.N.ffn", recording.FFN_TAPS),
    ("STACK.N.ffn", (recording.EXPERTS_TAPS[1],)),
    ("STACK.N", (recording.LAYER_TAP,)),
    ("STACK", (recording.STACK_OUTPUT,)),
    ("output", (recording.VOCABULARY_TAP,)),
    ("heads.HEAD", (recording.POOLED_TAP, recording.SEQUENCE_TAP)),
    ("heads.HEAD", (recording.TOKEN_TAP,)),
    ("heads.HEAD.output", (recording.VOCABULARY_TAP,)),
)
"""All taps, in the order of computation."""


def taps_page() -> str:
    rows = [
        f"| `{place}.{tap.name}` | `[{', '.join(tap.sizes)}]` | {tap.meaning} |\n"
        for place, taps in TAPS
        for tap in taps
    ]
    return TAPS_INTRODUCTION + "".join(rows) + TAPS_NOTES


API_INTRODUCTION = """\
# API reference

Made from the docstrings by `make docs`; edit those, not this page. These are the names in `regard` itself; other
modules may change between versions. In the examples, which are tested, `settings` is
`regard.preset("llama-tiny")`, `network` is `regard.build(settings)`, and `tokens` is `torch.tensor([[1, 2, 3]])`.
"""


def api_page() -> str:
    """Signature and docstring of every public name, and of the public methods of classes."""
    lines = [API_INTRODUCTION]
    for name in sorted(regard.__all__, key=str.lower):
        value = getattr(regard, name)
        if inspect.ismodule(value):
            lines += [f"## `regard.{name}`", "", _doc(value), ""]
            members = [getattr(value, each) for each in getattr(value, "__all__", sorted(vars(value)))]
            for member in members:
                if (
                    inspect.isclass(member)
                    and member.__module__ == value.__name__
                    and not member.__name__.startswith("_")
                ):
                    lines += [f"### `{member.__name__}{_signature(member)}`", "", _doc(member), ""]
        elif callable(value):
            lines += [f"## `regard.{name}{_signature(value)}`", "", _doc(value), ""]
            if inspect.isclass(value) and not issubclass(value, Exception):
                for method, function in vars(value).items():
                    if inspect.isfunction(function) and not method.startswith("_"):
                        lines += [f"### `{name}.{method}{_signature(function)}`", "", _doc(function), ""]
    return "\n".join(lines).rstrip() + "\n"


def _signature(value: Any) -> str:
    """The parameters as they are written, without their types; those stand in the code."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    if inspect.isclass(value) and issubclass(value, Exception):
        return ""
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty)).replace("(self, ", "(")


def _doc(value: Any) -> str:
    """The docstring, with its examples in blocks of code."""
    text = inspect.cleandoc(value.__doc__ or "").replace("  # doctest: +SKIP", "")
    return re.sub(r"^>>> .*?(?=\n\n|\Z)", r"```pycon\n\g<0>\n```", text, flags=re.MULTILINE | re.DOTALL)


PAGES = {"api.md": api_page, "settings.md": settings_page, "support.md": support_page, "taps.md": taps_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8", newline="\n")
