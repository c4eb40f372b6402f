"""Who takes part: the limit, the bank and its peers are what they say; who cannot take part says why."""

import pytest
import torch

from emabank.bench import update
from emabank.bench.interleave import ColdCaches, check_moves
from emabank.bench.peers import (
    BANK,
    DECAYS,
    LIMIT,
    OURS,
    PAST_WARMUP,
    PLAIN,
    NotAvailable,
    all_peers,
    decays,
    emabank_bank,
    installed,
    memory_limit,
    torch_averaged_model,
)
from emabank.bench.zoo import averaged_tensors, build


def test_a_peer_is_seen_to_average():
    contestant = torch_averaged_model("torch", torch.nn.Linear(3, 2), 2, use_buffers=False)
    check_moves(contestant, ColdCaches())


def test_decays_are_the_papers_and_all_different():
    assert decays(5) == list(DECAYS)
    assert len(set(decays(20))) == 20
    assert all(0.998 < decay < 1 for decay in decays(20)[5:])


def test_an_average_holds_each_parameter_once_and_the_running_statistics():
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    tied[1].weight = tied[0].weight
    assert sum(tensor.numel() for tensor in averaged_tensors(tied)) == 4 + 2 + 2 + 4 + 4
    assert len(averaged_tensors(build("small1000"))) == 1000
    with pytest.raises(ValueError, match="there is no model 'vgg'"):
        build("vgg")


@pytest.mark.parametrize(("name", "averaged"), [(BANK, True), (PLAIN, False), (PAST_WARMUP, True)])
def test_the_bank_that_is_named_plain_leaves_batch_norm_out(name, averaged):
    model = torch.nn.BatchNorm1d(3)
    contestant = emabank_bank(model, 1, name)
    bank = contestant.update.__self__
    model.running_mean.fill_(1.0)
    contestant.update()
    model.running_mean.fill_(5.0)
    contestant.update()
    mean = bank.weights(bank.names[0])["running_mean"]
    assert bool((mean != 5.0).all()) is averaged


def test_the_limit_moves_as_much_memory_as_the_averages_whatever_room_it_has(monkeypatch):
    moved = []
    multiply = torch.Tensor.mul_
    monkeypatch.setattr(torch.Tensor, "mul_", lambda x, *a: (moved.append(x.numel()), multiply(x, *a))[1])
    for room in (10**6, 100, 70):
        monkeypatch.setattr("emabank.bench.peers.LIMIT_ELEMENTS", room)
        moved.clear()
        memory_limit(torch.nn.Linear(9, 7, bias=False), 5).update()
        assert sum(moved) == 5 * 63
        assert max(moved) <= room


def test_a_package_that_is_missing_or_broken_says_so(tmp_path, monkeypatch):
    with pytest.raises(NotAvailable, match="^not installed$"):
        installed("surely_missing", "surely_missing.part")
    (tmp_path / "broken_peer.py").write_text("import surely_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotAvailable, match="cannot be imported .*surely_missing"):
        installed("broken-peer", "broken_peer")


def test_a_case_has_rows_for_all_who_take_part_and_reasons_for_the_others(monkeypatch):
    def nobody(package, module):
        raise NotAvailable(f"no {package}")

    monkeypatch.setattr("emabank.bench.interleave.FEWEST_ROUNDS", 2)
    found = update.run_case("resnet20", 1, all_peers(nobody), seconds=0.01)
    assert [row.name for row in found.rows][: 1 + len(OURS)] == [LIMIT, *OURS]
    assert {row.name for row in found.rows[1 + len(OURS) :]} == {"torch AveragedModel", "torch AveragedModel, buffers"}
    assert found.missing["timm ModelEmaV3"] == "no timm"


def test_where_memory_is_short_the_bank_alone_meets_the_limit(monkeypatch):
    monkeypatch.setattr("emabank.bench.interleave.FEWEST_ROUNDS", 2)
    monkeypatch.setattr(update, "available_bytes", lambda device: 10**6)
    found = update.run_case("resnet20", 1, all_peers()[:2], seconds=0.01)
    assert [row.name for row in found.rows] == [LIMIT, BANK]
    assert found.missing == {peer.name: update.NO_ROOM for peer in all_peers()[:2]}


def test_progress_is_one_line_that_goes_away_on_a_terminal_and_one_sentence_elsewhere(monkeypatch, capsys):
    for terminal in (True, False):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        show = update.progress("resnet20")
        for line in ("1 round", "2 rounds", ""):
            show(line)
        said = capsys.readouterr().err
        assert said == ("\r\033[Kresnet20: 1 round\r\033[Kresnet20: 2 rounds\r\033[K" if terminal else "resnet20 ...\n")
