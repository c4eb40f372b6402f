"""A user's own images: one folder a class, of one size or brought to one."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emabank.study.data.folders import load_image_folder


def save(path: Path, brightness: int, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (brightness, 0, 255)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "my images [1]"
    save(root / "dogs/b.png", 20)
    save(root / "dogs/a.PNG", 21)
    save(root / "cats/deep/er/c.png", 10)
    save(root / "cats/z.bmp", 11)
    save(root / "cats/.hidden.png", 99)
    save(root / ".hidden/a.png", 99)
    (root / "cats/notes.txt").write_text("no image")
    return root


def test_classes_and_files_come_sorted(root: Path):
    found = load_image_folder(root)
    assert found.images.shape == (4, 3, 4, 6) and found.images.dtype == np.uint8
    assert found.images[:, :, 0, 0].tolist() == [[10, 0, 255], [11, 0, 255], [21, 0, 255], [20, 0, 255]]
    assert found.labels.tolist() == [0, 0, 1, 1] and found.labels.dtype == np.int64
    assert found.classes == ("cats", "dogs")


def test_images_of_other_sizes_need_a_size(root: Path):
    save(root / "cats/large.png", 50, (300, 200))
    with pytest.raises(ValueError, match=r"large.png has 300 x 200 pixels, where 6 x 4 belong; .* or a size to bring"):
        load_image_folder(root)
    assert load_image_folder(root, size=5).images.shape == (5, 3, 5, 5)


def test_two_sizes_keep_two_caches(root: Path, tmp_path: Path):
    told: list[int] = []
    for _ in range(2):
        for size in (None, 3, 5):
            load_image_folder(root, size=size, cache=tmp_path / "cache", tell=lambda done, total: told.append(done))
    assert told == [0, 4] * 3
    assert not (root / ".emabank-cache").exists()


def test_the_cache_in_the_folder_is_no_class(root: Path):
    load_image_folder(root)
    assert (root / ".emabank-cache").is_dir()
    assert load_image_folder(root).classes == ("cats", "dogs")


def test_what_is_no_such_folder_is_refused(root: Path, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="there is no folder .*none; give one whose subfolders hold the images"):
        load_image_folder(tmp_path / "none")
    (root / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no images .*; fill the folder or remove it"):
        load_image_folder(root)
    with pytest.raises(ValueError, match="er has no subfolders; put the images of each class into a folder"):
        load_image_folder(root / "cats" / "deep" / "er")
    with pytest.raises(ValueError, match="size is 0; give a number of pixels"):
        load_image_folder(root, size=0)
