"""The embedded digits are the published ones, and always split in the same way."""

import numpy as np
import torch
from sklearn import datasets

from emabank.study.data import digits


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
