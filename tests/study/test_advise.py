"""`emabank advise`: what it says of runs that were really trained, against their predictions counted by hand."""

import io
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from rich.console import Console

from emabank.study.advise import advise_run, show_advice
from emabank.study.config import Place
from emabank.study.run_job import Job, run_job
from emabank.study.runs.reader import RunFolder
from tests.study.small_runs import config, digits
from tests.study.small_runs import one_thread as one_thread


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    job = Job(config(training={"epochs": 6}))
    return run_job(job, Place(runs=tmp_path_factory.mktemp("runs")), digits()[0])


def right(folder: RunFolder, name: str, split: str) -> np.ndarray:
    logits, labels = folder.load_predictions(name)[split]
    return logits.argmax(1) == labels


def shown(path: Path, **options: str) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    show_advice(path, console=console, **options)  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_gains_are_those_of_the_predictions(run: RunFolder):
    found = advise_run(run)
    assert {gain.weights for gain in found.gains} == {
        name for name in run.predictions() if name.endswith("-accuracy") and "noisy" not in name
    } - {"live-accuracy"}
    for gain in found.gains:
        for split, (mean, error) in (("val", gain.on_val), ("test", gain.on_test)):
            difference = right(run, gain.weights, split).astype(float) - right(run, "live-accuracy", split)
            assert mean == pytest.approx(difference.mean())
            assert error == pytest.approx(difference.std(ddof=1) / len(difference) ** 0.5)


def test_what_is_shipped_is_the_best_on_validation_images(run: RunFolder):
    found = advise_run(run)
    means = {gain.weights: gain.on_val[0] for gain in found.gains}
    assert found.kept == max(means, key=means.__getitem__)
    assert found.advice.gain == pytest.approx(means[found.kept])
    assert found.advice.value == pytest.approx(right(run, found.kept, "val").mean())
    assert (found.advice.batchnorm == "recomputed") == ("recomputed" in found.kept)
    assert (run.path / "snapshots" / f"{found.kept}.safetensors").exists()
    assert 1 <= found.advice.stop <= found.advice.epoch
    assert found.advice.epochs == tuple(range(1, 7))


def test_the_choice_among_averages_and_epochs_is_allowed_for(run: RunFolder):
    rows = [row for row in run.rows() if row.split == "val" and row.metric == "accuracy"]
    epochs = [row for row in rows if row.selected_by is None and row.weights != "live"]
    again = [row for row in rows if row.selected_by == "accuracy" and row.weights != "live"]
    assert len(epochs) >= 6
    expected = NormalDist().inv_cdf(1 - 0.05 / (len(epochs) + len(again)))
    assert advise_run(run).advice.critical == pytest.approx(expected)


def test_it_is_shown_with_its_reason_and_where_the_weights_are(run: RunFolder):
    said, found = shown(run.path), advise_run(run)
    assert str(found.advice) in said
    assert f"{found.kept}.safetensors" in said
    assert "On the test images, which took no part in the choice" in said


def test_by_loss(run: RunFolder):
    found = advise_run(run, "loss")
    assert {gain.weights for gain in found.gains} <= {name for name in run.predictions() if name.endswith("-loss")}
    assert (found.advice.average == "live") == all(gain.on_val[0] <= 0 for gain in found.gains)
    gain = found.gains[0]
    logits, labels = run.load_predictions(gain.weights)["test"]
    live = run.load_predictions("live-accuracy")["test"].logits
    scores = [each - np.log(np.exp(each).sum(1, keepdims=True)) for each in (logits.astype(float), live.astype(float))]
    rows = np.arange(len(labels))
    assert gain.on_test[0] == pytest.approx((scores[0][rows, labels] - scores[1][rows, labels]).mean(), rel=1e-5)


def test_a_folder_of_runs_is_a_table(run: RunFolder, tmp_path: Path):
    said = shown(run.path.parent)
    assert run.id in said
    assert advise_run(run).kept in said
    with pytest.raises(ValueError, match=r"contains no runs; pass the folder that `emabank run` wrote"):
        shown(tmp_path)


def test_runs_without_a_choice_say_why(tmp_path: Path):
    waiting = RunFolder(tmp_path / "waiting")
    waiting.path.mkdir()
    with pytest.raises(ValueError, match=r"^no advice for .* yet: it is waiting$"):
        advise_run(waiting)
    whole = run_job(Job(config(trained_on="100%", training={"epochs": 1})), Place(runs=tmp_path), digits()[0])
    with pytest.raises(ValueError, match=r"was trained on all images, so it has none to validate on"):
        advise_run(whole)
    diverged = run_job(Job(config(rate=1e9, training={"epochs": 1})), Place(runs=tmp_path), digits()[0])
    with pytest.raises(ValueError, match=r"diverged; there is nothing in it to ship$"):
        advise_run(diverged)
