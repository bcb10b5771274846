"""Tasks: one file for each, with its data, its loss and its metrics; and the way from a recipe to a run."""
