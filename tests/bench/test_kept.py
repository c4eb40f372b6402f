"""Results come back as they were kept; a file is whole or the old one."""

import json
from pathlib import Path

import pytest

from emabank.bench.cases import Verdict
from emabank.bench.interleave import Spread
from emabank.bench.kept import Ratio, keep_result, read_result, write_json

RATIO = Ratio("update/tiny/5/of-limit", Spread(1.1, 1.0, 1.2, 1.1), 20)


def test_a_result_comes_back_as_it_was_kept(tmp_path: Path):
    path = tmp_path / "result.json"
    keep_result(path, "python some.py", {"cores": 2}, ratios=[RATIO], verdicts=[Verdict("g", True, "f")], more=[1])
    found = read_result(path)
    assert found["ratios"] == {RATIO.name: RATIO}
    assert (found["conditions"], found["more"], found["verdicts"][0]["goal"]) == ({"cores": 2}, [1], "g")
    assert found["command"].startswith("python some.py")


def test_two_ratios_of_one_name_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="different names"):
        keep_result(tmp_path / "result.json", "s", {}, ratios=[RATIO, RATIO])


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    path = tmp_path / "other.json"
    path.write_text('{"format": 1, "cases": []}')
    with pytest.raises(ValueError, match="no result of format 1"):
        read_result(path)


def test_a_result_is_whole_or_not_there(tmp_path: Path):
    path = tmp_path / "results" / "update.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in path.parent.iterdir()] == ["update.json"]
