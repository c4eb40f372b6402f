"""The tables of a protocol on the terminal: columns as in the paper, mean and standard deviation over the seeds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from emabank.study.report.wrong_labels import chosen_on, validation_labels

_TRANSFER = "transfer:"
_PERCENT = {"accuracy", "churn", "ece", "ece_if_calibrated", "ece_ts", "clean_accuracy", "memorised"}
_LABELS = {
    "accuracy": "accuracy, %",
    "loss": "loss",
    "churn": "churn, %",
    "js": "JS",
    "ece": "ECE, %",
    "ece_if_calibrated": "if calibrated, %",
    "ece_ts": "ECE with TS, %",
    "clean_accuracy": "right labels, %",
    "memorised": "memorised, %",
}
_TITLES = {
    ("80%", "val"): "Trained on 80%, measured on the validation images that everything was chosen on",
    ("80%", "test"): "Trained on 80%, measured on test",
    ("100%", "test"): "Trained on 100% with what validation chose, measured on test",
}
_CAPTION = (
    "Mean ± standard deviation over seeds, over pairs of seeds for churn and JS; the epochs and averages of each seed, "
    "once where all have the same. SGD: the live weights, in tuning of the best epoch, in a refit of the last one. "
    "slowest: the average with the longest memory at the epochs chosen for EMA, batch-norm statistics recomputed where "
    "there are any. JS: Jensen-Shannon divergence, natural logarithm, at most 0.693 (the paper has another scale: only "
    "ratios compare). if calibrated: the ECE that a perfectly calibrated model would have."
)
_CAPTION_ON_TRAIN = (
    " right labels, memorised: of the training images, the accuracy on those with a right label, and the share of "
    "those with a wrong one that are predicted as that."
)


class _Line(NamedTuple):
    cells: list[str]
    """The label first."""
    wraps: bool = False
    """Whether it takes several lines before the numbers do."""


def protocol_tables(summary: Mapping[str, Any], *, width: int = 100) -> list[Group | Text]:
    """The tables of a protocol, from what its summary.json holds, for lines of so many characters; a caption last.

    One for each stage and split; columns that do not fit beside each other are spread over several.

    >>> from rich.console import Console
    >>> column = {"column": "SGD", "trained_on": "80%", "split": "test", "epochs": [3], "weights": ["live"]}
    >>> measured = {**column, "mean": {"accuracy": 0.5}, "std": {}}
    >>> table, caption = protocol_tables({"choices": [{"rate": 0.4}], "tables": [measured]})
    >>> Console(width=70, color_system=None).print(table)  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
    Trained on 80%, measured on test; learning rate by seed: 0.4
                  SGD
    ─────────────────...
    accuracy, %  50.0
    epoch           3
    average      live
    """
    by_stage: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in summary["tables"]:
        by_stage.setdefault((each["trained_on"], each["split"]), []).append(each)
    rates = ", ".join(f"{choice['rate']:g}" for choice in summary["choices"])
    made: list[Group | Text] = []
    for stage, columns in by_stage.items():
        title = Text(f"{_TITLES[stage]}; learning rate by seed: {rates}", style="bold")
        made.append(Group(title, *_fitting(columns, width)))
    return [*made, Text(_caption(summary), style="italic")] if made else []


def _fitting(columns: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """One table, if it fits: with each spread beside its mean, or else below it; two of its halves if neither does."""
    lines = _lines(columns)
    full = [max(map(len, cells)) for cells in _transposed(lines)]
    words = [max(len(word) for cell in cells for word in cell.split()) for cells in _transposed(lines)]
    firm = _transposed([line for line in lines if not line.wraps]) or [[]] * len(words)
    whole = [max([least, *map(len, cells)]) for least, cells in zip(words, firm, strict=True)]
    for widths in (full, whole, [whole[0], *words[1:]], words):
        if sum(widths) + 2 * (len(widths) - 1) <= width or (len(columns) == 1 and widths is words):
            return [_table(lines, widths)]
    half = len(columns) // 2
    return [*_fitting(columns[:half], width), *_fitting(columns[half:], width)]


def _transposed(lines: Sequence[_Line]) -> list[list[str]]:
    return [list(cells) for cells in zip(*(line.cells for line in lines), strict=True)]


def _table(lines: Sequence[_Line], widths: Sequence[int]) -> Table:
    head, *body = lines
    # Two characters between columns: the padding, and the box's blank line.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, (name, width) in enumerate(zip(head.cells, widths, strict=True)):
        table.add_column(name, justify="right" if place else "left", width=width)
    for line in body:
        table.add_row(*line.cells)
    return table


def _lines(columns: Sequence[Mapping[str, Any]]) -> list[_Line]:
    """The titles, a line for each measure that there is, the epochs and the averages."""
    there = dict.fromkeys(metric for column in columns for metric in column["mean"])
    labels = {**_LABELS, **{metric: "transfer, %" for metric in there if metric.startswith(_TRANSFER)}}
    averages = [[name.removeprefix("ema-") for name in column["weights"]] for column in columns]
    return [
        _Line(["", *(column["column"] for column in columns)], wraps=True),
        *(
            _Line([label, *(_cell(metric, column) for column in columns)])
            for metric, label in labels.items()
            if metric in there
        ),
        _Line(["epoch", *(_list([str(epoch) for epoch in column["epochs"]]) for column in columns)], wraps=True),
        _Line(["average", *(_list(each) for each in averages)], wraps=True),
    ]


def _list(by_seed: list[str]) -> str:
    return ", ".join(by_seed) if len(set(by_seed)) > 1 else by_seed[0]


def _cell(metric: str, column: Mapping[str, Any]) -> str:
    mean, std = column["mean"].get(metric), column["std"].get(metric)
    if mean is None:
        return "–"
    scale, digits = (100, 1) if metric in _PERCENT or metric.startswith(_TRANSFER) else (1, 3)
    spread = "" if std is None else f" ±{scale * std:.{digits}f}"
    return f"{scale * mean:.{digits}f}{spread}"


def _caption(summary: Mapping[str, Any]) -> str:
    there = dict.fromkeys(metric for column in summary["tables"] for metric in column["mean"])
    targets = [metric.removeprefix(_TRANSFER) for metric in there if metric.startswith(_TRANSFER)]
    transfer = f" transfer: accuracy of a linear head on frozen features, on {', '.join(targets)}." if targets else ""
    on_train = _CAPTION_ON_TRAIN if "clean_accuracy" in there else ""
    return _CAPTION + on_train + transfer + chosen_on(validation_labels(summary.get("config", {})))
