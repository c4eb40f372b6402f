"""The protocol for a user's own model and data: `run_protocol`."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from emabank.study.config import Place, ProtocolConfig
from emabank.study.data.folders import LabelledImages, load_image_folder
from emabank.study.data.images import Dataset, Images, downsample, make_images
from emabank.study.distributed import ALONE, ProcessGroup
from emabank.study.executors.progress import counting
from emabank.study.executors.torchrun import TorchrunExecutor
from emabank.study.launch import run_and_show
from emabank.study.protocol import Protocol, resolve
from emabank.study.run_job import decode_job, run_job
from emabank.study.runs.reader import Progress
from emabank.study.studies.catalogue import Setting

Data = Dataset | tuple[Tensor, Tensor, Tensor, Tensor] | str | os.PathLike[str]


def run_protocol(
    make_model: Callable[[], nn.Module],
    data: Data,
    config: ProtocolConfig | None = None,
    *,
    runs: str | os.PathLike[str] = "runs",
    size: int | None = None,
    console: Console | None = None,
) -> Protocol:
    """Tune, choose, refit and test your own model on your own data, with a bank of averages.

    Runs are trained in this process, one after the other. Call it again with the same arguments to resume; no run is
    trained twice. A run is identified by its configuration, the data, and the new model.

    Args:
        make_model: builds a new model that outputs logits; torch's random numbers are seeded before each call. For
            `config.transfer` the model needs a method `features(x)` that returns the input of its last layer.
        data: (training images, labels, test images, labels) as tensors, with images as uint8 `[n, channels, height,
            width]`; or a folder with `train` and `test`, each with a folder of images per class.
        config: everything else. The data sets of `config.transfer` are read from the folder `./data`.
        runs: the folder for the runs.
        size: resize the images of a folder to this many pixels square.
        console: where to print progress.

    >>> import tempfile
    >>> from emabank.study import ProtocolConfig, TrainingConfig, run_protocol
    >>> images = torch.randint(0, 256, (60, 1, 4, 4), dtype=torch.uint8)
    >>> labels = (images.float().mean(dim=(1, 2, 3)) > 127).long()
    >>> config = ProtocolConfig(training=TrainingConfig(epochs=2, batch=16), rates=(0.1,), seeds=1, swa=False)
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     done = run_protocol(
    ...         lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)),
    ...         (images, labels, images, labels),
    ...         config,
    ...         runs=runs,
    ...         console=Console(quiet=True),
    ...     )
    ...     done.choices[0].rate, sorted(done.refitted[0].snapshots())[-1]
    (0.1, 'live-last')
    """
    config = config or ProtocolConfig()
    config = resolve(
        replace(
            config,
            data=replace(config.data, dataset="own"),
            training=replace(config.training, network="own", width=None),
        )
    )
    dataset = downsample(_dataset(data, size, console or Console(stderr=True)), config.data.size)
    place = Place(runs=Path(runs))

    def work(arguments: Sequence[str], group: ProcessGroup, on_progress: Callable[[Progress], None]) -> None:
        run_job(decode_job(arguments[0])[0], place, dataset, make_model=make_model, on_progress=on_progress)

    setting = Setting(
        name="own", config=config, make_model=make_model, model_fingerprint=_model_fingerprint(make_model, dataset)
    )
    return run_and_show(setting, dataset, TorchrunExecutor(group=ALONE, work=work), place, console=console)


def _dataset(data: Data, size: int | None, console: Console) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str | os.PathLike):
        return _from_folder(Path(data), size, console)
    if not isinstance(data, tuple) or len(data) != 4:
        raise ValueError(
            f"data is a {type(data).__name__}; give (training images, labels, test images, labels) as tensors, or a "
            "folder with train and test in it"
        )
    images, labels, test_images, test_labels = data
    train, test = make_images(images, labels), make_images(test_images, test_labels)
    return Dataset("own", int(torch.cat([train.labels, test.labels]).max()) + 1, train, test)


def _from_folder(folder: Path, size: int | None, console: Console) -> Dataset:
    for part in ("train", "test"):  # checked before the first one is decoded
        if not (folder / part).is_dir():
            raise FileNotFoundError(
                f"there is no folder {folder / part}; give a folder with train and test in it, each with a folder of "
                "images for every class"
            )
    with counting(console, "images decoded") as progress:
        train, test = (load_image_folder(folder / part, size=size, progress=progress) for part in ("train", "test"))
    if train.classes != test.classes:
        differ = sorted(set(train.classes) ^ set(test.classes))
        raise ValueError(
            f"{folder / 'train'} and {folder / 'test'} do not have the same classes, {', '.join(differ[:5])} in one "
            "alone; give each class a folder in both"
        )
    return Dataset("own", len(train.classes), _images(train), _images(test))


def _images(labelled: LabelledImages) -> Images:
    return make_images(torch.from_numpy(labelled.images), torch.from_numpy(labelled.labels))


# The identity of a model ----------------------------------------------------------------------------------------------


def _model_fingerprint(make_model: Callable[[], nn.Module], dataset: Dataset) -> str:
    """16 hexadecimal digits that change with the model's modules, names and shapes, initial weights, or code."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        model = make_model()
        others = {id(parameter) for parameter in make_model().parameters()}
        if any(id(parameter) in others for parameter in model.parameters()):
            raise ValueError(
                "make_model gives models that share parameters, so that one run would start with another's weights; "
                "build all of the model inside it, with copy.deepcopy of a part that is trained already"
            )
        shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in model.state_dict().items()]
        parts = [repr(model), repr(shapes), _behaviour(model, dataset.train.images.shape[1:])]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _behaviour(model: nn.Module, shape: Sequence[int]) -> str:
    """The output of a new model for two random images, in training and eval mode, which changes with its code.

    In float64 and rounded, so that it is the same on other machines and with other numbers of threads. Empty for a
    model that cannot run like this, for example because it needs a GPU or float32.
    """
    images = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    try:
        model = model.cpu().double()
        with torch.no_grad():
            outputs = [model.train()(images), model.eval()(images)]
        values = torch.cat([output.flatten() for output in outputs])
    except Exception:  # a user's model may raise anything; `check_model` says what it must support
        return ""
    scale = float(values.abs().max()) or 1.0
    return " ".join([f"{scale:.5g}", *(f"{round(value / scale, 5) + 0.0:.5f}" for value in values.tolist())])
