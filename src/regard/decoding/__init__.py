"""Decoding: from a model to sequences of tokens. Greedy, sampling, beam; rules and wishes; scores; streaming."""
