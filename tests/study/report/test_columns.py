"""The protocol's tables: every number whole and in its place at every usual width, and no torch to show them."""

import io
from typing import Any

import pytest
from rich.console import Console

from emabank.study.report.columns import protocol_tables
from tests.support.processes import run

MEASURES = {
    "accuracy": (0.9625, 0.0125),
    "loss": (0.12345, 0.0678),
    "churn": (1.0, 0.1234),
    "js": (0.0512, 0.0021),
    "ece": (0.0212, 0.0012),
    "ece_if_calibrated": (0.0112, 0.0002),
    "ece_ts": (0.0101, 0.0003),
    "clean_accuracy": (0.988, 0.001),
    "memorised": (0.2875, 0.0625),
    "transfer:cifar100-test-halves": (0.543, 0.021),
}
TITLES = ["SGD", "SGD (best)", "EMA (acc.)", "EMA (loss)", "slowest (acc.)", "slowest (loss)", "SWA"]


def column(title: str, *, seeds: int = 3, measures: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    """A column whose numbers begin with its place among the titles, so that each is found once."""
    place = TITLES.index(title)
    weights = {"SGD": "live", "SWA": "swa"}.get(title.split()[0], "ema-0.999875")
    found = {metric: (mean + place, std) for metric, (mean, std) in (measures or MEASURES).items()}
    return {
        "trained_on": "100%",
        "split": "test",
        "column": title,
        "epochs": [153 + seed for seed in range(seeds)],
        "weights": [weights] * seeds,
        "mean": {metric: mean for metric, (mean, _) in found.items()},
        "std": {metric: std for metric, (_, std) in found.items()} if seeds > 1 else {},
        **given,
    }


def summary(columns: list[dict[str, Any]], rates: tuple[float, ...] = (0.4, 0.8, 0.4)) -> dict[str, Any]:
    return {"choices": [{"rate": rate} for rate in rates], "tables": columns}


def printed(summary: dict[str, Any], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(*protocol_tables(summary, width=width), sep="\n")
    return console.file.getvalue()  # type: ignore[attr-defined]


def printed_alone(what: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=2000, color_system=None)
    console.print(what)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def percent(mean: float, std: float) -> list[str]:
    return [f"{100 * mean:.1f}", f"±{100 * std:.1f}"]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_seven_columns_with_everything_fit_and_nothing_is_cut(width: int):
    text = printed(summary([column(title) for title in TITLES]), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    words = text.split()
    for place in range(len(TITLES)):
        for metric, (mean, std) in MEASURES.items():
            wanted = [f"{mean + place:.3f}", f"±{std:.3f}"] if metric in ("loss", "js") else percent(mean + place, std)
            assert all(word in words for word in wanted), (metric, place)
    assert words.count("slowest") == 2, "each column once"
    assert "0.999875" in words and "0.999875," not in words, "what all seeds share is said once"


def test_where_there_is_room_a_measure_is_one_line():
    lines = printed(summary([column(title) for title in TITLES]), 120).splitlines()
    [accuracy] = [line.split() for line in lines if line.startswith("accuracy,")]
    assert accuracy == ["accuracy,", "%", *(word for p in range(7) for word in percent(0.9625 + p, 0.0125))]
    [at] = [number for number, line in enumerate(lines) if line.startswith("epoch ")]
    assert [*lines[at].split(), *lines[at + 1].split()] == ["epoch", *["153,", "154,"] * 7, *["155"] * 7]


def test_where_there_is_none_the_spread_stands_below_its_mean():
    lines = printed(summary([column(title) for title in TITLES]), 80).splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("accuracy")]
    assert lines[at].split() == ["accuracy,", "%", *(percent(0.9625 + p, 0.0125)[0] for p in range(7))]
    assert lines[at + 1].split() == [percent(0.9625, 0.0125)[1]] * 7


def test_on_a_very_narrow_terminal_the_columns_are_spread_over_several_tables():
    text = printed(summary([column(title) for title in TITLES]), 50)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 50
    words = text.split()
    assert words.count("accuracy,") >= 2, "once in each table"
    assert all(percent(0.9625 + place, 0.0125)[0] in words for place in range(7))


def test_a_measure_that_a_column_lacks_is_a_dash_and_one_that_all_lack_is_left_out():
    few = {metric: MEASURES[metric] for metric in ("accuracy", "ece")}
    swa = column("SWA", measures={"accuracy": MEASURES["accuracy"]})
    lines = printed(summary([column("SGD", measures=few), swa]), 100).splitlines()
    [line] = [line.split() for line in lines if line.startswith("ECE")]
    assert line == ["ECE,", "%", *percent(*MEASURES["ece"]), "–"]
    text = "\n".join(lines)
    assert not any(label in text for label in ("TS", "memorised", "right labels", "transfer", "churn, %"))


def test_one_seed_has_no_spread():
    text = printed(summary([column("SGD", seeds=1)], rates=(0.4,)), 100)
    table = text[: text.index("Mean ±")]
    assert "±" not in table
    assert "learning rate by seed: 0.4" in table
    assert "96.2" in table or "96.3" in table


def test_seeds_that_chose_different_averages_are_listed_in_their_order():
    lines = printed(summary([column("EMA (acc.)", weights=["ema-0.998", "ema-0.99", "ema-0.998"])]), 100).splitlines()
    [line] = [line.split()[1:] for line in lines if line.startswith("average   ")]
    assert line == ["0.998,", "0.99,", "0.998"]


def test_each_stage_and_split_has_a_table_with_its_title_and_the_last_a_caption():
    columns = [
        column("SGD", trained_on="80%", split="val"),
        column("EMA (acc.)", trained_on="80%", split="val"),
        column("SGD", trained_on="80%", split="test"),
        column("SGD"),
    ]
    *tables, caption = [printed_alone(each) for each in protocol_tables(summary(columns))]
    assert [lines[0] for lines in tables] == [
        f"{title}; learning rate by seed: 0.4, 0.8, 0.4"
        for title in (
            "Trained on 80%, measured on the validation images that everything was chosen on",
            "Trained on 80%, measured on test",
            "Trained on 100% with what validation chose, measured on test",
        )
    ]
    assert [lines[1].split() for lines in tables] == [["SGD", "EMA", "(acc.)"], ["SGD"], ["SGD"]]
    assert "only ratios compare" in caption[0]
    assert "on cifar100-test-halves" in caption[0]
    assert protocol_tables(summary([])) == []


def test_tables_are_shown_without_torch_and_numpy():
    code = (
        "from emabank.study.report.columns import protocol_tables as made; print(made({'choices': [], 'tables': []}))"
    )
    finished = run(code, blocked=("torch", "numpy"))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "[]\n"
    assert run("import torch", blocked=("torch", "numpy")).returncode != 0, "the control"
