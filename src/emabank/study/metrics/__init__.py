"""The study's measures: pure functions of numpy arrays called `logits`, `probabilities` or labels, one file per theme.

They import numpy and each other, nothing else. Shares are fractions of 1; the report prints percent.
"""
