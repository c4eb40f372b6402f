"""The report: reads rows, makes tables, figures, claims and a page. Nothing here imports torch."""
