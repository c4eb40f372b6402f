"""From a folder of runs to evidence: follows the files that studies leave, and says what it leaves out and why.

Nothing here fails because of what lies in the folder. May import runs.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from emabank.study.config import ProtocolConfig
from emabank.study.report.evidence import Evidence, LeftOut, Overhead, Run, Setting, Study
from emabank.study.report.pairs import Scale
from emabank.study.report.read_run import DAMAGE, in_words, read_run, renamed, why_not_done, without_place
from emabank.study.report.summary import is_count, is_number, is_text, read_summary
from emabank.study.report.written import LIST
from emabank.study.runs.manifest import PREFIX, Manifest, Ran, read_manifest
from emabank.study.runs.reader import CONFIG, DONE, FAILED, RunFolder

_REPORT = "report"
_PROTOCOL = "protocol-"

Key = tuple[str, str, str]
"""Scale, pair and protocol: what makes a setting."""


def load_evidence(runs: str | os.PathLike[str]) -> Evidence:
    """All that a folder of runs has to tell.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_evidence(folder).settings
    ()
    """
    return _Reader(_folder(runs)).read()


def load_studies(runs: str | os.PathLike[str]) -> tuple[tuple[Study, ...], tuple[LeftOut, ...]]:
    """The studies that were asked for, and what speaks of one and cannot be read; no run is looked at.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_studies(folder)
    ((), ())
    """
    reader = _Reader(_folder(runs))
    manifests = reader.manifests()
    return tuple(map(reader.study, manifests)), tuple(reader.left_out)


def _folder(runs: str | os.PathLike[str]) -> Path:
    folder = Path(runs)
    if not folder.is_dir():
        reason = "is not a folder" if folder.exists() else "is not there"
        raise FileNotFoundError(f"the folder {folder} {reason}; give the folder that `emabank run` wrote its runs to")
    return folder


class _Reader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left_out: list[LeftOut] = []
        self._runs: dict[str, Run | str] = {}
        """Or why it cannot be used."""
        self._used: set[str] = set()

    def read(self) -> Evidence:
        manifests = self.manifests()
        for manifest in manifests:
            self._unfinished(manifest)
        settings = self._settings(manifests)
        overheads = [self._overhead(each, found) for each in manifests for found in each.overheads]
        self._look_around(all_done=all(manifest.state == "done" for manifest in manifests))
        return Evidence(
            settings=tuple(settings),
            studies=tuple(map(self.study, manifests)),
            overheads=tuple(each for each in overheads if each is not None),
            left_out=tuple(dict.fromkeys(self.left_out)),
        )

    # Studies and settings ---------------------------------------------------------------------------------------------

    def manifests(self) -> list[Manifest]:
        found: list[Manifest] = []
        for path in sorted(self.folder.glob(f"{PREFIX}*.json")):
            self._used.add(path.name)
            try:
                manifest = read_manifest(path)
                if manifest.scale not in get_args(Scale):
                    raise ValueError(f"its scale is {manifest.scale!r}, which this emabank does not know")
                found.append(manifest)
            except (ValueError, OSError) as error:
                self._leave_out(path.name, in_words(error, path))
        return found

    def study(self, manifest: Manifest) -> Study:
        return Study(
            name=manifest.study,
            scale=manifest.scale,  # type: ignore[arg-type]
            command=manifest.command,
            state=manifest.state,
            reason=without_place(manifest.reason, self.folder),
        )

    def _unfinished(self, manifest: Manifest) -> None:
        what = f"study {manifest.study}, {manifest.scale}"
        if manifest.state == "failed":
            self._leave_out(what, f"failed: {manifest.reason}")
        elif manifest.state == "running":
            self._leave_out(what, f"not finished: it runs, or was interrupted (`{manifest.command}` goes on)")
        for ran in manifest.pairs:
            if manifest.state == "done" and ran.protocol is None:
                self._leave_out(f"{ran.title} ({manifest.scale})", "its protocol was not finished")

    def _settings(self, manifests: Sequence[Manifest]) -> list[Setting]:
        """One for each pair and protocol, with the arms of all studies together."""
        asked: dict[Key, list[Ran]] = {}
        for manifest in manifests:
            for ran in manifest.pairs:
                if ran.protocol is not None:
                    asked.setdefault((manifest.scale, ran.pair, ran.protocol), []).append(ran)
        found: list[Setting] = []
        for key, some in asked.items():
            self._used.add(key[2])
            try:
                found.append(self._setting(key, some))
            except DAMAGE as error:
                self._leave_out(f"{some[-1].title} ({key[0]})", in_words(error, self.folder))
        return found

    def _setting(self, key: Key, asked: Sequence[Ran]) -> Setting:
        scale, pair, protocol = key
        summary, config = read_summary(self.folder / _plain_name(protocol))
        title = asked[-1].title
        arms = _arms(summary, config)
        for arm, ids in ((arm, ids) for ran in asked for arm, ids in ran.arms.items()):
            if _is_known(arm):
                arms[arm] = ids
            else:
                self._leave_out(f"{title}: {arm}", "runs of a kind that this emabank does not know")
        by_arm = {arm: self._arm(f"{title}: {arm}", arm, ids, config) for arm, ids in arms.items()}
        return Setting(
            scale=scale,  # type: ignore[arg-type]
            pair=pair,
            title=title,
            dataset=config.data.dataset,
            network=config.training.network,
            protocol=protocol,
            averages=config.averages.names,
            has_batchnorm=summary["has_batchnorm"],
            choices=summary["choices"],
            tables=summary["tables"],
            arms={arm: runs for arm, runs in by_arm.items() if runs},
            config=summary["config"],
        )

    def _arm(self, what: str, arm: str, ids: Sequence[str], config: ProtocolConfig) -> tuple[Run, ...]:
        """The runs of an arm, or none if one of them is not to be had."""
        runs: list[Run] = []
        self._used.update(ids)
        for each in ids:
            run = self._run(each)
            try:
                if isinstance(run, str):
                    raise ValueError(run)
                runs.append(renamed(run, config.averages.names) if arm.startswith("every ") else run)
            except ValueError as error:
                self._leave_out(what, f"run {each}: {error}")
                return ()
            if run.epochs < config.training.epochs:
                why = f"diverged in epoch {run.epochs} of {config.training.epochs}: the seeds have no mean curve"
                self._leave_out(what, f"run {each}, seed {run.seed}: {why}")
        return tuple(runs)

    def _run(self, name: str) -> Run | str:
        if name not in self._runs:
            try:
                self._runs[name] = read_run(RunFolder(self.folder / _plain_name(name)))
            except ValueError as error:
                self._runs[name] = str(error)
        return self._runs[name]

    def _overhead(self, manifest: Manifest, found: Mapping[str, Any]) -> Overhead | None:
        try:
            seconds: dict[str, Any] = {name: tuple(found[name]) for name in ("step_seconds", "update_seconds")}
            measured = Overhead(**{**found, **seconds})
            counts = (measured.parameters, measured.averages, measured.every, measured.bytes)
            times = (*measured.step_seconds, *measured.update_seconds)
            fits = is_text(measured.network) and isinstance(measured.conditions, dict)
            if fits and all(is_count(each) and each for each in counts) and all(map(is_number, times)):
                return measured
        except (TypeError, KeyError):
            pass
        why = "its cost of averages is not what this emabank writes; run the study again"
        self._leave_out(f"study {manifest.study}, {manifest.scale}", why)
        return None

    # What else lies there ---------------------------------------------------------------------------------------------

    def _look_around(self, *, all_done: bool) -> None:
        """Say of everything in the folder that no study has used why that is."""
        unused: dict[str, list[str]] = {}
        for path in sorted(self.folder.iterdir()):
            if path.name not in (*self._used, _REPORT) and not path.name.startswith(".") and not _is_report(path):
                unused.setdefault(_why(path, all_done=all_done), []).append(path.name)
        for why, names in unused.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            self._leave_out(", ".join(names[:3]) + more, why)

    def _leave_out(self, what: str, why: str) -> None:
        self.left_out.append(LeftOut(_shown(what), _shown(without_place(why, self.folder))))


def _arms(summary: Mapping[str, Any], config: ProtocolConfig) -> dict[str, Sequence[str]]:
    """The runs of the protocol by arm; those of tuning lie there seed by seed, rate by rate."""
    runs = summary["runs"]
    found: dict[str, Sequence[str]] = {"tune": [choice["run"] for choice in summary["choices"]]}
    found |= {f"tune at {rate:g}": runs["tuning"][at :: len(config.rates)] for at, rate in enumerate(config.rates)}
    return found | {arm: runs[arm] for arm in ("refit", "swa") if runs[arm]}


def _is_known(arm: str) -> bool:
    return re.fullmatch(r"step|constant|bootstrap|posthoc|every [1-9][0-9]{0,8}", arm) is not None


def _is_report(path: Path) -> bool:
    return (path / LIST).is_file()


def _why(path: Path, *, all_done: bool) -> str:
    try:
        if path.is_dir() and path.name.startswith(_PROTOCOL):
            return "a protocol that belongs to no study (`emabank protocol` made it, or a study with other settings)"
        if not any((path / name).exists() for name in (CONFIG, DONE, FAILED)):
            return "no run of emabank"
        why = why_not_done(RunFolder(path))
    except DAMAGE as error:
        why = in_words(error, path)
    if why:
        return without_place(why, path)
    if not all_done:
        return "a run of a study that is not finished, or one that no study asks for any more"
    return "a run that no study of this folder asks for, or not any more"


def _plain_name(name: str) -> str:
    """The name of a folder beside the others: a file that is not ours could lead anywhere."""
    if Path(name).name != name:
        raise ValueError(f"{name!r} is no name of a folder here")
    return name


def _shown(text: str) -> str:
    """A text that can be printed, whatever bytes a file system has for a name, or JSON for half a character."""
    return text.encode("utf-8", "replace").decode()
