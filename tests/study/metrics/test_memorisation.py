"""Memorised, corrected and clean accuracy against a plain loop over the examples."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.metrics.accuracy import accuracy
from emabank.study.metrics.memorisation import clean_accuracy, corrected, memorised

EXAMPLES = st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=30)


def logits_for(predictions: list[int]) -> np.ndarray:
    return np.eye(4)[predictions]


@given(EXAMPLES)
def test_each_is_the_share_that_its_name_says(examples):
    predictions, given_labels, clean = map(list, zip(*examples, strict=True))
    wrong = [(p, g, c) for p, g, c in examples if g != c]
    right = [(p, g, c) for p, g, c in examples if g == c]
    arguments = logits_for(predictions), given_labels, clean
    assert memorised(*arguments) == (sum(p == g for p, g, _ in wrong) / len(wrong) if wrong else None)
    assert corrected(*arguments) == (sum(p == c for p, _, c in wrong) / len(wrong) if wrong else None)
    assert clean_accuracy(*arguments) == (sum(p == c for p, _, c in right) / len(right) if right else None)


@given(EXAMPLES)
def test_together_they_are_the_accuracies_on_given_and_on_clean_labels(examples):
    predictions, given_labels, clean = (np.array(column) for column in zip(*examples, strict=True))
    logits, wrong = logits_for(predictions), given_labels != clean
    shares = [function(logits, given_labels, clean) or 0.0 for function in (memorised, corrected, clean_accuracy)]
    on_given = wrong.mean() * shares[0] + (~wrong).mean() * shares[2]
    on_clean = wrong.mean() * shares[1] + (~wrong).mean() * shares[2]
    assert on_given == pytest.approx(accuracy(logits, given_labels))
    assert on_clean == pytest.approx(accuracy(logits, clean))
    assert shares[0] + shares[1] <= 1 + 1e-12


def test_a_share_of_nothing_is_none_which_is_json():
    logits = logits_for([0, 1])
    assert memorised(logits, [0, 1], [0, 1]) is None
    assert corrected(logits, [0, 1], [0, 1]) is None
    assert clean_accuracy(logits, [0, 1], [1, 0]) is None
    assert json.dumps([memorised(logits, [0, 1], [0, 1]), clean_accuracy(logits, [0, 1], [0, 1])]) == "[null, 1.0]"
