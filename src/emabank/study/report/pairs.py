"""The paper's pairs of data set and network: their keys, their titles, in the order of its tables. Imports nothing."""

from typing import Literal

Scale = Literal["demo", "small", "paper"]
"""At which size a study stands for the paper's: embedded digits, parts of real data sets, the paper's own settings."""

MAIN = "cifar100-resnet18"
"""The pair of the paper's ablations."""
CONSTANT = "cifar100n-resnet18"
"""The pair on which the paper holds the learning rate constant; in no other table or figure."""

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
"""Titles by key."""
CLEAN = tuple(PAIRS)[:5]
"""Those of its main tables, without label noise."""
NOISY = tuple(PAIRS)[5:7]
"""Those of its label-noise tables."""
