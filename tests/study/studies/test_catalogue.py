"""The catalogue: every study of the paper, over the pairs and with the runs that it is about."""

from typing import Any

import pytest

from emabank.study.config import Place
from emabank.study.studies import catalogue
from emabank.study.studies.catalogue import STUDIES, Study, settings_of, studies_named
from emabank.study.studies.scales import SCALES, protocol_of
from emabank.study.studies.scheduler import placeholder_choices, variant_jobs

MAIN = "cifar100-resnet18"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", STUDIES)
def test_at_every_scale_a_study_has_something_to_train_and_all_of_it_can_be(name: str, scale: Any):
    [study] = studies_named(name)
    pairs = settings_of([study], scale)
    assert [pair.name for pair in pairs] == list(study.pairs_at(scale)) != []
    assert set(study.pairs_at(scale)) <= set(study.pairs)
    for pair in pairs:
        for arm in study.arms_at(scale):
            jobs = variant_jobs(arm, pair.config, placeholder_choices(pair.config, Place()), Place())
            assert [job.config.seed for job in jobs] == [0, 1, 2]


@pytest.mark.parametrize("scale", SCALES)
def test_what_a_study_shows_is_measured(scale: Any):
    measured = {
        name: [protocol_of(pair, scale).measuring for pair in study.pairs_at(scale)]  # type: ignore[union-attr]
        for name, study in STUDIES.items()
    }
    assert all(each.test_curves for some in measured.values() for each in some)
    assert all(each.recompute == "each-epoch" for each in measured["batchnorm"])
    assert all(each.on_train for name in ("label-noise", "constant-lr") for each in measured[name])
    wrong = [protocol_of(p, scale).data for n in ("label-noise", "constant-lr") for p in STUDIES[n].pairs_at(scale)]  # type: ignore[union-attr]
    assert all(data.has_wrong_labels for data in wrong)
    for pair in settings_of([STUDIES["lr-search"]], scale):
        assert len({f"tune at {rate:g}" for rate in pair.config.rates} | set(pair.arms)) > 1


def test_a_pair_without_a_stand_in_is_left_out(monkeypatch: pytest.MonkeyPatch):
    really = catalogue.protocol_of
    monkeypatch.setattr(catalogue, "protocol_of", lambda pair, scale: None if pair == "b" else really(MAIN, scale))
    assert Study(name="x", title="X", question="?", makes="y", pairs=("a", "b", "c")).pairs_at("demo") == ("a", "c")


def test_an_unknown_study_is_one_sentence_with_those_there_are():
    with pytest.raises(ValueError, match="^there is no study ''; give all, or one of generalization, dynamics, "):
        studies_named("")
    with pytest.raises(
        ValueError, match=r"^there is no study 'generalisation' \(did you mean generalization\?\); give"
    ):
        studies_named("generalisation")
