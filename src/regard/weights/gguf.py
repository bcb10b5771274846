"""GGUF files (llama.cpp): their metadata and tokenizer as the files of a Hugging Face directory, and their tensors.

`unpack` writes `config.json`, the tokenizer and the chat template into a directory of the cache. `config.json` names
the GGUF file, whose tensors are read from there. So all that takes a Hugging Face directory takes a GGUF file.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from regard.blocks.positions import rotary_frequencies
from regard.blocks.settings import Llama3Scaling, Rotary
from regard.data.store import cache_folder
from regard.errors import WeightsError, extra_module
from regard.files import write_text
from regard.text.hub import CONTROL, UNKNOWN, USER_DEFINED, finished, sentencepiece
from regard.text.tokenizer import CONFIG_FILE, FILE, edge
from regard.weights.huggingface.tables import CONFIG_JSON, GGUF_FILE

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
TYPES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "gpt2": ("gpt2", "GPT2LMHeadModel"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma": ("gemma", "GemmaForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
"""The architecture in a file, and the `model_type` and class of transformers."""
VALUES = {
    "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads", None),
    "attention.key_length": ("head_dim", None),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", None),
    "attention.layer_norm_epsilon": (None, "layer_norm_epsilon"),
    "attention.sliding_window": ("sliding_window", None),
    "rope.freq_base": ("rope_theta", None),
    "attn_logit_softcapping": ("attn_logit_softcapping", None),
    "final_logit_softcapping": ("final_logit_softcapping", None),
}
"""Metadata, and the config keys of LLaMA and its relatives, and of GPT-2."""
ROPE_FREQUENCIES = "rope_freqs.weight"

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
SPLITS = {
    "gpt-2": None,
    "smollm": None,
    "starcoder": None,
    "qwen2": SHORT + WORDS + r"\p{N}" + REST,
    "llama-bpe": SHORT + WORDS + r"\p{N}{1,3}" + REST,
}
"""Byte-level BPE by `tokenizer.ggml.pre`: the pattern of words; none: that of GPT-2."""


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """A reader of the file. Every error that damage causes becomes one sentence."""
    gguf = extra_module("gguf", "the package gguf", "gguf", f"reading {path}", WeightsError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about overflows in damaged files
            yield gguf.GGUFReader(path)
    except WeightsError:
        raise
    except (Exception, SystemExit) as error:  # the reader checks little: damage raises anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise WeightsError(f"{path} is damaged, truncated or not a GGUF file ({reason}); download it again") from None


def unpack(path: Path) -> Path:
    """The directory in the cache with the files that stand for a GGUF file; written at first use."""
    try:
        state = path.stat()
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}); change its permissions") from None
    identity = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}".encode()
    place = cache_folder() / "gguf" / f"{path.stem}-{hashlib.sha256(identity).hexdigest()[:16]}"
    if (place / CONFIG_JSON).is_file():
        return place
    with _open(path) as reader:
        values = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(path, values, {tensor.name: tensor for tensor in reader.tensors})
        place.mkdir(parents=True, exist_ok=True)
        _write_tokenizer(path, values, config, place)
        write_text(place / CONFIG_JSON, json.dumps(config, indent=2) + "\n")
    return place


def _config(path: Path, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    kind = values.get("general.architecture")
    if kind not in TYPES:
        raise WeightsError(f"{path}: general.architecture ({kind}) is not supported; only {', '.join(TYPES)} are")
    model_type, architecture = TYPES[kind]
    config: dict[str, Any] = {"model_type": model_type, "architectures": [architecture], GGUF_FILE: str(path.resolve())}
    for name, keys in VALUES.items():
        key = keys[kind == "gpt2"]
        if key is not None and f"{kind}.{name}" in values:
            config[key] = values[f"{kind}.{name}"]
    config["vocab_size"] = len(tensors["token_embd.weight"].data)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    for key, role in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        config[key] = values.get(f"tokenizer.ggml.{role}_token_id")
    turn = values.get("tokenizer.ggml.eot_token_id")  # ends a turn of a conversation
    if turn not in (None, config["eos_token_id"]):
        config["eos_token_id"] = [config["eos_token_id"], turn]
    if kind == "gpt2":
        return config
    heads, width, depth = config["num_attention_heads"], config["hidden_size"], config["num_hidden_layers"]
    size = config.setdefault("head_dim", width // heads)
    config["partial_rotary_factor"] = values.get(f"{kind}.rope.dimension_count", size) / size
    config["attention_bias"] = "blk.0.attn_output.bias" in tensors
    if kind in ("gemma2", "gemma3"):  # as llama.cpp: the largest models of both divide by another size
        config["query_pre_attn_scalar"] = width // heads if depth == {"gemma2": 46, "gemma3": 62}[kind] else size
    scaling = values.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        config["rope_scaling"] = {
            "rope_type": scaling,
            "factor": values.get(f"{kind}.rope.scaling.factor"),
            "original_max_position_embeddings": values.get(f"{kind}.rope.scaling.original_context_length"),
        }
    if ROPE_FREQUENCIES in tensors:
        config["rope_scaling"] = _llama3(path, config, np.asarray(tensors[ROPE_FREQUENCIES].data))
    return config


def _llama3(path: Path, config: Mapping[str, Any], divisors: Any) -> dict[str, Any]:
    """The scaling whose divisors of frequencies a file holds: that of LLaMA 3.1, which has one free number."""
    scaling, size = Llama3Scaling(factor=float(divisors.max())), config["head_dim"]
    plain, scaled = (rotary_frequencies(Rotary(base=config["rope_theta"], scaling=s), size)[0] for s in (None, scaling))
    if not np.allclose((plain / scaled).numpy(), divisors, rtol=1e-3):
        raise WeightsError(f"{path}: {ROPE_FREQUENCIES} is not the scaling of LLaMA 3, and no other is supported")
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_length,
    }


def read_gguf(path: Path) -> dict[str, Tensor]:
    """The tensors in float32, under the names and in the form of transformers."""
    with _open(path) as reader:
        import gguf

        from regard.weights.huggingface.directory import FAMILIES  # it imports this module, too

        kind = reader.fields["general.architecture"].contents()
        heads = [reader.fields.get(f"{kind}.attention.head_count{suffix}") for suffix in ("", "_kv")]
        counts = {"attn_q": heads[0], "attn_k": heads[1] or heads[0]}
        known = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], 1)
        patterns = (theirs for theirs, _ in FAMILIES[TYPES[kind][0]].names.values())
        names = {known.get_name(pattern.replace("{i}", "0")): pattern for pattern in patterns}
        found: dict[str, Tensor] = {}
        for tensor in reader.tensors:
            if tensor.name == ROPE_FREQUENCIES:
                continue
            if tensor.tensor_type.name not in KINDS:
                given = f"{path}: {tensor.name} has type {tensor.tensor_type.name}"
                raise WeightsError(f"{given}, only {', '.join(KINDS)} are supported; quantize the model as one of them")
            values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32))
            module, _, suffix = tensor.name.rpartition(".")
            if not bool(torch.isfinite(values).all()):
                raise WeightsError(f"{tensor.name} in {path} contains NaN or infinite values; download it again")
            _, layer, part = module.split(".", 2) if module.startswith("blk.") else ("", "", module)
            if kind == "gpt2" and layer and values.dim() == 2:
                values = values.mT
            if kind == "llama" and layer and part in counts:
                # The file has the halves of each head alternating; here they are one after the other.
                pairs = values.view(counts[part].contents(), -1, 2, *values.shape[1:])
                values = pairs.transpose(1, 2).reshape(values.shape)
            theirs = names.get(f"blk.0.{part}" if layer else part, module).replace("{i}", layer)
            if kind.startswith("gemma") and module.endswith("norm"):
                values = values - 1  # the file holds 1 + weight
            found[f"{theirs}.{suffix}"] = values
        return found


def _write_tokenizer(path: Path, values: Mapping[str, Any], config: Mapping[str, Any], place: Path) -> None:
    """Write `tokenizer.json` (byte-level BPE or SentencePiece) and `tokenizer_config.json`."""
    kind, tokens = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.tokens")
    if tokens is None:
        return
    types = values.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    split = values.get("tokenizer.ggml.pre", "gpt-2")
    split = {"default": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}.get(split, split)
    stated = {
        f"{name}_token": tokens[number]
        for name, role in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
        if (number := values.get(f"tokenizer.ggml.{role}_token_id")) is not None
    }
    stated["add_bos_token"] = values.get("tokenizer.ggml.add_bos_token", kind == "llama" or split == "llama-bpe")
    stated["add_eos_token"] = values.get("tokenizer.ggml.add_eos_token", False)
    stated["chat_template"] = values.get("tokenizer.chat_template")
    write_text(place / CONFIG_FILE, json.dumps(stated, indent=2) + "\n")
    if kind != "llama" and (kind != "gpt2" or split not in SPLITS):
        named = f"tokenizer.ggml.model ({kind}) with tokenizer.ggml.pre ({split})"
        raise WeightsError(f"{path}: {named} is not supported; only llama, and gpt2 with {', '.join(SPLITS)}, are")
    with edge("be read", path):
        if kind == "llama":
            spaces = values.get("tokenizer.ggml.add_space_prefix", True)
            pieces = zip(values["tokenizer.ggml.scores"], types, strict=True)
            known = dict(zip(tokens, pieces, strict=True))
            inner = sentencepiece(path, known, tokens[types.index(UNKNOWN)], True, {3: int(spaces), 4: 0})
        else:
            merges = [tuple(each.split(" ")) for each in values["tokenizer.ggml.merges"]]
            inner = _byte_bpe(tokens, merges, types, split)
        finished(inner, kind, place).save(place / FILE)


def _byte_bpe(tokens: list[str], merges: list[Any], types: list[int], split: str) -> tokenizers.Tokenizer:
    table = {token: number for number, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(models.BPE(table, merges, ignore_merges=split == "llama-bpe"))
    pattern = SPLITS[split]
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split in ("smollm", "starcoder") else []
    steps += [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
    if split == "qwen2":
        inner.normalizer = normalizers.NFC()
    added = [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    inner.add_tokens(added)
    return inner
