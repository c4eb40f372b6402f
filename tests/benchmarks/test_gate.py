"""The gate finds a slowdown, passes equal files, and is not fooled by noise, disturbed runs or other cases."""

import json

import pytest
from gate import compare_files, main


def write(folder, ratio, *, width=0.02, background=0.0, name="resnet20, 5 averages", better="lower"):
    folder.mkdir(exist_ok=True)
    ms = {"median": 1.0, "low": 1.0, "high": 1.0, "mean": 1.0}
    over = {"median": ratio, "low": ratio - width, "high": ratio + width, "mean": ratio}
    row = {"name": "emabank", "ms": ms, "over": {"memory limit": over}, "better": better}
    limit = {"name": "memory limit", "ms": ms, "over": {"memory limit": ms}, "better": None}
    case = {"name": name, "rounds": 30, "dropped": 0, "background": background, "rows": [limit, row]}
    result = {"format": 2, "benchmark": "update", "conditions": {"cpu": "x"}, "cases": [case]}
    path = folder / "update.json"
    path.write_text(json.dumps(result))
    return path


@pytest.mark.parametrize(
    ("before", "now", "code", "verdict"),
    [
        ({"ratio": 1.0}, {"ratio": 1.0}, 0, "same"),
        ({"ratio": 1.0}, {"ratio": 1.09}, 0, "same"),
        ({"ratio": 1.0}, {"ratio": 1.2}, 1, "slower"),
        ({"ratio": 1.2}, {"ratio": 1.0}, 0, "faster"),
        ({"ratio": 1.2, "better": "higher"}, {"ratio": 1.0, "better": "higher"}, 1, "slower"),
        ({"ratio": 1.0, "width": 0.9}, {"ratio": 1.2, "width": 0.9}, 0, "same"),
        ({"ratio": 1.0}, {"ratio": 1.2, "background": 0.3}, 2, "disturbed"),
        ({"ratio": 1.0}, {"ratio": 1.2, "name": "resnet18, 5 averages"}, 2, "new"),
    ],
)
def test_a_ratio_is_compared_with_the_kept_one(before, now, code, verdict, tmp_path, capsys):
    write(tmp_path / "kept", **before)
    path = write(tmp_path / "now", **now)
    assert [finding.verdict for finding in compare_files(path, tmp_path / "kept")] == [verdict]
    assert main([str(path), "--kept", str(tmp_path / "kept")]) == code
    assert verdict in capsys.readouterr().out


def test_a_file_that_is_no_result_is_an_error(tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text('{"format": 1}')
    assert main([str(path)]) == 2
    assert "must be a result of format 2; got 1" in capsys.readouterr().err
