"""`emabank bench`: arguments, table, file and errors."""

import json
from typing import get_args

import pytest
import torch

from emabank.study import bench
from emabank.study.commands import main
from emabank.study.commands.bench import BenchArguments, BenchModel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"averages": (6,)}, "averages must be numbers from 1 to 5; got 6"),
        ({"averages": ()}, "averages must be numbers from 1 to 5; got none"),
        ({"seconds": 0}, "seconds must be above 0 and at most 3600; got 0"),
        ({"threads": 0}, "threads is 0"),
        ({"model": "vgg"}, "model is 'vgg'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BenchArguments(**arguments)


def test_every_model_can_be_built():
    with torch.device("meta"):
        for name in get_args(BenchModel):
            assert sum(parameter.numel() for parameter in bench._build(name).parameters()) > 0


@pytest.mark.parametrize("share", [0.0, 0.2, None])
def test_bench_gives_no_ratios_on_a_busy_machine(share, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench.BackgroundLoad, "share", lambda self: share)
    path = tmp_path / "bench.json"
    arguments = ["bench", "--model", "resnet20", "--averages", "1", "2", "--seconds", "0.01", "--device", "cpu"]
    assert main([*arguments, "--json", str(path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "torch AveragedModel" in output
    assert ("× limit" in output) is (share != 0.2) and ("idle machine" in output) is (share == 0.2)
    result = json.loads(path.read_text())
    assert [case["averages"] for case in result["cases"]] == [1, 2]
    assert {"cpu", "cores", "threads", "torch"} <= set(result["conditions"])
    for case in result["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        assert set(rows) == {"memory limit", "emabank", "emabank, again", "torch AveragedModel"}
        if share == 0.2:
            assert all(set(row) == {"name", "ms"} for row in rows.values())
        else:
            assert rows["memory limit"]["over_limit"]["median"] == rows["emabank"]["over_emabank"]["median"] == 1.0
        assert all(row["ms"]["median"] > 0 for row in rows.values())


def test_a_missing_device_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    assert main(["bench", "--device", "cuda"]) == 1
    assert capsys.readouterr().err == "emabank: device must be cpu on this machine; got cuda\n"
