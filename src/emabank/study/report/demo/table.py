"""The closing table of the demo, and what it says in words."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from emabank.study.report.demo.record import Record

_HEADINGS = (
    "half-life\n(steps)",
    "epoch\nchosen",
    "test\nthere",
    "batch norm\nrecomputed",
    "memorised\nthere",
    "test\nat end",
    "memorised\nat end",
)
_CAPTION = (
    "there: at the epoch chosen on 250 other images, with clean labels (validation)\n"
    "memorised: wrongly labelled training images predicted as that wrong label\n"
    "Chance alone moves a test accuracy near 90% by about 2 points."
)


def comparison_table(record: Record) -> Table:
    """One line for the live weights and one for each average, 80 columns wide; what validation chose is bold."""
    table = Table(
        title="Accuracy on the 250 test images and share of wrong labels memorised, in %",
        caption=_CAPTION,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    table.add_column("weights")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for chosen in record.chosen:
        recomputed = chosen.at_choice_recomputed
        table.add_row(
            chosen.average,
            "" if chosen.half_life is None else f"{chosen.half_life:.1f}",
            str(chosen.epoch),
            percent(chosen.at_choice.test_accuracy),
            percent(recomputed.test_accuracy if recomputed else None),
            percent(chosen.at_choice.memorised),
            percent(chosen.at_end.test_accuracy),
            percent(chosen.at_end.memorised),
            style="bold" if chosen.average == record.best else "",
        )
    return table


def closing_line(record: Record) -> str:
    """One sentence: what was chosen, and how it compares with the live weights at their best and at the end."""
    by_name = {chosen.average: chosen for chosen in record.chosen}
    best, live = by_name[record.best], by_name["live"]
    if best is live:
        return (
            f"Validation chose the live weights in this run: {percent(live.at_choice.test_accuracy)}% on the test "
            f"images at epoch {live.epoch}, {percent(live.at_end.test_accuracy)}% at the end."
        )
    return (
        f"Ship {best.average} of epoch {best.epoch}: {percent(best.at_choice.test_accuracy)}% on the test images; "
        f"the live weights {percent(live.at_choice.test_accuracy)}% at their own best epoch {live.epoch} "
        f"and {percent(live.at_end.test_accuracy)}% at the end."
    )


def percent(share: float | None) -> str:
    """A share of 1 as a percentage with one digit; nothing for None.

    >>> percent(0.8964), percent(None)
    ('89.6', '')
    """
    return "" if share is None else f"{100 * share:.1f}"
