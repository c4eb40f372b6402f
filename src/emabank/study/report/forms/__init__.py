"""A sheet's forms: terminal, Markdown, CSV, LaTeX, one file each. They show what a sheet says and compute nothing."""
