"""What follows from the paper's numbers by arithmetic or by counting, against what it says of them.

Every rule takes values and gives conflicts; where the numbers are not among them it gives none. May import numbers and
conflict.
"""

import math
from collections.abc import Iterator, Sequence

from emabank.study.report.paper.conflict import Conflict, against, said
from emabank.study.report.paper.numbers import FULL, Printed, among

Values = Sequence[Printed]


def gain_under_noise(values: Values) -> Iterator[Conflict]:
    """The gain over SGD, which is the one over the published number and not over the paper's own SGD.

    >>> list(gain_under_noise([]))
    []
    """
    for gain in said(values, "Figure 2", "gain"):
        table = FULL.get((gain.pair, "100%"), "")
        for average in among(values, item=table, ours="slowest (acc.)", metric="accuracy"):
            for own in among(values, item=table, ours="SGD", metric="accuracy"):
                found = _mean(average) - _mean(own)
                if abs(found - _mean(gain)) < 0.005:
                    continue
                over = [
                    each
                    for each in among(values, item="Table 2", pair=gain.pair)
                    if not each.ours and abs(_mean(average) - _mean(each) - _mean(gain)) < 0.005
                ]
                which = f"the printed one is over {over[0].row}" if over else "no printed baseline gives the other"
                sentence = f"The gain over the paper's own SGD is {found:.2f} points; {which}."
                yield from against(f"gain under label noise, {gain.pair}", gain, [average, own, *over], sentence)


def memory(values: Values) -> Iterator[Conflict]:
    """The memory of one average against the number of parameters, at four bytes each.

    >>> list(memory([]))
    []
    """
    for parameters in said(values, "Section 3.1", "parameters"):
        for megabytes in said(values, "Section 3.1", "megabytes"):
            size = 4 * _mean(parameters)
            if abs(size / 1e6 - _mean(megabytes)) >= 0.2:  # the parameters are given to 0.1 million
                sentence = f"At four bytes each this is {size / 1e6:.1f} MB; the printed number is in MiB."
                if abs(size / 2**20 - _mean(megabytes)) >= 0.2:
                    sentence = f"At four bytes each this is {size / 1e6:.1f} MB or {size / 2**20:.1f} MiB."
                yield from against("memory of a ResNet-50", megabytes, [parameters], sentence)


def divergence_scale(values: Values) -> Iterator[Conflict]:
    """Divergences above ln 2, the most that the definition allows with natural logarithms.

    >>> list(divergence_scale([]))
    []
    """
    for statement in said(values, "Section 4.4", "js_definition"):
        yield from against(
            "scale of the Jensen-Shannon divergence",
            statement,
            [each for each in among(values, metric="js") if _mean(each) > math.log(2)],
            f"By this definition it is at most ln 2 = {math.log(2):.3f} with natural logarithms: the printed scale is "
            "another one, and only ratios compare.",
        )


def complete(values: Values) -> Iterator[Conflict]:
    """What the full tables are said to hold, and do not: five models each, learning rates of every run.

    >>> list(complete([]))
    []
    """
    full = [each for each in values if each.item in FULL.values() and each.place == "table"]
    items = list(dict.fromkeys(each.item for each in full))
    for statement in said(values, "Appendix B", "models"):
        few = [item for item in items if len(among(full, item=item, metric="accuracy")) != statement.mean]
        counter = [each for item in few for each in among(full, item=item, metric="accuracy")]
        sentence = f"There are {len(counter)} in {', '.join(few)}."
        yield from against("models in the full tables", statement, counter, sentence)
    for statement in said(values, "Appendix B", "claim", "each run"):
        rates = {item: among(full, item=item, metric="rate") for item in items}
        none = [item for item in items if not rates[item]]
        some = [item for item in items if 0 < len(rates[item]) < len(among(full, item=item, metric="accuracy"))]
        sentence = f"No learning rates stand in {', '.join(none)}, and not all of them in {' and '.join(some)}."
        yield from against("learning rates", statement, [rates[item][0] for item in some], sentence)


def _mean(printed: Printed) -> float:
    return printed.mean or 0.0
