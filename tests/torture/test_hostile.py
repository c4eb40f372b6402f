"""Every reader gets every hostile file: nothing runs, nothing is written elsewhere, each is a clear error."""

import ast
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import emabank
from emabank import EMABank, checkpoint
from emabank.averaging import average_checkpoints
from emabank.study.config import ProtocolConfig
from emabank.study.data.cifar import load_cifar, load_cifar_n
from emabank.study.data.download import unpack
from emabank.study.data.folders import load_image_folder, read_wnids
from emabank.study.report.results import read_results, read_setting
from emabank.study.runs import storage
from emabank.study.runs.archive import load_results, restore_runs
from emabank.study.runs.manifest import read_manifest
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.rows import read_rows
from emabank.study.runs.writer import open_run
from emabank.study.serialize import apply_overrides, read_toml
from tests.torture.corpus import corpus
from tests.torture.faults import LONG, faults

Reader = tuple[str, Callable[[Path], Any]]
"""The name of the file, and the function that reads its path."""


def load_bank(path: Path) -> None:
    checkpoint.load(EMABank(nn.Linear(2, 1), [0.9]), path)


def average(path: Path) -> None:
    """Average the file with itself."""
    average_checkpoints([path, path], path.with_name(f"average{path.suffix.removesuffix('.json')}"))


def load_human_labels(folder: Path) -> None:
    load_cifar_n("cifar10n", folder, labels="worse", official=np.zeros(50_000, np.int64))


READERS: dict[str, Reader] = {
    "bank, torch": ("bank.pt", load_bank),
    "bank, pth": ("bank.pth", load_bank),
    "bank, bin": ("pytorch_model.bin", load_bank),
    "bank, ckpt": ("last.ckpt", load_bank),
    "bank, safetensors": ("bank.safetensors", load_bank),
    "average, torch": ("step-1.pt", average),
    "average, ckpt": ("last.ckpt", average),
    "average, safetensors": ("step-1.safetensors", average),
    "average, index": ("model.safetensors.index.json", average),
    "checkpoint of a run": ("checkpoint.pt", storage.read_state),
    "snapshot": ("live.safetensors", storage.read_weights),
    "predictions": ("live.npz", storage.read_predictions),
    "rows": ("rows.jsonl", read_rows),
    "all rows": ("run/rows.jsonl", lambda path: load_results(path.parent)),
    "config": ("config.json", lambda path: RunFolder(path.parent).config()),
    "history": ("history.json", lambda path: RunFolder(path.parent).history()),
    "environment": ("environment.json", lambda path: RunFolder(path.parent).environment()),
    "manifest": ("study-demo-dynamics.json", read_manifest),
    "summary": ("protocol-1/summary.json", lambda path: read_setting(path.parent)),
    "toml": ("study.toml", lambda path: read_toml(path, ProtocolConfig)),
    "cifar": ("cifar-10-batches-py/test_batch", lambda path: load_cifar("cifar10", path.parents[1], split="test")),
    "cifar archive": ("cifar-10-python.tar.gz", lambda path: load_cifar("cifar10", path.parent, split="test")),
    "cifar-n": ("CIFAR-10_human.pt", lambda path: load_human_labels(path.parent)),
    "image": ("cats/1.png", lambda path: load_image_folder(path.parents[1])),
    "packed runs": ("kept/runs.tar.gz", lambda path: restore_runs(path.parents[1], path.parents[1] / "runs")),
    "unpacked tar": ("some.tar.gz", lambda path: unpack(path, path.parent / "into")),
    "unpacked zip": ("some.zip", lambda path: unpack(path, path.parent / "into")),
    "words": ("tiny-imagenet-200/wnids.txt", lambda path: read_wnids(path.parents[1])),
}

# Hostile files that are valid for these readers: any text is a class name, any JSON is a history.
HARMLESS = {
    ("history", "nested list, closed"), ("history", "half a character"), ("history", "not finite"),
    ("history", "index of files elsewhere"),
    ("words", "letters"), ("words", "number of many digits"),
    ("average, safetensors", "safetensors: notes that are no notes"),  # copied, not read
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], Path]:
    folder = tmp_path_factory.mktemp("hostile")
    return corpus(folder / "mark", folder), folder / "mark"


def test_control_hostile_files_run_code_where_they_are_trusted(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    files = corpus(mark, tmp_path)
    for name in ("pickle protocol 0", "pickle protocol 5", "pickle by name", "pickle by instance"):
        pickle.loads(files[name])
        assert mark.exists(), name
        mark.unlink()
    (tmp_path / "file").write_bytes(files["torch file"])
    torch.load(tmp_path / "file", weights_only=False)
    assert mark.exists()
    mark.unlink()
    (tmp_path / "file").write_bytes(files["array of objects"])
    np.load(tmp_path / "file", allow_pickle=True)
    assert mark.exists()


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_every_hostile_file_with_a_clear_error(
    reader: str, hostile: tuple[dict[str, bytes], Path], tmp_path: Path
) -> None:
    files, mark = hostile
    name, read = READERS[reader]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with faults(f"hostile: {reader}") as count:
        for kind, content in files.items():
            place = tmp_path / "place"
            place.mkdir()
            if reader.startswith("unpacked"):
                (place / "into").mkdir()
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            try:
                read(path)
                message = None
            except (ValueError, OSError) as error:
                message = str(error)
            assert not mark.exists(), f"{kind} was run"
            outside = {entry.name for entry in tmp_path.iterdir()} - {"place"}
            assert not outside, f"{kind} wrote {outside}"
            if (reader, kind) not in HARMLESS and not (reader.startswith("unpacked") and message is None):
                assert message is not None, f"{kind} was accepted"
                assert path.name in message or path.parent.name in message, f"{kind}: {message}"
                assert "\n" not in message and len(message) < 1000, f"{kind}: {message}"
            count.count(files=1, refused=message is not None, ran=0)
            shutil.rmtree(place)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 600 << 10, f"{grown >> 10} MB more memory"  # kilobytes


RUN_FILES = (
    "done.json", "failed.json", "progress.json", "lock", "log.txt", "environment.json", "checkpoint.pt",
    "checkpoint.previous.pt", "checkpoint.next.pt", "forks/epoch-1.pt", "snapshots/live.safetensors",
    "predictions/live.npz", "rows.jsonl", "history.json",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*damaged:RuntimeWarning")
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=LONG)], ids=["some", "all"])
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run_with_any_hostile_file_can_be_queried_and_opened(
    name: str, step: int, hostile: tuple[dict[str, bytes], Path], tmp_path: Path
) -> None:
    files, mark = hostile
    for content in [*files.values()][RUN_FILES.index(name) % step :: step]:
        run = RunFolder.of(tmp_path, {"epochs": 2})
        shutil.rmtree(run.path, ignore_errors=True)
        (run.path / name).parent.mkdir(parents=True)
        (run.path / name).write_bytes(content)
        run.state(), run.summary(), run.failure(), run.progress(), run.is_done(contents=True)
        with open_run(tmp_path, {"epochs": 2}, threads=1) as writer:
            assert writer.load_checkpoint() is None
            writer.save_checkpoint({"epoch": 1})
            writer.mark_done()
        assert RunFolder(run.path).state() == "done"
        assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["study-demo-dynamics.json", "protocol-1/summary.json", "0123/done.json", "0123/rows.jsonl"]
)
def test_the_report_skips_hostile_files(name: str, hostile: tuple[dict[str, bytes], Path], tmp_path: Path) -> None:
    files, mark = hostile
    for content in files.values():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        results = read_results(tmp_path)
        assert not results.settings and results.skipped
        assert not mark.exists()


def test_a_hostile_image_cache_is_rebuilt(hostile: tuple[dict[str, bytes], Path], tmp_path: Path) -> None:
    files, mark = hostile
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4), 90).save(tmp_path / name / "1.png")
    wanted = load_image_folder(tmp_path).images.copy()
    [cache] = (tmp_path / ".emabank-cache").glob("[!.]*")
    for name, content in files.items():
        cache.write_bytes(content)
        assert np.array_equal(load_image_folder(tmp_path).images, wanted), name
        assert not mark.exists(), name


# Source files --------------------------------------------------------------------------------------------------------

NEVER = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "os.system",
    "os.popen", "eval", "exec", "yaml.load", "dill.load", "joblib.load",
}  # fmt: skip


def dangerous_calls(source: str) -> list[str]:
    """Calls in source code that could run code from a file or an argument."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in NEVER:
            found.append(called)
        if called.endswith("torch.load") and options.get("weights_only") != "True":
            found.append("torch.load")
        if called in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
            found.append("np.load")
        if called == "archive.extractall" and options.get("filter") != "'data'":
            found.append(called)
        if options.get("shell") == "True":
            found.append(called)
    return found


def test_no_source_file_makes_a_dangerous_call() -> None:
    for path in sorted(Path(emabank.__file__).parent.rglob("*.py")):
        assert dangerous_calls(path.read_text(encoding="utf-8")) == [], path.name


@pytest.mark.parametrize(
    "source",
    ["pickle.loads(b'')", "torch.load(path)", "torch.load(path, weights_only=False)", "np.load(path)", "eval(text)",
     "subprocess.run(text, shell=True)", "archive.extractall(folder)"],
)  # fmt: skip
def test_control_a_dangerous_call_is_detected(source: str) -> None:
    assert len(dangerous_calls(source)) == 1


SETTINGS = (
    "__class__=int", "__init__.__globals__=1", "training.__class__=os", "dataset=__import__('os').system('touch m')",
    "epochs=__import__('os')", "epochs=1; import os", "network=os.system", "rates=[__import__('os').system('touch m')]",
    "rates=['a', {b = 1}]", "rates=!!python/object", "epochs=1\nepochs = 2", "epochs=1e999", "network=../../etc/passwd",
    "data.dataset=$(touch m)", "training=1", "averages.decays=[[[[]]]]", "=", "=1", "epochs", "epochs=" + "9" * 5000,
    "rates=" + "[" * 5000,
)  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_cannot_run_code(setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="--set"):
        apply_overrides(ProtocolConfig(), [setting])
    assert not list(tmp_path.iterdir())
