"""Hugging Face directories, read and written by one table per model type."""
