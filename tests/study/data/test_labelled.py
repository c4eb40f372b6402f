"""Labels from files are whole numbers of the right number and range, or refused."""

import numpy as np
import pytest

from emabank.study.data.labelled import checked_labels


@pytest.mark.parametrize("given", [[0, 2, 1], np.array([0, 2, 1]), np.array([0, 2, 1], dtype=np.uint8)])
def test_good_labels_become_int64(given):
    labels = checked_labels(given, count=3, classes=3, source="it")
    assert labels.dtype == np.int64 and labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "it holds labels that are not a list of whole numbers"),
        ([0, 1.5, 2], "not a list of whole numbers"),
        ([0, [1], 2], "not a list of whole numbers"),
        ([0, 10**30, 2], "not a list of whole numbers"),
        (np.array([0.0, 1.0, 2.0]), "not a list of whole numbers"),
        (np.array([[0, 1, 2]]), "not a list of whole numbers"),
        ([0, 1], "it holds 2 labels, where 3 belong"),
        ([0, 1, 3], "it holds labels from 0 to 3, where 0 to 2 belong"),
        ([0, -1, 2], "it holds labels from -1 to 2"),
    ],
)
def test_other_labels_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        checked_labels(given, count=3, classes=3, source="it")
