"""Files of safetensors and torch, shards and folders: their contents are kept, damage and code are refused."""

import argparse
import json
import math
import os
import pickle
import struct
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from emabank import BestTracker, EMABank, checkpoint
from emabank.averaging import average_checkpoints, plan_average
from emabank.averaging.formats import chunks
from tests.support.files import assert_average, everything_in, mean, read, state, write, write_all
from tests.support.models import Tied
from tests.support.oracle import assert_equal

# Chunks --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), max_size=4).map(tuple), st.integers(1, 50))
def test_chunks_are_the_tensor_in_order(shape: tuple[int, ...], limit: int):
    tensor = torch.arange(math.prod(shape)).view(shape)
    elements: list[int] = []
    for chunk in chunks(shape, limit):
        elements += range(chunk.start, chunk.stop)
        assert tensor[chunk.index].reshape(-1).tolist() == list(range(chunk.start, chunk.stop))
        assert 0 < chunk.stop - chunk.start <= limit
    assert elements == list(range(tensor.numel()))


# safetensors ---------------------------------------------------------------------------------------------------------

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32]
DTYPES += [torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool]


def write_raw(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_safetensors_files_of_every_dtype_agree_with_the_package(tmp_path: Path):
    tensors = {str(dtype): torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype) for dtype in DTYPES}
    tensors |= {"größe": torch.ones(3), 'a / "quoted" name': torch.ones(()), "empty": torch.zeros(0, 2)}
    metadata = {"format": "pt", "note": "größe\n"}
    for name in ("1.safetensors", "2.SAFETENSORS"):
        save_file(tensors, tmp_path / name, metadata)
    average_checkpoints([tmp_path / "1.safetensors", tmp_path / "2.SAFETENSORS"], tmp_path / "average.safetensors")
    assert_equal(load_file(tmp_path / "average.safetensors"), tensors)
    with safe_open(tmp_path / "average.safetensors", framework="pt") as file:
        assert file.metadata() == metadata


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"not JSON", b""),
        (b"[" * 50_000, b""),
        ([1], b""),
        ({"a": 3}, b""),
        ({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
        ({"a": entry("F32", [1], 0, 8)}, b"12345678"),
        ({"a": entry("F32", [2], 0, 4)}, b"1234"),
        ({"a": entry("F32", [1], 4, 8)}, b"12345678"),
        ({"a": entry("F32", [-1], 0, -4)}, b""),
        ({"a": entry("F32", [2**62, 2**62], 0, 4)}, b"1234"),
        ({"a": entry("F32", [True], 0, 4)}, b"1234"),
        ({"a": entry("F32", [1], 0, 4)}, b"12345"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, b"1234"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, b"123456"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, b"12345678"),
        ({"a": entry("F32", [1], 4, 8), "b": entry("F32", [1], 4, 8)}, b"12345678"),
        ({"__metadata__": [1], "a": entry("F32", [1], 0, 4)}, b"1234"),
        (None, b"{}"),  # a header larger than the file
    ],
)
def test_a_wrong_safetensors_header_is_refused(tmp_path: Path, header: Any, data: bytes):
    path = write_raw(tmp_path / "1.safetensors", header, data)
    if header is None:
        path.write_bytes(struct.pack("<Q", 2**62) + data)
    with pytest.raises(ValueError, match=r"1\.safetensors is damaged"):
        average_checkpoints([path, path], tmp_path / "average.safetensors")
    assert everything_in(tmp_path) == ["1.safetensors"]


def test_an_unknown_dtype_is_refused(tmp_path: Path):
    path = write_raw(tmp_path / "1.safetensors", {"a": entry("F4", [2], 0, 1)}, b"1")
    with pytest.raises(ValueError, match="'a' is F4"):
        plan_average([path, path])


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path):
    paths = write_all(tmp_path, ".safetensors", [{"a": torch.ones(100), "b": torch.ones(100)}] * 2)

    def shrink(done: int, total: int) -> None:
        paths[0].write_bytes(paths[0].read_bytes()[:-40])

    with pytest.raises(ValueError, match=r"step-0\.safetensors became shorter"):
        average_checkpoints(paths, tmp_path / "average.safetensors", progress=shrink)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("keep", [0, 3, 8, 60, 0.5, 0.99, -1])
def test_a_truncated_file_is_named(tmp_path: Path, suffix: str, keep: float):
    intact = write(tmp_path / f"1{suffix}", state(1)).read_bytes()
    truncated = tmp_path / f"2{suffix}"
    truncated.write_bytes(intact[: int(keep * len(intact)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match=rf"2\{suffix} is damaged"):
        plan_average([truncated, tmp_path / f"1{suffix}"])


# torch ---------------------------------------------------------------------------------------------------------------


class TiedNorm(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)


def save(path: Path, content: Any, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def compress(path: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return path


def test_tied_tensors_stay_tied_and_are_written_once(tmp_path: Path):
    paths, states = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(TiedNorm().state_dict())
        paths.append(save(tmp_path / f"{seed}.pt", states[-1]))
    totals: list[int] = []
    average_checkpoints(paths, tmp_path / "average.pt", progress=lambda done, total: totals.append(total))
    average = read(tmp_path / "average.pt")
    assert average["embed.weight"].data_ptr() == average["out.weight"].data_ptr()
    assert_average(average, mean(states))
    assert totals[-1] == sum(tensor.nbytes for name, tensor in states[0].items() if name != "out.weight")
    assert TiedNorm().load_state_dict(average)


def test_tensors_tied_in_one_checkpoint_only_are_untied(tmp_path: Path):
    torch.manual_seed(0)
    tied, untied = TiedNorm().state_dict(), TiedNorm().state_dict()
    untied["out.weight"] = untied["out.weight"] + 1
    for name, states in (("a", (tied, untied)), ("b", (untied, tied))):
        paths = [save(tmp_path / f"{name}{step}.pt", state) for step, state in enumerate(states)]
        average_checkpoints(paths, tmp_path / f"{name}.pt")
        assert_average(read(tmp_path / f"{name}.pt"), mean(states))


def test_a_flipped_bit_is_detected_and_the_file_is_named(tmp_path: Path):
    paths = write_all(tmp_path, ".pt", [{"weight": torch.full((50,), 2.5)}, {"weight": torch.full((50,), 3.5)}])
    content = bytearray(paths[0].read_bytes())
    content[content.index(struct.pack("<50f", *[2.5] * 50)) + 81] ^= 1
    paths[0].write_bytes(content)
    assert torch.load(paths[0], weights_only=True)["weight"].isfinite().all(), "torch itself does not notice"
    with pytest.raises(ValueError, match=r"step-0\.pt is damaged: .* checksum"):
        average_checkpoints(paths, tmp_path / "average.pt")
    assert not (tmp_path / "average.pt").exists()
    plan_average(paths)  # reads no values


def test_a_file_saved_without_checksums_is_averaged(tmp_path: Path):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        paths = write_all(tmp_path, ".pt", [state(1), state(2)])
    finally:
        torch.serialization.set_crc32_options(before)
    with zipfile.ZipFile(paths[0]) as archive:
        assert archive.testzip() is not None
    average_checkpoints(paths, tmp_path / "average.pt")
    assert_average(read(tmp_path / "average.pt"), mean([state(1), state(2)]))


def test_module_versions_extra_state_and_parameters_are_kept(tmp_path: Path):
    paths = []
    for seed in (1, 2):
        content: dict[str, Any] = TiedNorm().state_dict()
        content["extra._extra_state"] = {"seen": seed}
        content["free"] = nn.Parameter(torch.full((2,), float(seed)))
        paths.append(save(tmp_path / f"{seed}.pt", content))
    average_checkpoints(paths, tmp_path / "average.pt")
    average: Any = read(tmp_path / "average.pt")
    assert type(average) is OrderedDict and average._metadata["norm"] == {"version": 2}
    assert average["extra._extra_state"] == {"seen": 2}
    assert type(average["free"]) is nn.Parameter and average["free"].requires_grad
    assert average["free"].tolist() == [1.5, 1.5]
    assert list(average) == list(torch.load(paths[-1], weights_only=True))


def test_views_and_memory_layouts_are_averaged_by_value(tmp_path: Path):
    states = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        large = torch.randn(40, 50, generator=generator)
        images = torch.randn(4, 3, 5, 5, generator=generator)
        states.append(
            {
                "slice": large[3:7, 2:9],
                "transposed": large.t(),
                "images": images.to(memory_format=torch.channels_last) if seed == 2 else images,
                "conjugate": torch.randn(3, dtype=torch.complex128, generator=generator).conj(),
                "expanded": torch.full((1,), float(seed)).expand(5),
            }
        )
    average_checkpoints(write_all(tmp_path, ".pt", states), tmp_path / "average.pt")
    assert_average(read(tmp_path / "average.pt"), mean(states))


def test_a_lazy_conjugate_is_copied_by_value(tmp_path: Path):
    vector = torch.tensor([1 + 2j, 3 - 4j]).conj()
    paths = write_all(tmp_path, ".pt", [{"weight_orig": torch.ones(2, 2), "weight_u": vector}] * 2)
    assert plan_average(paths).copied == ("weight_u",)
    average_checkpoints(paths, tmp_path / "average.pt")
    assert read(tmp_path / "average.pt")["weight_u"].tolist() == [1 - 2j, 3 + 4j]


def test_a_tensor_and_its_lazy_conjugate_are_not_tied(tmp_path: Path):
    states = [{"weight": value, "adjoint": value.conj()} for value in (torch.tensor([1 + 2j]), torch.tensor([3 - 4j]))]
    average_checkpoints(write_all(tmp_path, ".pt", states), tmp_path / "average.pt")
    assert read(tmp_path / "average.pt")["weight"].tolist() == [2 - 1j]
    assert read(tmp_path / "average.pt")["adjoint"].tolist() == [2 + 1j]


def test_the_state_dict_is_detected_or_chosen_by_key(tmp_path: Path):
    one = write_all(tmp_path / "one", ".pt", [{"generator": state(seed), "step": seed} for seed in (1, 2)])
    assert plan_average(one).key == "generator"
    two = write_all(tmp_path / "two", ".pt", [{"net": state(seed), "ema": state(seed + 5)} for seed in (1, 2)])
    with pytest.raises(ValueError, match="'net', 'ema'"):
        plan_average(two)
    average_checkpoints(two, tmp_path / "average.pt", key="ema")
    average = read(tmp_path / "average.pt")
    assert_average(average["ema"], mean([state(6), state(7)]))
    assert_equal(average["net"], state(2))
    with pytest.raises(ValueError, match="^key must .* got 'emma', .*'net', 'ema'"):
        plan_average(two, key="emma")


@pytest.mark.parametrize("kind", ["before torch 1.6", "compressed"])
def test_a_file_that_cannot_be_read_in_parts_is_loaded_completely_and_listed(tmp_path: Path, kind: str):
    states = [state(1), state(2)]
    paths = write_all(tmp_path, ".pt", states)
    if kind == "compressed":
        compress(paths[0])
    else:
        save(paths[0], states[0], _use_new_zipfile_serialization=False)
    assert average_checkpoints(paths, tmp_path / "average.pt").in_memory == (paths[0],)
    assert_average(read(tmp_path / "average.pt"), mean(states))


def test_files_that_expand_to_many_times_their_size_are_refused(tmp_path: Path):
    archive = compress(save(tmp_path / "1.pt", {"state_dict": state(1), "optimizer": torch.zeros(20_000_000)}))
    assert archive.stat().st_size < 2**20
    with pytest.raises(ValueError, match=r"1\.pt .*many times its size"):
        plan_average([archive])
    with pytest.raises(ValueError, match=r"2\.pt .*more tensor data than the file contains"):
        plan_average([save(tmp_path / "2.pt", {"weight": torch.zeros(1).expand(20_000_000)})])


def test_exported_averages_and_snapshots_of_emabank_are_averaged(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    bank = EMABank(model, [0.5], every=1)
    tracker = BestTracker(bank, {"loss": "min"}, snapshots="each", folder=tmp_path / "snapshots")
    states = []
    for epoch in (1, 2):
        with torch.no_grad():
            model.weight.add_(1)
        bank.update()
        for suffix in (".pt", ".safetensors"):
            checkpoint.export(bank, 0.5, tmp_path / f"{epoch}{suffix}")
        states.append(bank.weights(0.5))
        tracker.observe(epoch, {name: {"loss": 1.0 / epoch} for name in bank.names})
    for suffix in (".pt", ".safetensors"):
        average_checkpoints([tmp_path / f"{epoch}{suffix}" for epoch in (1, 2)], tmp_path / f"average{suffix}")
        assert_average(read(tmp_path / f"average{suffix}"), mean(states))
    snapshots = sorted((tmp_path / "snapshots").glob("*.pt"))
    assert snapshots
    average_checkpoints(snapshots, tmp_path / "snapshot.pt")
    average = read(tmp_path / "snapshot.pt")
    assert sorted(average) == ["bias", "weight"], "a plain state dict: the checksum would not match"
    assert model.load_state_dict(average)


def test_a_bank_is_refused_with_a_pointer_to_export(tmp_path: Path):
    path = tmp_path / "bank.pt"
    checkpoint.save(EMABank(nn.Linear(2, 2), [0.9]), path)
    with pytest.raises(ValueError, match=r"emabank\.checkpoint\.export"):
        plan_average([path, path])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["EVIL"],)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool):
    monkeypatch.setenv("EVIL", str(tmp_path / "executed"))
    contents = [
        {"weight": torch.ones(2), "evil": Evil()},
        {"state_dict": state(1), "args": argparse.Namespace(evil=Evil())},
    ]
    for content in contents:
        path = save(tmp_path / "1.pt", content, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match=r"1\.pt .*mkdir"):
            average_checkpoints([path, path], tmp_path / "average.pt")
    (tmp_path / "2.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"2\.pt "):
        plan_average([tmp_path / "2.pt"])
    assert everything_in(tmp_path) == ["1.pt", "2.pt"]
    torch.load(tmp_path / "1.pt", weights_only=False)  # without protection the code runs
    assert (tmp_path / "executed").is_dir()


def test_argparse_namespaces_are_kept_and_other_classes_are_refused(tmp_path: Path):
    unsafe = save(tmp_path / "1.ckpt", {"state_dict": state(1), "hyper_parameters": types.SimpleNamespace(lr=0.1)})
    with pytest.raises(ValueError, match=r"1\.ckpt .*types\.SimpleNamespace"):
        plan_average([unsafe, unsafe])
    arguments = argparse.Namespace(lr=0.1, layers=[1, 2])
    paths = write_all(tmp_path, ".ckpt", [{"state_dict": state(seed), "args": arguments} for seed in (1, 2)])
    average_checkpoints(paths, tmp_path / "average.ckpt")
    assert torch.load(tmp_path / "average.ckpt", weights_only=False)["args"] == arguments
    with pytest.raises(UnpicklingError):  # the permission ends with the call
        torch.load(tmp_path / "average.ckpt", weights_only=True)


@pytest.mark.parametrize("content", [3, [torch.ones(2)], {"a": 1}, {}, torch.ones(2)])
def test_a_file_without_a_state_dict_is_named(tmp_path: Path, content: Any):
    path = save(tmp_path / "1.pt", content)
    with pytest.raises(ValueError, match=r"1\.pt has no state dict"):
        plan_average([path, path])


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize(
    ("tensor", "message"),
    [(torch.eye(3).to_sparse(), r"sparse_coo"), (torch.ones(3).to(torch.float8_e4m3fn), r"float8_e4m3fn \[3\]")],
    ids=["sparse", "8 bits"],
)
def test_tensors_that_cannot_be_averaged_are_named(tmp_path: Path, tensor: torch.Tensor, message: str):
    path = save(tmp_path / "1.pt", {"odd": tensor})
    with pytest.raises(ValueError, match=rf"1\.pt: tensor 'odd' .*{message}"):
        plan_average([path, path])


# Folders and shards --------------------------------------------------------------------------------------------------


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], suffix: str = ".safetensors") -> Path:
    """A checkpoint in two files, with an index like that of transformers."""
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    weight_map: dict[str, str] = {}
    for shard in (0, 1):
        name = f"{stem}-0000{shard + 1}-of-00002{suffix}"
        names = list(tensors)[shard::2]
        write(folder / name, {key: tensors[key] for key in names})
        weight_map |= dict.fromkeys(names, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
@pytest.mark.parametrize("by_index", [False, True])
def test_sharded_checkpoints_are_averaged(tmp_path: Path, suffix: str, by_index: bool):
    folders = [write_shards(tmp_path / f"checkpoint-{step}", state(step), suffix) for step in (1, 2)]
    (index,) = folders[1].glob("*.index.json")
    paths = [folder / index.name for folder in folders] if by_index else folders
    average_checkpoints(paths, tmp_path / "average")
    assert everything_in(tmp_path / "average") == everything_in(folders[1])
    assert (tmp_path / "average" / index.name).read_bytes() == index.read_bytes()
    average: dict[str, Any] = {}
    for path in (tmp_path / "average").glob("*-of-*"):
        average |= read(path)
    assert_average(average, mean([state(1), state(2)]))


def test_shards_and_a_single_file_are_averaged(tmp_path: Path):
    folders = [write_shards(tmp_path / "1", state(1)), tmp_path / "2"]
    write(folders[1] / "model.safetensors", state(2))
    average_checkpoints(folders, tmp_path / "average")
    assert everything_in(tmp_path / "average") == ["model.safetensors"]
    assert_average(read(tmp_path / "average/model.safetensors"), mean([state(1), state(2)]))


def test_model_files_are_copied_and_training_state_is_not(tmp_path: Path):
    for step in (1, 2):
        write(tmp_path / str(step) / "model.safetensors", state(step))
    copied = {"config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "README.md"}
    skipped = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "trainer_state.json", "model.onnx"}
    skipped |= {"pytorch_model.bin.index.json", "tf_model.h5", ".hidden", "random_states_0.pkl"}
    for name in copied | skipped:
        (tmp_path / "2" / name).write_text(name)
    with open(tmp_path / "2" / "corpus.txt", "wb") as large:
        large.truncate(65 * 2**20)
    (tmp_path / "2" / "global_step5").mkdir()
    average_checkpoints([tmp_path / "1", tmp_path / "2"], tmp_path / "average")
    assert set(everything_in(tmp_path / "average")) == copied | {"model.safetensors"}
    assert all((tmp_path / "average" / name).read_text() == name for name in copied)


@pytest.mark.parametrize("name", ["../1/secret.safetensors", "/etc/passwd", "..", ".", "a\\b.safetensors", "", 3, None])
def test_an_index_cannot_name_files_outside_its_folder(tmp_path: Path, name: Any):
    write(tmp_path / "1/secret.safetensors", state(1))
    write_shards(tmp_path / "2", state(2))
    (tmp_path / "2/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"scale": name}}))
    with pytest.raises(ValueError, match=str(tmp_path / "2")):
        plan_average([tmp_path / "2"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "[" * 50_000, "\ufeff{"])
def test_an_invalid_index_is_named(tmp_path: Path, text: str):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        plan_average([tmp_path])


def test_an_index_that_does_not_match_its_shards_is_refused(tmp_path: Path):
    folder = write_shards(tmp_path / "1", state(1))
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"'ghost' in model-00001-of-00002\.safetensors"):
        plan_average([folder])
    content["weight_map"] = {"conv.weight": "model-00003-of-00003.safetensors"}
    index.write_text(json.dumps(content))
    with pytest.raises(FileNotFoundError):
        plan_average([folder])


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path):
    folder = write_shards(tmp_path / "1", state(1))
    write(folder / "model-00002-of-00002.safetensors", state(1))
    with pytest.raises(ValueError, match=r"'conv\.weight' twice"):
        plan_average([folder])


def test_paths_that_are_not_checkpoints_are_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("notes")
    for path in (tmp_path / "notes.txt", tmp_path):
        with pytest.raises(ValueError, match=path.name):
            plan_average([path])
    with pytest.raises(FileNotFoundError):
        plan_average([tmp_path / "missing.pt"])
