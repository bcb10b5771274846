"""Attention Is All You Need (Vaswani et al. 2017): base, big, every row of table 3, and a small one for CPUs.

The vocabulary is the paper's "about 37000 tokens"; projections have no biases (section 3.2.2), the embeddings and the
output are one matrix (section 3.4). A row of table 3 says only what differs from base, and so do we: in rows C the
feed-forward keeps its 2048 when the width changes, in rows B the values keep their 64 when the keys shrink. The printed
sizes confirm both.
"""

from __future__ import annotations

from typing import Any

from regard.blocks.settings import Attention, Dense, Sinusoidal
from regard.models.presets.entry import Preset, Published
from regard.models.settings import EncoderDecoder, Xavier

TABLE_3 = "Vaswani et al. 2017, table 3"

BASE = EncoderDecoder(
    vocabulary=37_000,
    width=512,
    depth=6,
    attention=Attention(heads=8, bias=False),
    ffn=Dense(hidden=2048, activation="relu"),
    norm_place="post",
    position=Sinusoidal(),
    embedding_scale=True,
    tied=("source", "target", "output"),
    dropout=0.1,
    initial=Xavier(),
)

BIG = BASE.changed({"width": 1024, "attention.heads": 16, "ffn.hidden": 4096, "dropout": 0.3})

TINY = BASE.changed(
    {"vocabulary": 10_000, "width": 128, "depth": 4, "attention.heads": 4, "ffn.hidden": 256, "dropout": 0.3}
)


def _row(name: str, what: str, changes: dict[str, Any], printed: str | None = None) -> Preset:
    """One row of table 3; the paper prints no size where the row has base's."""
    published = Published(printed, TABLE_3) if printed else None
    return Preset(f"transformer-{name}", BASE.changed(changes), f"Table 3, row {what}", published)


PAPER: tuple[Preset, ...] = (
    Preset(
        "transformer-base",
        BASE,
        "The paper's base model: 6 + 6 layers of 512",
        Published("65 M", TABLE_3),
    ),
    Preset(
        "transformer-big",
        BIG,
        "The paper's big model (en-de; en-fr used dropout 0.1): 6 + 6 layers of 1024",
        Published("213 M", TABLE_3),
    ),
    Preset(
        "transformer-tiny",
        TINY,
        "4 + 4 layers of 128, for small corpora and CPUs",
        Published("2.6 M", "Wu et al. 2021, Good for Misconceived Reasons"),
    ),
    _row("a-h1", "A: 1 head of 512", {"attention.heads": 1}),
    _row("a-h4", "A: 4 heads of 128", {"attention.heads": 4}),
    _row("a-h16", "A: 16 heads of 32", {"attention.heads": 16}),
    _row("a-h32", "A: 32 heads of 16", {"attention.heads": 32}),
    _row("b-dk16", "B: keys of 16, values of 64", {"attention.head_size": 16, "attention.value_size": 64}, "58 M"),
    _row("b-dk32", "B: keys of 32, values of 64", {"attention.head_size": 32, "attention.value_size": 64}, "60 M"),
    _row("c-n2", "C: 2 + 2 layers", {"depth": 2}, "36 M"),
    _row("c-n4", "C: 4 + 4 layers", {"depth": 4}, "50 M"),
    _row("c-n8", "C: 8 + 8 layers", {"depth": 8}, "80 M"),
    _row("c-d256", "C: width 256, heads of 32", {"width": 256}, "28 M"),
    _row("c-d1024", "C: width 1024, heads of 128", {"width": 1024}, "168 M"),
    _row("c-ff1024", "C: feed-forward of 1024", {"ffn.hidden": 1024}, "53 M"),
    _row("c-ff4096", "C: feed-forward of 4096", {"ffn.hidden": 4096}, "90 M"),
    _row("d-dropout0.0", "D: no dropout", {"dropout": 0.0}),
    _row("d-dropout0.2", "D: dropout 0.2", {"dropout": 0.2}),
    _row("d-smoothing0.0", "D: label smoothing 0.0, a matter of training; the model is base", {}),
    _row("d-smoothing0.2", "D: label smoothing 0.2, a matter of training; the model is base", {}),
    # The paper gives no length; 256 is max_length in its own code (tensor2tensor, transformer_base_v1).
    _row("e-learned", "E: learned positions", {"position": {"kind": "learned", "length": 256}}),
)
