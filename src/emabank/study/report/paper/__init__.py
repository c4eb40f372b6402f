"""The paper that the study repeats: its printed numbers, its tables and figures, where it disagrees with itself."""
