"""Looking inside: what a model attends to, as numbers and pictures."""
