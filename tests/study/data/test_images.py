"""Images and their labels: checked when built, indexed together, fingerprinted, normalised exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from emabank.study.data.images import (
    Dataset,
    Images,
    Normalisation,
    downsample,
    fingerprint,
    make_images,
    normalisation_of,
)


def some_images(count: int = 6, *, channels: int = 3, height: int = 4, width: int = 5, seed: int = 0) -> Images:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)
    return make_images(images, torch.arange(count) % 3)


def test_labels_of_any_integer_type_become_int64():
    part = some_images()
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        images = make_images(part.images, part.labels.to(dtype), clean=part.labels.flip(0).to(dtype))
        assert images.labels.dtype == images.clean.dtype == torch.int64
        assert torch.equal(images.labels, part.labels)
        assert torch.equal(images.clean, part.labels.flip(0))


def test_images_labels_and_clean_labels_are_indexed_together():
    part = make_images(some_images().images, torch.tensor([0, 1, 2, 0, 1, 2]), clean=torch.tensor([0, 1, 1, 0, 2, 2]))
    assert part.wrong.tolist() == [False, False, True, False, True, False]
    for index in (torch.tensor([4, 0, 4]), part.wrong, torch.tensor([], dtype=torch.int64)):
        places = np.flatnonzero(index) if index.dtype == torch.bool else index.numpy()
        taken = part.take(index)
        for tensor, whole in ((taken.images, part.images), (taken.labels, part.labels), (taken.clean, part.clean)):
            assert np.array_equal(tensor.numpy(), whole.numpy()[places])


def test_labels_without_noise_stay_one_tensor():
    taken = some_images().take(torch.tensor([1, 2]))
    assert taken.clean is taken.labels


BYTES = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
FOUR = torch.arange(4)


@pytest.mark.parametrize(
    ("images", "labels", "clean", "message"),
    [
        (BYTES.float(), FOUR, None, r"images must be a uint8 tensor .* got float32 \[4, 1, 2, 2\]"),
        (BYTES[:, 0], FOUR, None, r"images must be .* got uint8 \[4, 2, 2\]"),
        (BYTES[:, :, :0], FOUR, None, r"images must be .* got uint8 \[4, 1, 0, 2\]"),
        (BYTES.numpy(), FOUR, None, "images must be .* got a ndarray"),
        (BYTES, FOUR[:3], None, r"labels must be a tensor of whole numbers \[4\], .* got int64 \[3\]"),
        (BYTES, FOUR.float(), None, r"labels must be .* got float32 \[4\]"),
        (BYTES, [0, 1, 2, 3], None, "labels must be .* got a list"),
        (BYTES, FOUR, FOUR.view(2, 2), r"clean labels must be .* got int64 \[2, 2\]"),
        (BYTES, FOUR, FOUR.bool(), "clean labels must be .* got bool"),
    ],
)
def test_images_and_labels_of_the_wrong_type_or_shape_are_refused(images, labels, clean, message):
    with pytest.raises(ValueError, match=message):
        make_images(images, labels, clean=clean)


@pytest.mark.parametrize(
    ("classes", "train", "test", "message"),
    [
        (3, some_images(), some_images(channels=1), r"digits are \[3, 4, 5\] and its test images \[1, 4, 5\]"),
        (3, some_images(), some_images(0), "digits has no test images; give at least one"),
        (3, some_images(0), some_images(), "digits has no training images"),
        (2, some_images(), some_images(2), "training labels of digits go from 0 to 2; with classes=2 .* 0 and 1"),
        (3, some_images(), make_images(some_images(1).images, torch.tensor([-1])), "test labels .* from -1"),
        (3, replace(some_images(), clean=torch.arange(6) + 4), some_images(), "go from 0 to 9"),
    ],
)
def test_an_inconsistent_data_set_is_refused(classes, train, test, message):
    with pytest.raises(ValueError, match=message):
        Dataset("digits", classes, train, test)


def changed(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose last element differs by one."""
    other = tensor.clone()
    other.view(-1)[-1] ^= 1
    return other


def test_the_fingerprint_depends_on_everything_but_the_name():
    train, test = some_images(), some_images(4, seed=1)
    dataset = Dataset("one", 9, train, test)
    changes = [
        replace(dataset, classes=8),
        replace(dataset, train=test, test=train),
        replace(dataset, train=train.take(torch.arange(5))),
        # Same bytes, other shape.
        Dataset("one", 9, *(make_images(part.images.view(-1, 3, 5, 4), part.labels) for part in (train, test))),
    ]
    for name in ("images", "labels", "clean"):
        changes += [
            replace(dataset, **{part: replace(images, **{name: changed(getattr(images, name))})})
            for part, images in (("train", train), ("test", test))
        ]
    assert len({fingerprint(other) for other in (dataset, *changes)}) == 1 + len(changes)
    assert fingerprint(replace(dataset, name="two")) == fingerprint(dataset)


def test_the_fingerprint_does_not_depend_on_the_memory_layout():
    train = some_images()
    dataset = Dataset("one", 3, train, train)
    strided = Images(train.images.contiguous(memory_format=torch.channels_last), train.labels, train.labels.clone())
    assert fingerprint(Dataset("one", 3, strided, train)) == fingerprint(dataset)
    assert len(bytes.fromhex(fingerprint(dataset))) == 8


def test_the_normalisation_has_the_mean_and_std_of_all_pixels():
    part = some_images(1500, channels=2)  # more than are counted at once
    measured = normalisation_of(part)
    pixels = part.images.numpy().astype(np.float64)
    assert measured.mean == pytest.approx(pixels.mean((0, 2, 3)), rel=1e-12)
    assert measured.std == pytest.approx(pixels.std((0, 2, 3)), rel=1e-12)


def test_the_normalisation_is_exact_for_large_sums():
    # 255 everywhere but one 254: lost by a sum in float32 or a difference of squares.
    pixels = torch.full((3000, 1, 32, 32), 255, dtype=torch.uint8)
    pixels[7, 0, 3, 3] = 254
    count = pixels.numel()
    measured = normalisation_of(make_images(pixels, torch.zeros(3000, dtype=torch.int64)))
    assert measured.mean[0] == 255 - 1 / count
    assert measured.std[0] == pytest.approx(((1 / count) * (1 - 1 / count)) ** 0.5, rel=1e-12)


def test_a_constant_channel_is_only_centred():
    part = make_images(torch.full((2, 1, 3, 3), 7, dtype=torch.uint8), torch.tensor([0, 1]))
    assert normalisation_of(part) == Normalisation((7.0,), (1.0,))


@pytest.mark.parametrize(("side", "size"), [(32, 16), (32, 8), (9, 3)])
def test_smaller_images_are_block_means_rounded_half_up(side: int, size: int):
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 2, side, side), dtype=np.uint8)
    part = make_images(torch.from_numpy(pixels), torch.zeros(1500, dtype=torch.int64))
    small = downsample(Dataset("small", 1, part, part.take(torch.arange(3))), size)
    k = side // size
    means = np.stack([pixels[:, :, i::k, j::k] for i in range(k) for j in range(k)]).astype(np.float64).mean(axis=0)
    np.testing.assert_array_equal(small.train.images.numpy(), np.floor(means + 0.5))
    np.testing.assert_array_equal(small.test.images.numpy(), np.floor(means[:3] + 0.5))
    assert small.train.labels is small.train.clean, "labels are unchanged"


@pytest.mark.parametrize(("side", "size"), [(32, 12), (32, 64), (8, 5)])
def test_a_size_that_is_no_divisor_is_refused(side: int, size: int):
    part = make_images(torch.zeros(2, 1, side, side, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=f"^size must be a divisor .* got {size}, .* of few are {side} x {side}$"):
        downsample(Dataset("few", 2, part, part), size)
