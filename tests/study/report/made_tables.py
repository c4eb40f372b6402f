"""Tables with everything a form has to show, for the tests of the forms."""

from emabank.study.report.tables import Cell, Row, Table

NASTY = r"50% & {A_1} #2 $x^2$ ~ \b <i> [1] *a* `c` | α → ± 3 − 2"
"""What LaTeX, Markdown, rich and CSV would each take for something else."""


def of(*values: float | None, **more: object) -> Cell:
    return Cell.of(values, **more)  # type: ignore[arg-type]


def everything() -> Table:
    """Groups, rules, headings, numbers with and without the paper's, lists, dashes, and text that must be escaped."""
    return Table(
        name="study/table-1", title=f"Title {NASTY}", columns=["what", "acc., %", "loss", "acc., %"],
        groups=[("", 1), ("SGD", 2), ("EMA_1 & co", 1)],
        rows=[
            Row("accuracy", [of(77.5, 77.7, 77.6, paper="77.63 ± 0.14"), of(1, 1.1, 1.2, digits=3), of(78, 79, 80)],
                "data"),
            Row("epochs", [Cell(text="[143, 139, 156]", paper="[1, 2, 3]"), Cell(text="–"), Cell()], "data"),
            Row(NASTY, [Cell(text=NASTY), Cell(mean=-0.5, std=0.25, n=3, best=True), of(None, 1.0)]),
            Row("[first] * of all", [of(-0.0001, 0.0001, 0.0), Cell(text="bold", best=True), Cell(paper="0.998")]),
        ],
        breaks=[2, 3], caption=f"Caption {NASTY}.", item="Table 1", study="study", scale="demo", notes=(NASTY, "Two."),
    )  # fmt: skip


def uneven() -> Table:
    """Numbers with different n, one of them a single value."""
    return Table(
        name="study/uneven", title="Uneven", columns=["", "a", "b"],
        rows=[Row("three", [of(1.0, 2.0, 3.0), of(1.0, 3.0)]), Row("one", [of(5.0), Cell(text="–")])], caption="Said.",
    )  # fmt: skip


def single() -> Table:
    """Numbers of one run each."""
    return Table(
        name="study/single", title="Single", columns=["", "a"], rows=[Row("one", [of(5.0)]), Row("two", [of(6.25)])]
    )
