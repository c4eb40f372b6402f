"""The embedded digits equal those of scikit-learn, in a fixed split."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from emabank.study.data.digits import digits_dataset


@pytest.mark.parametrize(
    ("name", "chosen"), [("digits", range(10)), ("digits-0-4", range(5)), ("digits-5-9", range(5, 10))]
)
def test_the_digits_are_those_of_scikit_learn_in_order_with_labels_from_zero(name: str, chosen: range):
    dataset, published = digits_dataset(name), load_digits()
    assert (dataset.name, dataset.classes) == (name, len(chosen))
    for part, index in ((dataset.train, range(1297)), (dataset.test, range(1297, 1797))):
        expected = [i for i in index if published["target"][i] in chosen]
        assert part.labels.tolist() == [chosen.index(published["target"][i]) for i in expected]
        assert part.images.dtype == torch.uint8 and not part.wrong.any()
        assert np.array_equal(part.images.numpy(), published["images"][expected][:, None])
