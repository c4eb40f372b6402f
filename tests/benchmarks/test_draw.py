"""docs/speed.md against results: they agree in the repository, and made-up results show that this can be seen."""

import re
import shutil
from dataclasses import asdict
from unittest.mock import patch

import draw
import pytest
from benchmarks.made_results import CONDITIONS, MADE, PEERS, about, made_growth, made_study, made_update
from drawn import look, page
from drawn.look import Dot, DotPlot, Dots, Picture
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from emabank.bench.cases import Verdict
from emabank.bench.kept import Ratio, keep_result, read_result
from emabank.bench.peers import BANK, CONTROL


def test_every_kind_of_result_has_a_made_up_one():
    assert set(MADE) == set(draw.KINDS)


def keep(path, **rest):
    ratios, verdicts = [Ratio(f"{path.stem}/ratio", about(1.5), 20)], [Verdict("a goal", True, "1")]
    keep_result(path, f"python benchmarks/{path.stem}.py", CONDITIONS, ratios=ratios, verdicts=verdicts, **rest)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder with a whole result of every kind."""
    folder = tmp_path_factory.mktemp("results")
    for name, make in MADE.items():
        keep(folder / f"{name}.json", **make())
    return folder


@pytest.fixture
def few(tmp_path):
    """A folder with small results of three kinds, and ratios that are kept of one of them."""
    folder = tmp_path / "results"
    keep(folder / "growth.json", series=made_growth()["series"][:1])
    keep(folder / "update.json", **made_update() | {"cases": made_update()["cases"][:1]})
    keep(folder / "study.json", **made_study())
    assert draw.gate.main([str(folder / "update.json"), "--accept", "--kept", str(folder / "ratios.json")]) == 0
    return folder


def run(results, path, *more):
    return draw.main(["--results", str(results), "--ratios", str(results / "ratios.json"), "--page", str(path), *more])


@pytest.fixture
def path(few, tmp_path, capsys):
    """A page with its figures, drawn from the few results."""
    path = tmp_path / "docs" / "speed.md"
    path.parent.mkdir()
    blocks = [f"## {name}\n\n{page.MADE.format(name)}\n{page.END}\n" for name in (*draw.KINDS, "ratios")]
    path.write_text("# Speed\n\n" + "\n".join(blocks))
    assert run(few, path) == 0
    assert "wrote speed.md" in capsys.readouterr().out
    return path


# The repository -------------------------------------------------------------------------------------------------------


def test_the_page_of_the_repository_says_what_its_results_say(capsys):
    assert draw.main(["--check"]) == 0, capsys.readouterr().out


def test_every_link_of_the_page_leads_somewhere():
    text = (draw.ROOT / "docs" / "speed.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (draw.ROOT / "docs" / link).exists()] == []


def test_every_script_that_the_page_names_is_there():
    named = re.findall(r"benchmarks/\w+\.py", (draw.ROOT / "docs" / "speed.md").read_text())
    assert named and [name for name in named if not (draw.ROOT / name).exists()] == []


# Drawing and checking -------------------------------------------------------------------------------------------------


def test_what_was_drawn_agrees_and_is_not_drawn_again(few, path, capsys):
    assert run(few, path, "--check") == 0
    assert run(few, path) == 0
    assert capsys.readouterr().out.splitlines() == ["speed.md says what the results say"] * 2


def doctor_number(path):
    path.write_text(path.read_text().replace("136 ns", "135 ns"))


def doctor_figure(path):
    file = path.parent / "speed" / "update.svg"
    file.write_bytes(file.read_bytes().replace(b"resnet20", b"resnet99", 1))


def doctor_missing(path):
    (path.parent / "speed" / "growth.svg").unlink()


def doctor_stranger(path):
    shutil.copy(path.parent / "speed" / "growth.svg", path.parent / "speed" / "other.svg")


@pytest.mark.parametrize(
    ("doctor", "said"),
    [
        (doctor_number, "speed.md: update is not what its result says"),
        (doctor_figure, "speed/update.svg is not drawn from the result that is there"),
        (doctor_missing, "speed/growth.svg is missing"),
        (doctor_stranger, "speed/other.svg belongs to no result"),
    ],
)
def test_a_doctored_page_is_seen_and_mended(few, path, capsys, doctor, said):
    whole = path.read_text()
    doctor(path)
    assert run(few, path, "--check") == 1
    assert capsys.readouterr().out.splitlines() == [
        said,
        "run `python benchmarks/draw.py` to bring the page up to date",
    ]
    assert run(few, path) == 0
    assert run(few, path, "--check") == 0
    assert path.read_text() == whole


def test_a_new_result_makes_the_page_stale(few, path, capsys):
    made = made_update()
    made["cases"] = made["cases"][:1]
    made["cases"][0]["rows"][1]["of_limit"]["median"] *= 1.01
    keep(few / "update.json", **made)
    assert run(few, path, "--check") == 1
    said = capsys.readouterr().out
    assert "speed.md: update is not" in said and "speed/update.svg is not" in said and "growth" not in said


def test_what_was_not_measured_has_no_figure_and_says_so(tmp_path, path):
    empty = tmp_path / "nothing"
    empty.mkdir()
    assert run(empty, path) == 0
    assert set(page.blocks_in(path.read_text()).values()) == {page.NOT_MEASURED}
    assert list((path.parent / "speed").glob("*")) == []
    assert run(empty, path, "--check") == 0


def test_a_result_of_an_earlier_form_is_left_out_and_named(few, path, capsys):
    (few / "update.json").write_text('{"format": 1, "cases": []}')
    assert run(few, path) == 0
    assert "left out" in capsys.readouterr().err
    assert page.blocks_in(path.read_text())["update"] == page.NOT_MEASURED


def test_a_result_that_its_reader_does_not_know_is_told_in_one_line(few, path, capsys):
    keep(few / "growth.json", series=[{"name": "runs"}])
    assert run(few, path, "--check") == 1
    assert re.fullmatch(r"draw\.py: .*growth\.json is not of the form that .*\n", capsys.readouterr().err)


def test_the_same_data_gives_the_same_bytes(few):
    first, second = (draw.make(few, few / "ratios.json") for _ in range(2))
    assert first == second and set(first.figures) == {"update", "growth"}


def test_with_another_matplotlib_the_data_decides():
    plot = DotPlot(((Dots("a", (Dot("b", about(1)),)),),), "x")
    made, other = Picture(plot).svg(), Picture(plot, lambda plan: look.dot_plot(DotPlot(plan.panels, "y"))).svg()
    elsewhere = re.sub(rb"Matplotlib v[\d.]+", b"Matplotlib v3.8.0", other)
    assert not look.same_picture(other, made)  # the same matplotlib would have drawn other bytes
    assert look.same_picture(elsewhere, made)
    assert not look.same_picture(re.sub(rb"draw\.py from \w", b"draw.py from _", elsewhere), made)


def test_what_matplotlib_calls_a_thing_is_no_part_of_the_picture():
    made = Picture(DotPlot(((Dots("a", (Dot("b", about(1)),)),),), "x")).svg()
    names = sorted(set(re.findall(rb"#([pm][0-9a-f]{10})", made)))
    assert len(names) > 1
    assert look.same_picture(made.replace(names[0], b"p0123456789"), made)
    assert not look.same_picture(made.replace(names[0], names[1]), made)  # two things under one name


# What is shown --------------------------------------------------------------------------------------------------------


def shown(measured, name):
    result = read_result(measured / f"{name}.json")
    return page.block(draw.KINDS[name](result), result)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("update", ["| gpt124m | 5 | 3.3 | 1.1 (0.88–1.32) | torch AveragedModel | 10 | 9.09 (7.27–10.9) | 20 |",
                    "| resnet18-bf16 | 20 | 3.3 | 1.1 (0.88–1.32) | none took part |", "136 ns", "update-bf16.svg"]),
        ("overhead", ["| gpt124m, 1 average | 1 × 64 tokens | 1.23 % (0.984 %–1.48 %) | 0.0769 %",
                      "2.46 % (1.97 %–2.95 %): torch AveragedModel |"]),
        ("training", ["| resnet8, 1 thread | Loader |", "7.5 (7.1–7.9) × DataLoader, 2 workers |", "updates of five"]),
        ("study", ["| 2 jobs | 50 (50–50) | 25 | 45 | 1.8 (1.8–1.8) |", "Two jobs are 2 (2–2) × as fast as one"]),
        ("growth", ["| an update of five averages of some runs, out of the caches | million parameters | 1 | 40 | "]),
        ("startup", ["| emabank list, demo | 0.3 (0.24–0.36) | 3 (2.4–3.6) |  |  |",
                     "| import torch, emabank | 2 (1.6–2.4) | 20 (16–24) | 20 (16 to 24) | 15 (12 to 18) |"]),
        ("choices", ["| resnet20 | channels last, fused, 2 threads | 600 (480–720) | 1.7 (1.36–2.04) | 0.3 |",
                     "- resnet8: two runs at once, one thread each, over one run with two threads: 1.3 (1.04–1.56)"]),
        ("hotspots", ["| part of a step, % of it | resnet8 | resnet20 |", "| optimizer | 30 % (24 %–36 %) | 30 %",
                      "96 steps of 80 ms on 128 images", "`convolution_backward` 50%, `mkldnn_convolution` 25%"]),
        ("evaluation", ["| recalibration | resnet8, 1 thread | DataLoader, 2 workers | 100 (80–120) | each",
                        "| 1.1 (0.88–1.32) | 20 |"]),
        ("recalibration", ["| 0.998, epoch 2 of 16 | images as they are | 70.00 % | -20.00 | -9.38 | -2.34 |",
                           "- images as they are: 1,024 images are enough", "- with crops and flips: all 10,000"]),
        ("large", ["| 500 million, float32 | bank built | 1.5 | 12.00 | 14.00 |", "saving was not asked for.",
                   "1.02 (0.816–1.22) × the memory limit"]),
    ],
)  # fmt: skip
def test_a_table_has_the_numbers_of_its_result(measured, name, words):
    text = shown(measured, name)
    assert [each for each in words if each not in text] == []
    assert "Measured 2026-11-16 on Some CPU, 2 cores, 2 threads, torch 2.13.0: `python benchmarks/" in text


def pictures(measured):
    for name, show in draw.KINDS.items():
        for figure, (picture, _) in show(read_result(measured / f"{name}.json")).figures.items():
            yield figure, picture


def test_no_text_of_a_figure_is_missing_or_cut_off_or_lies_on_another(measured):
    said = {}
    for name, picture in pictures(measured):
        said[name], faults = texts_and_faults(picture)
        assert faults == [], name
    for name in ("update", "overhead"):
        assert {BANK, *PEERS} - set(said[name]) == set()
        assert CONTROL not in said[name]


def texts_and_faults(picture):
    """What is written in a figure, and which texts leave it or overlap."""
    boxes, draw_text = [], Text.draw

    def seen(text, renderer, *rest, **more):
        if text.get_visible() and text.get_text().strip():
            boxes.append((text, text.get_window_extent(renderer)))
        draw_text(text, renderer, *rest, **more)

    with rc_context(look.LOOK), patch.object(Text, "draw", seen):
        figure = picture.draw(picture.data)
        FigureCanvasAgg(figure).draw()
    whole = figure.bbox
    found = [
        f"{text.get_text()!r} is cut off"
        for text, box in boxes
        if box.x0 < whole.x0 - 1 or box.y0 < whole.y0 - 1 or box.x1 > whole.x1 + 1 or box.y1 > whole.y1 + 1
    ]
    for number, (first, box) in enumerate(boxes):
        found += [
            f"{first.get_text()!r} lies on {second.get_text()!r}"
            for second, other in boxes[number + 1 :]
            if box.padded(-1).overlaps(other.padded(-1))
        ]
    for axes in figure.axes:
        points = [point for line in axes.lines if line.get_transform() == axes.transData for point in line.get_xydata()]
        found += [f"{x}, {y} is not in view" for x, y in points if not axes.viewLim.padded(1e-9).contains(x, y)]
    return [text.get_text() for text, _ in boxes], found


def test_control_texts_and_points_that_cannot_be_read_are_seen():
    def crowded(places):
        figure = Figure(figsize=(3, 3))
        for number, (x, y) in enumerate(places):
            figure.text(x, y, f"text {number}")
        return figure

    def outside(values):
        figure = Figure(figsize=(3, 3))
        axes = figure.subplots()
        axes.plot(values, values, "o")
        axes.set_xlim(0, 8)
        return figure

    assert texts_and_faults(Picture([(0.1, 0.1), (0.1, 0.3)], crowded)) == (["text 0", "text 1"], [])
    assert texts_and_faults(Picture([(0.1, 0.1), (0.12, 0.12)], crowded))[1] == ["'text 0' lies on 'text 1'"]
    assert texts_and_faults(Picture([1, 5, 9], outside))[1] == ["9.0, 9.0 is not in view"]
    assert texts_and_faults(Picture([(0.1, 0.1), (0.95, 0.5)], crowded))[1] == ["'text 1' is cut off"]


# The page -------------------------------------------------------------------------------------------------------------


def test_goals_that_were_not_met_are_named():
    verdicts = [asdict(Verdict(goal, passed, "found")) for goal, passed in (("a", True), ("b", False), ("c", None))]
    text = page.goals({"verdicts": verdicts})
    assert text.splitlines() == [
        "Goals met: 1 of 3.", "- b: **not met** (found)", "- c: **open, other processes disturbed it** (found)"
    ]  # fmt: skip
    assert page.goals({}) == ""


def test_disturbed_numbers_are_said_to_decide_nothing():
    result = {"conditions": CONDITIONS, "command": "python a.py", "verdicts": []}
    assert "decide nothing" not in page.conditions(result)
    assert "decide nothing" in page.conditions(result | {"case": {"bystanders": 0.4}})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python a.py --seconds 3", "python a.py --seconds 3"),
        ("python a.py --json out.json --data /some/where/else", "python a.py --data DIR"),
    ],
)
def test_a_command_is_shown_without_places_on_our_machine(command, expected):
    assert page.plain_command(command) == expected


def test_what_means_something_in_markdown_is_escaped():
    assert page.table(["a", "b|c"], [["torch_ema", "*"]]).splitlines() == [
        "| a | b\\|c |", "|:---|---:|", "| torch\\_ema | \\* |"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        page.MADE.format("a"),
        f"{page.MADE.format('a')}\n{page.END}\n" * 2,
        f"{page.MADE.format('a')}\n{page.MADE.format('b')}\n{page.END}\n",
    ],
)
def test_markers_that_are_not_whole_are_refused(text):
    with pytest.raises(ValueError, match="markers"):
        page.blocks_in(text)


def test_page_and_script_know_the_same_blocks(few, path, capsys):
    path.write_text(path.read_text().replace(page.MADE.format("growth"), page.MADE.format("groth")))
    assert run(few, path, "--check") == 1
    assert "the block groth has no counterpart" in capsys.readouterr().out
    assert run(few, path) == 1
    assert "do not know the same blocks: groth, growth" in capsys.readouterr().err


def test_help_helps(capsys):
    with pytest.raises(SystemExit) as ended:
        draw.main(["--help"])
    assert ended.value.code == 0
    assert "--check" in capsys.readouterr().out
