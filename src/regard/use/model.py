"""One door for every model that is to be used: shipped with the library, trained here, or Hugging Face's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from regard.decoding.attention import Look
from regard.decoding.request import Ends
from regard.errors import InputError, SettingsError, WeightsError
from regard.models.build import Model
from regard.models.cpu import prepared
from regard.models.families import EncoderDecoder
from regard.models.settings import ModelSettings
from regard.settings import Table, did_you_mean
from regard.shipped import MODELS, Shipped, place_of
from regard.text.tokenizer import FILE, SOURCE_FILE, TARGET_FILE, TokenizerPair
from regard.use.scribe import Frame
from regard.weights import directory as run_directory
from regard.weights.directory import load_model as load_network
from regard.weights.huggingface.tables import CONFIG_JSON
from regard.weights.tensors import read_json

GENERATION = "generation_config.json"
"""Where Hugging Face says how a model begins and ends."""
_SLOW = (torch.float16, torch.bfloat16)


def load(
    name: Path | str,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    int8: bool = False,
) -> Loaded:
    """A model by a shipped name (`de-en`), a run directory or a Hugging Face directory; a `Translator` if it is one.

    Without `device` it goes to a GPU where there is one; without `dtype` it keeps that of its file, but for halves on a
    CPU, which is slow with them. With `int8` a CPU computes in 8 bits, which is faster and rounds.
    """
    from regard.use.translator import Translator  # Translator is a Loaded, defined below

    place, direction = find_model(str(name))
    chosen = _device("cpu" if int8 and device is None else device)
    network = load_network(place, chosen, dtype)
    if dtype is None and chosen.type == "cpu" and next(network.parameters()).dtype in _SLOW:
        network = network.float()
    if int8:
        network = prepared(network, "int8")
    tokenizers = _tokenizers(place)
    foreign = not (place / run_directory.CONFIG).is_file()
    config = read_json(place / CONFIG_JSON) if foreign else run_directory.read_config(place)
    if not isinstance(network, EncoderDecoder) or tokenizers is None:
        return Loaded(str(name), place, network, tokenizers, config)
    _require_fit(network, tokenizers, place)
    frame = _their_frame(place, config, tokenizers) if foreign else _our_frame(tokenizers, config)
    return Translator(str(name), place, network, tokenizers, config, frame, direction)


def find_model(name: str) -> tuple[Path, tuple[str, str] | None]:
    """Where a model lies, and which of its directions the name is for. A directory of that name goes first."""
    place = Path(name)
    shipped = MODELS.get(name)
    if place.exists() or shipped is None:
        if not place.exists() and "/" not in name:
            raise WeightsError(
                f"model ({name}) is not known{did_you_mean(name, MODELS)}; give {', '.join(MODELS)}, a run directory "
                "or a Hugging Face directory"
            )
        return place, None
    return _shipped_place(name, shipped), shipped.direction


def _shipped_place(name: str, shipped: Shipped) -> Path:
    place = place_of(shipped)
    if not (place / run_directory.CONFIG).is_file():
        raise WeightsError(
            f"model ({name}) comes with the library, but is not in this installation ({place} is not there); install "
            "regard again, or give the directory of another model"
        )
    return place


def _device(device: torch.device | str | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise SettingsError(f"device ({device}) is not known; give cpu, cuda or cuda:NUMBER") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise SettingsError(f"device ({device}) is not there: this machine has {count} GPUs; give another, or cpu")
    return chosen


def _tokenizers(place: Path) -> TokenizerPair | None:
    if not any((place / name).is_file() for name in (FILE, SOURCE_FILE, TARGET_FILE)):
        return None
    return TokenizerPair.load(place)


def _require_fit(network: EncoderDecoder, tokenizers: TokenizerPair, place: Path) -> None:
    """Refuses tokenizers with more tokens than the model has."""
    settings = network.settings
    for side, has, needs in zip(
        ("source", "target"), (settings.vocabulary, settings.target_size), tokenizers.sizes, strict=True
    ):
        if needs > has:
            raise WeightsError(
                f"the {side} tokenizer in {place} has {needs:,} tokens, and the model {has:,}; copy the one that it "
                "was trained with"
            )


def _our_frame(tokenizers: TokenizerPair, config: Table) -> Frame:
    """The roles of the tokenizer's tokens. A table `[align]` may say by which attention words are aligned."""
    align = config.get("align")
    look = look_from(align) if isinstance(align, dict) else None
    return Frame(Ends(tokenizers.target.role("start"), tokenizers.target.role("end")), look=look)


def look_from(table: Table) -> Look:
    """What an `[align]` table of `config.toml` says."""
    try:
        return Look(tuple((int(layer), int(head)) for layer, head in table["heads"]), bool(table["consumed"]))
    except (KeyError, TypeError, ValueError):
        raise WeightsError(
            f"[align] ({table}) of config.toml must have heads, such as [[0, 1]], and consumed; remove it, or let "
            "regard align --choose --save write it"
        ) from None


def _their_frame(place: Path, config: Table, tokenizers: TokenizerPair) -> Frame:
    """What their files say: generation's own first."""
    said: dict[str, Any] = {key: value for key, value in config.items() if value is not None}
    if (place / GENERATION).is_file():
        said |= {key: value for key, value in read_json(place / GENERATION).items() if value is not None}
    end = said.get("eos_token_id", tokenizers.target.roles.get("end"))
    end = end[0] if isinstance(end, list) else end
    start = said.get("decoder_start_token_id", said.get("bos_token_id"))
    if start is None:
        raise WeightsError(
            f"{place} does not say decoder_start_token_id, which texts begin with; add it to config.json"
        )
    first = said.get("forced_bos_token_id")
    never = tuple(tuple(word) for word in said.get("bad_words_ids") or ())
    return Frame(Ends(start, end), True, () if first is None else (int(first),), never)


if TYPE_CHECKING:
    from regard.use.translation import TranslateOptions, Translation


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
