"""Stratified subsets and splits, and label noise: exact counts, fixed by the seed, split independent of the noise."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.config import DataConfig
from emabank.study.data.images import Dataset, make_images, normalisation_of
from emabank.study.data.splits import (
    Parts,
    make_parts,
    seeded_generator,
    stratified_split,
    stratified_subset,
    symmetric_noise,
)
from emabank.study.runs.rows import TrainedOn

some_labels = st.lists(st.integers(0, 6), min_size=1, max_size=80)


def largest_remainder(labels: list[int], size: int) -> dict[int, int]:
    """How many examples of each class belong in a subset, from the definition with fractions."""
    totals = Counter(labels)
    quotas = {label: Fraction(size * count, len(labels)) for label, count in totals.items()}
    counts = {label: int(quota) for label, quota in quotas.items()}
    while sum(counts.values()) < size:
        open_classes = [label for label in sorted(quotas) if counts[label] == int(quotas[label])]
        counts[max(open_classes, key=lambda label: quotas[label] - int(quotas[label]))] += 1
    return counts


@given(labels=some_labels, seed=st.integers(0, 2**40), data=st.data())
def test_a_subset_keeps_the_class_shares_as_exactly_as_possible(labels: list[int], seed: int, data: st.DataObject):
    size = data.draw(st.integers(1, len(labels)))
    chosen = stratified_subset(torch.tensor(labels), size, seed=seed).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == size
    found = Counter(labels[place] for place in chosen)
    expected = largest_remainder(labels, size)
    assert {label: found[label] for label in expected} == expected
    assert chosen == stratified_subset(torch.tensor(labels), size, seed=seed).tolist()


@given(labels=some_labels, share=st.floats(0.01, 0.99), seed=st.integers(0, 100))
def test_a_split_is_complete_disjoint_and_stratified(labels: list[int], share: float, seed: int):
    size = round(share * len(labels))
    if not 0 < size < len(labels):
        with pytest.raises(ValueError, match=f"examples is {size} of them, which leaves one part empty"):
            stratified_split(torch.tensor(labels), share, seed=seed)
        return
    train, validation = (part.tolist() for part in stratified_split(torch.tensor(labels), share, seed=seed))
    assert sorted(train + validation) == list(range(len(labels)))
    assert train == sorted(train)
    assert validation == sorted(validation)
    expected = largest_remainder(labels, size)
    found = Counter(labels[place] for place in validation)
    assert {label: found[label] for label in expected} == expected


def test_every_example_is_equally_likely_to_be_chosen():
    labels = torch.tensor([0] * 10 + [1] * 20)
    times = torch.zeros(30)
    for seed in range(1000):
        times[stratified_subset(labels, 6, seed=seed)] += 1
    # 1000 draws at 0.2 each: mean 200, standard deviation 12.6.
    assert (times - 200).abs().max() < 5 * 12.6


def test_the_seed_alone_decides_subsets_splits_and_noise():
    labels = torch.arange(10).repeat(20)

    def drawn(seed: int) -> list[torch.Tensor]:
        noisy = symmetric_noise(labels, 0.4, classes=10, seed=seed)
        return [stratified_subset(labels, 50, seed=seed), *stratified_split(labels, 0.2, seed=seed), noisy]

    before = torch.get_rng_state()
    first = drawn(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert all(torch.equal(*pair) for pair in zip(first, drawn(0), strict=True))
    assert not any(torch.equal(*pair) for pair in zip(first, drawn(1), strict=True))


def test_every_purpose_and_seed_has_its_own_generator():
    draws = [
        tuple(torch.randperm(50, generator=seeded_generator(purpose, seed)).tolist())
        for purpose in ("subset", "split", "loader")
        for seed in (0, 1, 2**32, 2**32 + 1)  # torch's generator uses 32 bits of its seed
    ]
    draws.append(tuple(torch.randperm(50, generator=torch.Generator().manual_seed(0)).tolist()))
    assert len(set(draws)) == 13


# Parts. The first two pixels of each image encode its number.


def numbered(count: int, classes: int, *, wrong: int = 0):
    numbers = torch.arange(count)
    images = torch.randint(0, 256, (count, 1, 2, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = (numbers // 256).to(torch.uint8), (numbers % 256).to(torch.uint8)
    clean = numbers * 7 % classes
    labels = clean.clone()
    labels[:wrong] = (labels[:wrong] + 1) % classes
    return make_images(images, labels, clean=clean)


def numbers_of(part) -> list[int]:
    return (part.images[:, 0, 0, 0].long() * 256 + part.images[:, 0, 0, 1].long()).tolist()


def make_dataset(wrong: int = 0) -> Dataset:
    return Dataset("numbers", 5, train=numbered(600, 5, wrong=wrong), test=numbered(90, 5))


def parts_of(dataset: Dataset, trained_on: TrainedOn = "80%", **settings: Any) -> Parts:
    return make_parts(DataConfig(**settings), dataset, trained_on)


def validation_of(parts: Parts):
    assert parts.validation is not None
    return parts.validation


def test_training_and_validation_are_disjoint_and_complete():
    dataset = make_dataset()
    parts = parts_of(dataset)
    train, validation = numbers_of(parts.train), numbers_of(validation_of(parts))
    assert (len(train), len(validation)) == (480, 120)
    assert sorted(train + validation) == list(range(600))
    assert numbers_of(parts.test) == list(range(90))
    assert parts.classes == 5
    for part, whole in (
        (parts.train, dataset.train),
        (validation_of(parts), dataset.train),
        (parts.test, dataset.test),
    ):
        assert part.labels.tolist() == [int(whole.clean[number]) for number in numbers_of(part)]


def test_the_split_does_not_depend_on_the_noise():
    plain = parts_of(make_dataset(), subset=200, split_seed=3)
    split = numbers_of(plain.train), numbers_of(validation_of(plain))
    for noise, noise_seed in ((0.4, 0), (0.4, 1), (0.1, 2)):
        noisy = parts_of(make_dataset(), subset=200, split_seed=3, noise=noise, noise_seed=noise_seed)
        assert (numbers_of(noisy.train), numbers_of(validation_of(noisy))) == split
        assert noisy.normalisation == plain.normalisation
    real = parts_of(make_dataset(wrong=300), subset=200, split_seed=3)
    assert (numbers_of(real.train), numbers_of(validation_of(real))) == split
    other = parts_of(make_dataset(), subset=200, split_seed=4)
    assert numbers_of(other.train) != split[0]


def test_training_on_everything_uses_the_images_and_noise_of_both_parts():
    settings = {"subset": 200, "split_seed": 3, "noise": 0.4, "noise_seed": 5}
    cut, whole = (parts_of(make_dataset(), share, **settings) for share in ("80%", "100%"))
    assert whole.validation is None
    labels = {
        number: int(label)
        for part in (cut.train, validation_of(cut))
        for number, label in zip(numbers_of(part), part.labels, strict=True)
    }
    assert dict(zip(numbers_of(whole.train), whole.train.labels.tolist(), strict=True)) == labels


@pytest.mark.parametrize("settings", [{"noise": 0.5}, {}], ids=["synthetic", "real"])
def test_validation_images_have_noisy_and_clean_labels(settings):
    dataset = make_dataset() if settings else make_dataset(wrong=300)
    parts = parts_of(dataset, **settings)
    validation = validation_of(parts)
    assert validation.wrong.any() and parts.train.wrong.any()
    assert validation.clean.tolist() == [int(dataset.train.clean[number]) for number in numbers_of(validation)]
    if not settings:
        assert validation.labels.tolist() == [int(dataset.train.labels[number]) for number in numbers_of(validation)]


def test_test_images_have_clean_labels_and_may_be_a_subset():
    dataset = Dataset("numbers", 5, train=numbered(600, 5), test=numbered(90, 5, wrong=50))
    parts = parts_of(dataset, noise=0.4, test_subset=20)
    assert Counter(parts.test.labels.tolist()) == dict.fromkeys(range(5), 4)
    assert not parts.test.wrong.any()
    assert parts.test.labels.tolist() == [int(dataset.test.clean[number]) for number in numbers_of(parts.test)]


def test_the_normalisation_uses_the_training_part_only():
    parts = parts_of(make_dataset())
    assert parts.normalisation == normalisation_of(parts.train)
    assert parts.normalisation != parts_of(make_dataset(), "100%").normalisation


@pytest.mark.parametrize(
    ("wrong", "settings", "message"),
    [
        (0, {"subset": 601}, "a subset of 601 was asked for out of 600 examples; give 1 to 600"),
        (0, {"test_subset": 91}, "a subset of 91 was asked for out of 90 examples; give 1 to 90"),
        (30, {"noise": 0.2}, "noise is 0.2, but 30 labels of numbers are wrong already; give noise=0"),
    ],
)
def test_impossible_sizes_and_synthetic_noise_on_top_of_real_noise_are_refused(wrong, settings, message):
    with pytest.raises(ValueError, match=message):
        parts_of(make_dataset(wrong=wrong), **settings)


# Label noise ---------------------------------------------------------------------------------------------------------


@given(
    labels=st.integers(2, 12).flatmap(
        lambda classes: st.tuples(st.just(classes), st.lists(st.integers(0, classes - 1), max_size=60))
    ),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_noise_changes_exactly_its_share_to_other_classes(labels: tuple[int, list[int]], share: float, seed: int):
    classes, values = labels
    true = torch.tensor(values, dtype=torch.int64)
    noisy = symmetric_noise(true, share, classes=classes, seed=seed)
    assert int((noisy != true).sum()) == round(share * len(true))
    assert noisy.dtype == true.dtype
    assert noisy.numel() == 0 or (int(noisy.min()) >= 0 and int(noisy.max()) < classes)
    assert true.tolist() == values, "the input must not change"
    assert torch.equal(noisy, symmetric_noise(true, share, classes=classes, seed=seed))


def test_noise_draws_every_other_class_equally_often():
    true = torch.arange(10).repeat(9000)
    noisy = symmetric_noise(true, 1.0, classes=10, seed=0)
    counts = torch.zeros(10, 10).index_put_((true, noisy), torch.ones(len(true)), accumulate=True)
    assert (counts.diagonal() == 0).all()
    expected, off_diagonal = 1000, ~torch.eye(10, dtype=torch.bool)
    assert ((counts[off_diagonal] - expected).abs() < 5 * expected**0.5).all()


def test_noise_with_a_single_class_is_refused():
    with pytest.raises(ValueError, match="classes is 1"):
        symmetric_noise(torch.zeros(3, dtype=torch.int64), 0.5, classes=1, seed=0)
