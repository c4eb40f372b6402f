"""The first layer whitens the training images of a run, and is not trained."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from emabank.study.data.images import make_images, normalisation_of
from emabank.study.data.loader import batches
from emabank.study.models.whitened_cnn import EPSILON, whitening_filters
from tests.study.small_runs import config, parts_of, trained, training_of

WHITENED = {"training": {"network": "whitened-cnn", "width": 2, "epochs": 2}}


def covariance(images: np.ndarray) -> np.ndarray:
    """The covariance of all 2x2 patches of images `[n, channels, height, width]`, by numpy."""
    rows = [
        images[:, :, y : y + 2, x : x + 2].reshape(len(images), -1)
        for y in range(images.shape[2] - 1)
        for x in range(images.shape[3] - 1)
    ]
    return np.cov(np.concatenate(rows), rowvar=False, bias=True)


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_have_unit_covariance_after_the_first_layer(channels: int):
    torch.manual_seed(0)
    smooth = F.interpolate(torch.rand(50, channels, 5, 5), 16, mode="bilinear")
    part = make_images((255 * smooth).to(torch.uint8), torch.zeros(50, dtype=torch.int64))
    images = batches(part, size=8, normalisation=normalisation_of(part))
    filters = whitening_filters(images)
    assert filters.shape == (8 * channels, channels, 2, 2)
    inputs = torch.cat([inputs for inputs, _ in images]).double()
    outputs = F.conv2d(inputs, filters)
    whitened = np.cov(outputs[:, : 4 * channels].transpose(0, 1).flatten(1).numpy(), bias=True)
    variances = np.linalg.eigvalsh(covariance(inputs.numpy()))  # rising, as those of the filters
    np.testing.assert_allclose(whitened, np.diag(variances / (variances + EPSILON)), atol=1e-9)
    assert variances[-1] > 1000 * EPSILON, "a control: epsilon is small"
    assert torch.equal(outputs[:, 4 * channels :], -outputs[:, : 4 * channels])


def test_constant_images_have_finite_filters():
    part = make_images(torch.full((3, 3, 4, 4), 7, dtype=torch.uint8), torch.arange(3))
    assert whitening_filters(batches(part, size=2, normalisation=normalisation_of(part))).isfinite().all()


def test_a_run_whitens_with_its_training_images_and_keeps_the_filters():
    tuning = config(**WHITENED)
    parts = parts_of(tuning)
    expected = whitening_filters(batches(parts.train, size=1000, normalisation=parts.normalisation)).float()
    with torch.random.fork_rng():
        before = training_of(tuning).model.state_dict()["whitening"]
    torch.testing.assert_close(before, expected)
    training = trained(tuning)
    assert torch.equal(training.model.state_dict()["whitening"], before)
    assert "whitening" not in dict(training.model.named_parameters())
    for kept in training.kept():
        assert torch.equal(kept.tensors["whitening"], before), kept.keep.name
    refit = config(**WHITENED, trained_on="100%")
    assert not torch.equal(trained(refit).model.state_dict()["whitening"], before), "a refit has other training images"
