"""The catalogue: every study of the paper, over the pairs and with the runs that it is about."""

from typing import Any

import pytest

from emabank.study.config import Place
from emabank.study.studies import catalogue
from emabank.study.studies.catalogue import STUDIES, Study, settings_of, studies_named
from emabank.study.studies.scales import SCALES, protocol_of
from emabank.study.studies.scheduler import placeholder_choices, variant_jobs

CIFAR_100, NOISY = "cifar100-resnet18", ("cifar100n-resnet34", "cifar10n-resnet34")
FIVE = (CIFAR_100, "cifar100-vgg16", "cifar100-wrn-28-10", "cifar10-resnet18", "tiny-imagenet-resnet18")
EVERY = ("every 1", "every 4", "every 16", "every 64")

# What the paper's tables and figures are about: pairs, runs beside the protocol's, stages of the protocol.
THE_PAPER_HAS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "generalization": ((*FIVE, *NOISY), (), ("tune", "refit", "swa")),
    "dynamics": ((*FIVE, *NOISY), (), ("tune", "refit")),
    "batchnorm": ((CIFAR_100,), (), ("tune", "refit")),
    "label-noise": (NOISY, (), ("tune", "refit")),
    "constant-lr": (("cifar100n-resnet18",), ("constant",), ("tune", "refit")),
    "consistency": (FIVE, (), ("tune", "refit")),
    "calibration": (FIVE, (), ("tune",)),
    "transfer": (("tiny-imagenet-resnet18", CIFAR_100, "cifar10-resnet18"), (), ("tune", "refit")),
    "step-decay": ((CIFAR_100,), ("step",), ("tune", "refit")),
    "bootstrap": ((CIFAR_100,), ("bootstrap", "bootstrap every 5"), ("tune",)),  # the second is ours
    "lr-search": ((CIFAR_100, "cifar100-wrn-28-10"), (), ("tune",)),  # at small scale beside the protocol's one rate
    "sampling-period": ((CIFAR_100,), EVERY, ("tune", "refit")),
    "posthoc": ((CIFAR_100,), ("posthoc",), ("tune",)),  # ours: the paper has no such thing
}


def test_all_studies_are_there_under_their_names():
    assert list(STUDIES) == list(THE_PAPER_HAS)
    assert all(study.name == name and study.makes for name, study in STUDIES.items())
    assert studies_named("all") == tuple(STUDIES.values())


@pytest.mark.parametrize("name", THE_PAPER_HAS)
def test_a_study_has_the_pairs_and_runs_of_the_paper(name: str):
    [study] = studies_named(name)
    pairs, arms, stages = THE_PAPER_HAS[name]
    assert (set(study.pairs_at("paper")), study.arms_at("paper")) == (set(pairs), arms)
    assert len(study.pairs) == len(pairs)
    assert study.stages == stages
    assert study.overhead is (name == "sampling-period")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", THE_PAPER_HAS)
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
    monkeypatch.setattr(catalogue, "protocol_of", lambda pair, scale: None if pair == "b" else really(CIFAR_100, scale))
    assert Study(name="x", title="X", question="?", makes="y", pairs=("a", "b", "c")).pairs_at("demo") == ("a", "c")


def test_an_unknown_study_is_one_sentence_with_those_there_are():
    with pytest.raises(ValueError, match="^there is no study ''; give all, or one of generalization, dynamics, "):
        studies_named("")
    with pytest.raises(
        ValueError, match=r"^there is no study 'generalisation' \(did you mean generalization\?\); give"
    ):
        studies_named("generalisation")
