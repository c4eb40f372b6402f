"""The embedded digits are the published ones, and always split in the same way."""

import numpy as np
import pytest
import torch
from sklearn import datasets

from emabank.study.data import digits
from emabank.study.data.images import fingerprint


def test_the_file_holds_what_scikit_learn_has():
    images, labels = digits._read()
    published = datasets.load_digits()
    assert images.dtype == labels.dtype == np.uint8
    assert np.array_equal(images, published["images"])
    assert np.array_equal(labels, published["target"])


def test_the_data_set_holds_the_digits_as_they_are_stored():
    dataset = digits.digits_dataset()
    published = datasets.load_digits()
    assert (dataset.name, dataset.classes, len(dataset.train), len(dataset.test)) == ("digits", 10, 1297, 500)
    images = torch.cat([dataset.train.images, dataset.test.images])
    assert images.dtype == torch.uint8
    assert np.array_equal(images.numpy(), published["images"][:, None])
    assert np.array_equal(torch.cat([dataset.train.labels, dataset.test.labels]).numpy(), published["target"])
    assert not dataset.train.wrong.any()
    assert not dataset.test.wrong.any()


@pytest.mark.parametrize(("name", "chosen"), [("digits-0-4", [0, 1, 2, 3, 4]), ("digits-5-9", [5, 6, 7, 8, 9])])
def test_a_half_holds_its_digits_in_their_order_counted_from_its_first(name: str, chosen: list[int]):
    half, published = digits.digits_dataset(name), datasets.load_digits()
    assert (half.name, half.classes) == (name, 5)
    for part, index in ((half.train, range(1297)), (half.test, range(1297, 1797))):
        mine = [i for i in index if published["target"][i] in chosen]
        assert part.labels.tolist() == [chosen.index(published["target"][i]) for i in mine]
        assert np.array_equal(part.images.numpy(), published["images"][mine][:, None])
        assert not part.wrong.any()


def test_the_halves_are_all_of_it_and_share_nothing():
    whole, *halves = (digits.digits_dataset(name) for name in ("digits", *digits.HALVES))
    for part in ("train", "test"):
        assert sum(len(getattr(half, part)) for half in halves) == len(getattr(whole, part))
    assert len({fingerprint(dataset) for dataset in (whole, *halves)}) == 3
