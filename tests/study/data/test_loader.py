"""Batches: each image once an epoch, cropped and flipped at random, resumed from any batch bit for bit."""

import io
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

from emabank.study.data.images import Images, Normalisation, make_images, normalisation_of
from emabank.study.data.loader import Loader, batches

FORMATS = pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])


def some_images(count: int = 23, *, channels: int = 3, height: int = 6, width: int = 8) -> Images:
    """Random pixels; the label of an image is its number."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)
    return make_images(images, torch.arange(count))


def make_loader(images: Images | None = None, **settings) -> Loader:
    images = images or some_images()
    return Loader(images, **{"size": 5, "normalisation": normalisation_of(images), "crop": 2, "flip": True, **settings})


def same(first: Iterable[tuple[Tensor, Tensor]], second: Iterable[tuple[Tensor, Tensor]]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.equal(*tensors) for batches in pairs for tensors in zip(*batches, strict=True))


def numbers_in(epoch: Iterable[tuple[Tensor, Tensor]]) -> list[int]:
    return [number for _, labels in epoch for number in labels.tolist()]


# Contents of a batch


@FORMATS
@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, {}),
        ({"crop": 0}, {}),
        ({"flip": False}, {}),
        ({"crop": 0, "flip": False}, {}),
        ({"crop": 5}, {}),
        ({}, {"channels": 1}),
        ({}, {"channels": 2, "height": 9, "width": 3}),
    ],
)
def test_images_are_cropped_flipped_and_normalised_one_by_one(settings, shape, memory_format):
    images = some_images(**shape)
    loader, twin = (make_loader(images, memory_format=memory_format, **settings) for _ in range(2))
    height, width = images.images.shape[2:]
    crop, scale = twin.crop, normalisation_of(images)
    mean, std = (np.array(values, dtype=np.float32)[:, None, None] for values in (scale.mean, scale.std))
    expected = []
    for number, top, left, flip in zip(*(draws.tolist() for draws in twin._plan), strict=True):
        padded = np.pad(images.images[number].numpy(), ((0, 0), (crop, crop), (crop, crop)), mode="reflect")
        piece = padded[:, top : top + height, left : left + width]
        if flip and twin.flip:
            piece = piece[:, :, ::-1]
        expected.append((number, (piece.astype(np.float32) - mean) / std))
    found = list(loader)
    assert all(inputs.is_contiguous(memory_format=memory_format) for inputs, _ in found)
    inputs, labels = (torch.cat(column) for column in zip(*found, strict=True))
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert labels.tolist() == [number for number, _ in expected]
    assert np.array_equal(inputs.numpy(), np.stack([piece for _, piece in expected]))


def test_crop_positions_and_flips_are_uniform():
    images = some_images(4000, channels=1, height=3, width=3)
    order, tops, lefts, flips = make_loader(images, crop=2)._plan
    assert sorted(order.tolist()) == list(range(4000))
    corners = torch.bincount(tops * 5 + lefts, minlength=25)
    assert (corners - 160).abs().max() < 5 * 160**0.5
    assert (flips.sum() - 2000).abs() < 5 * 1000**0.5


def test_the_source_images_are_not_changed():
    images = some_images()
    before = images.images.clone()
    for settings in ({}, {"crop": 0}, {"crop": 0, "flip": False}):
        for inputs, _ in make_loader(images, **settings):
            inputs.zero_()
    for inputs, _ in batches(images, size=5, normalisation=normalisation_of(images)):
        inputs.zero_()
    assert torch.equal(images.images, before)


def test_batches_have_the_noisy_labels_not_the_clean_ones():
    images = some_images()
    wrong = Images(images.images, images.labels, images.labels.flip(0))
    assert sorted(numbers_in(make_loader(wrong))) == list(range(23))
    assert same(make_loader(wrong), make_loader(images))


# Epochs


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [
        (23, 5, [5, 5, 5, 5, 3]),
        (20, 5, [5, 5, 5, 5]),
        (21, 5, [5, 5, 5, 6]),
        (3, 2, [3]),
        (2, 2, [2]),
        (4, 100, [4]),
        (101, 100, [101]),
    ],
)
def test_every_image_occurs_once_an_epoch_and_no_batch_has_one_image(count, size, sizes):
    loader = make_loader(some_images(count), size=size)
    for epoch in range(3):
        assert loader.epoch == epoch
        found = list(loader)
        assert [len(labels) for _, labels in found] == sizes
        assert len(loader) == len(sizes)
        assert sorted(numbers_in(found)) == list(range(count))
    assert loader.epoch == 3


def test_epochs_differ_and_the_seed_decides_their_order():
    first, second, other = (list(make_loader(seed=seed)) for seed in (0, 0, 1))
    assert same(first, second)
    assert not same(first, other)
    loader = make_loader()
    epochs = [numbers_in(loader) for _ in range(3)]
    assert len(set(map(tuple, epochs))) == 3


def test_the_order_differs_from_that_of_label_noise_with_the_same_seed():
    # symmetric_noise takes the first examples of this permutation: they must not all come first in the first epoch.
    noisy_first = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    assert numbers_in(make_loader(seed=0)) != noisy_first.tolist()


def test_the_order_of_images_does_not_depend_on_the_augmentation():
    loaders = [make_loader(crop=crop, flip=flip) for crop in (0, 1, 3) for flip in (False, True)]
    for _ in range(3):
        orders = [numbers_in(loader) for loader in loaders]
        assert all(order == orders[0] for order in orders)


def test_the_loader_neither_uses_nor_changes_global_random_states():
    loader, disturbed = make_loader(), make_loader()
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    epochs = [list(loader) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before) and np.array_equal(np.random.get_state()[1], numpy_before)
    for epoch in epochs:
        assert same(epoch, (batch for batch in disturbed if torch.rand(7) is not None))


# Resuming


def saved_and_read(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_loader_resumes_from_every_batch_bit_for_bit():
    epochs = 3
    whole = make_loader()
    expected = [batch for _ in range(epochs) for batch in whole]
    end = whole.state_dict()
    for stop in range(len(expected) + 1):
        loader, seen = make_loader(), []
        while len(seen) < stop:
            for batch in loader:
                seen.append(batch)
                if len(seen) == stop:
                    break
        state = saved_and_read(loader.state_dict())
        resumed = make_loader(seed=99)  # its own seed no longer matters
        next(iter(resumed))
        resumed.load_state_dict(state)
        assert (resumed.epoch, len(seen)) == (loader.epoch, stop)
        while resumed.epoch < epochs:
            seen += resumed
        assert same(seen, expected)
        finished = resumed.state_dict()
        assert torch.equal(finished.pop("generator"), end["generator"])
        assert finished == {name: value for name, value in end.items() if name != "generator"}


def test_trap43_a_state_is_copied_when_saved_and_when_loaded():
    loader = make_loader()
    list(loader)
    state = loader.state_dict()
    generator = state["generator"].clone()
    resumed = make_loader()
    resumed.load_state_dict(state)
    state["generator"].zero_()
    assert torch.equal(loader.state_dict()["generator"], generator)
    assert torch.equal(resumed.state_dict()["generator"], generator)
    assert same(resumed, loader)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 4}, r"was saved with size 4 \(here 5\); give the same images and settings"),
        ({"images": 99, "flip": False}, r"saved with images 99 \(here 23\), flip False \(here True\)"),
    ],
)
def test_a_state_of_other_settings_is_refused_and_changes_nothing(change, message):
    loader = make_loader()
    next(iter(loader))
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict({**make_loader().state_dict(), **change})
    reference = make_loader()
    next(iter(reference))
    assert same(loader, reference)


# In order


@FORMATS
def test_evaluation_batches_are_in_order_repeatable_and_not_augmented(memory_format):
    images = some_images()
    scale = normalisation_of(images)
    in_order = batches(images, size=5, normalisation=scale, memory_format=memory_format)
    first, second = list(in_order), list(in_order)
    assert len(in_order) == len(first) == 5
    assert [len(labels) for _, labels in first] == [5, 5, 5, 5, 3]
    assert numbers_in(first) == list(range(23))
    assert same(first, second)
    assert all(inputs.is_contiguous(memory_format=memory_format) for inputs, _ in first)
    mean, std = (np.array(values, dtype=np.float32)[:, None, None] for values in (scale.mean, scale.std))
    assert np.array_equal(torch.cat([inputs for inputs, _ in first]), (images.images.numpy() - mean) / std)


def test_evaluation_batches_may_have_one_image_or_none():
    images = some_images(6)
    scale = normalisation_of(images)
    assert [len(labels) for _, labels in batches(images, size=5, normalisation=scale)] == [5, 1]
    nothing = batches(images.take(images.wrong), size=5, normalisation=scale)
    assert len(nothing) == len(list(nothing)) == 0


# Errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": -1}, "crop is -1; give 0 to 5 pixels"),
        ({"crop": 6}, "crop is 6; give 0 to 5 pixels, because images of 6 x 8 have no more to reflect"),
        ({"images": some_images(1)}, "a training part of 1 images was given; give 2 or more"),
        ({"normalisation": Normalisation((0.0,), (1.0,))}, "is one of 1 channels and the images have 3; give norm"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_loader(**settings)
