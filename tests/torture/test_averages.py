"""Damaged checkpoints are refused by name when averaged, and the old average is kept.

torch's files have checksums; safetensors has none, so that a changed value cannot be detected there.
"""

import shutil
from pathlib import Path

import pytest

from emabank.averaging import average_checkpoints, find_checkpoints
from tests.torture import averages
from tests.torture.averages import AVERAGES, content
from tests.torture.faults import Faults, amounts, faults, undisturbed
from tests.torture.test_damaged import CHANGES, damage


def torture(folder: Path, count: Faults, *, times: int) -> None:
    averages.prepare(folder / "whole")
    wanted = undisturbed("average")
    inputs = [
        path.relative_to(folder / "whole")
        for name in AVERAGES
        for path in sorted((folder / "whole" / name).rglob("*"))
        if path.suffix in (".pt", ".safetensors")
    ]
    assert len(inputs) == 9
    for number in range(times):
        place = folder / str(number)
        averages.prepare(place)
        damaged, change = inputs[number % len(inputs)], count.random.choice(CHANGES)
        damage(place / damaged, change, count)
        kind = damaged.parts[0]
        out = AVERAGES[kind]
        before, case = content(place / out), f"seed {count.seed}, {number}: {damaged} {change}"
        count.count(faults=1)
        try:
            average_checkpoints(find_checkpoints([place / kind]).checkpoints, place / out, replace_out=True)
        except ValueError as error:
            assert damaged.name in str(error) or damaged.parent.name in str(error), f"{case}: {error}"
            assert content(place / out) == before, f"{case}: refused but replaced"
            count.count(refused=1)
        else:
            same = content(place / out) == content(wanted / out)
            assert same or damaged.suffix == ".safetensors", f"{case}: damage was not detected"
            count.count(harmless=same, without_checksum=not same)
        assert not [*place.glob(".*")], f"{case}: temporary files remain"
        shutil.rmtree(place)
    count.count(lost=0)


@amounts("times", 18, 600)
def test_damaged_checkpoints_are_refused_and_the_old_average_is_kept(tmp_path: Path, times: int) -> None:
    with faults("damaged: checkpoints to average") as count:
        torture(tmp_path, count, times=times)


def test_control_half_an_average_is_detected(tmp_path: Path) -> None:
    averages.prepare(tmp_path)
    averages.check_whole(tmp_path, undisturbed("average"))
    old = tmp_path / "average.pt"
    old.write_bytes(old.read_bytes()[:-100])
    with pytest.raises(AssertionError, match=r"half of average\.pt"):
        averages.check_whole(tmp_path, undisturbed("average"))
