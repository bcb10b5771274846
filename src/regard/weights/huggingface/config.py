"""Reading `config.json`: every value checked, every feature that settings cannot express refused by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from regard.blocks.settings import Activation
from regard.errors import WeightsError
from regard.settings import did_you_mean

log = logging.getLogger(__name__)

CONFIG = "config.json"

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "silu": "silu",
    "relu2": "relu2",
    "gelu_python": "gelu",
    "gelu_fast": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_python_tanh": "gelu-tanh",
    "swish": "silu",
}
"""Their names of activations by ours; the first of each kind is the one written."""

EVERYWHERE: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": {},
    "quantization_config": None,
}
"""Keys of every model type with the only value that can be expressed; a key may be absent."""


class Config:
    """The values of one config.json. Each getter names the key, its value and the remedy when it cannot be used."""

    def __init__(self, values: Mapping[str, Any], source: str = CONFIG) -> None:
        self.values = values
        self.source = source

    @property
    def model_type(self) -> str:
        return str(self.values.get("model_type", ""))

    def refuse(self, key: str, why: str) -> WeightsError:
        """The error for a value that cannot be used."""
        return WeightsError(f"{self.source}: {key} ({self.values.get(key)!r}) {why}")

    def integer(self, key: str, default: int) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(key, "must be a whole number above 0; correct it")
        return value

    def optional_integer(self, key: str) -> int | None:
        return None if self.values.get(key) is None else self.integer(key, 1)

    def number(self, key: str, default: float) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(key, "must be a number; correct it")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "must be true or false; correct it")
        return value

    def pair(self, key: str, default: int) -> tuple[int, int]:
        """A height and a width, or one number for both."""
        value = self._value(key, default)
        sizes = [value, value] if isinstance(value, int) else value
        if not isinstance(sizes, list | tuple) or len(sizes) != 2 or not all(isinstance(size, int) for size in sizes):
            raise self.refuse(key, "must be a whole number or two; correct it")
        return sizes[0], sizes[1]

    def activation(self, key: str, default: str) -> Activation:
        return self.activation_named(str(self._value(key, default)), key)

    def activation_named(self, name: str, key: str) -> Activation:
        if name not in ACTIVATIONS:
            raise self.refuse(key, f"is an activation that is not known here; known: {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

    def labels(self) -> int:
        """Number of classes of a classifier; theirs is 2 unless said."""
        names = self.values.get("id2label")
        if isinstance(names, dict) and names:
            return len(names)
        return self.integer("num_labels", 2)

    def require(self, wanted: Mapping[str, Any]) -> None:
        """Refuse any key whose value is not the wanted one; an absent key or an empty value has it."""
        for key, value in wanted.items():
            found = self.values.get(key)
            if found is not None and found != value and (found or value):
                raise self.refuse(key, f"cannot be expressed: only {value!r} can; convert the model without it")

    def training_only(self, wanted: Mapping[str, Any]) -> None:
        """Say in the log which values that matter to training alone are not kept."""
        for key, value in wanted.items():
            found = self.values.get(key)
            if found is not None and found != value:
                log.warning("%s: %s (%r) is not kept; training takes it to be %r", self.source, key, found, value)

    def architecture(self, known: tuple[str, ...]) -> str:
        """The one class that the weights were saved from."""
        names = self.values.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or names[0] not in known:
            near = did_you_mean(str(names[0]), known) if isinstance(names, list) and len(names) == 1 else ""
            raise self.refuse("architectures", f"must name one known class{near}; known: {', '.join(known)}")
        return str(names[0])

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        return default if value is None else value


def activation_name(activation: Activation) -> str:
    """Their name of an activation."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == activation)


def labels(classes: int) -> dict[str, Any]:
    """The names that their configs give to classes; their number is told by them alone."""
    names = {str(index): f"LABEL_{index}" for index in range(classes)}
    return {"id2label": names, "label2id": {name: int(index) for index, name in names.items()}}
