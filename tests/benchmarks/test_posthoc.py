"""The measurement of docs/posthoc.md on a run of two epochs: every average, every number of snapshots, a table."""

import posthoc
import pytest
import torch
from posthoc import Found, main, table


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_average_is_compared_for_every_number_of_snapshots(tmp_path):
    with torch.random.fork_rng():
        found = posthoc.measure(0, 2, (21, 3), tmp_path, None)
    assert {each.snapshots for each in found} == {2, 14}
    assert len(found) == 2 * 2 * 7
    by_count = {
        count: [each for each in found if each.snapshots == count and each.rule == "EMA, half-life 10%"]
        for count in (2, 14)
    }
    for few, many in zip(by_count[2], by_count[14], strict=True):
        assert many.told < few.told and many.off < few.off
    assert all(0 <= each.points <= 100 for each in found)


def test_a_table_has_the_means():
    found = [Found("slow", 8, 0.1, 0.02, 1.0), Found("slow", 8, 0.3, 0.04, 2.0), Found("slow", 24, 0.01, 0.0, 0.0)]
    assert table(found).splitlines()[-1] == "| slow | 0.2 / 3% / 1.50 | 0.01 / 0% / 0.00 |"


def test_it_runs_from_the_command_line(capsys):
    with torch.random.fork_rng():
        assert main(["--seeds", "1", "--epochs", "2", "--apart", "3", "--half"]) == 0
    said = capsys.readouterr().out
    assert "| 14 snapshots |" in said and "'torch': " in said
