"""The embedded digits are the published ones, and the three parts are apart."""

import numpy as np
import pytest
import torch
from sklearn import datasets

from emabank.study.data import digits


def test_the_file_holds_what_scikit_learn_has():
    images, labels = digits._read()
    published = datasets.load_digits()
    assert images.dtype == labels.dtype == np.uint8
    assert np.array_equal(images, published["images"])
    assert np.array_equal(labels, published["target"])


def test_the_parts_are_apart_and_together_are_all():
    parts = digits.load_digits()
    assert [len(part.labels) for part in parts] == [1297, 250, 250]
    images = torch.cat([part.images for part in parts]).flatten(1)
    raw, labels = digits._read()
    # The images differ from each other, so that each is known by its pixels.
    assert len(images.unique(dim=0)) == len(np.unique(raw.reshape(len(raw), -1), axis=0)) == len(raw)
    assert torch.equal(parts.train.labels, torch.from_numpy(labels[:1297].astype(np.int64)))


def test_validation_and_test_have_the_same_number_of_each_digit():
    _, validation, test = digits.load_digits()
    difference = validation.labels.bincount(minlength=10) - test.labels.bincount(minlength=10)
    assert difference.abs().max() <= 1


def test_images_keep_their_labels():
    raw, labels = digits._read()
    by_pixels = {image.tobytes(): int(label) for image, label in zip(raw, labels, strict=True)}
    mean, spread = raw[:1297].mean(), raw[:1297].std()
    for part in digits.load_digits():
        pixels = (part.images.squeeze(1) * spread + mean).round().to(torch.uint8).numpy()
        assert [by_pixels[image.tobytes()] for image in pixels] == part.labels.tolist()


def test_training_images_are_standardised():
    images = digits.load_digits().train.images
    assert images.shape == (1297, 1, 8, 8)
    assert images.dtype == torch.float32
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-3)
