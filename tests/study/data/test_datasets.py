"""Data sets loaded by name: every source, its labels, and clear errors for missing files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from emabank.study.config import DataConfig
from emabank.study.data import cifar
from emabank.study.data.datasets import load_dataset, load_transfer_target
from emabank.study.data.images import fingerprint
from emabank.study.data.splits import make_parts
from tests.study.data.made_up import cifar_batch, python2_pickle, write_files

NO_FOLDER = Path("/no/such/folder")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Small CIFAR-10 (5 x 40 and 40 images) and CIFAR-100 (200 and 400) in `tmp_path`."""
    ten, hundred = cifar._LAYOUTS["cifar10"], cifar._LAYOUTS["cifar100"]
    ten = ten._replace(train=dict.fromkeys(ten.train, 40), test={"test_batch": 40})
    hundred = hundred._replace(train={"train": 200}, test={"test": 400})
    monkeypatch.setattr(cifar, "_LAYOUTS", {"cifar10": ten, "cifar100": hundred})
    batches = {
        f"cifar-10-batches-py/{name}": cifar_batch(seed, 40, 10) for seed, name in enumerate([*ten.train, *ten.test])
    }
    batches["cifar-100-python/train"] = cifar_batch(7, 200, 100, "fine_labels")
    # Four of each class, so that the halves can be balanced.
    batches["cifar-100-python/test"] = cifar_batch(8, 400, 100, "fine_labels", fine_labels=[*range(100)] * 4)
    write_files(tmp_path, {name: python2_pickle(content) for name, content in batches.items()})
    return batches


def clean_labels(files: dict[str, dict[str, Any]]) -> np.ndarray:
    return np.array(
        [label for number in range(1, 6) for label in files[f"cifar-10-batches-py/data_batch_{number}"]["labels"]]
    )


def test_cifar_has_the_images_and_labels_of_its_files(files, tmp_path: Path):
    for name, classes, sizes in (("cifar10", 10, (200, 40)), ("cifar100", 100, (200, 400))):
        found = load_dataset(DataConfig(dataset=name), tmp_path)
        assert (found.name, found.classes, (len(found.train), len(found.test))) == (name, classes, sizes)
        assert found.train.images.dtype == torch.uint8 and found.train.images.shape[1:] == (3, 32, 32)
        assert not found.train.wrong.any()
    ten = load_dataset(DataConfig(dataset="cifar10"), tmp_path)
    assert ten.train.labels.tolist() == clean_labels(files).tolist()
    assert ten.test.labels.tolist() == files["cifar-10-batches-py/test_batch"]["labels"]
    third = torch.from_numpy(files["cifar-10-batches-py/data_batch_1"]["data"][2])
    assert torch.equal(ten.train.images[2].flatten(), third)


@pytest.mark.parametrize(("asked", "key"), [(None, "worse_label"), ("random2", "random_label2")])
def test_human_labels_are_loaded_beside_the_true_ones(files, tmp_path: Path, asked, key):
    clean = clean_labels(files)
    stored = {"clean_label": clean, "worse_label": (clean + 1) % 10, "random_label2": (clean * 3) % 10}
    torch.save(stored, tmp_path / "CIFAR-10_human.pt")
    found = load_dataset(DataConfig(dataset="cifar10n", labels=asked), tmp_path)
    assert (found.name, found.classes, len(found.test)) == ("cifar10n", 10, 40)
    assert found.train.labels.tolist() == stored[key].tolist() and found.train.clean.tolist() == clean.tolist()


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cifar10n", "cifar100n", "tiny-imagenet"])
def test_missing_files_are_named_with_the_command_to_fetch_them(name: str, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path} holds (neither|no) .*emabank data fetch {name} "):
        load_dataset(DataConfig(dataset=name), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_users_own_data_set_cannot_be_loaded_by_name():
    with pytest.raises(ValueError, match="dataset is own, .* emabank.study.run_protocol"):
        load_dataset(DataConfig(dataset="own"), NO_FOLDER)


def test_tiny_imagenet_is_decoded_once_with_progress(tmp_path: Path):
    root, wnids = tmp_path / "tiny-imagenet-200", [f"n{number}" for number in range(200)]
    (root / "val/images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(wnids))
    for label in (3, 7):
        (root / f"train/n{label}/images").mkdir(parents=True)
        Image.new("RGB", (64, 64), (label, 0, 0)).save(root / f"train/n{label}/images/0.JPEG", quality=100)
        Image.new("RGB", (64, 64)).save(root / f"val/images/{label}.JPEG")
    (root / "val/val_annotations.txt").write_text("7.JPEG\tn7\t0\n3.JPEG\tn3\t0\n")
    counts: list[tuple[int, int]] = []
    for cache in (None, tmp_path / "elsewhere"):
        for _ in range(2):
            found = load_dataset(
                DataConfig(dataset="tiny-imagenet"), tmp_path, cache=cache, progress=lambda *done: counts.append(done)
            )
        assert counts[-1] == (2, 2) and counts.count((2, 2)) == 2, "each split is decoded once"
        counts.clear()
        assert (tmp_path / ".emabank-cache" if cache is None else cache).is_dir()
    assert found.classes == 200 and found.train.images.shape == (2, 3, 64, 64)
    assert found.train.labels.tolist() == [3, 7] and found.test.labels.tolist() == [7, 3]
    assert found.train.take(torch.tensor([1])).labels.tolist() == [7], "memory-mapped images can be indexed"


# Parts ---------------------------------------------------------------------------------------------------------------


def test_parts_follow_the_configuration():
    dataset = load_dataset(DataConfig(), NO_FOLDER)
    config = DataConfig(subset=500, test_subset=100, noise=0.4, noise_seed=3, split_seed=5)
    parts = make_parts(config, dataset, "80%")
    assert (len(parts.train), len(parts.validation or []), len(parts.test)) == (400, 100, 100)
    assert parts.validation is not None and parts.validation.wrong.any() and not parts.test.wrong.any()
    whole = make_parts(config, dataset, "100%")
    assert whole.validation is None and len(whole.train) == 500 and int(whole.train.wrong.sum()) == 200
    for other in ({"noise_seed": 4}, {"split_seed": 6}):
        changed = make_parts(DataConfig(**{**vars(config), **other}), dataset, "100%")
        assert not torch.equal(changed.train.labels, whole.train.labels)


# Targets of a transfer ------------------------------------------------------------------------------------------------


def test_the_transfer_target_is_the_whole_data_set_if_all_files_exist(files, tmp_path: Path):
    for name in ("cifar100", "cifar10"):
        found = load_transfer_target(name, tmp_path, split_seed=0)
        assert (
            fingerprint(found) == fingerprint(load_dataset(DataConfig(dataset=name), tmp_path)) and found.name == name
        )


def test_the_image_size_applies_to_training_test_and_transfer(files, tmp_path: Path):
    dataset = load_dataset(DataConfig(dataset="cifar10", size=16), tmp_path)
    assert {tuple(part.images.shape[1:]) for part in (dataset.train, dataset.test)} == {(3, 16, 16)}
    assert load_transfer_target("cifar100", tmp_path, split_seed=0, size=8).test.images.shape[1:] == (3, 8, 8)
    (tmp_path / "cifar-100-python/train").unlink()
    assert load_transfer_target("cifar100", tmp_path, split_seed=0, size=8).train.images.shape[1:] == (3, 8, 8)


def test_without_training_images_the_test_images_are_halved(files, tmp_path: Path):
    (tmp_path / "cifar-100-python/train").unlink()
    found = load_transfer_target("cifar100", tmp_path, split_seed=0)
    assert (found.name, found.classes) == ("cifar100-test-halves", 100)
    for half in (found.train, found.test):
        assert half.labels.bincount(minlength=100).tolist() == [2] * 100, "classes are balanced"
    pixels = files["cifar-100-python/test"]["data"]
    halves = torch.cat([found.train.images, found.test.images]).flatten(1).tolist()
    assert sorted(halves) == sorted(pixels.tolist()), "each image is in exactly one half"
    again, other = (load_transfer_target("cifar100", tmp_path, split_seed=seed) for seed in (0, 1))
    assert fingerprint(again) == fingerprint(found) != fingerprint(other)
