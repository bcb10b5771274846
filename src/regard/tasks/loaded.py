"""A model that was loaded, with all that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from regard.errors import InputError
from regard.models.build import Model
from regard.models.settings import ModelSettings
from regard.settings import Table
from regard.text.pair import TokenizerPair

if TYPE_CHECKING:
    from regard.tasks.translate_settings import TranslateOptions
    from regard.tasks.translated import Translation


class Loaded:
    """A model ready to be used: its network, its tokenizers, and where they come from."""

    def __init__(
        self, name: str, directory: Path, network: Model, tokenizers: TokenizerPair | None, config: Table
    ) -> None:
        self.name = name
        """As it was asked for."""
        self.directory = directory
        self.network = network
        """A plain `torch.nn.Module`."""
        self.tokenizers = tokenizers
        """Of source and target, the same one twice where there is one; None where there is none."""
        self.config = config
        """The tables of a run's `config.toml`, or a Hugging Face `config.json`."""

    @property
    def settings(self) -> ModelSettings:
        """What the network was built from."""
        return self.network.settings

    def translate(self, text: Any, options: TranslateOptions | None = None, **changes: Any) -> Any:
        """See `Translator.translate`: only models that read one text and write another translate."""
        self._cannot("translate")

    def stream(self, text: str, options: TranslateOptions | None = None) -> Iterator[str]:
        """See `Translator.stream`."""
        self._cannot("translate")

    def translations(self, texts: Any, options: TranslateOptions | None = None) -> list[list[Translation]]:
        """See `Translator.translations`."""
        self._cannot("translate")

    def _cannot(self, what: str) -> NoReturn:
        kind = self.settings.kind
        if kind == "encoder-decoder":
            raise InputError(f"model ({self.name}) has no tokenizer.json, so it cannot {what} texts; put one beside it")
        raise InputError(f"model ({self.name}) is of kind {kind} and cannot {what}; load one of kind encoder-decoder")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.settings.kind})"
