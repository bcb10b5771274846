"""Training of tokenizers. The same texts, in any order and in any process, give the same tokenizer.

The trainers of `tokenizers` iterate over hash tables in random order. This does not affect BPE and words. It affects
WordPiece (ids and ties), a limited alphabet (ties) and unigram (scores of rare characters and last digits of all
others); these are put in order here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeAlias

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import DataError
from regard.text.settings import BYTES, AnyTokenizer, Bpe, ByteBpe, Bytes, Characters, Unigram, WordPiece, Words
from regard.text.tokenizer import Tokenizer, check_text, frame_template

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with a stage (alphabet or reading), the number of texts so far, and the total if known."""

_EVERY = 1_000
"""Number of texts between two calls of a `Progress`."""

_LONGEST_RUN = 1_000
"""Longest run of white space or of other characters. Trainers take time quadratic in the length of a word."""

_LONG_RUN = re.compile(rf"\S{{{_LONGEST_RUN + 1}}}|\s{{{_LONGEST_RUN + 1}}}")

_MARK = "▁"
"""U+2581, SentencePiece's mark of the start of a word."""

_CONTINUATION = "##"
"""WordPiece's mark of a continuation."""

_FORBIDDEN = -1e6
"""Unigram score of special tokens, so low that no text is segmented into one."""


def train_tokenizer(settings: AnyTokenizer, texts: Iterable[str], progress: Progress | None = None) -> Tokenizer:
    """Trains a tokenizer.

    `texts` is read once, or twice if characters are counted first; an iterator is then kept in memory. The vocabulary
    is smaller than `settings.size` if the texts contain fewer tokens.
    """
    inner = _with_pipeline(settings, _learn(settings, _Corpus(texts, progress)))
    inner.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in settings.special.tokens()])
    special = settings.special
    opening, closing = special.class_token or special.start, special.separator or special.end
    if template := frame_template([*filter(None, [opening])], [*filter(None, [closing])], inner.get_vocab()):
        inner.post_processor = template
    return Tokenizer(inner, special.by_role(), special.extra, settings)


class _Corpus:
    """Texts for a trainer: readable twice, counted, checked, without endless words."""

    def __init__(self, texts: Iterable[str], progress: Progress | None) -> None:
        if isinstance(texts, str):
            raise DataError(f"texts ({texts[:20]!r}) is a str, expected a list of str, such as the lines of a file")
        self.texts = texts
        self.progress = progress

    def read(self, stage: str = "reading") -> Iterator[str]:
        if stage == "alphabet" and isinstance(self.texts, Iterator):
            self.texts = list(self.texts)
        total = len(self.texts) if isinstance(self.texts, Sized) else None
        count, empty = 0, True
        for count, text in enumerate(self.texts, 1):
            check_text(text, count - 1, DataError)
            empty = empty and (not text or text.isspace())
            if len(text) > _LONGEST_RUN and _LONG_RUN.search(text):
                yield from (text[start : start + _LONGEST_RUN] for start in range(0, len(text), _LONGEST_RUN))
            else:
                yield text
            if self.progress and count % _EVERY == 0:
                self.progress(stage, count, total)
        if empty:
            raise DataError(
                f"a tokenizer cannot be trained on {count:,} texts without any characters; give other texts"
            )
        if self.progress:
            self.progress(stage, count, total)


def _learn(settings: AnyTokenizer, texts: _Corpus) -> models.Model:
    match settings:
        case ByteBpe() | Bpe():
            return _learn_bpe(settings, texts)
        case Unigram():
            return _learn_unigram(settings, texts)
        case WordPiece():
            return _learn_wordpiece(settings, texts)
        case Words():
            trainer = trainers.WordLevelTrainer(
                vocab_size=settings.size,
                min_frequency=settings.frequency,
                special_tokens=settings.special.tokens(),
                show_progress=False,
            )
            content = _train(settings, models.WordLevel(), trainer, texts.read())
            return models.WordLevel(content["vocab"], unk_token=settings.special.unknown)
        case Characters():
            counts: Counter[str] = Counter()
            for _ in _counted(settings, texts.read(), counts):
                pass
            known = [c for c in sorted(counts, key=lambda c: (-counts[c], c)) if counts[c] >= settings.frequency]
            tokens = [*settings.special.tokens(), *known][: settings.size]
            return models.BPE(_numbered(tokens), [], unk_token=settings.special.unknown)
        case Bytes():
            return models.BPE(_numbered([*settings.special.tokens(), *byte_signs()]), [])


def _learn_bpe(settings: ByteBpe | Bpe, texts: _Corpus) -> models.Model:
    special = settings.special.tokens()
    limit = settings.alphabet if isinstance(settings, Bpe) else None
    alphabet = _alphabet(settings, texts, limit) if isinstance(settings, Bpe) and limit is not None else []
    trainer = trainers.BpeTrainer(
        vocab_size=settings.size,
        min_frequency=settings.frequency,
        special_tokens=[*special, *alphabet],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if isinstance(settings, ByteBpe) else [],
        max_token_length=settings.longest_piece,
        show_progress=False,
    )
    if limit is not None:
        trainer.limit_alphabet = 0  # only the given alphabet
    content = _train(settings, models.BPE(), trainer, texts.read())
    _check_alphabet(settings, len(content["vocab"]))
    # A text may contain the spelling of a special token. Without these merges it never becomes that token.
    taken = set(special)
    merges = [(left, right) for left, right in content["merges"] if not taken.intersection((left, right, left + right))]
    unknown = settings.special.unknown if isinstance(settings, Bpe) else None
    return models.BPE(content["vocab"], merges, unk_token=unknown)


def _learn_unigram(settings: Unigram, texts: _Corpus) -> models.Model:
    special = settings.special.tokens()
    trainer = trainers.UnigramTrainer(
        vocab_size=settings.size,
        special_tokens=special,
        unk_token=settings.special.unknown,
        initial_alphabet=sorted(set("".join(special))),
        max_piece_length=settings.longest_piece,
        show_progress=False,
    )
    too_small = DataError(
        f"text.size ({settings.size:,}) is smaller than the number of characters in the texts; raise it, or choose "
        "kind byte-bpe"
    )
    try:
        content = _train(settings, models.Unigram(), trainer, texts.read())
    except Exception as error:  # the library raises plain Exception
        raise (too_small if "not large enough" in str(error) else error) from None
    scores = {piece: score for piece, score in content["vocab"] if piece not in special}
    # The trainer gives unneeded characters the lowest score plus 0, 1, 2, ... steps of 0.0001, in random order.
    lowest = min(scores.values(), default=0.0)
    characters = [piece for piece in scores if len(piece) == 1]
    for piece in characters:
        step = (scores[piece] - lowest) * 10_000
        if step < len(characters) and abs(step - round(step)) < 1e-4:
            scores[piece] = lowest
    ordered = sorted(((round(score, 6), piece) for piece, score in scores.items()), key=lambda s: (-s[0], s[1]))
    vocabulary = [*((token, _FORBIDDEN) for token in special), *((piece, score) for score, piece in ordered)]
    if len(vocabulary) > settings.size:
        raise too_small
    return models.Unigram(vocabulary, unk_id=special.index(settings.special.unknown), byte_fallback=False)


def _learn_wordpiece(settings: WordPiece, texts: _Corpus) -> models.Model:
    alphabet = _alphabet(settings, texts, settings.alphabet)
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.size,
        min_frequency=settings.frequency,
        special_tokens=[*settings.special.tokens(), *alphabet],
        limit_alphabet=0,
        show_progress=False,
    )
    content = _train(settings, models.WordPiece(), trainer, texts.read())
    _check_alphabet(settings, len(content["vocab"]))
    return models.WordPiece(
        content["vocab"],
        unk_token=settings.special.unknown,
        max_input_chars_per_word=settings.longest_word,
        continuing_subword_prefix=_CONTINUATION,
    )


def _alphabet(settings: Bpe | WordPiece, texts: _Corpus, limit: int) -> list[str]:
    """The `limit` most frequent characters, with the marks that they carry in this kind."""
    counts: Counter[str] = Counter()
    counted = _counted(settings, texts.read("alphabet"), counts)
    pieces = isinstance(settings, WordPiece)
    # A vocabulary of size 0 is the alphabet.
    trainer = (trainers.WordPieceTrainer if pieces else trainers.BpeTrainer)(vocab_size=0, show_progress=False)
    content = _train(settings, models.WordPiece() if pieces else models.BPE(), trainer, counted)
    counts[_MARK] = max(counts.values(), default=1)
    characters = sorted((piece for piece in content["vocab"] if len(piece) == 1), key=lambda c: (-counts[c], c))[:limit]
    kept = {*characters, *(_CONTINUATION + character for character in characters)}
    return sorted(kept.intersection(content["vocab"]), key=lambda piece: (len(piece), piece))


def _check_alphabet(settings: ByteBpe | Bpe | WordPiece, size: int) -> None:
    if size > settings.size:
        raise DataError(
            f"text.size ({settings.size:,}) is smaller than the {size:,} characters and special tokens of the texts; "
            "raise it, or set text.alphabet to keep fewer characters"
        )


def _counted(settings: AnyTokenizer, texts: Iterator[str], counts: Counter[str]) -> Iterator[str]:
    """The texts; adds their normalised characters to `counts`."""
    normalizer = _normalizer(settings)
    for text in texts:
        counts.update(normalizer.normalize_str(text) if normalizer else text)
        yield text


def _numbered(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def byte_signs() -> list[str]:
    """The visible character that GPT-2 writes for each byte: itself, or one from U+0100 on, in the order of bytes."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(BYTES) if byte not in visible]
    return [chr(byte) if byte in visible else chr(BYTES + hidden.index(byte)) for byte in range(BYTES)]


def _train(
    settings: AnyTokenizer, model: models.Model, trainer: trainers.Trainer, texts: Iterator[str]
) -> dict[str, Any]:
    draft = _with_pipeline(settings, model)
    draft.train_from_iterator(texts, trainer)
    content: dict[str, Any] = json.loads(draft.to_str())["model"]
    return content


def _with_pipeline(settings: AnyTokenizer, model: models.Model) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    if normalizer := _normalizer(settings):
        inner.normalizer = normalizer
    inner.pre_tokenizer, decoder = _splitter(settings)
    if decoder is not None:
        inner.decoder = decoder
    return inner


def _normalizer(settings: AnyTokenizer) -> normalizers.Normalizer | None:
    steps: list[normalizers.Normalizer] = []
    if settings.unicode != "none":
        steps.append(normalizers.NFC() if settings.unicode == "nfc" else normalizers.NFKC())
    if isinstance(settings, WordPiece):
        steps.append(
            normalizers.BertNormalizer(
                clean_text=True,
                handle_chinese_chars=True,
                strip_accents=not settings.accents,
                lowercase=settings.lowercase,
            )
        )
    elif settings.lowercase:
        steps.append(normalizers.Lowercase())
    if isinstance(settings, Bpe | Unigram):
        steps.append(normalizers.Replace(_MARK, " "))  # the mark itself would be decoded as a space
        if settings.spaces == "keep":
            steps += [normalizers.Replace(" ", _MARK), normalizers.Prepend(_MARK)]
    if not steps:
        return None
    return steps[0] if len(steps) == 1 else normalizers.Sequence(steps)


def _splitter(settings: AnyTokenizer) -> tuple[pre_tokenizers.PreTokenizer, decoders.Decoder | None]:
    """How a text is split into words, and how tokens are joined again; None: with spaces."""
    match settings:
        case ByteBpe() | Bytes():
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), decoders.ByteLevel()
        case Bpe() | Unigram():
            keep = settings.spaces == "keep"
            marks = pre_tokenizers.Metaspace(_MARK, prepend_scheme="never" if keep else "always", split=True)
            # No token joins letters and punctuation, as in SentencePiece: "snow." and "snow" share a token.
            punctuation = pre_tokenizers.Split(Regex(rf"{_MARK}?\p{{P}}+"), "isolated")
            steps = [*([] if keep else [pre_tokenizers.WhitespaceSplit()]), marks, punctuation]
            return pre_tokenizers.Sequence(steps), decoders.Metaspace(_MARK, prepend_scheme="always", split=True)
        case WordPiece() | Words(split="punctuation"):  # no word starts with ##: each # is a word by itself
            return pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix=_CONTINUATION, cleanup=True)
        case Words():
            return pre_tokenizers.WhitespaceSplit(), None
        case Characters():
            return pre_tokenizers.Split(Regex(r"\s+"), "isolated"), decoders.Fuse()
