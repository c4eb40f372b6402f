"""CIFAR-10 and CIFAR-100: the official order and layout, unpacked or packed; what does not fit is refused."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emabank.study.data import cifar
from emabank.study.data.cifar import load_cifar
from tests.study.data.made_up import cifar_batch, python2_pickle, tar_gz, write_files

PUBLISHED = pytest.mark.skipif(
    "EMABANK_DATA" not in os.environ, reason="EMABANK_DATA names no folder of published data"
)
NAMES10 = [f"class {number}" for number in range(10)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch):
    """Files of 4 (CIFAR-10), 6 and 5 (CIFAR-100) images instead of thousands."""
    ten, hundred = cifar._LAYOUTS["cifar10"], cifar._LAYOUTS["cifar100"]
    ten = ten._replace(train=dict.fromkeys(ten.train, 4), test={"test_batch": 4})
    hundred = hundred._replace(train={"train": 6}, test={"test": 5})
    monkeypatch.setattr(cifar, "_LAYOUTS", {"cifar10": ten, "cifar100": hundred})


def cifar10_files() -> dict[str, Mapping[str, Any]]:
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    files = {f"cifar-10-batches-py/{name}": cifar_batch(seed, 4, 10) for seed, name in enumerate(names)}
    return {**files, "cifar-10-batches-py/batches.meta": {"label_names": NAMES10, "num_vis": 3072}}


def cifar100_files() -> dict[str, Mapping[str, Any]]:
    return {
        "cifar-100-python/train": cifar_batch(0, 6, 100, "fine_labels", coarse_labels=[0] * 6),
        "cifar-100-python/test": cifar_batch(1, 5, 100, "fine_labels", coarse_labels=[0] * 5),
    }


def pickled(files: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    return {name: python2_pickle(content) for name, content in files.items()}


def expected(batches: list[Mapping[str, Any]], key: str = "labels") -> tuple[np.ndarray, list[int]]:
    """Written from the description: the first 1024 numbers of a line are red, row by row, then green, then blue."""
    images, labels = [], []
    for batch in batches:
        for line, label in zip(batch["data"], batch[key], strict=True):
            red, green, blue = line[:1024], line[1024:2048], line[2048:]
            images.append([[channel[32 * row : 32 * row + 32] for row in range(32)] for channel in (red, green, blue)])
            labels.append(label)
    return np.array(images, dtype=np.uint8), labels


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_comes_in_the_official_order(tmp_path: Path, small, packed: bool):
    files = cifar10_files()
    if packed:  # in another order, with files that nobody asked for
        turned = dict(reversed(pickled(files).items()))
        archive = tar_gz({"cifar-10-batches-py/readme.html": b"<html>", **turned, "data_batch_1": b"elsewhere"})
        write_files(tmp_path, {"cifar-10-python.tar.gz": archive})
    else:
        write_files(tmp_path, pickled(files))
    batches = list(files.values())
    for split, part in (("train", batches[:5]), ("test", batches[5:6])):
        found = load_cifar("cifar10", tmp_path, split=split)
        images, labels = expected(part)
        assert found.images.dtype == np.uint8 and found.labels.dtype == np.int64
        assert np.array_equal(found.images, images) and found.labels.tolist() == labels
        assert found.classes == tuple(NAMES10)
        assert found.images.flags.writeable and found.labels.flags.writeable
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-python.tar.gz" if packed else "cifar-10-batches-py"]


def test_cifar100_has_fine_labels_and_does_without_names(tmp_path: Path, small):
    files = cifar100_files()
    write_files(tmp_path, pickled(files))
    found = load_cifar("cifar100", tmp_path, split="train")
    images, labels = expected([files["cifar-100-python/train"]], "fine_labels")
    assert np.array_equal(found.images, images) and found.labels.tolist() == labels and found.classes == ()


def test_only_the_files_of_the_part_are_needed(tmp_path: Path, small):
    write_files(tmp_path, {"cifar-100-python/test": pickled(cifar100_files())["cifar-100-python/test"]})
    assert len(load_cifar("cifar100", tmp_path, split="test").labels) == 5
    with pytest.raises(FileNotFoundError) as caught:
        load_cifar("cifar100", tmp_path, split="train")
    assert str(caught.value) == (
        f"{tmp_path} holds neither cifar-100-python/train nor cifar-100-python.tar.gz; run `emabank data fetch "
        f"cifar100 --data {tmp_path}`; `emabank data check cifar100 --data {tmp_path}` says what is missing"
    )
    write_files(tmp_path, {"cifar-100-python.tar.gz": tar_gz(pickled(cifar100_files()))})
    assert len(load_cifar("cifar100", tmp_path, split="train").labels) == 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"data": np.zeros((4, 3071), np.uint8)},
            r"holds images as uint8 \[4, 3071\], where uint8 \[4, 3072\] belongs",
        ),
        ({"data": np.zeros((5, 3072), np.uint8)}, r"uint8 \[5, 3072\]"),
        ({"data": np.zeros((4, 3072), np.int64)}, r"int64 \[4, 3072\]"),
        ({"data": [1, 2]}, "holds images as list"),
        ({"labels": [1, 2, 3]}, "holds 3 labels, where 4 belong"),
        ({"labels": [1, 2, 3, 10]}, "holds labels from 1 to 10, where 0 to 9 belong"),
        ({"labels": [1, 2, 3, -1]}, "holds labels from -1 to 3"),
        ({"labels": [1, 2, 3, "4"]}, "not a list of whole numbers"),
        ({"labels": np.zeros((4, 1), np.int64)}, "not a list of whole numbers"),
    ],
)
def test_a_batch_that_does_not_fit_is_named(tmp_path: Path, small, changes, said):
    write_files(tmp_path, {"cifar-10-batches-py/test_batch": python2_pickle({**cifar_batch(0, 4, 10), **changes})})
    with pytest.raises(ValueError, match=f"cifar-10-batches-py/test_batch .*{said}"):
        load_cifar("cifar10", tmp_path, split="test")


def test_names_that_do_not_fit_are_refused(tmp_path: Path, small):
    files = pickled(cifar10_files())
    for names in (NAMES10[:9], [*NAMES10[:9], 7], b"abcdefghij", None):
        files["cifar-10-batches-py/batches.meta"] = python2_pickle({"label_names": names})
        write_files(tmp_path, files)
        with pytest.raises(ValueError, match="batches.meta does not hold 10 names of classes"):
            load_cifar("cifar10", tmp_path, split="test")


def test_damage_and_missing_members_are_said_in_a_sentence(tmp_path: Path, small):
    files = pickled(cifar100_files())
    archive = tar_gz(files)
    path = tmp_path / "cifar-100-python.tar.gz"
    path.write_bytes(archive[: len(archive) // 2])
    with pytest.raises(ValueError, match="cifar-100-python.tar.gz is damaged or cut short"):
        load_cifar("cifar100", tmp_path, split="train")
    path.write_bytes(tar_gz({"cifar-100-python/test": files["cifar-100-python/test"]}))
    with pytest.raises(ValueError, match="cifar-100-python.tar.gz lacks train; use the published file"):
        load_cifar("cifar100", tmp_path, split="train")
    path.write_bytes(tar_gz({"cifar-100-python/train": files["cifar-100-python/train"][:-9]}))
    with pytest.raises(ValueError, match="cifar-100-python/train in .*cifar-100-python.tar.gz is damaged"):
        load_cifar("cifar100", tmp_path, split="train")


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path, small, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cifar, "_LARGEST", 1000)
    write_files(tmp_path, {"cifar-100-python/test": bytes(1001)})
    with pytest.raises(ValueError, match="cifar-100-python/test has 1,001 bytes, far too many"):
        load_cifar("cifar100", tmp_path, split="test")


def test_other_names_and_parts_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="name is 'cifar11'; give one of cifar10, cifar100"):
        load_cifar("cifar11", tmp_path, split="test")
    with pytest.raises(ValueError, match="split is 'val'; give 'train' or 'test'"):
        load_cifar("cifar10", tmp_path, split="val")  # type: ignore[arg-type]


@PUBLISHED
def test_the_published_files_are_read():
    folder = os.environ["EMABANK_DATA"]
    train, test = (load_cifar("cifar10", folder, split=split) for split in ("train", "test"))
    assert train.images.shape == (50_000, 3, 32, 32) and np.bincount(train.labels).tolist() == [5000] * 10
    assert test.images.shape == (10_000, 3, 32, 32) and np.bincount(test.labels).tolist() == [1000] * 10
    assert train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]  # as every tutorial shows: a frog, a truck, ...
    assert train.classes[6] == "frog" and train.classes[9] == "truck"
    # The means that torchvision's users know: 0.4914, 0.4822, 0.4465.
    assert np.allclose(train.images.mean(axis=(0, 2, 3)) / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)
    hundred = load_cifar("cifar100", folder, split="test")
    assert np.bincount(hundred.labels).tolist() == [100] * 100 and hundred.classes[0] == "apple"
