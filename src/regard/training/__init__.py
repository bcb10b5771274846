"""Training: optimisers and schedules, and, to come, the one loop, checkpoints and resume, distribution, the log."""
