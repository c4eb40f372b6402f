"""Synthetic label noise."""

import torch
from torch import Tensor


def symmetric_noise(labels: Tensor, share: float, *, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Give an exact share of the examples the label of another class, each other class being as likely.

    Args:
        labels: the true labels, integers below `classes`; left as they are.
        share: the share of the examples that get a wrong label, 0 to 1; rounded to a whole number of examples.
        classes: how many classes there are, 2 or more.
        seed: the same seed gives the same noise, whatever else uses random numbers.

    Returns:
        The noisy labels, and a mask that is True where the label is wrong.

    >>> noisy, wrong = symmetric_noise(torch.zeros(10, dtype=torch.int64), 0.4, classes=3, seed=0)
    >>> int(wrong.sum()), bool((noisy[wrong] != 0).all()), bool((noisy[~wrong] == 0).all())
    (4, True, True)
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; give the share of wrong labels as a number from 0 to 1")
    if classes < 2:
        raise ValueError(f"classes is {classes}; a label can only be wrong when there are 2 classes or more")
    if labels.numel() and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise ValueError(
            f"labels go from {int(labels.min())} to {int(labels.max())}; with classes={classes} "
            f"they must lie between 0 and {classes - 1}"
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    # A shift of 1 to classes - 1 around the circle of classes reaches every other class and never the same one.
    shift = torch.randint(1, classes, (len(chosen),), generator=generator)
    noisy = labels.clone()
    noisy[chosen] = ((labels[chosen] + shift) % classes).to(labels.dtype)
    wrong = torch.zeros(len(labels), dtype=torch.bool)
    wrong[chosen] = True
    return noisy, wrong
