"""`run_protocol` with a user's model and data: tensors, folders of images, errors before training."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from emabank.study import ProtocolConfig, TrainingConfig, load_results, run_protocol
from emabank.study.data.images import Dataset, make_images
from emabank.study.protocol import Protocol
from emabank.study.report.results import read_setting

CONFIG = ProtocolConfig(training=TrainingConfig(epochs=2, batch=20), rates=(0.1,), seeds=1, swa=False)


def bright_or_dark(count: int, *, seed: int = 0, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Images of 4 x 4 pixels, labelled 1 where they are bright."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    noise = torch.randint(0, 100, (count, channels, 4, 4), generator=generator)
    return (noise + 100 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels


TENSORS = (*bright_or_dark(60), *bright_or_dark(40, seed=1))


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


def with_batchnorm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))


class Net(nn.Module):
    """Two of these may differ in their code alone."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.relu, *, dropped: float = 0.0, scale: float = 1.0):
        super().__init__()
        self.first, self.head = nn.Linear(16, 8), nn.Linear(8, 2)
        self.activation, self.dropped = activation, dropped
        with torch.no_grad():
            self.head.weight *= scale

    def features(self, x: Tensor) -> Tensor:
        return F.dropout(self.activation(self.first(x.flatten(1))), self.dropped, self.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def run(
    runs: Path, make_model: Any = linear, data: Any = TENSORS, config: ProtocolConfig = CONFIG, **options: Any
) -> tuple[Protocol, str]:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    done = run_protocol(make_model, data, config, runs=runs, console=console, **options)
    return done, console.file.getvalue()  # type: ignore[attr-defined]


def trainings(runs: Path) -> int:
    return len(list(runs.glob("*/done.json")))


@pytest.mark.parametrize("make_model", [linear, with_batchnorm])
def test_run_protocol_needs_only_tensors_and_a_model(tmp_path: Path, make_model: Any):
    done, output = run(tmp_path, make_model, config=replace(CONFIG, training=TrainingConfig(epochs=8, batch=20)))
    assert trainings(tmp_path) == 2
    columns = read_setting(done.folder).columns
    (sgd,) = [column for column in columns if (column.trained_on, column.title) == ("100%", "SGD")]
    assert sgd.values["accuracy"][0] > 0.9
    statistics = "-recomputed" if make_model is with_batchnorm else ""
    assert {f"ema-7.1%{statistics}-loss", "live-last", "live-accuracy"} <= set(done.refitted[0].snapshots())
    frame = load_results(tmp_path)
    assert set(frame.dataset) == set(frame.network) == {"own"}
    assert "tune, rate 0.1, seed 0" in output and "refit, rate 0.1, seed 0" in output
    assert f"Rows and tables: {done.folder}" in output.replace("\n", "")


def test_running_again_trains_nothing_and_gives_the_same_summary(tmp_path: Path):
    first, _ = run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/done.json")}
    again, output = run(tmp_path)
    assert again.summary == first.summary
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/done.json")} == before
    assert "started: " not in output and output.count("already done: ") == 2


def test_another_model_or_other_data_is_another_run(tmp_path: Path):
    """Also where only the code of a model has changed: otherwise old results would pass for new ones."""
    images, labels, *test = TENSORS
    brighter, swapped = images.clone(), labels.clone()
    brighter[3, 0, 1, 1] += 1
    swapped[3] = 1 - swapped[3]
    changes: list[tuple[Any, Any]] = [
        (Net, TENSORS),
        (Net, (brighter, labels, *test)),
        (Net, (images, swapped, *test)),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)), TENSORS),
        (lambda: Net(torch.tanh), TENSORS),
        (lambda: Net(dropped=0.5), TENSORS),
        (lambda: Net(scale=0.5), TENSORS),
    ]
    config = replace(CONFIG, training=TrainingConfig(epochs=1, batch=20))
    for number, (make_model, data) in enumerate(changes, start=1):
        run(tmp_path, make_model, data, config)
        assert trainings(tmp_path) == 2 * number
        assert len(list(tmp_path.glob("protocol-*"))) == number


def test_the_random_state_and_threads_do_not_make_another_run_and_stay(tmp_path: Path):
    torch.manual_seed(1)
    np.random.seed(5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    run(tmp_path, lambda: Net(dropped=0.5))
    assert torch.equal(torch.get_rng_state(), before) and np.array_equal(np.random.get_state()[1], numpy_before)
    torch.manual_seed(2)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run(tmp_path, lambda: Net(dropped=0.5))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert trainings(tmp_path) == 2


def test_a_model_that_fails_in_float64_is_recognised_again(tmp_path: Path):
    class InFloat32(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.flatten(1).float())

    run(tmp_path, InFloat32)
    run(tmp_path, InFloat32)
    assert trainings(tmp_path) == 2


def test_a_dataset_with_known_wrong_labels_has_memorisation_measured(tmp_path: Path):
    images, labels, *test = TENSORS
    wrong = labels.clone()
    wrong[:6] = 1 - wrong[:6]
    data = Dataset("mine", 2, make_images(images, wrong, clean=labels), make_images(*test))
    done, _ = run(tmp_path, data=data)
    assert "memorised" in set(load_results(tmp_path).metric)
    titles = [column.title for column in read_setting(done.folder).columns if column.trained_on == "80%"]
    assert "SGD (last)" in titles, "under label noise the last epoch has a column"


# A folder of images --------------------------------------------------------------------------------------------------


def save_images(folder: Path, *, classes: tuple[str, ...] = ("bright", "dark"), side: int = 4) -> Path:
    for part, count, seed in (("train", 40, 0), ("test", 20, 1)):
        images, labels = bright_or_dark(count, seed=seed, channels=3)
        for place, (image, label) in enumerate(zip(images, labels, strict=True)):
            home = folder / part / classes[1 - int(label)]
            home.mkdir(parents=True, exist_ok=True)
            pixels = Image.fromarray(image.permute(1, 2, 0).numpy())
            pixels.resize((side, side), Image.Resampling.NEAREST).save(home / f"{place:03}.png")
    return folder


def test_a_folder_of_images_gives_the_same_runs_as_its_tensors(tmp_path: Path):
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(48, 2))

    done, _ = run(tmp_path / "runs", model, save_images(tmp_path / "images"))
    parts: list[Tensor] = []
    for count, seed in ((40, 0), (20, 1)):
        images, labels = bright_or_dark(count, seed=seed, channels=3)
        order = (1 - labels).argsort(stable=True)  # class by class, in the order of their names
        parts += [images[order], (1 - labels)[order]]
    same, _ = run(tmp_path / "runs", model, tuple(parts))
    assert trainings(tmp_path / "runs") == 2
    assert same.summary == done.summary


def test_images_are_resized_to_the_requested_size(tmp_path: Path):
    folder = save_images(tmp_path / "images", side=9)
    done, _ = run(
        tmp_path / "runs", lambda: nn.Sequential(nn.Flatten(), nn.Linear(75, 2)), str(folder), size=5
    )  # a layer for 3 x 5 x 5 values
    assert done.refitted[0].is_done()


def test_a_folder_without_test_images_or_with_other_classes_is_refused(tmp_path: Path):
    folder = save_images(tmp_path / "images")
    (folder / "test" / "bright").rename(folder / "test" / "light")
    with pytest.raises(ValueError, match="do not have the same classes, bright, light in one alone; give each class"):
        run(tmp_path / "runs", data=folder)
    (folder / "test").rename(folder / "other")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*images/test; give a folder with train and test"):
        run(tmp_path / "runs", data=folder)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere/train; give a folder with train"):
        run(tmp_path / "runs", data=tmp_path / "nowhere")
    assert not (tmp_path / "runs").exists()


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_model", "data", "message"),
    [
        (linear, (TENSORS[0] / 255, *TENSORS[1:]), r"images must be a uint8 tensor .* got float32 \[60, 1, 4, 4\]"),
        (linear, (TENSORS[0][:, 0], *TENSORS[1:]), r"images must be a uint8 tensor .* got uint8 \[60, 4, 4\]"),
        (linear, TENSORS[:2], r"data is a tuple; give \(training images, labels, test images, labels\) as tensors"),
        (linear, 3, r"data is a int; give \(training images"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 10)),
            TENSORS,
            r"the model makes \[2, 10\] of 2 images of own, which has 2 classes; give one that returns logits \[2, 2\]",
        ),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)),
            TENSORS,
            r"the model fails on images \[2, 1, 4, 4\] of own: mat1 and mat2",
        ),
        (lambda: nn.LSTM(4, 2), TENSORS, "the model fails on images"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LSTM(16, 2)), TENSORS, "the model makes a tuple of 2 images of own"),
        ((lambda model: lambda: model)(linear()), TENSORS, "make_model gives models that share parameters"),
    ],
)
def test_unusable_models_and_data_are_refused_before_training(tmp_path: Path, make_model: Any, data: Any, message: str):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "runs", make_model, data)
    assert not (tmp_path / "runs").exists()


# Transfer ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_model", "channels", "message"),
    [
        (linear, 1, r"the model fails on images \[2, 1, 8, 8\] of digits: Sequential has no features\(x\); give it a"),
        (Net, 1, r"the model fails on images \[2, 1, 8, 8\] of digits: mat1 and mat2"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 2)),
            3,
            "transfer is to digits, whose images have 1 channel",
        ),
    ],
)
def test_impossible_transfer_is_refused_before_training(tmp_path: Path, make_model: Any, channels: int, message: str):
    data = (*bright_or_dark(40, channels=channels), *bright_or_dark(20, seed=1, channels=channels))
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "runs", make_model, data, replace(CONFIG, transfer=("digits",)))
    assert not (tmp_path / "runs").exists()
