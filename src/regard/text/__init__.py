"""Tokenizers: trained, loaded, saved; text to ids and back."""
