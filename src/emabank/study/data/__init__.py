"""Data sets, from files to batches. Independent of models and training."""
