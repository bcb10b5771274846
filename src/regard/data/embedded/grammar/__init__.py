"""A small English–German grammar: correct pairs without end, with gold word alignments and gold referents.

`pairs("train", seed=1, count=1000)` streams; `Corpus("train", seed=1)[i]` makes any one of them alone.
"""

from regard.data.embedded.grammar.corpus import CONSTRUCTIONS, REFERENT_CONSTRUCTIONS, Corpus, pairs
from regard.data.embedded.grammar.draw import split_of
from regard.data.embedded.grammar.sentence import Pair, Referent, detokenise, tokenise
from regard.data.embedded.splits import SPLITS, Split

__all__ = [
    "CONSTRUCTIONS",
    "REFERENT_CONSTRUCTIONS",
    "SPLITS",
    "Corpus",
    "Pair",
    "Referent",
    "Split",
    "detokenise",
    "pairs",
    "split_of",
    "tokenise",
]
