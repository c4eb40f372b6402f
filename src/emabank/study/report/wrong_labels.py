"""What every caption under label noise says: the labels of the validation images. Imports nothing, not even numpy."""

from collections.abc import Mapping
from typing import Any

LABELS = {"clean": "clean labels", "noisy": "the labels as given, wrong ones included"}


def validation_labels(config: Mapping[str, Any]) -> str:
    """Of a protocol's configuration: "clean" or "noisy", and nothing where no training label is wrong.

    >>> validation_labels({"data": {"dataset": "digits", "noise": 0.4, "validation_labels": "noisy"}})
    'noisy'
    >>> validation_labels({"data": {"dataset": "cifar10", "noise": 0.0, "labels": None}})
    ''
    """
    data: Any = config.get("data") or {}
    # Only data sets with wrong labels of their own have a choice of labels.
    return str(data.get("validation_labels", "clean")) if data.get("noise") or data.get("labels") else ""


def chosen_on(labels: str, whose: str = "") -> str:
    """The sentence to put after a caption, by what `validation_labels` has; nothing where that is nothing.

    >>> chosen_on("clean")
    ' Some training labels are wrong; rates and epochs were chosen on validation images with clean labels.'
    """
    if not labels:
        return ""
    return (
        f" Some training labels are wrong{whose}; rates and epochs were chosen on validation images with "
        f"{LABELS[labels]}."
    )
