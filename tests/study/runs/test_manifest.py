"""Manifests of studies: written, read back unchanged, refused if damaged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emabank.study.runs.manifest import Manifest, SettingRuns, read_manifest, write_manifest

MANIFEST = Manifest(
    study="sampling-period",
    scale="demo",
    command="emabank run 'sampling-period' --set 'rates=[0.1]'",
    state="failed",
    reason="cifar100-resnet18: 1 of 3 runs failed, the first with exit code 1; see räume/ab/log.txt",
    pairs=(
        SettingRuns(
            pair="cifar100-resnet18", title="digits, ResNet-8", protocol="protocol-abc", arms={"every 1": ("a", "b")}
        ),
        SettingRuns(pair="cifar10-resnet18", title="digits 5–9, ResNet-8"),
    ),
    overheads=({"network": "resnet8", "step_seconds": [0.25, 0.5], "conditions": {"torch": "2", "gpu": None}},),
)


def test_a_manifest_is_read_back_unchanged(tmp_path: Path):
    for manifest in (MANIFEST, Manifest(study="dynamics", scale="paper", command="", state="running")):
        assert read_manifest(write_manifest(manifest, tmp_path)) == manifest


def test_each_study_and_scale_has_one_file_with_the_last_state(tmp_path: Path):
    other_scale, other_study = replace(MANIFEST, scale="paper"), replace(MANIFEST, study="dynamics")
    paths = {write_manifest(manifest, tmp_path) for manifest in (MANIFEST, other_scale, other_study, MANIFEST)}
    assert {path.name for path in paths} == {path.name for path in tmp_path.iterdir()}
    assert len(paths) == 3
    path = write_manifest(replace(MANIFEST, state="done", reason=""), tmp_path)
    assert (read_manifest(path).state, len(list(tmp_path.iterdir()))) == ("done", 3)


PAIR = {"pair": "a", "title": "b", "protocol": None, "arms": {}}


@pytest.mark.parametrize(
    "damage",
    [
        b"{}",
        b"\xff\xfe\x00",
        {"format": 2},
        {"more": 1},
        {"state": "asleep"},
        {"reason": "half a character: \ud800"},
        {"pairs": [PAIR | {"title": 3}]},
        {"pairs": [PAIR | {"arms": {"every 1": "ids"}}]},
        {"overheads": [3]},
    ],
)
def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path, damage: Any):
    """Without a checksum, as earlier versions of emabank wrote it."""
    path = write_manifest(MANIFEST, tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("checksum")
    path.write_text(json.dumps(content), encoding="utf-8")
    assert read_manifest(path) == MANIFEST, "control"
    path.write_bytes(damage if isinstance(damage, bytes) else json.dumps({**content, **damage}).encode())
    with pytest.raises(ValueError, match=r"^study-demo-sampling-period.json is not what this emabank writes of a"):
        read_manifest(path)
