"""Image folders: files, labels and pixels; decoded once into a cache that is never incomplete."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emabank.study.data import folders
from emabank.study.data.folders import load_decoded, load_image_folder, load_tiny_imagenet


def save(path: Path, brightness: int, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, brightness).convert(mode).save(path, quality=100)


# A user's own images -------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    root = tmp_path / "my images [1]"
    save(root / "dogs/b.png", 20)
    save(root / "dogs/a.PNG", 21)
    save(root / "cats/deep/er/c.png", 10)
    save(root / "cats/z.bmp", 11)
    save(root / "cats/.hidden.png", 99)
    save(root / ".hidden/a.png", 99)
    (root / "cats/notes.txt").write_text("no image")
    return root


def test_classes_and_files_are_sorted_and_the_cache_is_not_a_class(own: Path):
    for _ in range(2):
        loaded = load_image_folder(own)
        assert loaded.images.shape == (4, 3, 4, 6) and loaded.images.dtype == np.uint8
        assert loaded.images[:, :, 0, 0].tolist() == [[value] * 3 for value in (10, 11, 21, 20)]
        assert loaded.labels.tolist() == [0, 0, 1, 1] and loaded.labels.dtype == np.int64
        assert loaded.classes == ("cats", "dogs")
        assert (own / ".emabank-cache").is_dir()


def test_each_size_has_its_own_cache(own: Path):
    counts: list[int] = []
    for _ in range(2):
        for size in (None, 3, 5):
            load_image_folder(own, size=size, progress=lambda done, total: counts.append(done))
    assert counts == [0, 4] * 3


def test_folders_without_classes_or_images_are_refused(own: Path, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="there is no folder .*none; give one whose subfolders hold the images"):
        load_image_folder(tmp_path / "none")
    (own / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no images .*; fill the folder or remove it"):
        load_image_folder(own)
    with pytest.raises(ValueError, match="er has no subfolders; put the images of each class into a folder"):
        load_image_folder(own / "cats" / "deep" / "er")
    with pytest.raises(ValueError, match="size is 0; give a number of pixels"):
        load_image_folder(own, size=0)


# Tiny-ImageNet -------------------------------------------------------------------------------------------------------

WNIDS = ["n03", "n01", "n02"]  # not sorted, as published


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Three classes: n03 has two training images, n01 one (grey), n02 none; three test images."""
    root = tmp_path / "tiny-imagenet-200"
    save(root / "train/n03/images/n03_1.JPEG", 31, (64, 64))
    save(root / "train/n03/images/n03_0.JPEG", 30, (64, 64))
    save(root / "train/n01/images/n01_0.JPEG", 10, (64, 64), "L")
    (root / "train/n03/n03_boxes.txt").write_text("n03_0.JPEG\t0\t0\t63\t63\n")
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    lines = []
    for number, wnid in enumerate(["n02", "n03", "n02"]):
        save(root / f"val/images/val_{number}.JPEG", 100 + number, (64, 64))
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (root / "val/val_annotations.txt").write_text("".join(lines))
    return tmp_path


def test_labels_are_positions_in_wnids(tiny: Path):
    train, test = (load_tiny_imagenet(tiny, split=split) for split in ("train", "test"))
    assert train.images.shape == (3, 3, 64, 64) and train.images.dtype == np.uint8
    assert train.images[:, :, 0, 0].tolist() == [[30] * 3, [31] * 3, [10] * 3]
    assert train.labels.tolist() == [0, 0, 1] and train.labels.dtype == np.int64
    assert test.images[:, 0, 0, 0].tolist() == [100, 101, 102] and test.labels.tolist() == [2, 0, 2]
    assert test.classes == tuple(WNIDS)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("wnids.txt", "n01\nn01\n", "wnids.txt is damaged: it should hold 200 different words"),
        ("wnids.txt", "../../n01\n", "wnids.txt is damaged"),
        ("val/val_annotations.txt", "val_0.JPEG\tn99\t0\n", "names the class 'n99' in line 1, which wnids.txt does"),
        ("val/val_annotations.txt", "val_0.JPEG\n", "names the class '' in line 1"),
    ],
)
def test_damaged_label_files_are_named(tiny: Path, file: str, text: str, message: str):
    (tiny / "tiny-imagenet-200" / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_tiny_imagenet(tiny, split="test")


def test_missing_files_are_named_with_the_command_to_fetch_them(tiny: Path, tmp_path: Path):
    root = tiny / "tiny-imagenet-200"

    def missing(split: str, folder: Path = tiny) -> str:
        with pytest.raises(FileNotFoundError) as caught:
            load_tiny_imagenet(folder, split=split)  # type: ignore[arg-type]
        fault, _, advice = str(caught.value).partition(";")
        assert f"`emabank data fetch tiny-imagenet --data {folder}`" in advice
        return fault

    assert missing("train", tmp_path / "none") == f"{tmp_path / 'none'} holds no tiny-imagenet-200/wnids.txt"
    (root / "val/images/val_1.JPEG").unlink()
    assert missing("test") == f"{root} holds no val/images/val_1.JPEG"
    (root / "val/val_annotations.txt").unlink()
    assert missing("test") == f"{root} holds no val/val_annotations.txt"
    (root / "train").rename(root / "no-train")
    assert missing("train") == f"{root} holds no images to train with"


def test_a_path_outside_of_the_folder_is_not_followed(tiny: Path):
    save(tiny / "secret.JPEG", 1)
    (tiny / "tiny-imagenet-200/val/val_annotations.txt").write_text("../../../secret.JPEG\tn01\t0\n")
    with pytest.raises(FileNotFoundError, match=r"holds no val/images/../../../secret.JPEG"):
        load_tiny_imagenet(tiny, split="test")


# The cache -----------------------------------------------------------------------------------------------------------

FILES = [f"{number}.png" for number in range(12)]


def pixels(number: int, shape: tuple[int, ...] = (6, 6, 3)) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


EXPECTED = np.stack([pixels(number).transpose(2, 0, 1) for number in range(12)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number, name in enumerate(FILES):
        Image.fromarray(pixels(number)).save(folder / name)
    return folder


def load(root: Path, **changes: Any) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The images, and the progress reports: none if nothing had to be decoded."""
    counts: list[tuple[int, int]] = []
    options = {"files": FILES, "name": "set", "side": 6, "fit": False, "cache": root.parent / "cache", **changes}
    return load_decoded(root, **options, progress=lambda done, total: counts.append((done, total))), counts


def caches(root: Path) -> list[str]:
    return sorted(path.name for path in (root.parent / "cache").iterdir())


def test_images_are_decoded_once_in_order_and_memory_mapped_afterwards(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folders, "_TOGETHER", 5)
    images, counts = load(root)
    assert counts == [(0, 12), (5, 12), (10, 12), (12, 12)]
    assert np.array_equal(images, EXPECTED) and images.dtype == np.uint8
    images[:] = 0
    images, counts = load(root)
    assert counts == [] and isinstance(images, np.memmap)
    assert np.array_equal(images, EXPECTED), "writing to the images does not change the cache"


def test_any_change_of_files_or_options_replaces_the_cache(root: Path):
    load(root)
    before = caches(root)

    def load_anew(**changes: Any) -> np.ndarray:
        nonlocal before
        images, counts = load(root, **changes)
        after = caches(root)
        assert counts and len(after) == 1 and after != before
        before = after
        assert load(root, **changes)[1] == []
        return images

    os.utime(root / "3.png", ns=(10**18, 10**18))
    load_anew()
    Image.new("RGB", (6, 6), (1, 2, 3)).save(root / "3.png")
    os.utime(root / "3.png", ns=(10**18, 10**18))  # only the file size differs
    assert load_anew()[3, :, 0, 0].tolist() == [1, 2, 3]
    assert len(load_anew(files=FILES[:5])) == 5
    assert np.array_equal(load_anew(files=FILES[::-1])[0], EXPECTED[-1])
    assert load_anew(side=4, fit=True).shape == (12, 3, 4, 4)


@pytest.mark.parametrize("damage", ["cut", "garbage", "another"])
def test_a_damaged_cache_is_made_again(root: Path, damage: str):
    load(root)
    path = root.parent / "cache" / caches(root)[0]
    path.write_bytes(path.read_bytes()[:-5] if damage == "cut" else b"garbage" * 9)
    if damage == "another":
        np.save(path, np.zeros((12, 3, 6, 6)))
    images, counts = load(root)
    assert counts and np.array_equal(images, EXPECTED)
    assert len(caches(root)) == 1 and load(root)[1] == []


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"Could not be written \(No space left on device\)"):
        load(root)
    assert caches(root) == []


def test_leftovers_of_a_killed_process_are_removed_after_a_day(root: Path):
    cache = root.parent / "cache"
    cache.mkdir()
    old, new = cache / ".set.1.tmp", cache / ".set.2.tmp"
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    load(root)
    assert not old.exists() and new.exists()


# Decoding ------------------------------------------------------------------------------------------------------------


def decoded(path: Path, side: int | None = None, fit: bool = False) -> np.ndarray:
    return load(path.parent, files=[path.name], side=side, fit=fit)[0][0]


@pytest.mark.parametrize(
    ("suffix", "mode"),
    [
        *((suffix, "RGB") for suffix in ("png", "jpg", "bmp", "webp", "gif", "tif", "ppm")),
        *(("png", mode) for mode in ("RGBA", "P", "LA", "1")),
        ("jpg", "L"),
    ],
)
def test_every_format_and_mode_is_read_as_pillow_reads_it(root: Path, suffix: str, mode: str):
    path = root / f"image.{suffix}"
    Image.fromarray(pixels(0, (5, 7, 3))).convert(mode).save(path)
    with Image.open(path) as image:
        assert np.array_equal(decoded(path), np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def test_images_of_another_size_are_refused_or_resized_and_cropped(root: Path):
    path = root / "image.png"
    Image.fromarray(pixels(0, (40, 60, 3))).save(path)
    with pytest.raises(
        ValueError, match=r"image.png has 60 x 40 pixels, where 20 x 20 belong; give images of one size"
    ):
        decoded(path, side=20)
    with pytest.raises(ValueError, match=r"image.png has 60 x 40 pixels, where 6 x 6 belong; give images of one size"):
        load(root, files=["0.png", "image.png"], side=None)
    fitted = decoded(path, side=20, fit=True)
    with Image.open(path) as image:  # halved, then cropped to the central square
        expected = image.resize((30, 20), Image.Resampling.BILINEAR).crop((5, 0, 25, 20))
    assert np.array_equal(fitted, np.asarray(expected).transpose(2, 0, 1))


def test_files_that_cannot_be_decoded_are_named_and_leave_no_cache(root: Path):
    bad, good = root / "7.png", pixels(0, (50, 70, 3))
    Image.fromarray(good).save(root / "good.jpg")
    whole = (root / "good.jpg").read_bytes()
    for content in (b"", b"garbage", whole[:20], whole[:-700], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"7.png cannot be read as an image \(it is damaged or no image\)"):
            load(root, fit=True)
    Image.fromarray(np.full((6, 6), 40_000, dtype=np.uint16)).save(bad)
    with pytest.raises(ValueError, match=r"7.png has more than 8 bits a channel \(I.*\); convert it"):
        load(root)
    assert caches(root) == []
