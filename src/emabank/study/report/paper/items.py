"""Every table and figure of the paper, in its order, with our counterpart: which study makes it, under which name.

Numbers are those of the compiled paper. Imports nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

STUDIES = (
    "generalization",
    "dynamics",
    "batchnorm",
    "label-noise",
    "constant-lr",
    "consistency",
    "calibration",
    "transfer",
    "step-decay",
    "bootstrap",
    "lr-search",
    "sampling-period",
)
"""Those of the paper."""
ALL_STUDIES = (*STUDIES, "posthoc")
"""And one that only we have."""


@dataclass(frozen=True)
class Item:
    """A table or a figure (or a part of one) and what of ours answers to it."""

    number: str
    """"Table 1", "Figure 4c"; empty for what the paper does not have."""
    label: str
    """LaTeX's name for it; empty where it has none."""
    shows: str
    study: str
    outputs: tuple[str, ...]
    """Names of files without extension."""
    kind: Literal["table", "figure"]


def _table(number: str, label: str, shows: str, study: str, *outputs: str) -> Item:
    return Item(f"Table {number}" if number else "", label, shows, study, outputs, "table")


def _figure(number: str, label: str, shows: str, study: str, *outputs: str) -> Item:
    return Item(f"Figure {number}" if number else "", label, shows, study, outputs, "figure")


def _full(number: int, label: str, title: str, pair: str) -> tuple[Item, Item]:
    """The two full tables of a pair; the labels stand with the one that has it."""
    labels = label.split("|")
    return (
        _table(str(number), labels[0], f"{title}: all measures, 80% trained on, validation",
               "generalization", f"generalization/full-{pair}-80"),
        _table(str(number + 1), labels[1], f"{title}: all measures, 100% trained on, test",
               "generalization", f"generalization/full-{pair}-100"),
    )  # fmt: skip


_PANELS = (
    ("4a", "CIFAR-10N, ResNet-34", "cifar10n-resnet34"),
    ("4b", "CIFAR-10, ResNet-18", "cifar10-resnet18"),
    ("4c", "CIFAR-100, VGG-16", "cifar100-vgg16"),
    ("4d", "CIFAR-100, WideResNet-28-10", "cifar100-wrn-28-10"),
    ("4e", "Tiny-ImageNet, ResNet-18", "tiny-imagenet-resnet18"),
)

ITEMS: tuple[Item, ...] = (
    _figure("1", "fig:test", "CIFAR-100, ResNet-18: live weights and averages over the epochs",
            "dynamics", "dynamics/cifar100-resnet18", "batchnorm/decays"),
    _figure("1a", "fig:ema_example1", "live weights, best average and learning rate over the epochs",
            "dynamics", "dynamics/cifar100-resnet18"),
    _figure("1b", "fig:ema_bn_vs_not", "each decay with averaged and with recomputed batch-norm statistics",
            "batchnorm", "batchnorm/decays"),
    _table("1", "tab:generalization_results", "test accuracy and loss of SGD and EMA, accuracy of SWA, five pairs",
           "generalization", "generalization/headline"),
    _figure("2", "fig:label_noise_acc", "CIFAR-100N, ResNet-34: test accuracy over the epochs, α = 0.998",
            "label-noise", "label-noise/accuracy"),
    _table("2", "tab:noisy_c100", "EMA beside published methods for wrong labels; ours where the data are the same",
           "label-noise", "label-noise/leaderboard"),
    _table("3", "tab:repeatability_results", "churn and JS divergence between runs, beside co-distillation",
           "consistency", "consistency/agreement"),
    _table("4", "tab:transfer_learning_results", "linear evaluation of frozen features on another data set",
           "transfer", "transfer/linear"),
    _table("5", "tab:calibration", "calibration error with and without temperature scaling",
           "calibration", "calibration/ece"),
    _figure("3", "fig:ema_example2", "CIFAR-100, ResNet-18, learning rate in steps: live weights and best average",
            "step-decay", "step-decay/accuracy"),
    _figure("4", "fig:mean and std of nets", "live weights and best average over the epochs, five other pairs",
            "dynamics", *(f"dynamics/{pair}" for _, _, pair in _PANELS)),
    *(_figure(number, "", title, "dynamics", f"dynamics/{pair}") for number, title, pair in _PANELS),
    _table("6", "tab:validation_results", "accuracy, loss and mean epoch, 80% trained on, five pairs",
           "generalization", "generalization/summary-80"),
    *_full(7, "tab:rn18_c100_val|", "CIFAR-100, ResNet-18", "cifar100-resnet18"),
    *_full(9, "|tab:wrn_c100_fulltrain", "CIFAR-100, WideResNet-28-10", "cifar100-wrn-28-10"),
    *_full(11, "|tab:vgg16_c100", "CIFAR-100, VGG-16", "cifar100-vgg16"),
    *_full(13, "|", "CIFAR-10, ResNet-18", "cifar10-resnet18"),
    *_full(15, "|", "Tiny-ImageNet, ResNet-18", "tiny-imagenet-resnet18"),
    *_full(17, "|", "CIFAR-100N, ResNet-34", "cifar100n-resnet34"),
    *_full(19, "|tab:rn34_c10_full", "CIFAR-10N, ResNet-34", "cifar10n-resnet34"),
    _figure("5", "fig:bootstrap", "the average copied back into training each epoch, beside plain training",
            "bootstrap", "bootstrap/accuracy"),
    _table("21", "tab:LR_search", "validation accuracy by initial learning rate", "lr-search", "lr-search/rates"),
    _table("21a", "", "CIFAR-100, ResNet-18", "lr-search", "lr-search/rates"),
    _table("21b", "", "CIFAR-100, WideResNet-28-10", "lr-search", "lr-search/rates"),
    _figure("6", "fig:LR_search", "validation accuracy over the epochs by initial learning rate",
            "lr-search", "lr-search/curves"),
    _figure("7", "fig:label_noise_train_acc", "CIFAR-100N, ResNet-34: accuracy on clean and on wrong training labels",
            "label-noise", "label-noise/memorisation"),
    _figure("8", "", "CIFAR-100N, ResNet-18: learning rate held constant from the chosen epoch on, beside cosine",
            "constant-lr", "constant-lr/accuracy"),
    _table("22", "tab:hp_config", "hyper-parameters", "generalization", "setup/hyperparameters"),
    _table("23", "tab:ema_decay", "the same decays for sampling periods 1 and 16",
           "sampling-period", "sampling-period/equivalence"),
    _table("24", "tab:sensitivity_decay", "best test accuracy and its epoch by decay, recomputed statistics",
           "batchnorm", "batchnorm/sensitivity"),
    _figure("9", "fig:ema_bn_vs_not_app", "Figure 1b again, larger", "batchnorm", "batchnorm/decays"),
)  # fmt: skip

OURS: tuple[Item, ...] = (
    _figure("", "", "reliability diagrams", "calibration", "calibration/reliability"),
    _figure("", "", "early training enlarged", "dynamics", "dynamics/early"),
    _figure("", "", "sampling periods at equal horizon: test accuracy over the epochs",
            "sampling-period", "sampling-period/accuracy"),
    _figure("", "", "heat map of accuracy over decay and epoch", "batchnorm", "batchnorm/heatmap"),
    _table("", "", "time and memory of the averages beside a training step",
           "sampling-period", "sampling-period/overhead"),
    _table("", "", "test accuracy after training with wrong labels, of data that do not compare with Table 2",
           "label-noise", "label-noise/test-accuracy"),
    _figure("", "", "heat map of accuracy over window and stopping epoch, both chosen after one run",
            "posthoc", "posthoc/heatmap"),
    _table("", "", "each window at its best stopping epoch, put together afterwards and kept live",
           "posthoc", "posthoc/windows"),
)  # fmt: skip
"""What the report has and the paper does not."""


def answers_to(output: str) -> str:
    """The paper's name for what an output of ours shows, as fine as the paper numbers it; empty where it has none.

    >>> answers_to("batchnorm/decays"), answers_to("lr-search/rates"), answers_to("dynamics/early")
    ('Figure 1b, Figure 9', 'Table 21', '')
    """
    found = [item.number for item in ITEMS if output in item.outputs]
    whole = [item.number for item in ITEMS if item.outputs == (output,)]
    return ", ".join(number for number in whole or found if not number[-1].isalpha() or number[:-1] not in whole)


def markdown(items: Sequence[Item] = ITEMS) -> str:
    """The list as a table, as docs/paper.md has it.

    >>> print(markdown([item for item in ITEMS if item.number == "Table 22"]))
    | paper | LaTeX label | what it shows | study | ours |
    |---|---|---|---|---|
    | Table 22 | `tab:hp_config` | hyper-parameters | `generalization` | table `setup/hyperparameters` |
    """
    rows = [
        f"| {item.number or '–'} | {f'`{item.label}`' if item.label else '–'} | {item.shows} | `{item.study}` | "
        f"{item.kind} {', '.join(f'`{output}`' for output in item.outputs)} |"
        for item in items
    ]
    return "\n".join(["| paper | LaTeX label | what it shows | study | ours |", "|---|---|---|---|---|", *rows])
