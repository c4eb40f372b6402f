"""A complete protocol for each of the paper's pairs of data set and network, at three scales. Imports no torch.

`paper` has the paper's own settings. `small` replaces them by parts of the same data sets and small networks, for a
CPU; `demo` by the embedded digits, with runs of seconds. Not every pair exists at every scale.
"""

from dataclasses import replace
from typing import Literal, get_args

from emabank.study.config import (
    AveragesConfig,
    DataConfig,
    HardwareConfig,
    MeasuringConfig,
    ProtocolConfig,
    TrainingConfig,
)

Scale = Literal["demo", "small", "paper"]
"""The size of a study: embedded digits, parts of real data sets, or the paper's own settings."""
SCALES: tuple[Scale, ...] = get_args(Scale)

MAIN = "cifar100-resnet18"
"""The pair of the paper's ablations."""
CONSTANT = "cifar100n-resnet18"
"""The pair of the paper's experiment with a constant learning rate, and of no other table or figure."""
PAIRS = {
    MAIN: "CIFAR-100, ResNet-18",
    "cifar100-vgg16": "CIFAR-100, VGG-16",
    "cifar100-wrn-28-10": "CIFAR-100, WRN-28-10",
    "cifar10-resnet18": "CIFAR-10, ResNet-18",
    "tiny-imagenet-resnet18": "Tiny-ImageNet, ResNet-18",
    "cifar100n-resnet34": "CIFAR-100N, ResNet-34",
    "cifar10n-resnet34": "CIFAR-10N, ResNet-34",
    CONSTANT: "CIFAR-100N, ResNet-18",
}
"""The paper's pairs of data set and network: titles by key, in the order of its tables."""
CLEAN = tuple(PAIRS)[:5]
"""The pairs of the paper's main tables, without label noise."""
NOISY = tuple(PAIRS)[5:7]
"""The pairs of the paper's label-noise tables."""

RATES: dict[Scale, tuple[float, ...]] = {"paper": (), "small": (0.05, 0.2), "demo": ()}
"""Learning rates that the learning-rate search tries in addition to those of the protocol."""

PERIODS: dict[Scale, tuple[int, ...]] = {"paper": (1, 4, 16, 64), "small": (1, 2, 4, 8), "demo": (1, 2, 4, 8)}
"""Sampling periods to compare. Runs of a few hundred steps use shorter ones; the third stands in for the paper's 16."""


def protocol_of(pair: str, scale: Scale) -> ProtocolConfig | None:
    """The protocol for a pair at a scale; None if the scale lacks the pair."""
    return {"paper": _PAPER, "small": _SMALL, "demo": _DEMO}[scale].get(pair)


# The paper's own settings: its table of hyper-parameters, and the learning rates of its learning-rate search

_PAPERS_AVERAGES = AveragesConfig(decays=(0.968, 0.984, 0.992, 0.996, 0.998), every=16, decay_warmup="steps")
_FIGURES = MeasuringConfig(test_curves=True)
_PART = replace(_FIGURES, curve_images=4_000)
"""For runs that measure more than test curves: on all images, measuring would take 71 % of their operations."""
_NOISE = replace(_PART, on_train=True)


def _paper(
    dataset: str,
    network: str,
    rates: tuple[float, ...],
    transfer: tuple[str, ...] = (),
    measuring: MeasuringConfig = _FIGURES,
    epochs: int = 200,
) -> ProtocolConfig:
    return ProtocolConfig(
        data=DataConfig(dataset=dataset),  # type: ignore[arg-type]
        training=TrainingConfig(network=network, epochs=epochs, warmup_epochs=5.0),  # type: ignore[arg-type]
        averages=_PAPERS_AVERAGES,
        measuring=measuring,
        rates=rates,
        transfer=transfer,  # type: ignore[arg-type]
    )


_PAPER = {
    MAIN: _paper("cifar100", "resnet18", (0.4, 0.8, 1.2, 1.6), ("cifar10",), replace(_PART, recompute="each-epoch")),
    "cifar100-vgg16": _paper("cifar100", "vgg16", (0.025, 0.05, 0.1)),
    "cifar100-wrn-28-10": _paper("cifar100", "wrn-28-10", (0.05, 0.1, 0.2, 0.4)),
    "cifar10-resnet18": _paper("cifar10", "resnet18", (0.4, 0.8, 1.2), ("cifar100",)),
    "tiny-imagenet-resnet18": _paper("tiny-imagenet", "resnet18", (0.4, 0.8, 1.2), ("cifar10", "cifar100"), epochs=150),
    "cifar100n-resnet34": _paper("cifar100n", "resnet34", (0.4, 0.8, 1.2), measuring=_NOISE),
    "cifar10n-resnet34": _paper("cifar10n", "resnet34", (0.4, 0.8, 1.2), measuring=_NOISE),
    CONSTANT: _paper("cifar100n", "resnet18", (0.4, 0.8, 1.2), measuring=_NOISE),
}

# For a CPU: networks that memorise, but late in the run; chosen on pilot seeds (docs/preregistration.md) --------------

_CURVES = MeasuringConfig(test_curves=True, curve_images=2_000)
_LATE_MEMORISATION = replace(_CURVES, on_train=True, train_every=2)


def _small(
    dataset: str,
    network: str,
    rate: float,
    epochs: int,
    batch: int,
    images: int,
    size: int | None = None,
    width: int | None = None,
    transfer: tuple[str, ...] = (),
    measuring: MeasuringConfig = _CURVES,
) -> ProtocolConfig:
    return ProtocolConfig(
        data=DataConfig(
            dataset=dataset,  # type: ignore[arg-type]
            subset=images,
            size=size,
            crop=0,
            # In practice, noisy data has no clean validation labels.
            validation_labels="noisy" if dataset.endswith("n") else "clean",
        ),
        training=TrainingConfig(network=network, width=width, epochs=epochs, batch=batch),  # type: ignore[arg-type]
        averages=AveragesConfig(every=4),
        measuring=measuring,
        hardware=HardwareConfig(precision="bf16" if network == "whitened-cnn" else "float32"),
        rates=(rate,),
        transfer=transfer,  # type: ignore[arg-type]
    )


_NOISY_TEN = _small("cifar10n", "whitened-cnn", 0.15, 28, 128, 15_000, measuring=_LATE_MEMORISATION)
_SMALL = {
    MAIN: _small(
        "cifar100", "resnet8", 0.1, 28, 64, 10_000, size=16, width=32, transfer=("cifar10",),
        measuring=replace(_CURVES, recompute="each-epoch"),
    ),
    "cifar100-vgg16": _small("cifar100", "vgg-small", 0.05, 28, 64, 10_000, size=16, width=32),
    "cifar10-resnet18": _small("cifar10", "whitened-cnn", 0.15, 16, 128, 15_000, transfer=("cifar100",)),
    "cifar100n-resnet34": _small(
        "cifar100n", "resnet8", 0.1, 28, 64, 10_000, size=16, width=32, measuring=_LATE_MEMORISATION
    ),
    "cifar10n-resnet34": _NOISY_TEN,
    CONSTANT: _NOISY_TEN,
}  # fmt: skip

# The embedded digits: so easy that clean labels would show almost no differences, so every setting has wrong ones -----

_DIGITS = ProtocolConfig(
    data=DataConfig(dataset="digits", subset=600, noise=0.2),
    training=TrainingConfig(network="resnet8", width=8, epochs=25, batch=50),
    measuring=_FIGURES,
    rates=(0.2, 0.8),
)


def _half(name: str, target: str) -> ProtocolConfig:
    data = DataConfig(dataset=name, subset=400, noise=0.2)  # type: ignore[arg-type]
    return replace(_DIGITS, data=data, rates=(0.4,), transfer=(target,))


def _wrong(share: float) -> ProtocolConfig:
    return replace(
        _DIGITS, data=replace(_DIGITS.data, noise=share), measuring=replace(_FIGURES, on_train=True), rates=(0.4,)
    )


_DEMO = {
    MAIN: replace(_DIGITS, measuring=replace(_FIGURES, recompute="each-epoch"), rates=(0.1, 0.2, 0.4, 0.8)),
    "cifar100-vgg16": replace(_DIGITS, training=replace(_DIGITS.training, network="vgg-small"), rates=(0.05,)),
    "cifar100-wrn-28-10": replace(_DIGITS, training=replace(_DIGITS.training, width=12)),
    "cifar10-resnet18": _half("digits-5-9", "digits-0-4"),
    "tiny-imagenet-resnet18": _half("digits-0-4", "digits-5-9"),
    "cifar100n-resnet34": _wrong(0.4),
    "cifar10n-resnet34": _wrong(0.3),
    CONSTANT: _wrong(0.4),
}
