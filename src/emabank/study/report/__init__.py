"""Rows in, tables and figures out. Nothing here imports torch."""
