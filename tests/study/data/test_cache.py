"""The cache: decoded once, mapped after that, renewed when anything changed, never half-made, however it ends."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emabank.study.data import folders
from emabank.study.data.folders import Shape, load_decoded

COUNT = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(COUNT):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


FILES = [f"{number}.png" for number in range(COUNT)]


def load(root: Path, **changes: Any) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """What was found, and what was told: nothing when nothing had to be decoded."""
    told: list[tuple[int, int]] = []
    given = {"files": FILES, "name": "set", "shape": Shape(6), "cache": root.parent / "cache", **changes}
    files = given.pop("files")
    return load_decoded(root, files, tell=lambda done, total: told.append((done, total)), **given), told


def caches(root: Path) -> list[str]:
    return sorted(path.name for path in (root.parent / "cache").iterdir())


def expected() -> np.ndarray:
    return np.stack(
        [np.random.default_rng(n).integers(0, 256, (6, 6, 3), dtype=np.uint8).transpose(2, 0, 1) for n in range(COUNT)]
    )


def test_the_second_start_maps_what_the_first_decoded(root: Path, monkeypatch: pytest.MonkeyPatch):
    first, told = load(root)
    assert told[0] == (0, COUNT) and told[-1] == (COUNT, COUNT) and told == sorted(told)
    assert np.array_equal(first, expected())
    monkeypatch.setattr(folders, "decoded_blocks", None)  # nothing is decoded any more
    second, told = load(root)
    assert told == [] and isinstance(second, np.memmap)
    assert np.array_equal(second, expected())
    assert second.dtype == np.uint8


def test_writing_to_the_images_does_not_reach_the_cache(root: Path):
    first, _ = load(root)
    first[:] = 0
    assert np.array_equal(load(root)[0], expected())


def test_any_change_makes_a_new_cache_in_place_of_the_old(root: Path):
    load(root)
    before = caches(root)

    def is_renewed(**changes: Any) -> np.ndarray:
        nonlocal before
        found, told = load(root, **changes)
        after = caches(root)
        assert told and len(after) == 1 and after != before
        before = after
        assert load(root, **changes)[1] == []
        return found

    os.utime(root / "3.png", ns=(10**18, 10**18))
    is_renewed()
    Image.new("RGB", (6, 6), (1, 2, 3)).save(root / "3.png")
    os.utime(root / "3.png", ns=(10**18, 10**18))  # the size alone tells
    assert is_renewed()[3, :, 0, 0].tolist() == [1, 2, 3]
    assert len(is_renewed(files=FILES[:5])) == 5
    assert np.array_equal(is_renewed(files=FILES[::-1]), load(root, files=FILES[::-1])[0])
    assert is_renewed(shape=Shape(4, fit=True)).shape == (COUNT, 3, 4, 4)


def test_a_new_version_of_the_format_makes_a_new_cache(root: Path, monkeypatch: pytest.MonkeyPatch):
    load(root)
    monkeypatch.setattr(folders, "_VERSION", 99)
    assert load(root)[1] != [] and len(caches(root)) == 1


def test_other_names_keep_their_caches(root: Path):
    load(root)
    load(root, name="set-two", files=FILES[:4])
    assert len(caches(root)) == 2
    assert load(root)[1] == load(root, name="set-two", files=FILES[:4])[1] == []


def test_a_set_that_was_moved_is_not_decoded_again(root: Path):
    cache = root / "cache"
    load(root, cache=cache)
    moved = root.rename(root.parent / "moved")
    assert load(moved, cache=moved / "cache")[1] == []


@pytest.mark.parametrize("damage", ["cut", "garbage", "another"])
def test_a_damaged_cache_is_made_again(root: Path, damage: str):
    load(root)
    path = root.parent / "cache" / caches(root)[0]
    path.write_bytes(path.read_bytes()[:-5] if damage == "cut" else b"garbage" * 9)
    if damage == "another":
        np.save(path, np.zeros((COUNT, 3, 6, 6)))
    found, told = load(root)
    assert told and np.array_equal(found, expected())
    assert len(caches(root)) == 1 and load(root)[1] == []


def test_a_damaged_image_is_named_and_nothing_is_left(root: Path):
    (root / "7.png").write_bytes(b"garbage")
    with pytest.raises(ValueError, match=r"7.png cannot be read as an image"):
        load(root)
    assert caches(root) == []


def test_a_full_disk_is_said_in_a_sentence_and_nothing_is_left(root: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        OSError, match=r"could not be kept there \(No space left on device\); choose another cache"
    ) as told:
        load(root)
    assert told.value.filename == str(root.parent / "cache")
    assert caches(root) == []


def test_a_cache_that_cannot_be_made_is_said_in_a_sentence(root: Path):
    (root.parent / "file").touch()
    with pytest.raises(OSError, match=r"could not be kept there \(Not a directory\); choose another cache folder"):
        load(root, cache=root.parent / "file" / "cache")


def test_an_interruption_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    monkeypatch.setattr(folders, "_TOGETHER", 2)
    with pytest.raises(KeyboardInterrupt):
        load_decoded(root, FILES, name="set", shape=Shape(6), cache=root.parent / "cache", tell=interrupt)
    assert caches(root) == []


def test_what_a_killed_process_left_is_removed_after_a_day(root: Path):
    cache = root.parent / "cache"
    cache.mkdir()
    old, new = cache / ".set.1.tmp", cache / ".set.2.tmp"
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    load(root)
    assert not old.exists() and new.exists()


def test_a_second_process_at_the_same_time_does_not_corrupt_the_cache(root: Path):
    def meanwhile(done: int, total: int) -> None:
        if done == total:  # another one, as it were, starts and ends just now
            other = subprocess.run(
                [sys.executable, "-c", SCRIPT, str(root)], capture_output=True, text=True, check=True
            )
            assert other.stdout == f"{int(expected().astype(int).sum())}\n"

    found = load_decoded(root, FILES, name="set", shape=Shape(6), cache=root.parent / "cache", tell=meanwhile)
    assert np.array_equal(found, expected()) and len(caches(root)) == 1


SCRIPT = """
import sys
from pathlib import Path
from emabank.study.data.folders import Shape, load_decoded
root = Path(sys.argv[1])
files = [f"{n}.png" for n in range(12)]
print(int(load_decoded(root, files, name="set", shape=Shape(6), cache=root.parent / "cache").astype(int).sum()))
"""
