"""A run's folder: how its files are written, locked, read and archived."""
