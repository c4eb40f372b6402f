"""Loads a data set by name."""

from pathlib import Path

import torch

from emabank.study.config import DataConfig
from emabank.study.data.cifar import load_cifar, load_cifar_n
from emabank.study.data.digits import digits_dataset
from emabank.study.data.folders import ProgressCallback, load_tiny_imagenet
from emabank.study.data.images import Dataset, Images, downsample, make_images
from emabank.study.data.splits import stratified_split


def load_dataset(
    config: DataConfig, folder: Path, *, cache: Path | None = None, progress: ProgressCallback | None = None
) -> Dataset:
    """Read a data set from its folder (only the digits need none), with images of the configured size.

    Decoded images are kept in `cache`.
    """
    return downsample(_load(config.completed(), folder, cache, progress), config.size)


def _load(config: DataConfig, folder: Path, cache: Path | None, progress: ProgressCallback | None) -> Dataset:
    name = config.dataset
    match name:
        case "digits" | "digits-0-4" | "digits-5-9":
            return digits_dataset(name)
        case "cifar10" | "cifar100":
            return Dataset(name, _classes(name), _cifar(name, folder, "train"), _cifar(name, folder, "test"))
        case "cifar10n" | "cifar100n":
            train, test = (_cifar(name, folder, split) for split in ("train", "test"))
            labels = load_cifar_n(name, folder, labels=str(config.labels), official=train.clean.numpy())
            return Dataset(name, _classes(name), Images(train.images, torch.from_numpy(labels), train.clean), test)
        case "tiny-imagenet":
            parts = [
                load_tiny_imagenet(folder, split=split, cache=cache, progress=progress) for split in ("train", "test")
            ]
            train, test = (make_images(*map(torch.from_numpy, part[:2])) for part in parts)
            return Dataset(name, 200, train, test)
        case "own":
            raise ValueError("dataset is own, which has no files here; give your data to emabank.study.run_protocol")


def load_transfer_target(
    name: str, folder: Path, *, split_seed: int, size: int | None = None, cache: Path | None = None
) -> Dataset:
    """The data set on which frozen features are evaluated, averaged down to `size` like the training images.

    If the training images of CIFAR-10 or CIFAR-100 are missing, the test images are split in half, stratified by class:
    one half trains the head, the other tests it. The name of the data set then ends in `-test-halves`.
    """
    try:
        return load_dataset(DataConfig(dataset=name, size=size), folder, cache=cache)  # type: ignore[arg-type]
    except FileNotFoundError:
        if name not in ("cifar10", "cifar100"):
            raise
    test = _cifar(name, folder, "test")
    halves = [test.take(index) for index in stratified_split(test.labels, 0.5, seed=split_seed)]
    return downsample(Dataset(f"{name}-test-halves", _classes(name), *halves), size)


def _cifar(name: str, folder: Path, split: str) -> Images:
    return make_images(*map(torch.from_numpy, load_cifar(name, folder, split=split)))  # type: ignore[arg-type]


def _classes(name: str) -> int:
    return 100 if name.startswith("cifar100") else 10
