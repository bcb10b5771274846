"""Small models with random weights in directories as they are on the Hugging Face Hub, made without Regard."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from torch import nn

SENTENCES = {
    "en": [
        "The small house stands near the old river.",
        "She reads a long letter from her brother.",
        "We do not know where the children are playing.",
        "A green bird sings in the morning!",
        "Why does nobody answer the question?",
    ],
    "de": [
        "Das kleine Haus steht am alten Fluss.",
        "Sie liest einen langen Brief von ihrem Bruder.",
        "Wir wissen nicht, wo die Kinder spielen.",
        "Ein grüner Vogel singt am Morgen über der Straße!",
        "Warum beantwortet niemand die Frage?",
    ],
}
TEXTS = SENTENCES["en"]
BODY: dict[str, Any] = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
BODY |= {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("attention_heads", 4), ("ffn_dim", 64))
}


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def train_sentencepiece(
    path: Path, texts: list[str], size: int, **options: Any
) -> sentencepiece.SentencePieceProcessor:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=out, vocab_size=size, minloglevel=2, **options
    )
    path.write_bytes(out.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def write_weights(model: Any, directory: Path, *, seed: int = 0, shards: int = 1, **config: Any) -> None:
    """Random weights that do not give the same token for ever, as pickled files."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "position" not in name:
            nn.init.normal_(parameter, std=0.3, generator=generator)
    model.config.save_pretrained(directory)
    stated = json.loads((directory / "config.json").read_text())
    write_json(directory / "config.json", stated | config | {"architectures": [type(model).__name__]})
    tensors = dict(model.state_dict())
    if shards == 1:
        torch.save(tensors, directory / "pytorch_model.bin")
        return
    names = [f"pytorch_model-{number + 1:05}-of-{shards:05}.bin" for number in range(shards)]
    places = {name: names[place % shards] for place, name in enumerate(tensors)}
    for file in names:
        torch.save({name: tensors[name] for name in places if places[name] == file}, directory / file)
    write_json(directory / "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": places})


def write_opus(directory: Path, *, codes: tuple[str, ...] = (), drop: int = 3, seed: int = 1) -> Path:
    """Laid out as OPUS-MT: two SentencePiece models, one table of ids, of which some pieces are missing."""
    directory.mkdir(parents=True)
    sides = {"source": SENTENCES["en"], "target": SENTENCES["de"]}
    models = {side: train_sentencepiece(directory / f"{side}.spm", texts, 60) for side, texts in sides.items()}
    pieces = [model.id_to_piece(number) for model in models.values() for number in range(60)]
    plain = [piece for piece in dict.fromkeys(pieces) if not piece.startswith("<")]
    names = ["</s>", "<unk>", *codes, *plain[: len(plain) // 2 - drop], *plain[len(plain) // 2 :], "<pad>"]
    write_json(directory / "vocab.json", {name: number for number, name in enumerate(names)})
    languages = {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}
    write_json(directory / "tokenizer_config.json", languages)
    pad = len(names) - 1
    tokens = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad, "forced_eos_token_id": 0}
    config = transformers.MarianConfig(
        **BODY, vocab_size=len(names), activation_function="swish", scale_embedding=True, **tokens
    )
    write_weights(transformers.MarianMTModel(config), directory, seed=seed)
    search = {"num_beams": 4, "max_length": 24, "bad_words_ids": [[pad]], "renormalize_logits": True}
    write_json(
        directory / "generation_config.json", tokens | search | {"no_repeat_ngram_size": 3, "length_penalty": 0.8}
    )
    return directory


def write_t5(directory: Path) -> Path:
    directory.mkdir(parents=True)
    texts = SENTENCES["en"] + SENTENCES["de"]
    train_sentencepiece(directory / "spiece.model", texts, 90, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write_json(directory / "tokenizer_config.json", {"extra_ids": 10, "tokenizer_class": "T5Tokenizer"})
    config = transformers.T5Config(
        vocab_size=112, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0
    )
    write_weights(transformers.T5ForConditionalGeneration(config), directory, shards=3, decoder_start_token_id=0)
    tokens = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    write_json(directory / "generation_config.json", tokens | {"max_length": 20})
    return directory


def write_byte_bpe(directory: Path, special: list[str]) -> dict[str, int]:
    directory.mkdir(parents=True)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXTS, vocab_size=300, special_tokens=special, show_progress=False)
    trained.save_model(str(directory))
    found: dict[str, int] = trained.get_vocab()
    return found


def write_bart(directory: Path) -> Path:
    size = len(write_byte_bpe(directory, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    config = transformers.BartConfig(**BODY, vocab_size=size, max_position_embeddings=64)
    write_weights(transformers.BartForConditionalGeneration(config), directory, seed=2)
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    forced = {"forced_bos_token_id": 0, "forced_eos_token_id": 2}
    search = {"num_beams": 3, "early_stopping": True, "min_length": 6, "max_length": 20}
    write_json(directory / "generation_config.json", tokens | forced | search)
    return directory


def write_gpt2(directory: Path) -> Path:
    size = len(write_byte_bpe(directory, ["<|endoftext|>"]))
    config = transformers.GPT2Config(
        vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    write_weights(transformers.GPT2LMHeadModel(config), directory)
    return directory


def write_bert(directory: Path, **options: Any) -> Path:
    directory.mkdir(parents=True)
    letters = sorted(set("".join(TEXTS).lower()) - {" "})
    words = [word.lower() for text in TEXTS for word in text.rstrip(".!?").split()][::2]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *words]
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in dict.fromkeys(tokens)))
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **options})
    size = len(dict.fromkeys(tokens))
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    write_weights(transformers.BertForMaskedLM(config), directory)
    return directory


def write_llama(directory: Path) -> Path:
    directory.mkdir(parents=True)
    train_sentencepiece(
        directory / "tokenizer.model",
        TEXTS,
        340,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    config = transformers.LlamaConfig(
        vocab_size=340, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    write_weights(transformers.LlamaForCausalLM(config), directory, shards=2)
    return directory
