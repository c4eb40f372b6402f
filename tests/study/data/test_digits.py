"""The embedded digits equal those of scikit-learn, in a fixed split."""

import numpy as np
import pytest
import torch
from sklearn import datasets

from emabank.study.data import digits


def test_the_digits_equal_those_of_scikit_learn():
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
def test_a_half_has_its_digits_in_order_with_labels_from_zero(name: str, chosen: list[int]):
    half, published = digits.digits_dataset(name), datasets.load_digits()
    assert (half.name, half.classes) == (name, 5)
    for part, index in ((half.train, range(1297)), (half.test, range(1297, 1797))):
        expected = [i for i in index if published["target"][i] in chosen]
        assert part.labels.tolist() == [chosen.index(published["target"][i]) for i in expected]
        assert np.array_equal(part.images.numpy(), published["images"][expected][:, None])
        assert not part.wrong.any()
