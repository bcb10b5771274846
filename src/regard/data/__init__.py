"""Data: sources become examples, examples become batches; and corpora that need no download."""
