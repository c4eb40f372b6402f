"""CIFAR and CIFAR-N: read in the official order, unpacked or packed; bad files are refused and never executed."""

import builtins
import os
import pickle
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emabank.study.data import cifar
from emabank.study.data.cifar import LABEL_SETS, load_cifar, load_cifar_n, read_members, read_pickle
from tests.study.data.made_up import cifar_batch, python2_pickle, tar_gz, tar_member, write_files

PUBLISHED = pytest.mark.skipif(
    "EMABANK_DATA" not in os.environ, reason="EMABANK_DATA names no folder of published data"
)
MEMBERS = {"set/first": b"1" * 1000, "set/second": b"2" * 2000, "set/deep/third": b"3"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch):
    """Files of 4 (CIFAR-10), 6 and 5 (CIFAR-100) images instead of thousands."""
    ten, hundred = cifar._LAYOUTS["cifar10"], cifar._LAYOUTS["cifar100"]
    ten = ten._replace(train=dict.fromkeys(ten.train, 4), test={"test_batch": 4})
    hundred = hundred._replace(train={"train": 6}, test={"test": 5})
    monkeypatch.setattr(cifar, "_LAYOUTS", {"cifar10": ten, "cifar100": hundred})


def cifar10_files() -> dict[str, Mapping[str, Any]]:
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return {f"cifar-10-batches-py/{name}": cifar_batch(seed, 4, 10) for seed, name in enumerate(names)}


def cifar100_files() -> dict[str, Mapping[str, Any]]:
    return {
        "cifar-100-python/train": cifar_batch(0, 6, 100, "fine_labels", coarse_labels=[0] * 6),
        "cifar-100-python/test": cifar_batch(1, 5, 100, "fine_labels", coarse_labels=[0] * 5),
    }


def pickled(files: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    return {name: python2_pickle(content) for name, content in files.items()}


def expected(batches: list[Mapping[str, Any]], key: str = "labels") -> tuple[np.ndarray, list[int]]:
    """Written from the description: the first 1024 numbers of a line are red, row by row, then green, then blue."""
    images, labels = [], []
    for batch in batches:
        for line, label in zip(batch["data"], batch[key], strict=True):
            red, green, blue = line[:1024], line[1024:2048], line[2048:]
            images.append([[channel[32 * row : 32 * row + 32] for row in range(32)] for channel in (red, green, blue)])
            labels.append(label)
    return np.array(images, dtype=np.uint8), labels


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_comes_in_the_official_order(tmp_path: Path, small, packed: bool):
    files = cifar10_files()
    if packed:  # in another order, with extra files
        backwards = dict(reversed(pickled(files).items()))
        archive = tar_gz({"cifar-10-batches-py/readme.html": b"<html>", **backwards, "data_batch_1": b"elsewhere"})
        write_files(tmp_path, {"cifar-10-python.tar.gz": archive})
    else:
        write_files(tmp_path, pickled(files))
    batches = list(files.values())
    for split, part in (("train", batches[:5]), ("test", batches[5:6])):
        images, labels = load_cifar("cifar10", tmp_path, split=split)
        right_images, right_labels = expected(part)
        assert images.dtype == np.uint8 and labels.dtype == np.int64
        assert np.array_equal(images, right_images) and labels.tolist() == right_labels
        assert images.flags.writeable and labels.flags.writeable
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-python.tar.gz" if packed else "cifar-10-batches-py"]


def test_cifar100_uses_fine_labels_and_needs_only_the_files_of_its_split(tmp_path: Path, small):
    files = cifar100_files()
    write_files(tmp_path, {"cifar-100-python/test": pickled(files)["cifar-100-python/test"]})
    images, labels = load_cifar("cifar100", tmp_path, split="test")
    right_images, right_labels = expected([files["cifar-100-python/test"]], "fine_labels")
    assert np.array_equal(images, right_images) and labels.tolist() == right_labels
    message = "neither cifar-100-python/train nor cifar-100-python.tar.gz; run `emabank data fetch cifar100 --data"
    with pytest.raises(FileNotFoundError, match=message):
        load_cifar("cifar100", tmp_path, split="train")
    write_files(tmp_path, {"cifar-100-python.tar.gz": tar_gz(pickled(files))})
    assert len(load_cifar("cifar100", tmp_path, split="train")[1]) == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"data": np.zeros((4, 3071), np.uint8)},
        {"data": np.zeros((5, 3072), np.uint8)},
        {"data": np.zeros((4, 3072), np.int64)},
        {"data": [1, 2]},
        {"labels": None},
        {"labels": [1, 2, 3]},
        {"labels": [1, 2, 3, 10]},
        {"labels": [1, 2, 3, -1]},
        {"labels": [1, 2, 3, "4"]},
        {"labels": [1, 2, 3, [4]]},
        {"labels": np.zeros((4, 1), np.int64)},
        {"labels": np.full(4, 10)},
    ],
)
def test_a_batch_of_the_wrong_shape_or_with_wrong_labels_is_refused(tmp_path: Path, small, changes):
    write_files(tmp_path, {"cifar-10-batches-py/test_batch": python2_pickle({**cifar_batch(0, 4, 10), **changes})})
    [key] = changes
    content = r"images as uint8 \[4, 3072\]" if key == "data" else "4 labels from 0 to 9"
    with pytest.raises(ValueError, match=f"cifar-10-batches-py/test_batch does not hold {content}; use the published"):
        load_cifar("cifar10", tmp_path, split="test")


def test_damaged_incomplete_and_oversized_files_are_refused(tmp_path: Path, small, monkeypatch: pytest.MonkeyPatch):
    files = pickled(cifar100_files())
    archive = tar_gz(files)
    path = tmp_path / "cifar-100-python.tar.gz"
    for content, message in (
        (archive[: len(archive) // 2], "cifar-100-python.tar.gz is damaged or cut short"),
        (tar_gz({"cifar-100-python/test": files["cifar-100-python/test"]}), "gz lacks cifar-100-python/train; use"),
        (tar_gz({"cifar-100-python/train": files["cifar-100-python/train"][:-9]}), "train in .*gz is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_cifar("cifar100", tmp_path, split="train")
    monkeypatch.setattr(cifar, "_LARGEST", 1000)
    write_files(tmp_path, {"cifar-100-python/test": bytes(1001)})
    with pytest.raises(ValueError, match="cifar-100-python/test has 1,001 bytes, far too many"):
        load_cifar("cifar100", tmp_path, split="test")


# Archives ------------------------------------------------------------------------------------------------------------


def test_members_are_read_in_archive_order_without_links_devices_or_other_names(tmp_path: Path):
    path = tmp_path / "a.tar.gz"
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    special = [tar_member("set/first", kind, "/etc/passwd") for kind in kinds]
    path.write_bytes(tar_gz({"/set/first": b"absolute", "../set/first": b"above", **MEMBERS}, *special))
    members = list(read_members(path, ["set/second", "set/first"], largest=5000))
    assert members == [("set/first", MEMBERS["set/first"]), ("set/second", MEMBERS["set/second"])]
    with pytest.raises(ValueError, match="a.tar.gz holds set/second of 2,000 bytes, far too many"):
        list(read_members(path, ["set/second"], largest=1999))


def test_reading_stops_at_the_last_wanted_member(tmp_path: Path):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz({"first": b"1", "noise": os.urandom(100_000)})[:50_000])
    assert list(read_members(path, ["first"], largest=10)) == [("first", b"1")]
    with pytest.raises(ValueError, match="a.tar.gz is damaged or cut short"):
        list(read_members(path, ["first", "noise"], largest=200_000))


# Pickles -------------------------------------------------------------------------------------------------------------


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [*range(pickle.HIGHEST_PROTOCOL + 1), "torch"])
@pytest.mark.parametrize(
    ("function", "named"),
    [
        (os.system, rf"{os.name}\.system"),
        (builtins.eval, r"((builtins|__builtin__)\.)?eval"),
        (subprocess.check_output, r"(subprocess|commands)\.check_output"),
        (np.fromfile, r"numpy\S*fromfile"),
        (np.zeros, r"numpy\S*zeros"),
    ],
)
def test_a_foreign_global_in_a_pickle_is_refused_and_not_run(tmp_path: Path, function, named, protocol):
    trace = tmp_path / "trace"
    hostile = Hostile(function, f"open({str(trace)!r}, 'w')" if function is builtins.eval else f"touch {trace}")
    with pytest.raises(ValueError, match=f"asks for the global {named}, which no CIFAR file needs: nothing was run"):
        if protocol == "torch":
            write_human(tmp_path, {**human("worse_label"), "more": hostile})
            load_cifar_n("cifar10n", tmp_path, labels="worse", official=OFFICIAL)
        else:
            read_pickle(pickle.dumps({"data": hostile}, protocol=protocol), source="batch")
    assert not trace.exists()


def array_with(shape: tuple[int, ...], content: bytes, *, code: str = "u1", order: str = "|", first: int = 0) -> bytes:
    """A pickled array that may be invalid."""
    array = python2_pickle({"data": np.zeros(1, dtype=np.uint8)})
    changes = [
        (b"U\x02u1", b"U" + bytes([len(code)]) + code.encode()),
        (b"U\x01|", b"U\x01" + order.encode()),
        (b"ndarray\nK\x00", b"ndarray\nJ" + struct.pack("<i", first)),
        (b"U\x01\x00", b"T" + struct.pack("<I", len(content)) + content),
        (b"(K\x01(K\x01t", b"(K\x01(" + b"".join(b"J" + struct.pack("<i", side) for side in shape) + b"t"),
    ]
    for old, new in changes:
        assert array.count(old) == 1
        array = array.replace(old, new)
    return array


def test_valid_arrays_are_read_and_invalid_ones_are_refused():
    array = read_pickle(array_with((2, 3), b"abcdef"), source="batch")["data"]
    assert array.tolist() == [[97, 98, 99], [100, 101, 102]]
    invalid = [
        array_with((2, 4), b"abcdef"),
        array_with((2**30, 2**30), b"abcdef"),
        array_with((-2, -3), b"abcdef"),
        array_with((1,) * 60, b"a"),
        array_with((2, 3), b"abcdef", first=2**31 - 1),  # numpy would take the memory for it
        array_with((2, 3), b"abcdef").replace(b"\x89T", b"\x88T"),  # column by column
        array_with((1,), b"abcdefgh", code="O8"),
        array_with((1,), b"abcdefgh", code="V8"),
        array_with((1,), b"abcdefgh", code="i8", order=">"),
        pickle.dumps({"data": np.array([Hostile(os.system, "exit 1")], dtype=object)}, protocol=2),
        b"",
        b"not a pickle at all",
        b"\x80\x02]q\x00.",  # a list
        b"\x80\x02}(K\x01K\x02u.",  # a key that is a number
        b"\x80\x02cnumpy\nndarray\n)R.",  # called, not reconstructed
        b"\x80\x02}K\x01b.",  # a state for a dict
    ]
    for content in invalid:
        with pytest.raises(ValueError, match="^batch (is damaged, cut short or no CIFAR file|asks for the global)"):
            read_pickle(content, source="batch")


# CIFAR-N -------------------------------------------------------------------------------------------------------------

OFFICIAL = np.arange(50_000) % 10


def human(*keys: str, classes: int = 10) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {"clean_label": OFFICIAL, **{key: random.integers(0, classes, 50_000) for key in keys}}


def write_human(folder: Path, stored: Any, name: str = "CIFAR-10_human.pt") -> Path:
    folder.mkdir(exist_ok=True)
    torch.save(stored, folder / name)
    return folder / name


@pytest.mark.parametrize("place", ["cifar-n", "."])
def test_every_kind_of_human_label_is_read(tmp_path: Path, place: str):
    stored = human(*LABEL_SETS["cifar10n"].values())
    write_human(tmp_path / place, stored)
    for name, key in LABEL_SETS["cifar10n"].items():
        labels = load_cifar_n("cifar10n", tmp_path, labels=name, official=OFFICIAL)
        assert np.array_equal(labels, stored[key]) and labels.dtype == np.int64 and labels.flags.writeable
    hundred = {**human("noisy_label", classes=100), "clean_coarse_label": [0] * 50_000}
    write_human(tmp_path, hundred, "CIFAR-100_human.pt")
    labels = load_cifar_n("cifar100n", tmp_path, labels="noisy", official=OFFICIAL)
    assert np.array_equal(labels, hundred["noisy_label"])


def test_missing_human_labels_and_different_clean_labels_are_clear_errors(tmp_path: Path):
    message = "holds neither cifar-n/CIFAR-10_human.pt nor CIFAR-10_human.pt; run `emabank data fetch cifar10n --data"
    with pytest.raises(FileNotFoundError, match=message):
        load_cifar_n("cifar10n", tmp_path, labels="worse", official=OFFICIAL)
    write_human(tmp_path, human("worse_label"))
    official = OFFICIAL.copy()
    official[[700, 20_000, 49_999]] = [5, 6, 7]
    message = r"differ from the official ones at 3 of 50,000 places, first at 700 \(0 there, 5 officially\)"
    with pytest.raises(ValueError, match=message):
        load_cifar_n("cifar10n", tmp_path, labels="worse", official=official)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"worse_label": np.zeros(49_999, np.int64)}, "worse_label"),
        ({"clean_label": np.full(50_000, -1)}, "clean_label"),
        ({"worse_label": torch.zeros(50_000, dtype=torch.int64)}, "worse_label"),
    ],
)
def test_human_labels_of_the_wrong_length_range_or_type_are_refused(tmp_path: Path, changes, key):
    write_human(tmp_path, {**human("worse_label"), **changes})
    with pytest.raises(ValueError, match=f"{key} in .*CIFAR-10_human.pt does not hold 50,000 labels from 0 to 9"):
        load_cifar_n("cifar10n", tmp_path, labels="worse", official=OFFICIAL)


def test_damaged_and_foreign_human_label_files_are_refused(tmp_path: Path):
    path = write_human(tmp_path, human("worse_label"))
    whole = path.read_bytes()
    contents = [b"", b"garbage" * 99, whole[:5000], whole[:-30], pickle.dumps(human("worse_label"), protocol=2)]
    for stored in (
        [1, 2, 3],
        {"worse_label": np.array([{}] * 50_000, dtype=object), "clean_label": OFFICIAL},
        {"worse_label": np.zeros(50_000, np.float64), "clean_label": OFFICIAL},
    ):
        contents.append(write_human(tmp_path, stored).read_bytes())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(70 * 2**20))  # unpacks to far too much
    contents.append(path.read_bytes())
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="CIFAR-10_human.pt is damaged, cut short or no CIFAR-N file"):
            load_cifar_n("cifar10n", tmp_path, labels="worse", official=OFFICIAL)


# The published files -------------------------------------------------------------------------------------------------


@PUBLISHED
def test_the_published_files_are_read():
    folder = os.environ["EMABANK_DATA"]
    (images, labels), (test_images, test_labels) = (
        load_cifar("cifar10", folder, split=split) for split in ("train", "test")
    )
    assert images.shape == (50_000, 3, 32, 32) and np.bincount(labels).tolist() == [5000] * 10
    assert test_images.shape == (10_000, 3, 32, 32) and np.bincount(test_labels).tolist() == [1000] * 10
    assert labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]  # as every tutorial shows: a frog, a truck, ...
    # The means that torchvision's users know.
    assert np.allclose(images.mean(axis=(0, 2, 3)) / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)
    # Wei et al. 2022, table 1, in percent.
    rates = {"aggregate": 9.03, "random1": 17.23, "random2": 18.12, "random3": 17.64, "worse": 40.21}
    for name, rate in rates.items():
        noisy = load_cifar_n("cifar10n", folder, labels=name, official=labels)
        assert 100 * np.mean(noisy != labels) == pytest.approx(rate, abs=0.03)
    _, labels = load_cifar("cifar100", folder, split="train")
    assert np.bincount(labels).tolist() == [500] * 100
    noisy = load_cifar_n("cifar100n", folder, labels="noisy", official=labels)
    assert 100 * np.mean(noisy != labels) == pytest.approx(40.20, abs=0.01)
