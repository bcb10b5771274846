"""Weights in and out: run directories, safetensors, Hugging Face directories."""
