"""Data sets, from files to batches. Nothing here knows of models or of training."""
