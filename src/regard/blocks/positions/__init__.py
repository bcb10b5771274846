"""Positions: how a token knows its place. One file a kind; `build.py` turns settings into modules."""
