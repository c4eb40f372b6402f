"""Checksums in JSON files: any change of a value is noticed, wherever it is; files without one are read as they are."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.runs.storage import read_any, read_checked, with_checksum

CONTENT = {"time": "now", "summary": {"chosen": [1, 2.5, None, True], "é": "ß"}, "files": {"a": [3, 4]}}


@given(
    st.dictionaries(
        st.text(max_size=5).filter(lambda key: key != "checksum"),
        st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=9), st.none()),
    )
)
def test_what_was_written_comes_back(content: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.json")
        path.write_text(json.dumps(with_checksum(content)))
        assert read_checked(path) == content


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    whole = (json.dumps(with_checksum(CONTENT), indent=1, ensure_ascii=False) + "\n").encode()
    path.write_bytes(whole)
    assert read_checked(path) == CONTENT
    noticed = 0
    for at in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            try:
                assert read_checked(path) == CONTENT, (at, bit)  # a space that has become a line's end, say
            except ValueError:
                noticed += 1
    assert noticed > 7 * len(whole) * 0.8


def test_a_file_of_an_earlier_emabank_has_no_checksum_and_is_read(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(json.dumps(CONTENT))
    assert read_checked(tmp_path / "file.json") == CONTENT


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", "[" * 100_000, '{"checksum": 3}', '{"checksum": "crc32:0"}'])
def test_what_is_no_such_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(ValueError, match="it is not JSON|it is no JSON object|does not match its checksum"):
        read_checked(tmp_path / "file.json")


def test_integer_keys_are_those_that_json_makes_of_them(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(json.dumps(with_checksum({"a": {1: 2}})))
    assert read_checked(tmp_path / "file.json") == {"a": {"1": 2}}


def test_a_missing_file_says_so_itself(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_any(tmp_path / "none.json")
