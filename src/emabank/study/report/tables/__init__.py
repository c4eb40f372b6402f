"""The tables of the report: evidence in, sheets out, a room for each study. What is not there makes no table."""
