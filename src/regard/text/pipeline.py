"""What surrounds the vocabulary, for each kind: how texts are normalised and cut into words, and put together again."""

from __future__ import annotations

from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors

from regard.text.settings import (
    AnyTokenizer,
    Bpe,
    ByteBpe,
    Bytes,
    Characters,
    Unigram,
    WordPiece,
    Words,
)

MARK = "▁"
"""U+2581, SentencePiece's sign of a word's beginning."""

CONTINUATION = "##"
"""WordPiece's sign of what continues a word."""


def normalizer(settings: AnyTokenizer) -> normalizers.Normalizer | None:
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
        steps.append(normalizers.Replace(MARK, " "))  # otherwise the sign itself would come back as a space unannounced
        if settings.spaces == "keep":
            steps += [normalizers.Replace(" ", MARK), normalizers.Prepend(MARK)]
    if not steps:
        return None
    return steps[0] if len(steps) == 1 else normalizers.Sequence(steps)


def pre_tokenizer(settings: AnyTokenizer) -> pre_tokenizers.PreTokenizer:
    match settings:
        case ByteBpe() | Bytes():
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        case Bpe(spaces="keep") | Unigram(spaces="keep"):
            marks = pre_tokenizers.Metaspace(MARK, prepend_scheme="never", split=True)
            return pre_tokenizers.Sequence([marks, _punctuation_apart()])
        case Bpe() | Unigram():
            marks = pre_tokenizers.Metaspace(MARK, prepend_scheme="always", split=True)
            return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks, _punctuation_apart()])
        case WordPiece() | Words(split="punctuation"):
            return pre_tokenizers.BertPreTokenizer()
        case Words():
            return pre_tokenizers.WhitespaceSplit()
        case Characters():
            return pre_tokenizers.Split(Regex(r"\s+"), "isolated")


def _punctuation_apart() -> pre_tokenizers.PreTokenizer:
    """No token joins letters and punctuation, as in SentencePiece: "snow." must not be another word than "snow"."""
    return pre_tokenizers.Split(Regex(rf"{MARK}?\p{{P}}+"), "isolated")


def decoder(settings: AnyTokenizer) -> decoders.Decoder | None:
    match settings:
        case ByteBpe() | Bytes():
            return decoders.ByteLevel()
        case Bpe() | Unigram():
            return decoders.Metaspace(MARK, prepend_scheme="always", split=True)
        case WordPiece() | Words(split="punctuation"):  # no such word begins with ##: each # stands alone
            return decoders.WordPiece(prefix=CONTINUATION, cleanup=True)
        case Words():
            return None  # joined with spaces
        case Characters():
            return decoders.Fuse()


def frame(settings: AnyTokenizer, ids: dict[str, int]) -> processors.PostProcessor | None:
    """Start and end, or class token and separator, around a text and around the two texts of a pair."""
    special = settings.special
    opening, closing = special.class_token or special.start, special.separator or special.end
    used = [(token, ids[token]) for token in dict.fromkeys((opening, closing)) if token]
    if not used:
        return None
    first, last = (f"{token}:0" if token else "" for token in (opening, closing))
    single = f"{first} $A:0 {last}".strip()
    second = f"$B:1 {closing}:1" if closing else "$B:1"
    return processors.TemplateProcessing(single=single, pair=f"{single} {second}", special_tokens=used)
