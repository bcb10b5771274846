"""Training: the loop, optimizers, schedules, run directories, reports and the doctor."""
