"""`emabank advise` on trained runs, checked against gains computed from their predictions."""

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


def correct(folder: RunFolder, name: str, split: str) -> np.ndarray:
    logits, labels = folder.load_predictions(name)[split]
    return logits.argmax(1) == labels


def output_of(path: Path, **options: str) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    show_advice(path, console=console, **options)  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_gains_match_the_predictions(run: RunFolder):
    found = advise_run(run)
    assert {gain.weights for gain in found.gains} == {
        name for name in run.predictions() if name.endswith("-accuracy") and "noisy" not in name
    } - {"live-accuracy"}
    for gain in found.gains:
        for split, (mean, error) in (("val", gain.on_val), ("test", gain.on_test)):
            difference = correct(run, gain.weights, split).astype(float) - correct(run, "live-accuracy", split)
            assert mean == pytest.approx(difference.mean())
            assert error == pytest.approx(difference.std(ddof=1) / len(difference) ** 0.5)


def test_the_recommended_weights_are_the_best_on_validation_images(run: RunFolder):
    found = advise_run(run)
    means = {gain.weights: gain.on_val[0] for gain in found.gains}
    assert found.kept == max(means, key=means.__getitem__)
    assert found.advice.gain == pytest.approx(means[found.kept])
    assert found.advice.value == pytest.approx(correct(run, found.kept, "val").mean())
    assert (found.advice.batchnorm == "recomputed") == ("recomputed" in found.kept)
    assert (run.path / "snapshots" / f"{found.kept}.safetensors").exists()
    assert 1 <= found.advice.stop <= found.advice.epoch
    assert found.advice.epochs == tuple(range(1, 7))


def test_the_critical_value_corrects_for_the_number_of_candidates(run: RunFolder):
    rows = [row for row in run.rows() if row.split == "val" and row.metric == "accuracy"]
    epochs = [row for row in rows if row.selected_by is None and row.weights != "live"]
    again = [row for row in rows if row.selected_by == "accuracy" and row.weights != "live"]
    assert len(epochs) >= 6
    expected = NormalDist().inv_cdf(1 - 0.05 / (len(epochs) + len(again)))
    assert advise_run(run).advice.critical == pytest.approx(expected)


def test_output_has_the_advice_its_reason_and_the_weights_file(run: RunFolder):
    output, found = output_of(run.path), advise_run(run)
    assert str(found.advice) in output
    assert f"{found.kept}.safetensors" in output
    assert "On the test images, which took no part in the choice" in output


def test_gains_by_loss_match_the_predictions(run: RunFolder):
    found = advise_run(run, "loss")
    assert {gain.weights for gain in found.gains} < {name for name in run.predictions() if name.endswith("-loss")}
    assert (found.advice.average == "live") == all(gain.on_val[0] <= 0 for gain in found.gains)
    live = [row for row in run.rows() if (row.weights, row.split, row.metric) == ("live", "val", "loss")]
    assert found.advice.live is not None
    assert found.advice.live.value == min(row.value for row in live if row.selected_by is None)
    gain = found.gains[0]
    logits, labels = run.load_predictions(gain.weights)["test"]
    live = run.load_predictions("live-loss")["test"].logits
    scores = [x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (logits.astype(float), live.astype(float))]
    rows = np.arange(len(labels))
    assert gain.on_test[0] == pytest.approx((scores[0][rows, labels] - scores[1][rows, labels]).mean(), rel=1e-5)


def test_a_folder_of_runs_is_printed_as_a_table(run: RunFolder, tmp_path: Path):
    output = output_of(run.path.parent)
    assert run.id in output
    advice = advise_run(run).advice
    assert f"ship {advice.average} of epoch {advice.epoch}; " in output and advice.batchnorm != "recomputed"
    assert "No advice" not in output
    with pytest.raises(ValueError, match=r"contains no runs; pass the folder that `emabank run` wrote"):
        output_of(tmp_path)


def test_a_run_without_a_choice_is_refused_with_the_reason(tmp_path: Path):
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
