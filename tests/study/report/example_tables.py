"""Tables for the tests of each output format."""

from emabank.study.report.tables import Cell, Row, Table

NASTY = r"50% & {A_1} #2 $x^2$ ~ \b <i> [1] *a* `c` | α → ± 3 − 2"
"""Special characters of LaTeX, Markdown, rich and CSV."""


def make_cell(*values: float | None, **more: object) -> Cell:
    return Cell.of(values, **more)  # type: ignore[arg-type]


def full_table() -> Table:
    """Groups, rules, headings, numbers with and without a value of the paper, lists, dashes and text to escape."""
    return Table(
        name="study/table-1", title=f"Title {NASTY}", columns=["what", "acc., %", "loss", "acc., %"],
        groups=[("", 1), ("SGD", 2), ("EMA_1 & co", 1)],
        rows=[
            Row("accuracy", [make_cell(77.5, 77.7, 77.6, paper="77.63 ± 0.14"), make_cell(1, 1.1, 1.2, digits=3),
                             make_cell(78, 79, 80)], "data"),
            Row("epochs", [Cell(text="[143, 139, 156]", paper="[1, 2, 3]"), Cell(text="–"), Cell()], "data"),
            Row(NASTY, [Cell(text=NASTY), Cell(mean=-0.5, std=0.25, n=3, best=True), make_cell(None, 1.0)]),
            Row("[first] * of all",
                [make_cell(-0.0001, 0.0001, 0.0), Cell(text="bold", best=True), Cell(paper="0.998")]),
        ],
        breaks=[2, 3], caption=f"Caption {NASTY}.", item="Table 1", study="study", scale="demo", notes=(NASTY, "Two."),
    )  # fmt: skip


def uneven_table() -> Table:
    """Numbers with different n, one of them a single value."""
    return Table(
        name="study/uneven", title="Uneven", columns=["", "a", "b"], caption="Caption.",
        rows=[Row("three", [make_cell(1.0, 2.0, 3.0), make_cell(1.0, 3.0)]),
              Row("one", [make_cell(5.0), Cell(text="–")])],
    )  # fmt: skip


def single_run_table() -> Table:
    rows = [Row("one", [make_cell(5.0)]), Row("two", [make_cell(6.25)])]
    return Table(name="study/single", title="Single", columns=["", "a"], rows=rows)
