"""The cache: decoded once, mapped after that, renewed when anything changed, never half-made, however it ends."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emabank.study.data import decoded, pixels
from emabank.study.data.decoded import Decoded, load_decoded
from emabank.study.data.pixels import Shape

COUNT = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(COUNT):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


FILES = [(f"{number}.png", number % 3) for number in range(COUNT)]


def load(root: Path, **changes: Any) -> tuple[Decoded, list[tuple[int, int]]]:
    """What was found, and what was told: nothing when nothing had to be decoded."""
    told: list[tuple[int, int]] = []
    given = {"files": FILES, "name": "set", "shape": Shape(6), "cache": root.parent / "cache", **changes}
    files = given.pop("files")
    return load_decoded(root, files, tell=lambda done, total: told.append((done, total)), **given), told


def caches(root: Path) -> list[str]:
    return sorted(path.name for path in (root.parent / "cache").iterdir() if not path.name.endswith(".lock"))


def expected() -> np.ndarray:
    return np.stack(
        [np.random.default_rng(n).integers(0, 256, (6, 6, 3), dtype=np.uint8).transpose(2, 0, 1) for n in range(COUNT)]
    )


def test_the_second_start_maps_what_the_first_decoded(root: Path, monkeypatch: pytest.MonkeyPatch):
    first, told = load(root)
    assert told[0] == (0, COUNT) and told[-1] == (COUNT, COUNT) and told == sorted(told)
    assert np.array_equal(first.images, expected()) and first.labels.tolist() == [label for _, label in FILES]
    monkeypatch.setattr(decoded, "decoded_blocks", None)  # nothing is decoded any more
    second, told = load(root)
    assert told == [] and isinstance(second.images, np.memmap)
    assert np.array_equal(second.images, expected()) and np.array_equal(second.labels, first.labels)
    assert second.images.dtype == np.uint8 and second.labels.dtype == np.int64


def test_writing_to_the_images_does_not_reach_the_cache(root: Path):
    first, _ = load(root)
    first.images[:] = 0
    assert np.array_equal(load(root)[0].images, expected())


def test_any_change_makes_a_new_cache_in_place_of_the_old(root: Path):
    load(root)
    before = caches(root)

    def is_renewed(**changes: Any) -> Decoded:
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
    assert is_renewed().images[3, :, 0, 0].tolist() == [1, 2, 3]
    assert len(is_renewed(files=FILES[:5]).images) == 5
    assert is_renewed(files=[(path, 7) for path, _ in FILES]).labels.tolist() == [7] * COUNT
    assert is_renewed(files=FILES[::-1]).labels.tolist() == [label for _, label in FILES[::-1]]
    assert is_renewed(shape=Shape(4, fit=True)).images.shape == (COUNT, 3, 4, 4)


def test_a_new_version_of_the_format_makes_a_new_cache(root: Path, monkeypatch: pytest.MonkeyPatch):
    load(root)
    monkeypatch.setattr(decoded, "_VERSION", 99)
    assert load(root)[1] != [] and len(caches(root)) == 1


def test_other_names_and_roots_keep_their_caches(root: Path):
    load(root)
    load(root, name="set-two", files=FILES[:4])
    other = root.parent / "other"
    shutil.copytree(root, other)
    os.utime(other / "0.png", ns=(10**18, 10**18))
    load(other)
    assert len(caches(root)) == 3
    assert load(root)[1] == load(other)[1] == load(root, name="set-two", files=FILES[:4])[1] == []


def test_a_set_that_was_moved_is_not_decoded_again(root: Path):
    cache = root / "cache"
    load(root, cache=cache)
    moved = root.rename(root.parent / "moved")
    assert load(moved, cache=moved / "cache")[1] == []


@pytest.mark.parametrize("file", ["images.npy", "labels.npy", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "gone", "another"])
def test_a_damaged_cache_is_made_again(root: Path, file: str, damage: str):
    load(root)
    path = root.parent / "cache" / caches(root)[0] / file
    content = path.read_bytes()
    path.write_bytes(content[:-5] if damage == "cut" else b"garbage" * 9)
    if damage == "gone":
        path.unlink()
    if damage == "another":
        np.save(path.with_suffix(".npy"), np.zeros((COUNT, 3, 5, 6), dtype=np.uint8))
    found, told = load(root)
    assert told and np.array_equal(found.images, expected())
    assert len(caches(root)) == 1 and load(root)[1] == []


@pytest.mark.parametrize("file", ["images.npy", "labels.npy"])
def test_a_bit_that_has_flipped_in_a_cache_is_found_and_it_is_made_again(root: Path, file: str):
    load(root)
    path = root.parent / "cache" / caches(root)[0] / file
    whole = bytearray(path.read_bytes())
    for at in (-1, -len(whole) // 3):
        whole[at] ^= 4
        path.write_bytes(whole)
        found, told = load(root)
        assert told and np.array_equal(found.images, expected())
        assert found.labels.tolist() == [label for _, label in FILES]
        assert load(root)[1] == []


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

    monkeypatch.setattr(pixels, "_TOGETHER", 2)
    with pytest.raises(KeyboardInterrupt):
        load_decoded(root, FILES, name="set", shape=Shape(6), cache=root.parent / "cache", tell=interrupt)
    assert caches(root) == []


def test_without_locks_it_works_as_well(root: Path, monkeypatch: pytest.MonkeyPatch):
    def none(*_: object, **__: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(decoded, "locked", none)
    (root.parent / "cache" / ".set.0123.tmp").mkdir(parents=True)  # perhaps another process is at work in it
    assert np.array_equal(load(root)[0].images, expected())
    assert load(root)[1] == []
    assert len(caches(root)) == 2


# Several processes ---------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
from pathlib import Path
from emabank.study.data import pixels
from emabank.study.data.decoded import load_decoded
from emabank.study.data.pixels import Shape
root, pause = Path(sys.argv[1]), float(sys.argv[2])
pixels._TOGETHER = 1
def tell(done, total):
    print(done, flush=True)
    time.sleep(pause)
found = load_decoded(
    root, [(f"{n}.png", n % 3) for n in range(12)], name="set", shape=Shape(6), cache=root.parent / "cache", tell=tell
)
print("sum", int(found.images.astype(int).sum()), flush=True)
"""


def start(root: Path, pause: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(root), str(pause)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def test_a_killed_process_leaves_nothing_that_is_taken_for_a_cache(root: Path):
    with start(root, pause=60) as process:
        assert process.stdout is not None and process.stdout.readline() == "0\n"
        process.send_signal(signal.SIGKILL)
    left = caches(root)
    assert len(left) == 1 and left[0].endswith(".tmp")
    found, told = load(root)
    assert told and np.array_equal(found.images, expected())
    assert len(caches(root)) == 1 and caches(root) != left


def test_a_second_process_waits_and_takes_what_the_first_made(root: Path):
    with start(root, pause=0.05) as first, start(root, pause=0.05) as second:
        outputs = [process.communicate(timeout=60)[0].split("\n") for process in (first, second)]
    sums = [output[-2] for output in outputs]
    assert sums == [f"sum {int(expected().astype(int).sum())}"] * 2
    # One of them decoded, the other was told of nothing.
    assert sorted(len(output) for output in outputs) == [2, COUNT + 3]
    assert len(caches(root)) == 1


def test_a_second_process_without_locks_does_not_corrupt_the_cache(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decoded, "_locked", lambda stack, path: False)

    def meanwhile(done: int, total: int) -> None:
        if done == total:  # another one, as it were, starts and ends just now
            assert np.array_equal(load(root)[0].images, expected())

    found = load_decoded(root, FILES, name="set", shape=Shape(6), cache=root.parent / "cache", tell=meanwhile)
    assert np.array_equal(found.images, expected()) and len(caches(root)) == 1
