"""Made-up results, of the scripts' own classes: when a script keeps something else, tests that draw these say so."""

from dataclasses import asdict

import choices
import growth
import hotspots
import large
import overhead
import recalibration
import startup
import study_time
import training
from enough import Curve, Enough, Point, Score
from recipes import Size

from emabank.bench.cases import Case, Row
from emabank.bench.evaluation import APPLIED, COPIES, SECOND, SHARED, UPDATE_BN, Passes, Way, source_of
from emabank.bench.interleave import Run, Spread
from emabank.bench.peers import BANK, CONTROL, LIMIT, all_peers
from emabank.bench.steps import Share, Steps

CONDITIONS = {
    "date": "2026-11-16 01:02:03", "cpu": "Some CPU", "cores": 2, "threads": 2, "torch": "2.13.0",
    "training_images": 10_000,
}  # fmt: skip
WAYS = choices.ways(compile=True, threads=[1, 2])
PEERS = [peer.name for peer in all_peers()]


def about(median, width=0.2):
    return Spread(median, median * (1 - width), median * (1 + width), median)


def case(model="resnet20", averages=5, rows=(), **rest):
    return Case(model, averages, 1000, 10, 20, None, 0, 0.01, rows, **rest)


def made_update():
    def rows(factor):
        values = {LIMIT: 1.0, BANK: 1.1, CONTROL: 1.1} | {name: factor * (n + 2) for n, name in enumerate(PEERS)}
        return [Row(name, about(3 * v), about(v), about(v / 1.1)) for name, v in values.items()]

    models = ("resnet20", "small1000", "resnet18", "gpt124m", "resnet18-bf16")
    cases = [case(model, averages, rows(averages)) for model in models for averages in (1, 5, 20)]
    cases[-1] = case("resnet18-bf16", 20, rows(1)[:3], missing={"a peer": "no room"})
    cases.append(Case("resnet20", 5, 1, 1, 1, "spin", 0, 0.0, rows(77)))  # beside a busy neighbour: not for this page
    return {"cases": [asdict(each) for each in cases], "not_due": {"nanoseconds": 136.2}}


def made_overhead():
    results = [
        Steps(case(model, averages), "1 × 64 tokens", about(100), [
            Share(name, about(n + 1), about(0.0123 * (n + 1))) for n, name in enumerate([BANK, *PEERS])
        ])
        for model, averages in overhead.CASES
    ]  # fmt: skip
    return {"results": list(map(asdict, results))}


def made_training():
    loops = {name: [1.0, 1.1] for name in (*training_names(), "plain recipe, 0 workers", "plain recipe, 2 workers")}
    loaders = {"Loader": [0.1, 0.1], "DataLoader, 0 workers": [1.0, 1.2], "DataLoader, 2 workers": [0.7, 0.8]}
    size = Size(steps=2, batch=50, evaluated=250, recalibrated=500, train=1000, validation=500)
    results = [
        training.result_of(case(network), Run({**loops, **loaders}, 0, 0.01), threads=1, size=size, workers=[0, 2])
        for network in ("resnet8", "resnet20")
    ]
    return {"results": list(map(asdict, results))}


def training_names():
    return training.SPARSE, training.DENSE, training.BARE, training.UPDATES, training.ALL, training.ALONE


def made_study():
    found = [
        study_time.Measurement(jobs, turn, study_time.Took(100.0 / jobs, 90.0, 0.01), ["a", "b"], "2026-11-16")
        for turn, jobs in study_time.in_turns(2)
    ]
    result = study_time.result_of("all", found)
    return {"result": asdict(result)}


def made_growth():
    sizes = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 40.0}

    def series(name, title, scale):
        run = Run({key: [scale * (1 + x), scale * (1.1 + x)] for key, x in sizes.items()}, 0, 0.01)
        return growth.series_of(name, title, "million parameters", run, sizes)

    titles = {"runs": 1.0, "seeds": 2.0, "averages": 0.002, "epochs": 0.5, "parameters": 0.01, "parameters-warm": 0.01}
    found = [
        series(name, f"an update of five averages of some {name}, out of the caches", t) for name, t in titles.items()
    ]
    return {"series": list(map(asdict, found))}


def made_large():
    stages = [large.Stage(name, 1.5, 12 * 2**30, 14 * 2**30) for name in ("bank built", "one average applied")]
    size = large.Size(parameters=500 * 10**6, largest=10**8, live=2 * 10**9)
    found = [
        large.Weighed(live, size, 2**28, stages, about(900), about(1.02), 15, 0.01, left_out)
        for live, left_out in (("float32", ()), ("bfloat16", ("saving was not asked for",)))
    ]
    return {"models": list(map(asdict, found))}


def made_startup():
    plain = [startup.EMPTY, *startup.QUICK, startup.TORCH]
    rows = [startup.Row(name, about(0.1 * n), about(n), about(0.1 * n)) for n, name in enumerate(plain, 1)]
    rows += [startup.Row(name, *map(about, (2.0, 20, 1.9, 1.01, 0.02, 0.015))) for name in startup.IMPORTS]
    return {"results": [asdict(startup.Result(case(), rows, {}))]}


def made_choices():
    speeds = [choices.Speed(str(way), about(600), about(1 + 0.1 * n), 0.3) for n, way in enumerate(WAYS)]
    results = [choices.Result(case(network), speeds, about(1.3)) for network in ("resnet8", "resnet20")]
    return {"results": list(map(asdict, results))}


def made_hotspots():
    results = [
        hotspots.Hotspots(
            network, 96, 128, about(80), {phase: about(0.1 + 0.1 * n) for n, phase in enumerate(hotspots.PHASES)},
            {"aten::convolution_backward": 0.5, "aten::mkldnn_convolution": 0.25, "all others": 0.25}, 0.01,
        )
        for network in ("resnet8", "resnet20")
    ]  # fmt: skip
    return {"results": list(map(asdict, results))}


def made_evaluation():
    ways = {"evaluation": (SHARED, COPIES, SECOND, APPLIED), "recalibration": (SHARED, UPDATE_BN)}
    results = [
        Passes(task, case(network), source_of(workers), 256, 128, 1, True, [
            Way(name, about(100 + n), about(1 + 0.1 * n)) for n, name in enumerate(names)
        ])
        for task, names in ways.items()
        for network in ("resnet8", "resnet20")
        for workers in (None, 0, 2)
    ]  # fmt: skip
    return {"results": list(map(asdict, results))}


def made_recalibration():
    def curve(stage, weights, augmented):
        points = [
            Point(n, 4, Spread(m, m - 0.002, m + 0.001, m), m - 0.003, about(0.1))
            for n in (*recalibration.SIZES, 10_000)
            for m in [-3.0 / n if n < 10_000 else 0.0]
        ]
        own = Score(-0.2, 0.5)._asdict()
        return asdict(Curve(stage, weights, augmented, 0.7, 0.9, 0.006, None, points)) | {"own": own}

    stages, averages = ("epoch 2 of 16", "epoch 16 of 16"), ("0.996", "0.998")
    curves = [curve(s, w, a) for s in stages for w in averages for a in (False, True)]
    enough = [Enough(False, 512, 1024, 1024), Enough(True, None, None, None)]
    return {"curves": curves, "enough": list(map(asdict, enough))}


MADE = {
    "update": made_update, "overhead": made_overhead, "training": made_training, "study": made_study,
    "growth": made_growth, "large": made_large, "startup": made_startup, "choices": made_choices,
    "hotspots": made_hotspots, "evaluation": made_evaluation, "recalibration": made_recalibration,
}  # fmt: skip
