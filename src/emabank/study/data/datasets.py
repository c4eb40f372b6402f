"""From the name of a data set to its images and labels, checked and fingerprinted.

The way in: the readers are in cifar.py, folders.py and digits.py. May import config.
"""

from pathlib import Path

import torch
from torch import Tensor

from emabank.study.config import DataConfig
from emabank.study.data.cifar import check_alignment, load_cifar, load_cifar_n
from emabank.study.data.digits import digits_dataset
from emabank.study.data.folders import load_tiny_imagenet
from emabank.study.data.images import Dataset, averaged_to, make_images
from emabank.study.data.labelled import LabelledImages, Tell
from emabank.study.data.splits import Parts, make_parts, stratified_split


def load_dataset(config: DataConfig, folder: Path, *, cache: Path | None = None, tell: Tell | None = None) -> Dataset:
    """Read a data set from its folder; only `digits` needs none. Decoded images are kept in `cache`.

    Its images have the size that the configuration asks for.

    >>> load_dataset(DataConfig(dataset="digits"), Path("nowhere")).classes
    10
    """
    return averaged_to(_load(config.completed(), folder, cache, tell), config.size)


def _load(config: DataConfig, folder: Path, cache: Path | None, tell: Tell | None) -> Dataset:
    match config.dataset:
        case "digits" | "digits-0-4" | "digits-5-9":
            return digits_dataset(config.dataset)
        case "cifar10" | "cifar100":
            return _cifar(config.dataset, folder)
        case "cifar10n" | "cifar100n":
            return _cifar_n(config, folder)
        case "tiny-imagenet":
            return _tiny_imagenet(folder, cache, tell)
        case "own":
            raise ValueError("dataset is own, which has no files here; give your data to emabank.study.run_protocol")


def load_parts(config: DataConfig, dataset: Dataset, trained_on: str) -> Parts:
    """Cut a data set into the parts of one run, as the configuration says.

    >>> config = DataConfig(subset=1000, noise=0.4)
    >>> parts = load_parts(config, load_dataset(config, Path("nowhere")), "100%")
    >>> len(parts.train), parts.validation, int(parts.train.wrong.sum())
    (1000, None, 400)
    """
    return make_parts(
        dataset,
        trained_on=trained_on,  # type: ignore[arg-type]
        subset=config.subset,
        test_subset=config.test_subset,
        split_seed=config.split_seed,
        noise=config.noise,
        noise_seed=config.noise_seed,
    )


def load_transfer_target(
    name: str,
    folder: Path,
    *,
    split_seed: int,
    size: int | None = None,
    cache: Path | None = None,
    tell: Tell | None = None,
) -> Dataset:
    """The data set that frozen features are evaluated on, its images averaged to `size` like those of the training.

    Where the training images of CIFAR-10 or CIFAR-100 are missing, the test images are halved, all classes alike, into
    images to train the head on and images to test it on; the data set's name says so.

    >>> load_transfer_target("digits", Path("nowhere"), split_seed=0).name
    'digits'
    """
    config = DataConfig(dataset=name, size=size)  # type: ignore[arg-type]
    try:
        return load_dataset(config, folder, cache=cache, tell=tell)
    except FileNotFoundError:
        if name not in ("cifar10", "cifar100"):
            raise
    images, labels = _tensors(load_cifar(name, folder, split="test"))
    first, second = stratified_split(labels, 0.5, seed=split_seed)
    halves = [make_images(images[index], labels[index]) for index in (first, second)]
    return averaged_to(Dataset(f"{name}-test-halves", _classes(name), *halves), size)


def _cifar(name: str, folder: Path) -> Dataset:
    train, test = (_tensors(load_cifar(name, folder, split=split)) for split in ("train", "test"))
    return Dataset(name, _classes(name), make_images(*train), make_images(*test))


def _cifar_n(config: DataConfig, folder: Path) -> Dataset:
    official = _cifar(config.dataset.removesuffix("n"), folder)
    noisy = load_cifar_n(config.dataset, folder, labels=str(config.labels))
    check_alignment(noisy, official.train.clean.numpy())
    train = make_images(official.train.images, torch.from_numpy(noisy.labels), clean=official.train.clean)
    return Dataset(config.dataset, official.classes, train, official.test)


def _tiny_imagenet(folder: Path, cache: Path | None, tell: Tell | None) -> Dataset:
    train, test = (load_tiny_imagenet(folder, split=split, cache=cache, tell=tell) for split in ("train", "test"))
    return Dataset("tiny-imagenet", 200, make_images(*_tensors(train)), make_images(*_tensors(test)))


def _classes(name: str) -> int:
    return 100 if name.startswith("cifar100") else 10


def _tensors(labelled: LabelledImages) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(labelled.images), torch.from_numpy(labelled.labels)
