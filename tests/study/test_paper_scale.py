"""Every setting of the paper's scale end to end, on the published files: few images, two epochs."""

import os
from pathlib import Path

import pytest

from emabank.study.commands import main
from emabank.study.report.results import read_results
from emabank.study.studies.catalogue import STUDIES, settings_of

DATA = os.environ.get("EMABANK_DATA", "data")
# With two steps an epoch, averages sample every step. Transfer is off: features of whole data sets take an hour.
FEW = "epochs=2 warmup_epochs=0.5 subset=30 test_subset=10 batch=8 every=1 rates=[0.05] swa=false transfer=[]"
STUDY_NAMES = ("generalization", "constant-lr")  # together they have all eight settings


@pytest.mark.paper
def test_every_setting_of_the_paper_runs_on_the_real_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    studies = [STUDIES[name] for name in STUDY_NAMES]
    settings = {setting.name: setting.config for setting in settings_of(studies, "paper")}
    assert {config.training.network for config in settings.values()} == {"resnet18", "resnet34", "wrn-28-10", "vgg16"}
    place = ["--data", DATA, "--cache", str(tmp_path / "cache"), "--runs", str(tmp_path / "runs"), "--jobs", "2"]
    for name in STUDY_NAMES:
        arguments = ["run", name, "--scale", "paper", *place, "--device", "cpu", "--seeds", "1", "--set", *FEW.split()]
        assert main(arguments) == 0, capsys.readouterr().err
        assert f"done: {name}" in capsys.readouterr().out
    results = read_results(tmp_path / "runs")
    assert {setting.pair for setting in results.settings} == set(settings)
    for setting in results.settings:
        titles = {column.title for column in setting.columns if column.trained_on == "100%"}
        assert {"SGD", "EMA (acc.)", "slowest (loss)"} <= titles, setting.title
        for column in setting.columns:
            assert all(value is not None and 0 <= value <= 1 for value in column.values["accuracy"]), setting.title
    assert not results.skipped
