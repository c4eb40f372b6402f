"""Results come back as they were kept; a file is whole or the old one."""

import json
from pathlib import Path

import pytest

from emabank.bench.cases import Verdict
from emabank.bench.interleave import Spread
from emabank.bench.kept import Among, Ratio, keep_result, read_result, write_json

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


def test_some_entries_are_measured_again_and_the_others_stay(tmp_path: Path):
    path, among = tmp_path / "result.json", Among("cases", ("case.model", "averages"), same=("cores",))
    for model, averages, found in (("a", 1, "old"), ("a", 5, "kept"), ("b", 1, "kept too"), ("a", 1, "new")):
        name = f"{model}/{averages}"
        keep_result(
            path,
            "python some.py",
            {"cores": 2, "date": found},
            ratios=[Ratio(name, Spread(len(found), 1, 1, 1), 20)],
            verdicts=[Verdict(name, True, found)],
            among=among,
            cases=[{"case": {"model": model}, "averages": averages, "found": found}],
        )
    result = read_result(path)
    assert [case["found"] for case in result["cases"]] == ["new", "kept", "kept too"]
    assert {each["goal"]: each["found"] for each in result["verdicts"]} == {
        "a/1": "new",
        "a/5": "kept",
        "b/1": "kept too",
    }
    assert {name: ratio.value.median for name, ratio in result["ratios"].items()} == {"a/1": 3, "a/5": 4, "b/1": 8}
    assert result["command"].count("python some.py") == 4


def test_entries_of_other_conditions_do_not_stay(tmp_path: Path):
    path, among = tmp_path / "result.json", Among("cases", ("model",), same=("cores",))
    keep_result(path, "s", {"cores": 2}, among=among, cases=[{"model": "a"}])
    with pytest.raises(ValueError, match=r"other conditions \(cores\)"):
        keep_result(path, "s", {"cores": 4}, among=among, cases=[{"model": "b"}])
    assert read_result(path)["cases"] == [{"model": "a"}]


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
