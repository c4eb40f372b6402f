"""Tiny-ImageNet in its published layout: labels by the lines of wnids.txt, samples and complete sets alike."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emabank.study.data.folders import load_tiny_imagenet

PUBLISHED = pytest.mark.skipif(
    "EMABANK_DATA" not in os.environ, reason="EMABANK_DATA names no folder of published data"
)
WNIDS = ["n03", "n01", "n02"]  # not sorted, as published


def save(path: Path, brightness: int, mode: str = "RGB", side: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (side, side), brightness).convert(mode).save(path, quality=100)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three classes: n03 with two images to train with, n01 with one, which is grey, n02 with none; three to test."""
    root = tmp_path / "tiny-imagenet-200"
    save(root / "train/n03/images/n03_1.JPEG", 31)
    save(root / "train/n03/images/n03_0.JPEG", 30)
    save(root / "train/n01/images/n01_0.JPEG", 10, "L")
    (root / "train/n03/n03_boxes.txt").write_text("n03_0.JPEG\t0\t0\t63\t63\n")
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    lines = []
    for number, wnid in enumerate(["n02", "n03", "n02"]):
        save(root / f"val/images/val_{number}.JPEG", 100 + number)
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (root / "val/val_annotations.txt").write_text("".join(lines))
    return tmp_path


def test_labels_are_places_in_wnids(data: Path):
    train = load_tiny_imagenet(data, split="train")
    assert train.images.shape == (3, 3, 64, 64) and train.images.dtype == np.uint8
    assert train.images[:, :, 0, 0].tolist() == [[30] * 3, [31] * 3, [10] * 3]
    assert train.labels.tolist() == [0, 0, 1] and train.labels.dtype == np.int64
    test = load_tiny_imagenet(data, split="test")
    assert test.images[:, 0, 0, 0].tolist() == [100, 101, 102] and test.labels.tolist() == [2, 0, 2]
    assert test.classes == tuple(WNIDS)


def test_words_are_the_names_of_the_classes_where_they_are_known(data: Path):
    words = "n01\tgoldfish, Carassius auratus\nn99\tother\nn03\tcat\n"
    (data / "tiny-imagenet-200/words.txt").write_text(words)
    assert load_tiny_imagenet(data, split="test").classes == ("cat", "goldfish, Carassius auratus", "n02")


def test_the_second_start_decodes_nothing_and_the_cache_may_lie_elsewhere(data: Path, tmp_path: Path):
    for cache, place in ((None, data / ".emabank-cache"), (tmp_path / "elsewhere", tmp_path / "elsewhere")):
        told: list[tuple[int, int]] = []
        for _ in range(2):
            for split in ("train", "test"):
                load_tiny_imagenet(data, split=split, cache=cache, tell=lambda *done, told=told: told.append(done))
        assert told == [(0, 3), (3, 3)] * 2
        assert sorted(path.name.split(".")[0] for path in place.glob("[!.]*")) == [
            "tiny-imagenet-test",
            "tiny-imagenet-train",
        ]


def test_a_new_image_is_noticed(data: Path):
    load_tiny_imagenet(data, split="train")
    save(data / "tiny-imagenet-200/train/n02/images/n02_0.JPEG", 20)
    assert load_tiny_imagenet(data, split="train").labels.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("wnids.txt", "n01\nn01\n", "wnids.txt is damaged: it should hold 200 different words"),
        ("wnids.txt", "../../n01\n", "wnids.txt is damaged"),
        (
            "val/val_annotations.txt",
            "val_0.JPEG\tn99\t0\n",
            "names the class 'n99' in line 1, which wnids.txt does not",
        ),
        ("val/val_annotations.txt", "val_0.JPEG\n", "names the class '' in line 1"),
    ],
)
def test_damaged_lists_are_named(data: Path, file: str, text: str, said: str):
    (data / "tiny-imagenet-200" / file).write_text(text)
    with pytest.raises(ValueError, match=said):
        load_tiny_imagenet(data, split="test")


def test_what_is_missing_is_named_with_where_to_get_it(data: Path, tmp_path: Path):
    root = data / "tiny-imagenet-200"

    def said(split: str, folder: Path = data) -> str:
        with pytest.raises(FileNotFoundError) as caught:
            load_tiny_imagenet(folder, split=split)  # type: ignore[arg-type]
        message = str(caught.value)
        assert message.endswith(
            f"; run `emabank data fetch tiny-imagenet --data {folder}`; `emabank data check tiny-imagenet --data "
            f"{folder}` says what is missing"
        )
        return message.partition(";")[0]

    assert said("train", tmp_path / "none") == f"{tmp_path / 'none'} holds no tiny-imagenet-200/wnids.txt"
    (root / "val/images/val_1.JPEG").unlink()
    assert said("test") == f"{root} holds no val/images/val_1.JPEG"
    (root / "val/val_annotations.txt").unlink()
    assert said("test") == f"{root} holds no val/val_annotations.txt"
    (root / "train").rename(root / "no-train")
    assert said("train") == f"{root} holds no images to train with"


def test_a_name_that_leads_elsewhere_is_not_followed(data: Path):
    save(data / "secret.JPEG", 1)
    (data / "tiny-imagenet-200/val/val_annotations.txt").write_text("../../../secret.JPEG\tn01\t0\n")
    with pytest.raises(FileNotFoundError, match=r"holds no val/images/../../../secret.JPEG"):
        load_tiny_imagenet(data, split="test")


def test_other_sizes_and_damaged_images_are_named(data: Path):
    path = data / "tiny-imagenet-200/train/n02/images/n02_0.JPEG"
    save(path, 20, side=63)
    with pytest.raises(ValueError, match="n02_0.JPEG has 63 x 63 pixels, where 64 x 64 belong"):
        load_tiny_imagenet(data, split="train")
    path.write_bytes(b"garbage")
    with pytest.raises(ValueError, match="n02_0.JPEG cannot be read as an image"):
        load_tiny_imagenet(data, split="train")
    with pytest.raises(ValueError, match="split is 'val'; give 'train' or 'test'"):
        load_tiny_imagenet(data, split="val")  # type: ignore[arg-type]


@PUBLISHED
def test_the_published_images_are_read(tmp_path: Path):
    folder = Path(os.environ["EMABANK_DATA"])
    train, test = (load_tiny_imagenet(folder, split=split, cache=tmp_path) for split in ("train", "test"))
    assert train.images.shape[1:] == test.images.shape[1:] == (3, 64, 64)
    assert set(train.labels) <= set(range(200)) and len(train.classes) == 200
    annotations = (folder / "tiny-imagenet-200/val/val_annotations.txt").read_text().splitlines()
    wnids = (folder / "tiny-imagenet-200/wnids.txt").read_text().split()
    for index in (0, 17, len(annotations) - 1):
        name, wnid = annotations[index].split("\t")[:2]
        assert wnids[test.labels[index]] == wnid
        with Image.open(folder / "tiny-imagenet-200/val/images" / name) as image:
            assert np.array_equal(test.images[index], np.asarray(image.convert("RGB")).transpose(2, 0, 1))
