"""All tables together: names, forms and holes; and those that no builder makes, against the raw values."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from emabank.study.report.render import latex, markdown, table_csv, terminal
from emabank.study.report.results import LIVE, Curve, Results, Setting
from emabank.study.report.table_specs import make_tables, protocol_tables
from emabank.study.report.tables import Table
from tests.study.report.looking import at, complete, is_mean_of, named
from tests.study.report.made_results import (
    AVERAGES,
    PAIRS,
    VARIANTS,
    distinct_setting,
    fewer_averages,
    first_seeds,
    made_results,
    the_papers,
    with_values,
)
from tests.support.processes import run

NAMES = {
    "generalization/headline": "Table 1", "generalization/differences": "", "generalization/summary-80": "Table 6",
    "label-noise/test-accuracy": "", "label-noise/memorisation": "Figure 7", "constant-lr/peak": "Figure 8",
    "consistency/agreement": "Table 3", "consistency/differences": "", "transfer/linear": "Table 4",
    "calibration/ece": "Table 5", "lr-search/rates": "Table 21", "batchnorm/sensitivity": "Table 24",
    "sampling-period/accuracy": "", "step-decay/end": "Figure 3", "bootstrap/accuracy": "Figure 5",
    "posthoc/windows": "", "setup/hyperparameters": "Table 22",
    **{f"generalization/full-{pair}-{share}": f"Table {7 + 2 * place + (share == 100)}"
       for place, pair in enumerate((PAIRS[0], PAIRS[2], PAIRS[1], *PAIRS[3:7])) for share in (80, 100)},
}  # fmt: skip
"""With the paper's own name; Table 2 needs the paper's own data, and Table 23 has no scale."""
OF_NO_SCALE = {"sampling-period/equivalence": "Table 23", "sampling-period/overhead": "Section 3.1"}


@pytest.fixture(scope="module")
def everything() -> list[Table]:
    return make_tables(made_results(*map(distinct_setting, PAIRS)))


def table_of(name: str, *settings: Setting, scale: str = "demo") -> Table:
    return named(make_tables(made_results(*settings)), f"{scale}/{name}")


def curves(setting: Setting, variant: str, weights: str, split: str, batchnorm: str = "averaged") -> np.ndarray:
    """[seeds, epochs]; of "best", the highest of all averages at each epoch."""
    names = setting.averages if weights == "best" else (weights,)
    statistics = "own" if weights == LIVE else batchnorm
    runs = setting.variants[variant]
    return np.array([np.max([run.curves[Curve(name, statistics, split, "accuracy")] for name in names], axis=0)
                     for run in runs])  # fmt: skip


def test_every_table_is_there_under_its_name_beside_its_item_of_the_paper(everything: list[Table]):
    expected = {**{f"demo/{name}": item for name, item in NAMES.items()}, **OF_NO_SCALE}
    assert {table.name: table.item for table in everything} == expected
    assert len(everything) == len(expected) and complete(everything)


def test_every_table_knows_its_study_and_its_scale(everything: list[Table]):
    for table in everything:
        scale = "" if table.name in OF_NO_SCALE else "demo"
        assert table.study and table.name == "/".join(filter(None, (scale, table.study, table.name.split("/")[-1])))
        assert table.scale == scale


def test_names_begin_with_the_scale_and_the_largest_comes_first():
    both = made_results(distinct_setting(), replace(distinct_setting(), scale="paper"))
    names = [table.name for table in make_tables(both)]
    assert len(names) == len(set(names)) and {"demo/generalization/headline", "paper/transfer/linear"} <= set(names)
    assert {name for name in names if not name.startswith(("demo/", "paper/"))} == {*OF_NO_SCALE}
    assert names.index("paper/generalization/headline") < names.index("demo/generalization/headline")


def test_every_table_has_all_its_forms(everything: list[Table]):
    for table in everything:
        console = Console(file=io.StringIO(), width=80, color_system=None)
        console.print(terminal(table))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert max(map(len, lines)) <= 80, table.name
        assert table.title.split()[0] in markdown(table)
        assert latex(table).count(r"\\" + "\n") >= len(table.rows)
        assert table_csv(table).count(f"\n{table.name},") >= len(table.rows)


def holes() -> list[Setting]:
    """Settings in which something is missing, or that have fewer seeds and averages."""
    one = distinct_setting()
    bare = tuple(replace(run, curves={}) for run in one.variants["refit"])
    return [
        replace(one, columns=[]), replace(one, variants={}), replace(one, choices=[]), replace(one, averages=()),
        replace(one, config={}), replace(one, columns=[], variants={}, choices=[], config={}, averages=()),
        replace(one, pair="something-else"), replace(one, variants=dict.fromkeys(VARIANTS, ())),
        replace(one, variants=dict.fromkeys(VARIANTS, bare)), first_seeds(one, 1), first_seeds(one, 2),
        fewer_averages(one, 1), fewer_averages(first_seeds(one, 2), 3),
        replace(one, columns=[replace(column, values={}) for column in one.columns]),
        replace(one, columns=[replace(column, values=dict.fromkeys(column.values, [None] * 3))
                              for column in one.columns]),
        replace(one, columns=[column for column in one.columns if column.trained_on == "80%"]),
    ]  # fmt: skip


@pytest.mark.parametrize("place", range(len(holes())))
def test_whatever_is_missing_tables_come_out_complete_or_not_at_all(place: int):
    tables = [*make_tables(made_results(holes()[place])), *protocol_tables(holes()[place])]
    assert {table.name for table in tables} >= {*OF_NO_SCALE} and complete(tables)
    assert all(table.rows for table in tables)
    for table in tables:
        for form in (markdown, latex, table_csv, terminal):
            form(table)


def test_a_single_seed_never_has_a_spread():
    for table in make_tables(made_results(first_seeds(distinct_setting(), 1))):
        if table.name not in OF_NO_SCALE:
            assert all(cell.std is None and cell.n in (0, 1) for row in table.rows for cell in row.cells), table.name


def test_with_nothing_there_is_the_arithmetic_alone():
    assert [table.name for table in make_tables(Results())] == ["sampling-period/equivalence"]


def test_every_table_under_label_noise_says_which_labels_the_validation_images_had():
    config = {"data": {"noise": 0.2, "validation_labels": "noisy"}}
    tables = make_tables(made_results(*(replace(distinct_setting(pair), config=config) for pair in PAIRS)))
    assert [table.name for table in tables if table.scale and "the labels as given" not in table.caption] == []


def test_tables_are_made_without_torch():
    code = """
import sys
from emabank.study.report.results import Results
from emabank.study.report.render import latex, markdown, table_csv, terminal
from emabank.study.report.table_specs import make_tables
print([form(table) for table in make_tables(Results()) for form in (latex, markdown, table_csv, terminal)])
assert "torch" not in sys.modules
"""
    done = run(code, blocked=("torch",))
    assert done.returncode == 0, done.stderr


# From columns ---------------------------------------------------------------------------------------------------------


def test_the_headline_is_the_mean_of_the_refits_and_differences_are_paired():
    one = distinct_setting("cifar10-resnet18")
    values = {(column.title, metric): column.values[metric] for column in one.columns if column.trained_on == "100%"
              for metric in ("accuracy", "loss")}  # fmt: skip
    headline, differences = (table_of(f"generalization/{name}", one) for name in ("headline", "differences"))
    (row,) = headline.rows
    titles = {"SGD (best)": "SGD (best)", "SGD (last)": "SGD", "EMA (acc.)": "slowest (acc.)", "SWA": "SWA"}
    for title, column in titles.items():
        assert is_mean_of(at(headline, row.label, "acc., %", title), values[column, "accuracy"])
    assert is_mean_of(at(headline, row.label, "loss", "EMA (loss)"), values["slowest (loss)", "loss"], scale=1)
    for label, baseline in (("minus SGD (best)", "SGD (best)"), ("minus SGD (last)", "SGD")):
        expected = np.subtract(values["SWA", "accuracy"], values[baseline, "accuracy"])
        assert is_mean_of(at(differences, label, "acc., points", "SWA"), expected)
    assert at(differences, "minus SGD (last)", "acc., points", "SWA").paper == "0.50"


def test_a_full_table_has_every_metric_and_what_each_seed_chose():
    one = distinct_setting()
    choices = [{**choice, "rate": rate} for choice, rate in zip(one.choices, (0.4, 0.8, 0.4), strict=True)]
    columns = [replace(column, weights=["ema-0.998", "live", "swa"]) for column in one.columns]
    table = table_of("generalization/full-cifar100-resnet18-100", replace(one, choices=choices, columns=columns))
    assert table.columns[1:] == [
        "SGD", "SGD (best)", "EMA (acc.)", "EMA (loss)", "EMA (acc.) (BN)", "EMA (loss) (BN)", "SWA",
    ]  # fmt: skip
    (slowest,) = [each for each in one.columns if (each.title, each.trained_on) == ("slowest (loss)", "100%")]
    assert is_mean_of(at(table, "JS", "EMA (loss) (BN)"), slowest.values["js"], scale=1)
    assert at(table, "epochs", "EMA (acc.)").text == "[25, 25, 25]"
    assert at(table, "epochs", "EMA (acc.)").paper == "[143, 139, 155]"
    assert at(table, "learning rate", "SGD").text == "[0.4, 0.8, 0.4]"
    assert at(table, "decay (average)", "SGD").text == "[0.998, none, uniform]"


def test_with_two_seeds_churn_is_one_value_and_every_number_says_its_n():
    table = table_of("generalization/full-cifar100-resnet18-80", first_seeds(distinct_setting(), 2))
    churn = at(table, "churn, %", "SGD")
    assert (churn.n, churn.std) == (1, None) and at(table, "accuracy, %", "SGD").n == 2


def transferred(pair: str, *targets: str, own: bool = False) -> Setting:
    """The same, evaluated on these data sets instead of the made-up one."""
    setting = the_papers(pair) if own else distinct_setting(pair)
    columns = [
        replace(column, values={
            **{metric: values for metric, values in column.values.items() if not metric.startswith("transfer:")},
            **({f"transfer:{target}": column.values["transfer:other"] for target in targets}
               if "transfer:other" in column.values else {}),
        })
        for column in setting.columns
    ]  # fmt: skip
    return replace(setting, columns=columns)


def test_transfers_stand_under_their_targets_beside_supervised_training_on_these():
    ways = {"cifar100-resnet18": ["cifar10"], "cifar10-resnet18": ["cifar100"],
            "tiny-imagenet-resnet18": ["cifar100", "cifar10"]}  # fmt: skip
    four = [transferred(pair, *targets, own=True) for pair, targets in ways.items()]
    table = table_of("transfer/linear", *four, scale="paper")
    assert list(table.groups) == [("evaluated on", 1), ("cifar10", 2), ("cifar100", 2)]
    papers = {row.label: [cell.paper for cell in row.cells] for row in table.rows}
    assert papers["EMA (loss)"] == ["79.13 ± 0.76", "85.02 ± 0.03", "57.78 ± 0.09", "36.09 ± 0.86"]
    assert papers["Supervised"] == ["95.25 ± 0.11"] * 2 + ["77.63 ± 0.14"] * 2
    (target,) = [each for each in four[1].columns if (each.title, each.trained_on) == ("SGD", "100%")]
    assert is_mean_of(at(table, "Supervised", "cifar100-resnet18", "cifar10"), target.values["accuracy"])
    assert table.breaks == [3, 4] and complete([table])


@pytest.mark.parametrize(
    ("pair", "target", "expected"),
    [
        ("cifar100-resnet18", "digits-5-9", "82.10 ± 0.21"),  # the paper has one target for this pair
        ("tiny-imagenet-resnet18", "digits-5-9", ""),  # and two for this one
        ("cifar100-resnet18", "cifar100", ""),  # which the paper has, but not from there
        ("cifar10-resnet18", "cifar100-test-halves", "33.72 ± 1.67"),
        ("cifar100-vgg16", "cifar10", ""),
    ],
)
def test_the_papers_number_is_that_of_the_transfer_it_stands_for(pair: str, target: str, expected: str):
    table = table_of("transfer/linear", transferred(pair, target))
    assert table.rows[0].cells[0].paper == expected and "Supervised" not in [row.label for row in table.rows]


# Label noise ----------------------------------------------------------------------------------------------------------

BOTH = ("cifar10n-resnet34", "cifar100n-resnet34")


def with_accuracies(setting: Setting, sgd: float, best: float, ema: float) -> Setting:
    for title, value in {"SGD": sgd, "SGD (best)": best, "slowest (acc.)": ema}.items():
        setting = with_values(setting, {"accuracy": [value - 0.01, value, value + 0.01]}, title)
    return setting


def test_ours_are_sorted_in_among_the_published_where_data_and_network_are_the_same():
    ten, hundred = (the_papers(pair) for pair in BOTH)
    settings = with_accuracies(ten, 0.7, 0.78, 0.85), with_accuracies(hundred, 0.5, 0.56, 0.63)
    table = table_of("label-noise/leaderboard", *settings, scale="paper")
    assert [row.full_label for row in table.rows] == [
        "DivideMix", "PES(semi)", "ELR+", "EMA (acc.), paper", "EMA (acc.), ours", "CAL", "CORES",
        "Co-Teaching", "JoCor", "ELR", "Negative-LS", "Co-Teaching+", "SGD (best), ours", "CORES*", "CE (standard)",
        "SGD (last), ours",
    ]  # fmt: skip
    assert is_mean_of(at(table, "EMA (acc.), ours", "CIFAR-10N, %"), [0.84, 0.85, 0.86])
    assert at(table, "DivideMix", "CIFAR-100N, %").text == "71.13 ± 0.48" and table.item == "Table 2"


def test_with_cifar_10n_alone_that_column_sorts():
    table = table_of("label-noise/leaderboard", with_accuracies(the_papers(BOTH[0]), 0.7, 0.78, 0.92), scale="paper")
    rows = [row.label for row in table.rows]
    assert rows[:4] == ["PES(semi)", "DivideMix", "EMA (acc.), ours", "CORES*"] and rows[-1] == "SGD (last), ours"


@pytest.mark.parametrize(
    "changed", [{"config": {"data": {"subset": 4000}}}, {"network": "resnet18"}, {"scale": "small"}]
)
def test_a_subset_another_network_or_a_smaller_scale_is_not_in_the_leaderboard(changed):
    setting = the_papers(BOTH[1], **changed)
    names = {table.name for table in make_tables(made_results(setting))}
    assert f"{setting.scale}/label-noise/test-accuracy" in names
    assert not any(name.endswith("leaderboard") for name in names)


def test_memorised_is_read_where_each_seed_first_reaches_the_accuracy():
    one = distinct_setting("cifar100n-resnet34")
    table = table_of("label-noise/memorisation", one)
    for group, weights, batchnorm in (("SGD", LIVE, "own"), ("EMA, slowest", one.slowest, "averaged")):
        epochs, shares = [], []
        for each in one.variants["refit"]:
            clean = each.curves[Curve(weights, batchnorm, "train", "clean_accuracy")]
            epochs.append(next(place for place, value in enumerate(clean, 1) if value >= 0.9))
            shares.append(each.curves[Curve(weights, batchnorm, "train", "memorised")][epochs[-1] - 1])
        assert is_mean_of(at(table, "90%", "epoch", group), epochs, scale=1)
        assert is_mean_of(at(table, "90%", "memorised, %", group), shares)
    assert at(table, "90%", "memorised, points").paper == "-39.4"
    assert at(table, "90%", "epoch", "EMA, slowest").paper == "99" and at(table, "80%", "epoch", "SGD").paper == ""


# From curves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 5])
def test_peak_epoch_and_end_are_those_of_each_seeds_own_curve(count: int):
    one = fewer_averages(distinct_setting("cifar100n-resnet18"), count)
    table = table_of("constant-lr/peak", one)
    for rate, variant in (("cosine", "refit"), ("constant", "constant")):
        for title, weights in (("SGD", LIVE), ("EMA", "best")):
            found, row = curves(one, variant, weights, "test"), f"{rate}, {title}"
            assert is_mean_of(at(table, row, "peak, %"), found.max(axis=1))
            assert is_mean_of(at(table, row, "epoch"), found.argmax(axis=1) + 1, scale=1)
            assert is_mean_of(at(table, row, "end, %"), found[:, -1])
            assert is_mean_of(at(table, row, "end − peak"), found[:, -1] - found.max(axis=1))
    ends = curves(one, "constant", "best", "test")[:, -1] - curves(one, "refit", "best", "test")[:, -1]
    assert is_mean_of(at(table, "EMA, constant − cosine", "end, %"), ends)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_bootstrap_is_compared_with_tuning_for_the_average_that_was_copied(count: int):
    one = fewer_averages(distinct_setting(), count)
    copied = AVERAGES[min(2, count - 1)]
    table = table_of("bootstrap/accuracy", one)
    for title, weights in (("SGD", LIVE), ("EMA", copied)):
        plain, changed = (curves(one, variant, weights, "val") for variant in ("tune", "bootstrap"))
        assert is_mean_of(at(table, title, "end, %"), plain[:, -1])
        assert is_mean_of(at(table, f"{title}, difference", "end, %"), (changed - plain)[:, -1])
    assert any(copied in note for note in table.notes)
    assert (at(table, "SGD", "end, %").paper, at(table, "SGD, bootstrapped", "end, %").paper) == ("75.83", "74.47")


def test_a_branch_with_fewer_seeds_is_compared_over_those_it_has():
    one = distinct_setting()
    table = table_of(
        "constant-lr/peak", replace(one, variants={**one.variants, "constant": one.variants["constant"][1:]})
    )
    assert at(table, "SGD, constant − cosine", "end, %").n == 2 and at(table, "cosine, SGD", "end, %").n == 3


def test_each_average_stands_at_its_peak_and_at_the_chosen_epoch_with_both_statistics():
    one = distinct_setting()
    table = table_of("batchnorm/sensitivity", one)
    for name in AVERAGES:
        for kind in ("recomputed", "averaged"):
            found, row = curves(one, "refit", name, "test", kind), name.removeprefix("ema-")
            assert is_mean_of(at(table, row, "best, %", f"{kind}, oracle"), found.max(axis=1))
            assert is_mean_of(at(table, row, "epoch", f"{kind}, oracle"), found.argmax(axis=1) + 1, scale=1)
            assert is_mean_of(at(table, row, "accuracy, %", f"{kind}, chosen"), found[:, 24])
    assert at(table, "7.1%", "best, %", "recomputed, oracle").paper == "79.06 ± 0.14"


def test_rates_and_periods_have_a_row_each_also_where_one_diverged():
    one = distinct_setting()
    first, second, third = one.variants["tune at 0.4"]
    short = first, replace(second, curves={key: curve[:7] for key, curve in second.curves.items()}), third
    table = table_of("lr-search/rates", replace(one, variants={**one.variants, "tune at 0.4": short}))
    assert [row.label for row in table.rows] == ["0.2", "0.4", "0.8", "1.2"]
    assert at(table, "0.4", "EMA, %").text == "–"
    assert is_mean_of(at(table, "0.8", "EMA, %"), curves(one, "tune at 0.8", "best", "val").max(axis=1))
    periods = table_of("sampling-period/accuracy", one)
    assert [row.label for row in periods.rows] == ["T = 1", "T = 2", "T = 4", "T = 8"]
    difference = curves(one, "every 4", "best", "test").max(axis=1) - curves(one, "every 1", "best", "test").max(axis=1)
    assert is_mean_of(at(periods, "T = 4", "peak", "best, minus the shortest T"), difference)


def test_each_window_stands_at_its_best_epoch_beside_what_was_kept():
    one = distinct_setting()
    table, runs = table_of("posthoc/windows", one), one.variants["posthoc"]
    assert [row.label for row in table.rows] == ["0.44%", "0.88%", "1.8%", "3.5%", "7.1%", "10%", "14%"]
    for row in ("1.8%", "14%"):
        curve = Curve(f"ema-{row}", "recomputed", "val", "accuracy")
        made = np.stack([each.posthoc[curve] for each in runs])
        best = int(np.nanargmax(made.mean(axis=0)))
        assert at(table, row, "epoch").text == str(best + 1)
        assert is_mean_of(at(table, row, "afterwards, %"), made[:, best])
        if f"ema-{row}" in AVERAGES:
            kept = np.stack([each.curves[curve] for each in runs])[:, best]
            assert is_mean_of(at(table, row, "difference, points"), made[:, best] - kept)
        else:
            assert at(table, row, "kept live, %").text == "–", "nobody kept it"


def test_the_share_of_a_step_is_taken_repetition_by_repetition():
    results = made_results(distinct_setting())
    (cost,) = results.overheads
    table = named(make_tables(results), "sampling-period/overhead")
    shares = np.divide(cost.update_seconds, cost.step_seconds) / cost.every
    assert is_mean_of(at(table, cost.network, "share of a step, %"), shares)
    assert at(table, "ResNet-50, paper", "MiB an average").text == "90.43"


def test_hyperparameters_are_read_from_the_configuration_beside_the_papers():
    config = {"data": {"dataset": "digits", "noise": 0.4, "subset": 600}, "seeds": 3, "rates": [0.1, 0.2],
              "training": {"network": "resnet8", "width": 8, "schedule": "cosine", "warmup_epochs": 2, "epochs": 40},
              "averages": {"half_lives": [1.8, 7.1], "every": 4}}  # fmt: skip
    table = table_of("setup/hyperparameters", replace(distinct_setting(), config=config))
    texts = {row.label: row.cells[0].text for row in table.rows}
    assert texts == {
        "data": "digits, 40% wrong labels, 600 images", "network": "resnet8, width 8", "optimizer": "SGD, Nesterov",
        "learning rates tried": "0.1, 0.2", "schedule": "cosine, warm-up 2 epochs", "epochs": "40",
        "averages": "1.8%, 7.1%", "sampling period, steps": "4", "seeds": "3",
    }  # fmt: skip
    assert at(table, "sampling period, steps", "paper").text == "T = 16"


def test_the_tables_of_a_protocol_alone_have_every_column_of_every_stage():
    one = distinct_setting()
    tables = protocol_tables(one)
    assert [len(table.columns) - 1 for table in tables] == [6, 6, 7]
    for table, (trained_on, split) in zip(tables, (("80%", "val"), ("80%", "test"), ("100%", "test")), strict=True):
        for column in one.columns:
            if (column.trained_on, column.split) == (trained_on, split):
                assert is_mean_of(at(table, "accuracy, %", column.title), column.values["accuracy"])
    assert is_mean_of(at(tables[2], "transfer to other, %", "SWA"), one.columns[-1].values["transfer:other"])
