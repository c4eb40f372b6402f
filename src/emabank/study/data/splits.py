"""The training, validation and test images of a run, and synthetic label noise; all of it seeded."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from emabank.study.config import DataConfig
from emabank.study.data.images import Dataset, Images, Normalisation, normalisation_of
from emabank.study.runs.rows import TrainedOn


@dataclass(frozen=True, eq=False)
class Parts:
    """The data of one run. `test` is for measuring only: no selection may use it.

    `validation` is None if the run trains on everything. It has both given and true labels; the caller chooses which
    of them to evaluate against. `normalisation` is that of the training part alone.
    """

    train: Images
    validation: Images | None
    test: Images
    classes: int
    normalisation: Normalisation


def make_parts(config: DataConfig, dataset: Dataset, trained_on: TrainedOn) -> Parts:
    """Split a data set into the parts of one run.

    Subsets and the split are stratified by the true labels and depend on `split_seed` alone, so that a run trains on
    the same images whatever the noise. The normalisation is measured on the training part only. The test part always
    has its true labels.
    """
    test = Images(dataset.test.images, dataset.test.clean, dataset.test.clean)
    if config.test_subset is not None:
        test = test.take(stratified_subset(test.clean, config.test_subset, seed=config.split_seed))
    train, validation = _with_noise(config, dataset), None
    if trained_on == "80%":
        index, held_back = stratified_split(train.clean, 0.2, seed=config.split_seed)
        train, validation = train.take(index), train.take(held_back)
    return Parts(train, validation, test, dataset.classes, normalisation_of(train))


def stratified_subset(labels: Tensor, size: int, *, seed: int) -> Tensor:
    """The sorted indices of `size` random examples that keep the class proportions.

    By the largest-remainder method: each class gets its share rounded down, and the rest goes to the classes with the
    largest remainders; ties go to the lower label.
    """
    if not 1 <= size <= len(labels):
        raise ValueError(f"a subset of {size} was asked for out of {len(labels)} examples; give 1 to {len(labels)}")
    return _choose(labels, size, seeded_generator("subset", seed))


def stratified_split(labels: Tensor, share: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """The sorted indices of the training part and of the validation part, which together are all examples.

    The validation part has `round(share * n)` examples and keeps the class proportions as in `stratified_subset`.
    """
    size = round(share * len(labels))
    if not 0 < size < len(labels):
        raise ValueError(
            f"a validation share of {share} of {len(labels)} examples is {size} of them, "
            "which leaves one part empty; give more examples or another share"
        )
    validation = _choose(labels, size, seeded_generator("split", seed))
    in_train = torch.ones(len(labels), dtype=torch.bool)
    in_train[validation] = False
    return in_train.nonzero().squeeze(1), validation


def symmetric_noise(labels: Tensor, share: float, *, classes: int, seed: int) -> Tensor:
    """A copy of the labels in which `round(share * n)` of them name another class, all others equally likely."""
    if classes < 2:
        raise ValueError(f"classes is {classes}; a label can only be wrong when there are 2 classes or more")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    # A shift of 1 to classes - 1, modulo classes, reaches every other class and never the same one.
    shift = torch.randint(1, classes, (len(chosen),), generator=generator)
    noisy = labels.clone()
    noisy[chosen] = ((labels[chosen] + shift) % classes).to(labels.dtype)
    return noisy


def seeded_generator(purpose: str, seed: int) -> torch.Generator:
    """A separate generator for each purpose and seed.

    Without the purpose, label noise and shuffling with one seed would draw the same permutation, and the wrong labels
    would come first in the first epoch. torch's CPU generator uses only 32 bits of its seed.
    """
    digest = hashlib.sha256(f"{purpose} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


def _with_noise(config: DataConfig, dataset: Dataset) -> Images:
    """The training images or a subset of them, with synthetic label noise if configured."""
    images, noise = dataset.train, config.noise
    if noise and bool(images.wrong.any()):
        raise ValueError(
            f"noise is {noise}, but {int(images.wrong.sum())} labels of {dataset.name} are wrong already; "
            "give noise=0, or a data set with true labels"
        )
    if config.subset is not None:
        images = images.take(stratified_subset(images.clean, config.subset, seed=config.split_seed))
    if noise:
        labels = symmetric_noise(images.clean, noise, classes=dataset.classes, seed=config.noise_seed)
        images = Images(images.images, labels, images.clean)
    return images


def _choose(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Shuffle the examples and take the quota of each class from the front; return their sorted indices."""
    order = torch.randperm(len(labels), generator=generator)
    _, group, counts = labels[order].unique(return_inverse=True, return_counts=True)
    by_class = group.argsort(stable=True).split(counts.tolist())
    quotas = _quotas(counts.tolist(), size)
    chosen = torch.cat([members[:due] for members, due in zip(by_class, quotas, strict=True)])
    return order[chosen].sort().values


def _quotas(counts: list[int], size: int) -> list[int]:
    """The number of examples per class in a subset of this size, by the largest-remainder method in integers."""
    total = sum(counts)
    quotas = [size * count // total for count in counts]
    lost = sorted(range(len(counts)), key=lambda label: -(size * counts[label] % total))
    for label in lost[: size - sum(quotas)]:
        quotas[label] += 1
    return quotas
