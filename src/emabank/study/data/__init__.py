"""Data sets, splits and label noise: one file each. Nothing here knows of models or of training."""
