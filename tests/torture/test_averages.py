"""Checkpoints that were cut short or changed on their way, averaged: they are refused by name, nothing is replaced.

torch's files carry checksums. The format safetensors has none: of a value that changed there nobody can know.
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
        damaged, how = inputs[number % len(inputs)], count.random.choice(CHANGES)
        damage(place / damaged, how, count)
        kind = damaged.parts[0]
        out = AVERAGES[kind]
        before, told = content(place / out), f"seed {count.seed}, {number}: {damaged} {how}"
        count.count(faults=1)
        try:
            average_checkpoints(find_checkpoints([place / kind]).checkpoints, place / out, replace_out=True)
        except ValueError as error:
            assert damaged.name in str(error) or damaged.parent.name in str(error), f"{told}: {error}"
            assert content(place / out) == before, f"{told}: refused, and yet replaced"
            count.count(refused=1)
        else:
            same = content(place / out) == content(wanted / out)
            assert same or damaged.suffix == ".safetensors", f"{told}: read as if nothing were wrong"
            count.count(harmless=same, without_checksum=not same)
        assert not [*place.glob(".*")], f"{told}: half of it is left"
        shutil.rmtree(place)
    count.count(lost=0)


@amounts("times", 18, 600)
def test_damaged_checkpoints_are_refused_and_nothing_is_replaced(tmp_path: Path, times: int) -> None:
    with faults("damaged: checkpoints to average") as count:
        torture(tmp_path, count, times=times)


def test_control_half_an_average_is_seen(tmp_path: Path) -> None:
    averages.prepare(tmp_path)
    averages.check_whole(tmp_path, undisturbed("average"))
    old = tmp_path / "average.pt"
    old.write_bytes(old.read_bytes()[:-100])
    with pytest.raises(AssertionError, match=r"half of average\.pt"):
        averages.check_whole(tmp_path, undisturbed("average"))
