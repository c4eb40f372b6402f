"""What follows by arithmetic or counting: found in the paper, and gone once the numbers fit."""

from emabank.study.report.paper import arithmetic
from emabank.study.report.paper.numbers import FULL, everything
from tests.study.report.paper.made_values import changed


def test_the_gain_is_held_against_the_papers_own_sgd():
    (conflict,) = arithmetic.gain_under_noise(everything())
    assert [each.text for each in conflict.printed] == ["+9.65 pp", "65.15 ± 0.2", "55.47 ± 0.35", "55.50 ± 0.66"]
    assert "9.68 points" in conflict.sentence and "CE (standard)" in conflict.sentence
    assert list(arithmetic.gain_under_noise(changed(lambda each: each.metric == "gain", mean=9.68))) == []


def test_the_memory_is_held_against_the_parameters_in_both_units():
    (conflict,) = arithmetic.memory(everything())
    assert "94.8 MB" in conflict.sentence and "MiB" in conflict.sentence
    assert list(arithmetic.memory(changed(lambda each: each.metric == "megabytes", mean=94.8))) == []
    (wrong,) = arithmetic.memory(changed(lambda each: each.metric == "megabytes", mean=50.0))
    assert wrong.sentence == "At four bytes each this is 94.8 MB or 90.4 MiB."


def test_divergences_above_the_natural_maximum_are_found():
    (conflict,) = arithmetic.divergence_scale(everything())
    assert sorted(each.mean for each in conflict.printed[1:]) == [0.785, 0.829, 0.85, 0.85]
    assert list(arithmetic.divergence_scale(changed(lambda each: each.metric == "js", mean=0.69))) == []


def test_what_the_full_tables_lack_is_found():
    models, rates = arithmetic.complete(everything())
    assert models.sentence == "There are 3 in Table 11."
    assert "stand in Table 12, Table 15, Table 16, Table 17, Table 18, Table 19, Table 20," in rates.sentence
    assert {each.item for each in rates.printed[1:]} == {"Table 9", "Table 10"}
    whole = [each for each in everything() if each.item not in FULL.values() or each.item in ("Table 7", "Table 8")]
    assert list(arithmetic.complete(whole)) == []
