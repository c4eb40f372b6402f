"""Image files become pixels: in order, RGB, of one size; a damaged or other one is named."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emabank.study.data import folders
from emabank.study.data.folders import Shape, decoded_blocks, height_and_width

RANDOM = np.random.default_rng(0)


def saved(path: Path, shape: tuple[int, ...] = (5, 7, 3), mode: str | None = None) -> Path:
    image = Image.fromarray(RANDOM.integers(0, 256, shape, dtype=np.uint8))
    (image if mode is None else image.convert(mode)).save(path)
    return path


def decoded(*paths: Path, size: tuple[int, int] = (5, 7), fit: bool = False) -> np.ndarray:
    return np.concatenate(list(decoded_blocks(paths, size, fit=fit)))


def test_many_images_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folders, "_TOGETHER", 3)
    paths = [saved(tmp_path / f"{number}.png") for number in range(50)]
    expected = np.stack([np.asarray(Image.open(path).copy()).transpose(2, 0, 1) for path in paths])
    found = decoded(*paths)
    assert found.dtype == np.uint8 and np.array_equal(found, expected)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "webp", "gif", "tif", "ppm"])
def test_every_format_is_read_as_pillow_reads_it(tmp_path: Path, suffix: str):
    path = saved(tmp_path / f"image.{suffix}")
    with Image.open(path) as image:
        assert np.array_equal(decoded(path)[0], np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def test_grey_images_become_three_equal_channels(tmp_path: Path):
    path = saved(tmp_path / "grey.jpg", (5, 7))
    found = decoded(path)[0]
    with Image.open(path) as image:
        assert image.mode == "L"
        assert all(np.array_equal(channel, np.asarray(image)) for channel in found)


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA", "1"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str):
    path = saved(tmp_path / "image.png", mode=mode)
    with Image.open(path) as image:
        assert np.array_equal(decoded(path)[0], np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def test_another_size_is_refused_or_fitted(tmp_path: Path):
    path = saved(tmp_path / "image.png", (40, 60, 3))
    with pytest.raises(ValueError, match=r"image.png has 60 x 40 pixels, where 7 x 5 belong; give images of one size"):
        decoded(path)
    found = decoded(path, size=(20, 20), fit=True)[0]
    with Image.open(path) as image:  # halved, then cut to the square in the middle
        expected = image.resize((30, 20), Image.Resampling.BILINEAR).crop((5, 0, 25, 20))
    assert np.array_equal(found, np.asarray(expected).transpose(2, 0, 1))


def test_the_size_is_given_or_that_of_the_first(tmp_path: Path):
    path = saved(tmp_path / "image.png")
    assert height_and_width(path, Shape()) == (5, 7)
    assert height_and_width(path, Shape(9)) == (9, 9)


def test_more_than_eight_bits_are_refused_not_cut(tmp_path: Path):
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((5, 7), 40_000, dtype=np.uint16)).save(path)
    with pytest.raises(ValueError, match=r"deep.png has more than 8 bits a channel \(I.*\); convert it"):
        decoded(path)


def test_damaged_files_are_named(tmp_path: Path):
    good = saved(tmp_path / "good.jpg", (50, 70, 3))
    bad = tmp_path / "bad.jpg"
    for content in (b"", b"garbage", good.read_bytes()[:20], good.read_bytes()[:-700], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"bad.jpg cannot be read as an image \(it is damaged or no image\)"):
            decoded(good, bad, size=(50, 70))
    with pytest.raises(ValueError, match=r"none.jpg cannot be read as an image \(No such file or directory\)"):
        decoded(good, tmp_path / "none.jpg", size=(50, 70))


def test_decoding_stays_only_a_little_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun: list[Path] = []
    decode = folders._block

    def noted(paths: list[Path], size: tuple[int, int], fit: bool) -> np.ndarray:
        begun.extend(paths)
        return decode(paths, size, fit)

    monkeypatch.setattr(folders, "_block", noted)
    monkeypatch.setattr(folders, "_TOGETHER", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    path = saved(tmp_path / "image.png")
    with closing(decoded_blocks([path] * 40, (5, 7), fit=False)) as blocks:
        for _ in range(3):
            next(blocks)
    assert 3 <= len(begun) <= 7  # the three that were taken and two for each of two workers
