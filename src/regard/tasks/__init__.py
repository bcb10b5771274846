"""Tasks: one file a job, each with its data, its loss and its figures, and the way from a recipe to a run."""
