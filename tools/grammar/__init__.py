"""A small English–German grammar: any number of correct pairs, with gold word alignments and gold referents.

`pairs("train", seed=1, count=1000)` streams pairs; `Corpus("train", seed=1)[i]` makes any one of them alone.
`python -m tools.grammar` writes the part of it that Regard ships as data.
"""

from tools.grammar.corpus import CONSTRUCTIONS, REFERENT_CONSTRUCTIONS, Corpus, dependent, pairs
from tools.grammar.draw import SPLITS, Split, split_of
from tools.grammar.sentence import Pair, Referent, detokenise

__all__ = [
    "CONSTRUCTIONS",
    "REFERENT_CONSTRUCTIONS",
    "SPLITS",
    "Corpus",
    "Pair",
    "Referent",
    "Split",
    "dependent",
    "detokenise",
    "pairs",
    "split_of",
]
