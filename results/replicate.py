"""Run the pre-registered replication setting by setting, so that finished settings can be read and packed early.

`emabank run all --scale small --seeds 10-19` trains the same runs, but tunes every setting before it refits one. This
script finishes a setting, then adds the next. Each part includes all earlier settings, so that its report covers them.
It resumes: finished runs in the folder are not trained again. Packed runs are restored with
`python results/keep.py --restore results/replication runs`, and new ones packed with
`python results/keep.py runs results/replication`.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from emabank.study.config import Place, ProtocolConfig
from emabank.study.launch import launch_studies
from emabank.study.studies.catalogue import STUDIES

SEEDS = tuple(range(10, 20))
PARTS = (  # cheap and informative ones first
    (("dynamics", "batchnorm", "consistency", "calibration"), "cifar100-resnet18"),
    (("generalization",), "cifar100-resnet18"),
    (("generalization", "dynamics", "consistency", "calibration"), "cifar100-vgg16"),
    (("generalization", "dynamics", "label-noise"), "cifar100n-resnet34"),
    (("step-decay",), "cifar100-resnet18"),
    (("bootstrap",), "cifar100-resnet18"),
    (("lr-search",), "cifar100-resnet18"),
    (("sampling-period",), "cifar100-resnet18"),
    (("generalization", "dynamics", "label-noise"), "cifar10n-resnet34"),
    (("constant-lr",), "cifar100n-resnet18"),
    (("generalization", "dynamics", "consistency", "calibration"), "cifar10-resnet18"),
    (("transfer",), "cifar10-resnet18"),
    (("posthoc",), "cifar100-resnet18"),
)


def with_seeds(config: ProtocolConfig) -> ProtocolConfig:
    return replace(config, seeds=SEEDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with the data sets (%(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for the runs (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (%(default)s)")
    arguments = parser.parse_args()
    place = Place(data=arguments.data, runs=arguments.runs, jobs=arguments.jobs)
    settings: list[str] = []
    for names, setting in PARTS:
        settings.append(setting)
        print(f"{', '.join(names)}: {setting}", flush=True)
        studies = [
            replace(STUDIES[name], pairs=tuple(pair for pair in STUDIES[name].pairs if pair in settings))
            for name in names
        ]
        launch_studies(studies, "small", place, command="python results/replicate.py", change=with_seeds)


if __name__ == "__main__":
    main()
