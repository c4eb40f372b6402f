"""Two processes that want the same study: one has it, the other is told who has, and leaves everything as it is."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from emabank.study.config import Place
from emabank.study.executors import Outcome
from emabank.study.run_job import Job
from emabank.study.runs.locks import LockedError
from emabank.study.runs.manifest import Manifest
from tests.study.small_runs import one_thread as one_thread
from tests.study.studies.small_studies import Counting, manifests, run_here, small_scale


def carried_out(name: str, counting: Counting) -> Manifest:
    [manifest] = run_here([name], counting).values()
    return manifest


class Meanwhile(Counting):
    """In the middle of each round someone else wants the same study, and another one."""

    asked = 0

    def __call__(self, jobs: Sequence[Job], **counted: int) -> dict[str, Outcome]:
        before = manifests(self.place)
        told = rf"the study lr-search at scale demo is in use by process {os.getpid()} on .*; wait until it has ended"
        with pytest.raises(LockedError, match=told):
            carried_out("lr-search", Counting(self.place))
        assert manifests(self.place) == before
        if not self.asked:
            assert carried_out("batchnorm", Counting(self.place)).state == "done", "another study is free"
        self.asked += 1
        return super().__call__(jobs, **counted)


def test_the_second_is_told_who_has_the_study_and_notes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_scale(monkeypatch)
    counting = Meanwhile(Place(runs=tmp_path))
    assert carried_out("lr-search", counting).state == "done"
    assert counting.asked
    assert manifests(counting.place)["lr-search"].state == "done"
    assert carried_out("lr-search", Counting(counting.place)).state == "done", "it is free again"
