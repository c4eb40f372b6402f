"""The catalogue: the studies of the paper, with their pairs and runs."""

from typing import Any

import pytest

from emabank.study.studies import catalogue
from emabank.study.studies.catalogue import STUDIES, Study, settings_of, studies_named
from emabank.study.studies.scales import SCALES, protocol_of

MAIN = "cifar100-resnet18"


@pytest.mark.parametrize("scale", SCALES)
def test_protocols_measure_what_their_study_reports(scale: Any):
    measured = {
        name: [protocol_of(pair, scale).measuring for pair in study.pairs_at(scale)]  # type: ignore[union-attr]
        for name, study in STUDIES.items()
    }
    assert all(measuring.test_curves for several in measured.values() for measuring in several)
    assert all(measuring.recompute == "each-epoch" for measuring in measured["batchnorm"])
    assert all(measuring.on_train for name in ("label-noise", "constant-lr") for measuring in measured[name])
    wrong = [protocol_of(p, scale).data for n in ("label-noise", "constant-lr") for p in STUDIES[n].pairs_at(scale)]  # type: ignore[union-attr]
    assert all(data.has_wrong_labels for data in wrong)
    for pair in settings_of([STUDIES["lr-search"]], scale):
        assert len({f"tune at {rate:g}" for rate in pair.config.rates} | set(pair.arms)) > 1


def test_a_pair_without_a_protocol_at_the_scale_is_skipped(monkeypatch: pytest.MonkeyPatch):
    original = catalogue.protocol_of
    monkeypatch.setattr(catalogue, "protocol_of", lambda pair, scale: None if pair == "b" else original(MAIN, scale))
    assert Study(name="x", title="X", question="?", makes="y", pairs=("a", "b", "c")).pairs_at("demo") == ("a", "c")


def test_the_error_of_an_unknown_study_lists_the_studies_and_the_nearest_name():
    with pytest.raises(ValueError, match="^there is no study ''; give all, or one of generalization, dynamics, "):
        studies_named("")
    with pytest.raises(ValueError, match=r"'generalisation' \(did you mean generalization\?\); give"):
        studies_named("generalisation")
