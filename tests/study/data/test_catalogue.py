"""The catalogue: every name of the command line, complete and well-formed entries."""

import re
from pathlib import Path

import pytest

from emabank.study.data.catalogue import DATASETS, File, find_dataset


def test_the_names_are_those_of_the_command_line():
    assert list(DATASETS) == ["digits", "cifar10", "cifar100", "cifar10n", "cifar100n", "tiny-imagenet"]
    assert all(find_dataset(name).name == name for name in DATASETS)
    with pytest.raises(ValueError, match="there is no data set 'mnist'; there are digits, cifar10,"):
        find_dataset("mnist")


def test_entries_are_complete():
    for dataset in DATASETS.values():
        assert dataset.title and dataset.publisher and dataset.terms
        assert all(need in DATASETS for need in dataset.needs)
        for download in dataset.downloads:
            assert download.url.startswith(("https://", "http://")) and download.url.endswith(
                Path(download.file.path).name
            )
            for file in (download.file, *download.contents):
                assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.checksum) and file.size > 0
    files = [file for each in DATASETS.values() for download in each.downloads for file in download.contents]
    assert len({file.checksum for file in files}) == len({file.path for file in files}) == len(files) == 10


def test_a_file_is_found_in_either_place(tmp_path: Path):
    file = File("deep/file", 1, "md5:0", elsewhere="file")
    assert file.find(tmp_path) is None
    (tmp_path / "file").touch()
    assert file.find(tmp_path) == tmp_path / "file"
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file").touch()
    assert file.find(tmp_path) == tmp_path / "deep/file"
    assert File("deep", 1, "md5:0").find(tmp_path) is None  # a folder is no file
