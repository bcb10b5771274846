"""Embedded corpora: data for every family on a machine that reaches no network.

`grammar` makes English–German pairs with gold alignments and referents, `python_text` reads the standard library as
raw text, and `digits` gives scikit-learn's images of handwritten digits.
"""
