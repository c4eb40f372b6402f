"""Every parser under random input returns a value or a clear error, and always ends.

Half of the input is random, the other half a good file with a few bytes changed, which gets deeper. The short versions
take some dozens of examples each; `make torture` takes thousands and records the counts.
"""

import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from emabank import EMABank, checkpoint
from emabank.averaging import average_checkpoints
from emabank.rules import rule_from_dict
from emabank.selection import BestTracker
from emabank.study.commands import main
from emabank.study.config import ProtocolConfig
from emabank.study.data.cifar import read_pickle
from emabank.study.data.download import unpack
from emabank.study.runs import storage
from emabank.study.runs.manifest import Manifest, SettingRuns, read_manifest, write_manifest
from emabank.study.runs.reader import RunFolder
from emabank.study.runs.rows import Row, from_json_line, read_rows, to_json_line
from emabank.study.runs.writer import open_run
from emabank.study.serialize import apply_overrides, from_dict, read_toml, to_dict, to_toml
from tests.study.data.made_up import cifar_batch, python2_pickle
from tests.torture.averages import scratch_folder
from tests.torture.faults import amounts, faults

PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Random bytes, or a good file with a few bytes changed, removed or inserted."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["change", "cut", "put", "end"])):
            case "change":
                content[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del content[at : at + draw(st.integers(1, 20))]
            case "put":
                content[at:at] = draw(st.binary(max_size=8))
            case "end":
                del content[at:]
    return bytes(content)


@st.composite
def other_values(draw: st.DrawFn, good: Any) -> Any:
    """Plain values with a few of them replaced, removed or added at any depth."""
    value = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        at: Any = value
        while isinstance(at, dict | list) and at:
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else list(range(len(at)))))
            if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
                if isinstance(at, dict) and draw(st.integers(0, 4)) == 0:
                    at.pop(key) if draw(st.booleans()) else at.update({draw(st.text(max_size=6)): draw(PLAIN)})
                else:
                    at[key] = draw(PLAIN)
                break
            at = at[key]
    return value


# Parsers: a good input and the reader of each ------------------------------------------------------------------------


def good_row() -> Row:
    return Row(
        run="d8cb8c03b3709a2a", dataset="digits", network="resnet8", trained_on="80%", seed=0, weights="ema-0.998",
        batchnorm="averaged", selected_by="loss", epoch=12, split="val", metric="accuracy", value=0.964, other=None,
    )  # fmt: skip


def file_reader(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def reader(content: bytes) -> Any:
        path = scratch_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return read(path)

    return reader


def make_bank() -> EMABank:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bank = EMABank(nn.Linear(2, 1), [0.9], every=1)
    bank.update()
    return bank


@cache
def good_files() -> dict[str, bytes]:
    folder = scratch_folder() / "good"
    checkpoint.save(make_bank(), folder / "bank.pt")
    storage.write_state(folder / "checkpoint.pt", {"epoch": 1, "optimizer": {0: (0.9, torch.ones(2))}})
    storage.write_weights(folder / "live.safetensors", {"bias": torch.ones(2)}, {"epoch": 3})
    storage.write_predictions(folder / "live.npz", {"val": ([[0.5, 2.0]], [1])})
    ran = SettingRuns(pair="cifar10-vgg16", title="digits", protocol="protocol-1", arms={"step": ["0123"]})
    manifest = Manifest(study="dynamics", scale="demo", command="emabank run", state="done", pairs=(ran,))
    manifest_path = write_manifest(manifest, folder)
    with open_run(folder, {"epochs": 2}, threads=1) as run:
        run.save_history([{"rate": 0.1}])
        run.mark_done({"chosen": {"live": {"epoch": 1}}})
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return {
        **files,
        "manifest": manifest_path.read_bytes(),
        "done.json": (run.path / "done.json").read_bytes(),
        "rows": (to_json_line(good_row()) + "\n").encode() * 2,
        "toml": to_toml(ProtocolConfig()).encode(),
        "cifar": python2_pickle(cifar_batch(0, 2, 10)),
        "some.tar.gz": _archive(),
        "state.pt": _state(),
        "plain.safetensors": save({"bias": torch.ones(2)}, {"format": "pt"}),
        "index": b'{"metadata": {"total_size": 8}, "weight_map": {"bias": "model-1-of-1.safetensors"}}',
    }


def _state() -> bytes:
    file = io.BytesIO()
    torch.save({"state_dict": {"bias": torch.ones(2)}, "epoch": 3}, file)
    return file.getvalue()


def _archive() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        member = tarfile.TarInfo("notes/first.txt")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"text"))
    return file.getvalue()


def _read_done(path: Path) -> Any:
    run = RunFolder(path.parent)
    answers = run.state(), run.is_done(contents=True), run.find_damage(contents=True)
    if not run.summary():
        raise ValueError(f"no mark: {answers}")


def _average(path: Path) -> None:
    """Average the file with itself; the file that an index names is good."""
    (path.parent / "model-1-of-1.safetensors").write_bytes(good_files()["plain.safetensors"])
    out = path.with_name(f"average{path.suffix.removesuffix('.json')}")
    average_checkpoints([path, path], out, replace_out=True)


def _unpack(path: Path) -> None:
    with tempfile.TemporaryDirectory() as into:
        unpack(path, Path(into))


BYTES: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "bank.pt": ("bank.pt", file_reader("bank.pt", lambda path: checkpoint.load(make_bank(), path))),
    "average, torch": ("state.pt", file_reader("1.pt", _average)),
    "average, safetensors": ("plain.safetensors", file_reader("1.safetensors", _average)),
    "average, index": ("index", file_reader("shards/model.safetensors.index.json", _average)),
    "checkpoint of a run": ("checkpoint.pt", file_reader("checkpoint.pt", storage.read_state)),
    "snapshot": ("live.safetensors", file_reader("live.safetensors", storage.read_weights)),
    "predictions": ("live.npz", file_reader("live.npz", storage.read_predictions)),
    "rows": ("rows", file_reader("rows.jsonl", read_rows)),
    "manifest": ("manifest", file_reader("study-demo-x.json", read_manifest)),
    "done mark": ("done.json", file_reader("run/done.json", _read_done)),
    "toml": ("toml", file_reader("study.toml", lambda path: read_toml(path, ProtocolConfig))),
    "cifar": ("cifar", lambda content: read_pickle(content, source="a file")),
    "archive": ("some.tar.gz", file_reader("some.tar.gz", _unpack)),
}


def load_tracker(state: Any) -> None:
    BestTracker(make_bank(), {"loss": "min"}).load_state_dict(state)


@cache
def good_tracker() -> Any:
    tracker = BestTracker(make_bank(), {"loss": "min"}, snapshots=None)
    tracker.observe(1, {0.9: {"loss": 0.5}})
    return {**tracker.state_dict(), "snapshots": "best"}


VALUES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "row": (lambda: json.loads(to_json_line(good_row())), lambda value: from_json_line(json.dumps(value))),
    "protocol": (
        lambda: to_dict(ProtocolConfig()),
        lambda value: from_dict(ProtocolConfig, value if isinstance(value, dict) else {}, where="file"),
    ),
    "rule": (lambda: {"kind": "ema", "decay": 0.9, "warmup": "steps", "start": 0}, rule_from_dict),
    "tracker": (good_tracker, load_tracker),
}


def is_refused(read: Callable[[Any], Any], content: Any) -> bool:
    """Whether the input was refused, with a message and an error that readers may raise."""
    try:
        read(content)
    except (ValueError, OSError) as error:
        assert str(error), repr(error)
        return True
    return False


def fuzz(name: str, strategy: st.SearchStrategy[Any], read: Callable[[Any], Any], *, examples: int) -> None:
    with faults(f"fuzzing: {name}") as count:

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @seed(count.seed)
        @given(strategy)
        def example(content: Any) -> None:
            count.count(inputs=1, refused=is_refused(read, content))

        example()
        assert count.counts.get("refused", 0) > 0
        count.count(other_errors=0)


@amounts("examples", 60, 2000)
@pytest.mark.parametrize("name", BYTES)
def test_damaged_files_are_read_or_refused(name: str, examples: int) -> None:
    good, read = BYTES[name]
    read(good_files()[good])  # control: the good file is read
    fuzz(name, damaged(good_files()[good]), read, examples=examples)


@amounts("examples", 100, 2000)
@pytest.mark.parametrize("name", VALUES)
def test_wrong_values_are_read_or_refused(name: str, examples: int) -> None:
    good, read = VALUES[name]
    fuzz(name, other_values(good()), read, examples=examples)


# Arguments ------------------------------------------------------------------------------------------------------------

KEYS = ["epochs", "rates", "noise", "data.dataset", "network", "averages.decays", "every", "width", "batch", "subset"]
TEXTS = st.one_of(st.text(max_size=12), st.from_regex(r"[-+0-9.eE\[\]{},'\" =]{0,12}", fullmatch=True))
SETTINGS = st.builds(lambda key, text: f"{key}={text}", st.one_of(st.sampled_from(KEYS), st.text(max_size=8)), TEXTS)


def apply_setting(setting: str) -> Any:
    return replace(apply_overrides(ProtocolConfig(), [setting]))


@amounts("examples", 150, 5000)
def test_any_text_as_a_setting_is_applied_or_refused(examples: int) -> None:
    fuzz("--set", SETTINGS, apply_setting, examples=examples)


WORDS = st.lists(
    st.one_of(
        st.sampled_from(
            ["list", "status", "report", "claims", "data", "check", "--scale", "demo", "--runs", "nowhere", "--out"]
        ),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6),
    ),
    max_size=4,
)


def run_command(words: list[str]) -> Any:
    """Run the command with any words, except those that write files."""
    if words and words[0] in ("demo", "run", "protocol", "bench", "report"):
        words = ["list", *words]
    output = io.StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            code = main(words)
    except SystemExit as stopped:
        code = stopped.code
    assert code in (0, 1, 2), output.getvalue()
    assert "Traceback" not in output.getvalue()
    if code:
        raise ValueError("refused")


@amounts("examples", 40, 500)
def test_any_words_as_a_command_run_or_are_refused(examples: int) -> None:
    fuzz("commands", WORDS, run_command, examples=examples)


def test_control_any_other_error_fails() -> None:
    with pytest.raises(ZeroDivisionError):
        fuzz("control", st.integers(0, 3), lambda value: 1 / (value - 2), examples=50)
