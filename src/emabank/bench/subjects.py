"""Who is evaluated, and on what: a model in training with its bank, and batches out of memory or from a DataLoader."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from emabank import EMA, EMABank
from emabank.bench.peers import decays
from emabank.study.data.images import Images, Normalisation, make_images, normalisation_of
from emabank.study.data.loader import batches
from emabank.study.models.catalogue import build_network

CLASSES = 10

Batches = Iterable[tuple[Tensor, Tensor]]


class Subject(NamedTuple):
    """A model in training, its bank, and a module of its own for each average, as libraries with deep copies have."""

    model: nn.Module
    bank: EMABank
    copies: list[nn.Module]


def make_subject(network: str, averages: int, *, channels_last: bool) -> Subject:
    """A network with random weights and averages that all differ: what they are worth does not change their time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_network(network, classes=CLASSES)
        if channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        bank = EMABank(model, [EMA(decay, warmup=None) for decay in decays(averages)], every=1)
        for _ in range(4):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += torch.randn_like(parameter) * parameter.abs().mean()
                model(torch.randn(8, 3, 32, 32))  # moves the batch-norm statistics
            bank.update()
    return Subject(model, bank, [bank.module(name) for name in bank.names])


class _Normalised(Dataset[tuple[Tensor, int]]):
    """A map-style data set whose one transform, normalisation, meets one image at a time."""

    def __init__(self, images: Images, normalisation: Normalisation) -> None:
        self._images, self._labels = images.images, images.labels.tolist()
        self._mean, self._std = (torch.tensor(v).view(-1, 1, 1) for v in (normalisation.mean, normalisation.std))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return (self._images[index].float() - self._mean) / self._std, self._labels[index]


class _Drawn:
    """The batches of a DataLoader, in a memory order that it does not know of."""

    def __init__(self, loader: DataLoader[Any], order: torch.memory_format) -> None:
        self._loader, self._order = loader, order

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in self._loader:
            yield inputs.contiguous(memory_format=self._order), labels


def make_batches(images: Images, *, batch: int, workers: int | None, channels_last: bool) -> Batches:
    """Batches in order: the study's, which are cut out of memory, or with a number of workers those of a DataLoader.

    Its workers stay for all passes, so that none pays for their start.

    >>> sizes = [len(labels) for _, labels in make_batches(random_images(5), batch=2, workers=0, channels_last=True)]
    >>> sizes
    [2, 2, 1]
    """
    order = torch.channels_last if channels_last else torch.contiguous_format
    normalisation = normalisation_of(images)
    if workers is None:
        return batches(images, size=batch, normalisation=normalisation, memory_format=order)
    plain = _Normalised(images, normalisation)
    loader = DataLoader(plain, batch_size=batch, num_workers=workers, persistent_workers=workers > 0)
    return _Drawn(loader, order)


def random_images(count: int) -> Images:
    """Images of CIFAR's shape with random pixels, with which a pass takes as long as with others.

    >>> random_images(12).images.shape
    torch.Size([12, 3, 32, 32])
    """
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return make_images(pixels, torch.arange(count) % CLASSES)
