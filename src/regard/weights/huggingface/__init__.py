"""Hugging Face directories: `config.json` with safetensors, read and written by key tables."""

from regard.weights.huggingface.config import CONFIG
from regard.weights.huggingface.directory import read, write

__all__ = ["CONFIG", "read", "write"]
