"""Decoding: searches, rules, scores and word alignment. Tokens in, tokens out."""
