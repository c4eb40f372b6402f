"""A run's folder: its identity by content, what is written into it atomically, how it is read again."""
