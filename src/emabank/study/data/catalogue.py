"""The data sets, as data: their files, sizes, checksums, sources and terms of use.

Standard library only. `download.py` checks a folder against this catalogue, and downloads from it.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class File:
    """A file in the data folder, at `path` or `elsewhere`; `checksum` is `md5:...` or `sha256:...`."""

    path: str
    size: int
    checksum: str
    elsewhere: str | None = None

    def find(self, folder: Path) -> Path | None:
        paths = [folder / path for path in (self.path, self.elsewhere) if path is not None]
        return next((path for path in paths if path.is_file()), None)


@dataclass(frozen=True)
class ImageFolders:
    """Published counts of a data set of image folders, whose images have no checksums of their own."""

    classes: int
    train: int  # images per class
    test: int  # images per class


@dataclass(frozen=True)
class Download:
    """A URL, the file there and, if that is an archive, its contents: listed files or image folders."""

    url: str
    file: File
    contents: tuple[File, ...] = ()
    image_folders: ImageFolders | None = None

    @property
    def is_archive(self) -> bool:
        """Whether it has to be unpacked."""
        return bool(self.contents) or self.image_folders is not None


@dataclass(frozen=True)
class DatasetInfo:
    """A data set under its command-line name; `needs` names the data sets whose files it also uses."""

    name: str
    title: str
    publisher: str
    terms: str
    downloads: tuple[Download, ...] = ()
    needs: tuple[str, ...] = ()


_KRIZHEVSKY = "Alex Krizhevsky, University of Toronto, https://www.cs.toronto.edu/~kriz/cifar.html"
_CIFAR_TERMS = (
    "no licence is stated; the publisher asks to cite Krizhevsky, Learning multiple layers of features from tiny "
    "images, 2009"
)
_UCSC = "Wei et al., ICLR 2022, http://www.noisylabels.com, https://github.com/UCSC-REAL/cifar-10-100n"
_UCSC_TERMS = "the licence of that repository, which is not a common one: read its LICENSE before any other use"
_UCSC_FILES = "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data"


def _cifar(name: str, title: str, archive: File, folder: str, *files: tuple[str, int, str]) -> DatasetInfo:
    contents = tuple(File(f"{folder}/{file}", size, f"md5:{md5}") for file, size, md5 in files)
    download = Download(f"https://www.cs.toronto.edu/~kriz/{archive.path}", archive, contents)
    return DatasetInfo(name, title, _KRIZHEVSKY, _CIFAR_TERMS, (download,))


CIFAR10 = _cifar(
    "cifar10",
    "CIFAR-10",
    File("cifar-10-python.tar.gz", 170498071, "md5:c58f30108f718f92721af3b95e74349a"),
    "cifar-10-batches-py",
    ("data_batch_1", 31035704, "c99cafc152244af753f735de768cd75f"),
    ("data_batch_2", 31035320, "d4bba439e000b95fd0a9bffe97cbabec"),
    ("data_batch_3", 31035999, "54ebc095f3ab1f0389bbae665268c751"),
    ("data_batch_4", 31035696, "634d18415352ddfa80567beed471001a"),
    ("data_batch_5", 31035623, "482c414d41f54cd18b22e5b47cb7c3cb"),
    ("test_batch", 31035526, "40351d587109b95175f43aff81a1287e"),
    ("batches.meta", 158, "5ff9c542aee3614f3951f8cda6e48888"),
)
CIFAR100 = _cifar(
    "cifar100",
    "CIFAR-100",
    File("cifar-100-python.tar.gz", 169001437, "md5:eb9058c3a382ffc7106e4002c42a8d85"),
    "cifar-100-python",
    ("train", 155249918, "16019d7e3df5f24257cddd939b257f8d"),
    ("test", 31049707, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
    ("meta", 1473, "7973b15100ade9c7d40fb424638fde48"),
)


def _cifar_n(name: str, title: str, needs: str, file: str, size: int, sha256: str) -> DatasetInfo:
    """Nobody publishes checksums of these files: the SHA-256 are those of the copies that emabank was built with."""
    labels = File(f"cifar-n/{file}", size, f"sha256:{sha256}", elsewhere=file)
    return DatasetInfo(name, title, _UCSC, _UCSC_TERMS, (Download(f"{_UCSC_FILES}/{file}", labels),), (needs,))


CIFAR10N = _cifar_n(
    name="cifar10n",
    title="CIFAR-10N",
    needs="cifar10",
    file="CIFAR-10_human.pt",
    size=2401007,
    sha256="873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310",
)
CIFAR100N = _cifar_n(
    name="cifar100n",
    title="CIFAR-100N",
    needs="cifar100",
    file="CIFAR-100_human.pt",
    size=1000959,
    sha256="bd2d80409754d420292d622e15e25248ba21e37d27429efac49c8da723f44394",
)

TINY_IMAGENET = DatasetInfo(
    name="tiny-imagenet",
    title="Tiny-ImageNet-200",
    publisher="Stanford CS231n, from ImageNet, http://cs231n.stanford.edu",
    terms="no licence is stated; ImageNet's images are for non-commercial research and education",
    downloads=(
        Download(
            url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            file=File("tiny-imagenet-200.zip", 248100043, "md5:90528d7ca1a48142e341f4ef8d21d0de"),
            image_folders=ImageFolders(classes=200, train=500, test=50),
        ),
    ),
)

DIGITS = DatasetInfo(
    name="digits",
    title="Optical Recognition of Handwritten Digits, test set",
    publisher="Alpaydin and Kaynak, UCI Machine Learning Repository",
    terms="CC BY 4.0; embedded in this package",
)

DATASETS: dict[str, DatasetInfo] = {
    dataset.name: dataset for dataset in (DIGITS, CIFAR10, CIFAR100, CIFAR10N, CIFAR100N, TINY_IMAGENET)
}


def find_dataset(name: str) -> DatasetInfo:
    """The data set of this name; `ValueError` lists the known names."""
    if name not in DATASETS:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name]


def advice(name: str, folder: Path) -> str:
    """How to get the files of a data set: the end of every error about missing ones."""
    fetch, check = (f"`emabank data {action} {name} --data {folder}`" for action in ("fetch", "check"))
    return f"run {fetch}; {check} says what is missing"
