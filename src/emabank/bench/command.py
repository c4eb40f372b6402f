"""`emabank bench`: what averages cost on this machine, measured, shown, and put into sentences."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch

from emabank.bench import peers
from emabank.bench.cases import Case, title
from emabank.bench.evaluation import TASKS, Passes, measure_passes, passes_table, ratio_of
from emabank.bench.kept import Ratio, keep_result
from emabank.bench.machine import conditions
from emabank.bench.peers import BANK
from emabank.bench.steps import PERIOD, Steps, measure_steps, steps_table
from emabank.bench.tables import case_table, facts
from emabank.bench.update import progress, run_case
from emabank.study.arguments import BenchArguments
from emabank.study.models.known import KNOWN_NETWORKS

BATCH = 32  # images of a training step, a quarter of the paper's: a harder case, and quicker to measure
IMAGES = 128  # of a pass


def run_bench(asked: BenchArguments, *, show: Callable[[str], object] = print) -> None:
    """Measure, show tables as they come, and in the end say in sentences what they mean."""
    device = _device(asked.device)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    known = conditions() | {"device": _name(device), "versions": peers.versions()}
    show(facts(known) + "\n")
    chosen = peers.all_peers()
    cases: list[Case] = []
    steps: list[Steps] = []
    passes: list[Passes] = []
    for model in asked.models:
        if "update" in asked.what:
            cases.append(run_case(model, asked.averages, chosen, seconds=asked.seconds, device=device))
            show(case_table(cases[-1]) + "\n")
        if "steps" in asked.what:
            # Without peers: a round has a step for each contestant, and steps are what takes long.
            batch = asked.batch or (None if model.startswith("gpt") else BATCH)
            steps.append(measure_steps(model, asked.averages, (), seconds=asked.seconds, batch=batch, device=device))
            show(steps_table(steps[-1]) + "\n")
        for task in TASKS:
            if task in asked.what and model in KNOWN_NETWORKS and device.type == "cpu":
                told = progress(f"{task}, {title(model, asked.averages)}")
                passes.append(
                    measure_passes(
                        task, model, averages=asked.averages, seconds=asked.seconds, images=IMAGES, progress=told
                    )
                )
                show(passes_table(passes[-1]) + "\n")
    show("\n".join(sentences(cases, steps, passes)))
    if asked.json is not None:
        keep_result(
            asked.json,
            "emabank",
            known,
            ratios=[*ratios_of(cases, steps), *map(ratio_of, passes)],
            cases=[asdict(case) for case in cases],
            results=[asdict(each) for each in steps],
            passes=[asdict(each) for each in passes],
        )
        show(f"kept in {asked.json}")


def _device(asked: str) -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if asked == "auto":
        return found or torch.device("cpu")
    if asked != "cpu" and (found is None or found.type != asked):
        there = "cpu alone" if found is None else f"cpu and {found.type}"
        raise ValueError(f"device is {asked}, which torch does not find here; there is {there}")
    return torch.device(asked)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def ratios_of(cases: Sequence[Case], steps: Sequence[Steps]) -> list[Ratio]:
    """What a later measurement is held against."""
    found: list[Ratio] = []
    for case in cases:
        name, bank, peer = f"update/{case.model}/{case.averages}", case.row(BANK), case.fastest_peer()
        if bank is not None:
            found.append(Ratio(f"{name}/of-limit", bank.of_limit, case.rounds))
        if peer is not None and peer.bank_faster is not None:
            found.append(Ratio(f"{name}/faster-than-peers", peer.bank_faster, case.rounds, "higher"))
    for each in steps:
        name = f"overhead/{each.case.model}/{each.case.averages}/of-step"
        found.append(Ratio(name, each.share(BANK).of_step, each.case.rounds))
    return found


def sentences(cases: Sequence[Case], steps: Sequence[Steps], passes: Sequence[Passes]) -> list[str]:
    """What the tables come to."""
    found: list[str] = []
    for case in cases:
        bank, peer, what = case.row(BANK), case.fastest_peer(), title(case.model, case.averages)
        if bank is None:
            continue
        against = ""
        if peer is not None and peer.bank_faster is not None:
            against = f"; {peer.name}, the fastest other way here, takes {peer.bank_faster.median:.2f} × as long"
        found.append(
            f"{what}: an update takes {bank.milliseconds.median:.3g} ms, {bank.of_limit.median:.2f} × the time that "
            f"moving its memory takes{against}."
        )
    for each in steps:
        share = each.share(BANK).of_step.median
        found.append(
            f"{title(each.case.model, each.case.averages)}: updates add {share:.2%} to a training step, "
            f"{share / PERIOD:.4%} when made every {PERIOD} steps."
        )
    for each in passes:
        other = each.fastest_other
        found.append(
            f"{title(each.case.model, each.case.averages)}: {each.task} in one shared pass; {other.name}, takes "
            f"{other.over_shared.median:.2f} × as long."
        )
    if any(case.disturbed for case in [*cases, *(each.case for each in (*steps, *passes))]):
        found.append("Other processes were at work meanwhile: measure again on an idle machine before you rely on it.")
    return found
