"""What docs/speed.md shows of results: one room for each kind of result, and how all of them look. Nothing is timed."""
