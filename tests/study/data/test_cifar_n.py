"""CIFAR-N: every kind of human label, aligned with the official order; files that are not it run nothing."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from emabank.study.data.cifar import NOISES, HumanLabels, check_alignment, load_cifar, load_cifar_n

PUBLISHED = pytest.mark.skipif(
    "EMABANK_DATA" not in os.environ, reason="EMABANK_DATA names no folder of published data"
)
KEYS = {
    "aggregate": "aggre_label",
    "worse": "worse_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
}


def made_up(*keys: str, classes: int = 10) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {key: random.integers(0, classes, 50_000) for key in ("clean_label", *keys)}


@pytest.mark.parametrize("place", ["cifar-n", "."])
def test_every_kind_of_label_is_found(tmp_path: Path, place: str):
    (tmp_path / place).mkdir(exist_ok=True)
    stored = made_up(*KEYS.values())
    torch.save(stored, tmp_path / place / "CIFAR-10_human.pt")
    for name, key in KEYS.items():
        found = load_cifar_n("cifar10n", tmp_path, labels=name)
        assert np.array_equal(found.labels, stored[key]) and found.labels.dtype == np.int64
        assert np.array_equal(found.clean, stored["clean_label"])
        assert found.labels.flags.writeable


def test_cifar100n_has_one_kind_and_a_list_beside_it(tmp_path: Path):
    stored = made_up("noisy_label", classes=100)
    torch.save({**stored, "clean_coarse_label": [0] * 50_000}, tmp_path / "CIFAR-100_human.pt")
    assert np.array_equal(load_cifar_n("cifar100n", tmp_path, labels="noisy").labels, stored["noisy_label"])


@pytest.mark.parametrize(
    ("name", "labels", "said"),
    [
        ("cifar10", "worse", "name is 'cifar10'; give one of cifar10n, cifar100n"),
        ("cifar10n", "noisy", "labels is 'noisy'; cifar10n has aggregate, worse, random1, random2, random3"),
        ("cifar100n", "worse", "labels is 'worse'; cifar100n has noisy"),
    ],
)
def test_other_names_are_refused(tmp_path: Path, name: str, labels: str, said: str):
    with pytest.raises(ValueError, match=said):
        load_cifar_n(name, tmp_path, labels=labels)


def test_a_missing_file_is_named_with_both_its_places(tmp_path: Path):
    said = "holds neither cifar-n/CIFAR-10_human.pt nor CIFAR-10_human.pt; run `emabank data fetch cifar10n --data"
    with pytest.raises(FileNotFoundError, match=said):
        load_cifar_n("cifar10n", tmp_path, labels="worse")


# Alignment -----------------------------------------------------------------------------------------------------------


def test_aligned_labels_pass_and_others_are_counted():
    official = np.arange(50_000) % 10
    human = HumanLabels(np.zeros(50_000, np.int64), official.copy(), "it")
    check_alignment(human, official)
    human.clean[[700, 20_000, 49_999]] = [5, 6, 7]
    said = r"differ from the official ones at 3 of 50,000 places, first at 700 \(5 there, 0 officially\)"
    with pytest.raises(ValueError, match=said):
        check_alignment(human, official)
    with pytest.raises(ValueError, match="it has 50,000 labels and the official files have 10,000; use both"):
        check_alignment(human, official[:10_000])


# Other files ---------------------------------------------------------------------------------------------------------


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "named"),
    [(os.system, f"{os.name}.system"), (eval, r"(builtins\.)?eval"), (np.fromfile, r"numpy\S*fromfile")],
)
def test_a_global_is_named_and_nothing_is_run(tmp_path: Path, function, named):
    trace = tmp_path / "trace"
    argument = f"open({str(trace)!r}, 'w')" if function is eval else f"touch {trace}"
    torch.save({**made_up("worse_label"), "more": Hostile(function, argument)}, tmp_path / "CIFAR-10_human.pt")
    said = f"CIFAR-10_human.pt asks for the global {named}, which no CIFAR-N file needs: nothing was run"
    with pytest.raises(ValueError, match=said):
        load_cifar_n("cifar10n", tmp_path, labels="worse")
    assert not trace.exists()


@pytest.mark.parametrize(
    "stored",
    [
        [1, 2, 3],
        {"worse_label": np.array([{}] * 50_000, dtype=object), "clean_label": np.zeros(50_000, np.int64)},
        {"worse_label": np.zeros(50_000, np.float64), "clean_label": np.zeros(50_000, np.int64)},
    ],
)
def test_other_content_is_refused(tmp_path: Path, stored):
    torch.save(stored, tmp_path / "CIFAR-10_human.pt")
    with pytest.raises(ValueError, match="CIFAR-10_human.pt is damaged, cut short or no CIFAR-N file"):
        load_cifar_n("cifar10n", tmp_path, labels="worse")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"worse_label": np.zeros(49_999, np.int64)}, "worse_label in .* holds 49,999 labels, where 50,000 belong"),
        ({"worse_label": np.full(50_000, 10)}, "worse_label in .* holds labels from 10 to 10, where 0 to 9 belong"),
        ({"clean_label": np.full(50_000, -1)}, "clean_label in .* holds labels from -1 to -1"),
        ({"worse_label": "text"}, "worse_label in .* not a list of whole numbers"),
        ({"worse_label": torch.zeros(50_000, dtype=torch.int64)}, "worse_label in .* not a list of whole numbers"),
    ],
)
def test_labels_that_do_not_fit_are_named(tmp_path: Path, changes, said):
    torch.save({**made_up("worse_label"), **changes}, tmp_path / "CIFAR-10_human.pt")
    with pytest.raises(ValueError, match=said):
        load_cifar_n("cifar10n", tmp_path, labels="worse")


def test_damaged_files_are_said_in_a_sentence(tmp_path: Path):
    path = tmp_path / "CIFAR-10_human.pt"
    torch.save(made_up("worse_label"), path)
    whole = path.read_bytes()
    for content in (b"", b"garbage" * 99, whole[:5000], whole[:-30], pickle.dumps(made_up("worse_label"), protocol=2)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="CIFAR-10_human.pt is damaged, cut short or no CIFAR-N file"):
            load_cifar_n("cifar10n", tmp_path, labels="worse")


def test_a_file_that_unpacks_to_far_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emabank.study.data.cifar._LARGEST_LABELS", 1_000_000)
    with zipfile.ZipFile(tmp_path / "CIFAR-10_human.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(2_000_000))
    with pytest.raises(ValueError, match="CIFAR-10_human.pt is damaged") as caught:
        load_cifar_n("cifar10n", tmp_path, labels="worse")
    assert str(caught.value.__cause__) == "far too large"


@PUBLISHED
def test_the_published_labels_have_the_published_noise():
    folder = os.environ["EMABANK_DATA"]
    official = load_cifar("cifar10", folder, split="train").labels
    # Wei et al. 2022, table 1, in percent.
    rates = {"aggregate": 9.03, "random1": 17.23, "random2": 18.12, "random3": 17.64, "worse": 40.21}
    assert set(rates) == set(NOISES["cifar10n"])
    for name, rate in rates.items():
        found = load_cifar_n("cifar10n", folder, labels=name)
        check_alignment(found, official)
        assert 100 * np.mean(found.labels != official) == pytest.approx(rate, abs=0.03)
    found = load_cifar_n("cifar100n", folder, labels="noisy")
    assert 100 * np.mean(found.labels != found.clean) == pytest.approx(40.20, abs=0.01)
    assert np.bincount(found.clean).tolist() == [500] * 100
