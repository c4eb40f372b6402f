"""Metrics across several runs, on made-up runs, against loops written from the definitions."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.special import logsumexp

from emabank.study.averages import TableStage, rows_by_name
from emabank.study.config import Keep
from emabank.study.evaluate import pairwise_rows, temperature_rows
from emabank.study.report.results import Column as ResultColumn
from emabank.study.report.results import make_column
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.rows import Row
from emabank.study.runs.writer import open_run

SAMPLES, CLASSES = 60, 4
LABELS = np.random.default_rng(0).integers(0, CLASSES, SAMPLES)
BEST = Keep(weights="live", epoch=2, batchnorm="own", selected_by="accuracy")
LAST = Keep(weights="live", epoch=9, batchnorm="own", selected_by="last")


def average(name: str, selected_by: Any = "accuracy", *, epoch: int = 5, batchnorm: Any = "averaged") -> Keep:
    return Keep(weights=name, epoch=epoch, batchnorm=batchnorm, selected_by=selected_by)


def logits_of(seed: int, keep: Keep, split: str) -> np.ndarray:
    """Logits that differ by run, kept weights and split."""
    place = [seed, *map(ord, f"{keep.name} {split}")]
    return np.random.default_rng(place).normal(size=(SAMPLES, CLASSES)).astype(np.float32)


def number_of(seed: int, keep: Keep, split: str, metric: str) -> float:
    return float(np.random.default_rng([seed, *map(ord, f"{keep.name} {split} {metric}")]).random())


def make_run(
    root: Path,
    seed: int,
    *kept: Keep,
    trained_on: Any = "80%",
    metrics: Mapping[str, tuple[str, ...]] | None = None,
    replaced: Mapping[tuple[str, str], np.ndarray] | None = None,
    numbers: Mapping[tuple[str, str], float | None] | None = None,
) -> RunFolder:
    """A finished run that kept these weights; rows of single epochs, which belong to no column, are 99."""
    metrics = metrics or {"accuracy": ("val", "test"), "loss": ("val", "test"), "ece": ("val", "test")}
    with open_run(root, {"seed": seed, "trained_on": trained_on}, threads=1) as run:
        rows: list[Row] = []
        for keep in kept:
            parts = {split: logits_of(seed, keep, split) for split in ("val", "test")}
            parts |= {split: logits for (name, split), logits in (replaced or {}).items() if name == keep.name}
            run.save_predictions(keep.name, {split: (logits, LABELS) for split, logits in parts.items()})
            for metric, splits in metrics.items():
                for split in splits:
                    like = {"run": run.id, "dataset": "d", "network": "n", "trained_on": trained_on, "seed": seed,
                            "weights": keep.weights, "batchnorm": keep.batchnorm, "split": split, "metric": metric,
                            "other": None, "epoch": keep.epoch}  # fmt: skip
                    value = (numbers or {}).get((keep.name, metric), number_of(seed, keep, split, metric))
                    rows.append(Row(**like, selected_by=None, value=99.0))
                    rows.append(Row(**like, selected_by=keep.selected_by, value=value))
                    rows.append(Row(**like, selected_by=None, value=99.0))
        run.write_rows(rows)
        run.mark_done({})
    return RunFolder(run.path)


def weights_of(source: Row | Keep) -> tuple[str, str, str | None]:
    return source.weights, source.batchnorm, source.selected_by


def churn_by_a_loop(one: np.ndarray, other: np.ndarray) -> float:
    return sum(list(a).index(max(a)) != list(b).index(max(b)) for a, b in zip(one, other, strict=True)) / len(one)


def js_by_scipy(one: np.ndarray, other: np.ndarray) -> float:
    def probabilities(logits: np.ndarray) -> np.ndarray:
        return np.exp(logits.astype(float) - logsumexp(logits.astype(float), axis=1, keepdims=True))

    return float(np.mean(jensenshannon(probabilities(one), probabilities(other), axis=1) ** 2))


def ece_by_a_loop(logits: np.ndarray, temperature: float, bins: int = 5) -> float:
    """Equal-mass bins; 60 samples make five."""
    scaled = logits.astype(float) / temperature
    probabilities = np.exp(scaled - logsumexp(scaled, axis=1, keepdims=True))
    order = sorted(range(len(logits)), key=lambda i: probabilities[i].max())
    total = 0.0
    for members in np.array_split(order, bins):
        right = np.mean([probabilities[i].argmax() == LABELS[i] for i in members])
        total += len(members) * abs(right - np.mean([probabilities[i].max() for i in members]))
    return total / len(logits)


def stage(trained_on: str, split: str, **columns: tuple[str, ...]) -> TableStage:
    return TableStage("tune", trained_on, split, columns)


def columns_of(stage: TableStage, runs: list[RunFolder], rows: list[Row]) -> list[ResultColumn]:
    """The columns that the report makes of a stage."""
    by_name = rows_by_name([*(row for run in runs for row in run.rows()), *rows])
    ids = [run.id for run in runs]
    columns = [
        make_column(title, stage.trained_on, stage.split, [*zip(ids, kept, strict=True)], by_name)
        for title, kept in stage.columns.items()
    ]
    return [column for column in columns if column is not None]


# Pairs of seeds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["val", "test"])
def test_every_pair_of_seeds_is_compared_within_each_column(tmp_path: Path, split: str):
    """The seeds chose different averages; accuracy and loss chose the same one at the same epoch."""
    chosen = [average(name) for name in ("ema-1%", "ema-2%", "ema-1%")]
    lowest = [average(name, "loss") for name in ("ema-1%", "ema-2%", "ema-1%")]
    slowest = average("ema-2%", batchnorm="recomputed")
    keeps = [(BEST, one, other, slowest) for one, other in zip(chosen, lowest, strict=True)]
    runs = [make_run(tmp_path, seed, *kept) for seed, kept in enumerate(keeps)]
    columns = {title: tuple(kept[place].name for kept in keeps) for place, title in enumerate(["SGD", "A", "L", "S"])}
    rows = pairwise_rows(stage("80%", split, **columns), runs)
    assert len(rows) == len(set(rows)) == 4 * 3 * 2
    report_columns = {column.title: column for column in columns_of(stage("80%", split, **columns), runs, rows)}
    for place, title in enumerate(columns):
        expected: dict[str, list[float]] = {"churn": [], "js": []}
        for i, j in ((0, 1), (0, 2), (1, 2)):
            one, other = (logits_of(seed, keeps[seed][place], split) for seed in (i, j))
            keep = keeps[i][place]
            for metric, value in (("churn", churn_by_a_loop(one, other)), ("js", js_by_scipy(one, other))):
                mine = [row for row in rows if (row.run, row.other, row.metric) == (runs[i].id, runs[j].id, metric)]
                [row] = [row for row in mine if weights_of(row) == weights_of(keep)]
                assert row.value == pytest.approx(value, abs=1e-6)
                assert (row.split, row.epoch, row.seed, row.trained_on) == (split, keep.epoch, i, "80%")
                expected[metric].append(value)
        for metric, values in expected.items():
            assert report_columns[title].values[metric] == pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize("chose_slowest", [(True, False, True), (False, True, False), (True, True, False), (True,) * 3])
def test_two_columns_with_the_same_weights_in_some_seeds_do_not_mix(tmp_path: Path, chose_slowest: tuple[bool, ...]):
    """Without batch norm, a seed that chose the slowest average has one set of weights in both columns."""
    slow, fast = average("ema-9%"), average("ema-1%")
    chosen = [slow if is_slowest else fast for is_slowest in chose_slowest]
    runs = [make_run(tmp_path, seed, *{keep.name: keep for keep in (chosen[seed], slow)}.values()) for seed in range(3)]
    both = stage("80%", "test", EMA=tuple(keep.name for keep in chosen), slowest=(slow.name,) * 3)
    rows = pairwise_rows(both, runs)
    keys = {(row.run, row.weights, row.batchnorm, row.selected_by, row.metric, row.other) for row in rows}
    assert len(keys) == len(rows), "keys are unique"
    for column, kept in zip(columns_of(both, runs, rows), (chosen, [slow] * 3), strict=True):
        logits = [logits_of(seed, kept[seed], "test") for seed in range(3)]
        churns = [churn_by_a_loop(logits[i], logits[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
        assert column.values["churn"] == pytest.approx(churns)
        assert column.values["accuracy"] == [number_of(s, kept[s], "test", "accuracy") for s in range(3)]
        assert column.weights == [keep.weights for keep in kept]


def test_non_finite_logits_give_pairs_without_values(tmp_path: Path):
    bad = {(BEST.name, "test"): np.full((SAMPLES, CLASSES), np.nan, dtype=np.float32)}
    runs = [make_run(tmp_path, seed, BEST, replaced=bad if seed == 1 else {}) for seed in range(3)]
    only = stage("80%", "test", SGD=(BEST.name,) * 3)
    rows = pairwise_rows(only, runs)
    assert [row.value is None for row in rows if row.metric == "churn"] == [True, False, True]
    [column] = columns_of(only, runs, rows)
    assert [value is None for value in column.values["js"]] == [True, False, True]


# Temperatures --------------------------------------------------------------------------------------------------------


def test_a_refit_is_scaled_by_the_tuning_temperature_of_the_same_weights(tmp_path: Path):
    kept = (BEST, LAST, average("ema-1%"), average("ema-1%", "loss"), average("ema-9%", batchnorm="recomputed"))
    temperatures = {(keep.name, "temperature"): 0.5 + place for place, keep in enumerate(kept)}
    tuned = [
        make_run(tmp_path, seed, *kept, metrics={"temperature": ("val",), "accuracy": ("val", "test")},
             numbers={key: value + 10 * seed for key, value in temperatures.items()})
        for seed in range(2)
    ]  # fmt: skip
    swa = Keep(weights="swa", epoch=9, batchnorm="recomputed", selected_by="last")
    refitted = [make_run(tmp_path, seed, *kept, swa, trained_on="100%") for seed in range(2)]
    rows = temperature_rows(tuned, refitted)
    assert len(rows) == 2 * len(kept) * 3, "weights without tuning have no temperature"
    for seed, run in enumerate(refitted):
        for keep in kept:
            mine = {row.metric: row for row in rows if row.run == run.id and weights_of(row) == weights_of(keep)}
            temperature = temperatures[keep.name, "temperature"] + 10 * seed
            logits = logits_of(seed, keep, "test")
            scaled = logits.astype(float) / temperature
            losses = logsumexp(scaled, axis=1) - scaled[np.arange(SAMPLES), LABELS]
            assert mine["temperature"].value == temperature
            assert mine["ece_ts"].value == pytest.approx(ece_by_a_loop(logits, temperature))
            assert mine["loss_ts"].value == pytest.approx(losses.mean())
            assert {(row.split, row.epoch, row.seed, row.trained_on, row.other) for row in mine.values()} == {
                ("test", keep.epoch, seed, "100%", None)
            }
    [column] = columns_of(stage("100%", "test", SGD=(LAST.name,) * 2), refitted, rows)
    assert column.values["ece_ts"] == pytest.approx(
        [ece_by_a_loop(logits_of(seed, LAST, "test"), temperatures[LAST.name, "temperature"] + 10 * seed)
         for seed in range(2)]
    )  # fmt: skip


def test_without_a_temperature_or_finite_logits_there_are_no_scaled_rows(tmp_path: Path):
    bad = np.full((SAMPLES, CLASSES), math.inf, dtype=np.float32)
    metrics = {"temperature": ("val",), "accuracy": ("val", "test")}
    tuned = make_run(tmp_path, 0, BEST, LAST, metrics=metrics, numbers={(LAST.name, "temperature"): None})
    refit = make_run(tmp_path, 0, BEST, LAST, trained_on="100%", replaced={(BEST.name, "test"): bad})
    assert temperature_rows([tuned], [refit]) == []


def test_weights_without_rows_make_no_column(tmp_path: Path):
    runs = [make_run(tmp_path, seed, BEST) for seed in range(2)]
    assert columns_of(stage("80%", "val", SGD=(LAST.name,) * 2), runs, []) == []
