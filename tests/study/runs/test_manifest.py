"""What a folder of runs knows of its studies: written whole, read back as it was, refused when it is anything else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emabank.study.runs.manifest import Manifest, Ran, read_manifest, write_manifest
from tests.support.processes import run

MANIFEST = Manifest(
    study="sampling-period",
    scale="demo",
    command="emabank run 'sampling-period' --set 'rates=[0.1]'",
    state="failed",
    reason="cifar100-resnet18: 1 of 3 runs failed, the first with exit code 1; see räume/ab/log.txt",
    pairs=(
        Ran(pair="cifar100-resnet18", title="digits, ResNet-8", protocol="protocol-abc", arms={"every 1": ("a", "b")}),
        Ran(pair="cifar10-resnet18", title="digits 5–9, ResNet-8"),
    ),
    overheads=({"network": "resnet8", "step_seconds": [0.25, 0.5], "conditions": {"torch": "2", "gpu": None}},),
)


def as_read(manifest: Manifest) -> Manifest:
    """Tuples of ids are lists in a file."""
    pairs = tuple(replace(pair, arms={arm: list(ids) for arm, ids in pair.arms.items()}) for pair in manifest.pairs)
    return replace(manifest, pairs=pairs)


def test_what_is_written_comes_back(tmp_path: Path):
    for manifest in (MANIFEST, Manifest(study="dynamics", scale="paper", command="", state="running")):
        assert read_manifest(write_manifest(manifest, tmp_path)) == as_read(manifest)


def test_there_is_one_file_for_each_study_and_scale_and_the_last_one_counts(tmp_path: Path):
    other_scale, other_study = replace(MANIFEST, scale="paper"), replace(MANIFEST, study="dynamics")
    paths = {write_manifest(each, tmp_path) for each in (MANIFEST, other_scale, other_study, MANIFEST)}
    assert {path.name for path in paths} == {path.name for path in tmp_path.iterdir()}
    assert len(paths) == 3
    path = write_manifest(replace(MANIFEST, state="done", reason=""), tmp_path)
    assert (read_manifest(path).state, len(list(tmp_path.iterdir()))) == ("done", 3)


def test_a_file_that_could_not_be_written_leaves_the_one_before(tmp_path: Path):
    path = write_manifest(MANIFEST, tmp_path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_manifest(replace(MANIFEST, overheads=({"step_seconds": [float("nan")]},)), tmp_path)
    assert (path.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (before, [path.name])


def content(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def without(key: str) -> Any:
    return lambda path: json.dumps({name: value for name, value in content(path).items() if name != key})


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: "",
        lambda path: path.read_text(encoding="utf-8")[:-20],
        lambda path: "[]",
        lambda path: "3",
        lambda path: "{}",
        lambda path: json.dumps({**content(path), "format": 2}),
        lambda path: json.dumps({**content(path), "more": 1}),
        lambda path: json.dumps({**content(path), "pairs": [{"pair": "a"}]}),
        lambda path: json.dumps({**content(path), "pairs": 3}),
        lambda path: json.dumps({**content(path), "pairs": ["a"]}),
        lambda path: json.dumps({**content(path), "overheads": None}),
        *(without(key) for key in ("format", "study", "scale", "command", "state", "pairs", "overheads")),
    ],
)
def test_a_damaged_or_foreign_file_is_one_sentence(tmp_path: Path, damage: Any):
    path = write_manifest(MANIFEST, tmp_path)
    path.write_text(damage(path), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"^study-demo-sampling-period.json is not what this emabank writes of a study"
    ):
        read_manifest(path)


def test_bytes_that_are_no_text_are_one_sentence_too(tmp_path: Path):
    path = tmp_path / "study-demo-x.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="study-demo-x.json is not what this emabank writes"):
        read_manifest(path)


def test_a_file_that_is_not_there_says_so_itself(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path / "study-demo-x.json")


def test_it_is_read_without_torch(tmp_path: Path):
    path = write_manifest(MANIFEST, tmp_path)
    code = "from pathlib import Path\nfrom emabank.study.runs.manifest import read_manifest\n"
    finished = run(f"{code}read_manifest(Path({str(path)!r}))", blocked=("torch",))
    assert finished.returncode == 0, finished.stderr
