"""Under label noise every caption says which labels the validation images had, and nowhere else."""

from dataclasses import replace

import pytest

from emabank.study.report.claims.all import claims
from emabank.study.report.columns import protocol_tables
from emabank.study.report.evidence import Evidence, all_chosen_on
from emabank.study.report.figures.all import figures
from emabank.study.report.page.page import page
from emabank.study.report.tables.all import sheets
from tests.study.report.made_evidence import PAIRS, column, made_evidence, made_setting

CLEAN, GIVEN = "validation images with clean labels", "validation images with the labels as given"
NOISE = {
    CLEAN: {"dataset": "digits", "noise": 0.2, "labels": None, "validation_labels": "clean"},
    GIVEN: {"dataset": "cifar10n", "noise": 0.0, "labels": "worse", "validation_labels": "noisy"},
}
NONE = {"dataset": "digits", "noise": 0.0, "labels": None, "validation_labels": "clean"}


def with_data(data: dict[str, object], pairs: tuple[str, ...] = PAIRS) -> Evidence:
    return made_evidence(*(replace(each, config={**each.config, "data": data}) for each in map(made_setting, pairs)))


@pytest.mark.parametrize("words", NOISE)
def test_every_table_and_figure_under_label_noise_says_it(words: str):
    evidence = with_data(NOISE[words])
    made = [*(sheet for sheet in sheets(evidence) if sheet.scale), *figures(evidence)]
    assert len(made) > 40
    assert [each.name for each in made if words not in each.caption] == []


def test_without_wrong_labels_nothing_is_said():
    evidence = with_data(NONE)
    assert [each.name for each in (*sheets(evidence), *figures(evidence)) if "wrong;" in each.caption] == []
    assert not any("validation labels" in part.note for claim in claims(evidence) for part in claim.parts)


@pytest.mark.parametrize(("data", "word"), [(NOISE[CLEAN], "clean"), (NOISE[GIVEN], "noisy")])
def test_every_part_of_a_claim_that_was_run_under_label_noise_says_it(data: dict[str, object], word: str):
    parts = [part for claim in claims(with_data(data)) for part in claim.parts if part.setting.startswith("digits")]
    assert len(parts) > 40 and all(f"chosen with {word} validation labels" in part.note for part in parts)


def test_the_headline_of_the_page_says_it():
    assert CLEAN in page(with_data(NOISE[CLEAN], PAIRS[:1]), [], [], [])
    assert CLEAN not in page(with_data(NONE, PAIRS[:1]), [], [], [])


def test_where_some_settings_alone_have_wrong_labels_these_are_named():
    clean, noisy = (with_data(data, PAIRS[:1]).settings[0] for data in (NONE, NOISE[CLEAN]))
    noisy, given = replace(noisy, title="noisy one"), replace(with_data(NOISE[GIVEN]).settings[0], title="other one")
    assert "wrong (noisy one); rates" in all_chosen_on([clean, noisy])
    both = all_chosen_on([noisy, given])
    assert "wrong (noisy one)" in both and "wrong (other one)" in both and CLEAN in both and GIVEN in both


@pytest.mark.parametrize(("data", "says"), [(NOISE[CLEAN], CLEAN), (NOISE[GIVEN], GIVEN), (NONE, "")])
def test_the_protocols_tables_on_the_terminal_say_it(data: dict[str, object], says: str):
    summary = {
        "choices": [{"rate": 0.4}],
        "tables": [column("SGD", "80%", "val", {"accuracy": [0.5]})],
        "config": {"data": data},
    }
    said = str(protocol_tables(summary)[-1])
    assert (says in said) if says else ("Some training labels are wrong" not in said)
