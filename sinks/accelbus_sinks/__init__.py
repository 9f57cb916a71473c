"""The trackers that ship with accelbus, one module each; they are found by their entry points and imported nowhere else."""
