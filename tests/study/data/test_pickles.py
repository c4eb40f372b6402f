"""Pickles in the published form are read as Python reads them; hostile, damaged and other ones run nothing."""

import builtins
import math
import os
import pickle
import struct
import subprocess
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.data import pickles
from emabank.study.data.pickles import read_pickle
from tests.study.data.made_up import cifar_batch, python2_pickle

BATCH = python2_pickle(cifar_batch(0, 3, 10))


def test_a_batch_is_read_as_python_reads_it():
    stored = read_pickle(BATCH, source="it")
    # Python's own unpickler: the names of numpy in the file are those of an old one.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        expected = pickle.loads(BATCH, encoding="bytes")
    assert set(stored) == {key.decode() for key in expected}
    assert np.array_equal(stored["data"], expected[b"data"]) and stored["data"].dtype == np.uint8
    assert stored["labels"] == expected[b"labels"]
    assert stored["filenames"] == expected[b"filenames"]


def test_images_are_not_copied():
    data = read_pickle(BATCH, source="it")["data"]
    base = data
    while isinstance(base, np.ndarray):
        base = base.base
    assert base.obj is BATCH


def test_shared_values_and_single_items_are_read():
    # cPickle refers back to what it has written, and writes single items without a mark.
    content = b"\x80\x02}q\x00U\x01aq\x01]q\x02K\x01asU\x01bh\x02sU\x01cj\x02\x00\x00\x00s."
    assert read_pickle(content, source="it") == pickle.loads(content) == {"a": [1], "b": [1], "c": [1]}


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("function", "named"),
    [
        (os.system, f"{os.name}.system"),
        (builtins.eval, r"(builtins|__builtin__).eval"),
        (subprocess.check_output, r"(subprocess|commands).check_output"),
        (np.fromfile, r"numpy\S*.fromfile"),
        (np.zeros, r"numpy\S*.zeros"),
        (math.factorial, "math.factorial"),
    ],
)
def test_a_global_is_named_and_nothing_is_run(tmp_path: Path, function, named, protocol):
    trace = tmp_path / "trace"
    argument = f"open({str(trace)!r}, 'w')" if function is builtins.eval else f"touch {trace}"
    content = pickle.dumps({"data": Hostile(function, argument)}, protocol=protocol)
    with pytest.raises(
        ValueError, match=f"^it asks for the global {named}, which no CIFAR file needs: nothing was run"
    ):
        read_pickle(content, source="it")
    assert not trace.exists()


def array_with(shape: tuple[int, ...], content: bytes, *, code: str = "u1", order: str = "|", first: int = 0) -> bytes:
    """A pickled array that may be impossible."""
    good = np.zeros(1, dtype=np.uint8)
    pickled = python2_pickle({"data": good})
    changes = [
        (b"U\x02u1", b"U" + bytes([len(code)]) + code.encode()),
        (b"U\x01|", b"U\x01" + order.encode()),
        (b"ndarray\nK\x00", b"ndarray\nJ" + struct.pack("<i", first)),
        (b"U\x01\x00", b"T" + struct.pack("<I", len(content)) + content),
        (b"(K\x01(K\x01t", b"(K\x01(" + b"".join(b"J" + struct.pack("<i", side) for side in shape) + b"t"),
    ]
    for old, new in changes:
        assert pickled.count(old) == 1
        pickled = pickled.replace(old, new)
    return pickled


def test_a_possible_array_is_read_and_impossible_ones_are_refused():
    assert read_pickle(array_with((2, 3), b"abcdef"), source="it")["data"].tolist() == [[97, 98, 99], [100, 101, 102]]
    impossible = [
        array_with((2, 4), b"abcdef"),
        array_with((2**30, 2**30), b"abcdef"),
        array_with((-2, -3), b"abcdef"),
        array_with((1,) * 60, b"a"),
        array_with((2, 3), b"abcdef", first=2**31 - 1),  # numpy would take the memory for it
        array_with((2, 3), b"abcdef").replace(b"\x89T", b"\x88T"),  # column by column
        array_with((1,), b"abcdefgh", code="O8"),
        array_with((1,), b"abcdefgh", code="V8"),
        array_with((1,), b"abcdefgh", code="i8", order=">"),
    ]
    for content in impossible:
        with pytest.raises(ValueError, match="^it is damaged, cut short or no CIFAR file; use the published file$"):
            read_pickle(content, source="it")


def test_an_array_of_objects_does_not_get_through():
    for protocol in (2, 5):
        content = pickle.dumps({"data": np.array([Hostile(os.system, "exit 1")], dtype=object)}, protocol=protocol)
        with pytest.raises(ValueError, match="asks for|damaged"):
            read_pickle(content, source="it")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"not a pickle at all",
        b"\x1f\x8b\x08" + bytes(100),
        b"\x80\x02]q\x00.",  # a list
        b"\x80\x02}(K\x01K\x02u.",  # a key that is a number
        b"\x80\x02}(U\x01au.",  # a key without a value
        b"\x80\x02}U\x01as.",
        b"\x80\x02K\x01K\x02a.",  # appended to a number
        b"\x80\x02cnumpy\nndarray\n)R.",  # called, not reconstructed
        b"\x80\x02}K\x01b.",  # a state for a dict
        b"\x80\x02\x86.",
        b"\x80\x02T\xff\xff\xff\xffab.",
    ],
)
def test_what_is_no_batch_is_said_in_a_sentence(content):
    with pytest.raises(ValueError, match="^it (is damaged|asks for the pickle instruction)"):
        read_pickle(content, source="it")


@pytest.mark.parametrize("instruction", [b"]", b"(", b"}"])
def test_far_too_many_instructions_are_refused(monkeypatch: pytest.MonkeyPatch, instruction: bytes):
    monkeypatch.setattr(pickles, "_MOST_INSTRUCTIONS", 1000)
    with pytest.raises(ValueError, match="^it is damaged") as caught:
        read_pickle(b"\x80\x02" + instruction * 10_000, source="it")
    assert "far more instructions" in str(caught.value.__cause__)


def test_a_key_that_takes_for_ever_to_hash_is_refused():
    nested = b")q\x00" + b"h\x00h\x00\x86q\x00" * 60  # 2^60 empty tuples, to whoever hashes it
    with pytest.raises(ValueError, match="^it is damaged"):
        read_pickle(b"\x80\x02" + nested + b"}h\x00K\x01s.", source="it")


def test_a_memo_far_away_takes_no_memory():
    # Python's own unpickler would make a table of that length.
    assert read_pickle(b"\x80\x02}r\xff\xff\xff\x7f.", source="it") == {}


def test_every_cut_is_noticed():
    content = python2_pickle({"labels": [1, 2, 300], "data": np.arange(6, dtype=np.uint8).reshape(2, 3)})
    assert set(read_pickle(content, source="it")) == {"labels", "data"}
    for length in range(len(content)):
        with pytest.raises(ValueError, match="^it (is damaged|asks for)"):
            read_pickle(content[:length], source="it")


@given(data=st.data())
def test_changed_bytes_give_values_or_a_sentence(data):
    content = bytearray(python2_pickle({"labels": [1, 2, 3], "data": np.arange(4, dtype=np.uint8)}))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):  # any other exception fails the test
        stored = read_pickle(bytes(content), source="it")
        arrays = [value for value in stored.values() if isinstance(value, np.ndarray)]
        assert all(array.dtype in (np.uint8, np.int64) for array in arrays)
