"""What the paper says in words against the numbers that it prints.

Every rule takes values and gives conflicts, so that it can be shown made-up values; where the statement or the numbers
are not among them it gives none. May import numbers, conflict and disagreements.
"""

import math
from collections.abc import Iterator, Sequence

from emabank.study.report.paper.conflict import Conflict, against, said
from emabank.study.report.paper.disagreements import AVERAGES, LOWER_IS_BETTER, agree
from emabank.study.report.paper.numbers import FULL, Printed, among

Values = Sequence[Printed]


def _worse(one: Printed, other: Printed) -> bool:
    if one.mean is None or other.mean is None:
        return False
    return one.mean > other.mean if one.metric in LOWER_IS_BETTER else one.mean < other.mean


def _beaten(values: Values, better: Sequence[str], than: Sequence[str], metrics: Sequence[str]) -> list[Printed]:
    """Pairs of values of one row in which the column that should be better is worse: it, then what it is beside."""
    found: list[Printed] = []
    for each in values:
        if each.ours not in better or each.metric not in metrics:
            continue
        for other in among(values, item=each.item, pair=each.pair, metric=each.metric):
            if other.ours in than and _worse(each, other):
                found += [each, other]
    return found


# Epochs and decays ----------------------------------------------------------------------------------------------------


def stopped_early(values: Values) -> Iterator[Conflict]:
    """Averages that stop at 3/4 of the epochs or later, which should not be.

    >>> list(stopped_early([]))
    []
    """
    budgets = {each.column: _size(each) for each in among(values, item="Table 22", metric="budget")}
    for statement in said(values, "Section 3.2", "share_of_budget"):
        late = [
            each
            for each in among(values, metric="epochs")
            if each.ours in AVERAGES[:2]
            for budget in [budgets.get("Tiny-ImageNet" if each.pair.startswith("tiny") else "CIFAR-10/100", math.inf)]
            if max(each.by_seed) >= _size(statement) * budget
        ]
        yield from against(
            "early stopping of the averages",
            statement,
            late,
            f"Some of these epochs are at {statement.mean:g} of the budget or later, up to "
            f"{max((max(each.by_seed) for each in late), default=0):g}.",
        )


def _size(printed: Printed) -> float:
    return printed.mean or 0.0


def best_decay(values: Values) -> Iterator[Conflict]:
    """The decay said to be best without recomputed statistics, against the decays chosen without them.

    >>> list(best_decay([]))
    []
    """
    for statement in said(values, "Section 3.2", "decay"):
        chosen = among(values, pair=statement.pair, ours="EMA (acc.)", metric="decay")
        yield from against(
            "best decay with averaged statistics, cifar100-resnet18",
            statement,
            [each for each in chosen if statement.mean not in each.by_seed],
            "Figure 1a is drawn without recomputed statistics, where the slowest decay is said to lead at the maximum; "
            "the decays chosen in that setting are faster for every seed, as Appendix G says too.",
        )


def peak_under_noise(values: Values) -> Iterator[Conflict]:
    """The accuracy said to be the peak of a curve, against the table where it stands at other epochs.

    >>> list(peak_under_noise([]))
    []
    """
    for epoch in said(values, "Section 4.3", "peak_epoch"):
        for accuracy in said(values, "Section 4.3", "accuracy", "peak"):
            table = FULL.get((accuracy.pair, "100%"), "")
            same = among(values, item=table, ours=accuracy.ours, metric="accuracy")
            lists = among(values, item=table, ours=accuracy.ours, metric="epochs")
            if same and agree(accuracy, same[0]):
                yield from against(
                    "peak under label noise, cifar100n-resnet34",
                    epoch,
                    [accuracy, *(each for each in lists if epoch.mean not in each.by_seed)],
                    "The same accuracy is the peak of the curve in the text and, in the table, the value at the epochs "
                    "that validation chose, none of which is the epoch of the peak.",
                )


def largest_decay(values: Values) -> Iterator[Conflict]:
    """Columns said to have the largest decay, whose numbers are those of other decays.

    >>> list(largest_decay([]))
    []
    """
    for statement in said(values, "Section 4.1", "decay", "largest"):
        for each in among(values, trained_on="80%", split="test", metric="accuracy"):
            table = FULL.get((each.pair, "80%"), "")
            if each.ours not in AVERAGES[2:] or among(values, item=table, ours=each.ours):
                continue
            chosen = each.ours.replace("slowest", "EMA")
            twins = among(values, item=table, ours=chosen, metric="accuracy")
            decays = among(values, item=table, ours=chosen, metric="decay")
            if twins and agree(each, twins[0]) and any(set(found.by_seed) != {statement.mean} for found in decays):
                yield from against(
                    f"decay in {each.item}, {each.pair}, {each.column}",
                    statement,
                    [each, *decays],
                    f"The largest decay is said to be shown; the row is {twins[0].item}'s {chosen}, with the decays "
                    "chosen by seed.",
                )


# What was measured on what --------------------------------------------------------------------------------------------


def measured_on(values: Values) -> Iterator[Conflict]:
    """Tables said to be measured on test whose every value is that of the validation tables.

    >>> list(measured_on([]))
    []
    """
    for item, section, row in (("Table 5", "Section 4.6", "Table 5"), ("Table 6", "Appendix B", "Table 6")):
        compared: list[tuple[Printed, Printed]] = []
        shown = [each for each in among(values, item=item, place="table") if each.metric != "epoch"]
        for each in shown:
            table = FULL.get((each.pair, "80%"), "")
            wanted = {"item": table, "metric": each.metric}
            twins = among(values, ours=each.ours, **wanted) or among(
                values, ours=each.ours.replace("slowest", "EMA"), **wanted
            )
            compared += [(each, twin) for twin in twins[:1] if agree(each, twin)]
        for statement in said(values, section, "claim", row):
            if shown and len(compared) == len(shown):
                yield from against(
                    f"{item}, test or validation",
                    statement,
                    compared[0],
                    f"All {len(shown)} values, of which the first stands here, are those of the validation tables.",
                )


def rate_search(values: Values) -> Iterator[Conflict]:
    """The search over learning rates against the tuning tables, which are its best by seed.

    >>> list(rate_search([]))
    []
    """
    for pair in dict.fromkeys(each.pair for each in among(values, item="Table 21", place="table")):
        table = FULL.get((pair, "80%"), "")
        for heading, ours in (("SGD Acc.", "SGD"), ("EMA Acc.", "EMA (acc.)")):
            searched = among(values, item="Table 21", pair=pair, column=heading)
            tuned = among(values, item=table, ours=ours, metric="accuracy")
            rates = {rate for each in among(values, item=table, ours=ours, metric="rate") for rate in each.by_seed}
            for mean in tuned:
                at_rate = [each for each in searched if float(each.row.split(", ")[-1]) in rates]
                if len(rates) == 1:
                    wrong = [each for each in at_rate if not agree(each, mean)]
                    sentence = "All seeds have this rate, so both should be the mean of the same runs, and they differ"
                else:  # the mean of the best by seed cannot be below the mean at any one rate
                    wrong = [each for each in at_rate if not agree(each, mean) and _size(each) > _size(mean)]
                    sentence = "The mean over seeds, each at its best rate, cannot be below the mean at one rate"
                for each in wrong:
                    yield Conflict(
                        kind="statement",
                        about=f"learning-rate search, {pair}, {heading}",
                        printed=(mean, each),
                        sentence=f"{sentence}, unless Table 21 is about other runs.",
                    )


# Better and worse -----------------------------------------------------------------------------------------------------


def always_better(values: Values) -> Iterator[Conflict]:
    """Averages with a test accuracy or loss worse than the baseline's.

    >>> list(always_better([]))
    []
    """
    refits = [each for each in values if each.item in ("Table 1", *FULL.values()) and each.split == "test"]
    for statement in said(values, "Section 4.2", "claim", "baseline"):
        yield from against(
            "EMA against the baseline, on test",
            statement,
            _beaten(refits, (*AVERAGES, "SWA"), ("SGD",), ("accuracy", "loss")),
            "Some averages are worse than the baseline, whose value stands after each.",
        )


def recomputing_helps(values: Values) -> Iterator[Conflict]:
    """Networks with batch norm whose recomputed column is worse than the averaged one.

    >>> list(recomputing_helps([]))
    []
    """
    for statement in said(values, "Section 3.4", "claim"):
        counter = [
            each
            for criterion in ("acc.", "loss")
            for each in _beaten(
                [each for each in values if each.item in FULL.values() and "vgg" not in each.pair],
                (f"slowest ({criterion})",),
                (f"EMA ({criterion})",),
                ("accuracy", "loss"),
            )
        ]
        yield from against(
            "recomputed statistics",
            statement,
            counter,
            f"Not so for every {' and '.join(dict.fromkeys(each.metric for each in counter))}: the value without "
            "recomputing (and with the chosen decay) stands after each and is better.",
        )


def better_calibrated(values: Values) -> Iterator[Conflict]:
    """The average that Table 5 shows, where its calibration error is above the baseline's.

    >>> list(better_calibrated([]))
    []
    """
    full = [each for each in values if each.item in FULL.values()]
    for statement in said(values, "Section 4.6", "claim", "calibration"):
        for metric, words in (("ece", "without"), ("ece_ts", "after")):
            yield from against(
                f"calibration error {words} temperature scaling",
                statement,
                _beaten(full, ("slowest (loss)",), ("SGD", "SGD (last)", "SGD (best)"), (metric,)),
                f"The full tables have cases in which the error {words} temperature scaling is above that of the "
                "baseline, which stands after each.",
            )


def loss_beats_accuracy(values: Values) -> Iterator[Conflict]:
    """Measures in which the average of the lowest loss is worse than that of the best accuracy.

    >>> list(loss_beats_accuracy([]))
    []
    """
    wanted = [each for each in values if each.item in ("Table 4", *FULL.values())]
    metrics = ("churn", "js", "ece", "ece_ts", "transfer:cifar10", "transfer:cifar100")
    for statement in said(values, "Section 4.2", "claim", "EMA (loss)"):
        counter = _beaten(wanted, ("slowest (loss)",), ("slowest (acc.)",), metrics)
        yield from against(
            "EMA (loss) against EMA (acc.)",
            statement,
            counter,
            "With the largest decay and recomputed statistics it is not so for every "
            f"{', '.join(dict.fromkeys(each.metric for each in counter))}: the value of EMA (acc.) stands after each.",
        )
