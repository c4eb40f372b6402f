"""A configuration means one run: in any order, in any process, and no other configuration means it."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study import serialize
from emabank.study.serialize import canonical_json, first_difference, run_id

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
CONFIGS = st.dictionaries(st.text(max_size=4), PLAIN, max_size=4)
CONFIG = {"network": "resnet8", "rates": (0.1, 0.8), "noise": {"share": 0.4, "kind": "symmetric"}, "decay": None}


def test_the_id_is_the_start_of_a_sha256_over_a_text_that_can_be_written_by_hand():
    text = (
        'emabank run 1\n{"decay":null,"network":"resnet8","noise":{"kind":"symmetric","share":0.4},"rates":[0.1,0.8]}'
    )
    assert run_id(CONFIG) == hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def test_every_process_finds_the_same_id():
    code = f"from emabank.study.serialize import run_id; print(run_id({CONFIG!r}))"
    source = str(Path(serialize.__file__).parents[2])
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source}
        command = [sys.executable, "-c", code]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        assert found.stdout.strip() == run_id(CONFIG)


@given(config=CONFIGS)
def test_order_and_a_way_through_json_do_not_matter(config: dict[str, Any]):
    assert run_id(dict(reversed(config.items()))) == run_id(config)
    assert run_id(json.loads(json.dumps(config))) == run_id(config)
    assert run_id(json.loads(canonical_json(config))) == run_id(config)


@given(one=CONFIGS, other=CONFIGS)
def test_ids_are_the_same_exactly_when_nothing_differs(one: dict[str, Any], other: dict[str, Any]):
    assert (run_id(one) == run_id(other)) == (first_difference(one, other) is None)


@pytest.mark.parametrize(("value", "same"), [(1.0, True), (True, False), ("1", False), (None, False), ([1], False)])
def test_one_is_one_with_a_point_and_nothing_else(value: object, same: bool):
    assert (run_id({"epochs": 1}) == run_id({"epochs": value})) is same
    assert (first_difference({"epochs": 1}, {"epochs": value}) is None) is same


def test_a_key_that_is_none_is_not_a_key_that_is_missing():
    assert run_id({"a": None}) != run_id({})


def test_the_format_is_part_of_the_id(monkeypatch: pytest.MonkeyPatch):
    before = run_id(CONFIG)
    monkeypatch.setattr(serialize, "FORMAT", 2)
    assert run_id(CONFIG) != before


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"a": {"b": [0.5, float("nan")]}}, "a.b.1 is nan; .* give a finite number"),
        ({"a": float("inf")}, "a is inf"),
        ({"out": Path("runs")}, "out is a (Posix|Windows)Path; .* give numbers, strings"),
        ({"a": {1: 2}}, "the key 1 in a is not a string"),
        ([1], "the configuration of a run is a list; give a dict"),
    ],
)
def test_what_has_no_one_text_is_refused(config: Any, said: str):
    with pytest.raises(ValueError, match=said):
        run_id(config)


def test_the_first_difference_is_named():
    assert first_difference({"a": 1, "b": {"c": [1, 2]}}, {"a": 1, "b": {"c": [1]}}) == (
        "b.c.1 is there and should not be"
    )
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == "b is missing"
    assert first_difference({"a": True}, {"a": 1}) == "a is True and not 1"
