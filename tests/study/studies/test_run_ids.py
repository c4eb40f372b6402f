"""The ids of all runs that `emabank run all` plans never change, at every scale."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from emabank.study.averages import CRITERIA, NOISY_CRITERIA
from emabank.study.config import Place, ProtocolConfig
from emabank.study.protocol import Choice, RefitPlan, refit_job, swa_job, tuning_jobs
from emabank.study.run_job import folder_of
from emabank.study.studies.catalogue import settings_of, studies_named
from emabank.study.studies.scales import SCALES, Scale
from emabank.study.studies.scheduler import variant_jobs

GOLDEN = Path(__file__).parent.parent / "golden" / "run_ids.json"
DATA = "0123456789abcdef"  # stands for the fingerprints of data sets
PLACE = Place()


def make_chosen(config: ProtocolConfig, *, average: int, epoch: int) -> RefitPlan:
    """The choices and jobs if every seed chooses its first rate, this average and this epoch, by all criteria."""
    best = config.averages.names[average], epoch
    noisy = config.data.has_wrong_labels
    averages = dict.fromkeys((*CRITERIA, *NOISY_CRITERIA) if noisy else CRITERIA, best)
    choices = [
        Choice(seed, config.rates[0], "", epoch, averages, epoch if noisy else None) for seed in config.seed_numbers
    ]
    tuned = tuning_jobs(config, data=DATA)[:: len(config.rates)]
    targets = (DATA,) * len(config.transfer)
    refits = [
        refit_job(config, choice, job.config, has_batchnorm="vgg" not in config.training.network, targets=targets)
        for choice, job in zip(choices, tuned, strict=True)
    ]
    return RefitPlan(choices, [], refits, [swa_job(config, refit, PLACE) for refit in refits])


def planned_ids(scale: Scale) -> dict[str, dict[str, list[str]]]:
    """The ids of all runs by setting and kind, in order."""
    ids: dict[str, dict[str, list[str]]] = {}
    for setting in settings_of(studies_named("all"), scale):
        config = setting.config
        config = replace(config, hardware=replace(config.hardware, device="cpu")).completed()
        jobs = {"tune": tuning_jobs(config, data=DATA)}
        for average, epoch in ((-1, config.training.epochs), (1, 2 + config.training.epochs // 4)):
            chosen = make_chosen(config, average=average, epoch=epoch)
            jobs |= {f"refit {epoch}": chosen.refits, f"swa {epoch}": chosen.swa}
            jobs |= {f"{arm} {epoch}": variant_jobs(arm, config, chosen, PLACE) for arm in setting.arms}
        ids[setting.name] = {kind: [folder_of(job.config, PLACE).id for job in group] for kind, group in jobs.items()}
    return ids


@pytest.mark.parametrize("scale", SCALES)
def test_every_planned_run_keeps_its_id(scale: Scale):
    assert planned_ids(scale) == json.loads(GOLDEN.read_text())[scale]
