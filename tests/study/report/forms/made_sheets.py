"""Sheets with everything a form has to show, for the tests of the forms."""

from emabank.study.report.sheet import Cell, Sheet

NASTY = r"50% & {A_1} #2 $x^2$ ~ \b <i> [1] *a* `c` | α → ± 3 − 2"
"""What LaTeX, Markdown, rich and CSV would each take for something else."""


def of(*values: float | None, **more: object) -> Cell:
    return Cell.of(values, **more)  # type: ignore[arg-type]


def everything() -> Sheet:
    """Groups, rules, headings, numbers with and without the paper's, lists, dashes, and text that must be escaped."""
    return Sheet(
        name="study/table-1", title=f"Title {NASTY}", columns=["what", "acc., %", "loss", "acc., %"],
        groups=[("", 1), ("SGD", 2), ("EMA_1 & co", 1)],
        rows=[
            ("data: accuracy", [of(77.5, 77.7, 77.6, paper="77.63 ± 0.14"), of(1, 1.1, 1.2, digits=3), of(78, 79, 80)]),
            ("data: epochs", [Cell(text="[143, 139, 156]", paper="[1, 2, 3]"), Cell(text="–"), Cell()]),
            (NASTY, [Cell(text=NASTY), Cell(mean=-0.5, std=0.25, n=3, best=True), of(None, 1.0)]),
            ("[first] * of all", [of(-0.0001, 0.0001, 0.0), Cell(text="bold", best=True), Cell(paper="0.998")]),
        ],
        breaks=[2, 3], caption=f"Caption {NASTY}.", item="Table 1", study="study", scale="demo", notes=(NASTY, "Two."),
    )  # fmt: skip


def uneven() -> Sheet:
    """Numbers with different n, one of them a single value."""
    return Sheet(
        name="study/uneven", title="Uneven", columns=["", "a", "b"],
        rows=[("three", [of(1.0, 2.0, 3.0), of(1.0, 3.0)]), ("one", [of(5.0), Cell(text="–")])], caption="Said.",
    )  # fmt: skip


def single() -> Sheet:
    """Numbers of one run each."""
    return Sheet(name="study/single", title="Single", columns=["", "a"], rows=[("one", [of(5.0)]), ("two", [of(6.25)])])
