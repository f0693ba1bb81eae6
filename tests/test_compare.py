"""Without these tests studies.compare could count stale runs, wrong rates or wrong p values."""

import importlib
import re
import shutil
import sys
from contextlib import nullcontext
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("scipy.stats", reason="see studies/requirements.txt")
import train  # noqa: E402
from studies import analysis, common, compare, compare_report, equal_time  # noqa: E402
from studies import pictures, protocol, runs  # noqa: E402
from studies.protocol import FIRST, GRID, LIMITS, NAMES, SEARCHED, TASKS  # noqa: E402
from studies.protocol import TWELVE  # noqa: E402
from studies.runs import Run  # noqa: E402


def made(task, variant, lr, values, seeds=FIRST, flags=""):
    """Runs with these accuracies, one for each seed; at the end half of that."""
    for seed, x in zip(seeds, values):
        head = {"task": task, "variant": variant, "lr": lr, "flags": flags, "seed": seed}
        shares = dict.fromkeys([*compare.FROM_SUMMARY, "mean_sampled", "all_fail"], x)
        shares |= {"final_sampled": x / 2, "scaled": 1.0, "0": 0.1, "25": x, "clipped": ""}
        shares["greedy_curve"] = f"{x} {x}" if seed % 2 else ""  # old rows have none
        yield head | shares


def searched(task, variant, values):
    """The rows of three base models at each rate of the grid."""
    grid = protocol.OWN_GRID.get(variant, GRID)
    return [row for lr, x in zip(grid, values) for row in made(task, variant, lr, [x] * 3)]


def test_significance():
    """No t interval; p of one side or of centred values; Holm that does not stop, or forgets."""
    assert common.interval([1, 2, 3]) == pytest.approx((2, -0.4841, 4.4841), abs=1e-4)
    assert common.sign_flips([1, 2, 4, 8]) == 2 / 16
    assert common.sign_flips([3, -1, 2]) == 4 / 8  # 4 and 6, each with its mirror image
    assert common.sign_flips([0.1, 0.2, -0.3]) == 1  # the sum is 0, except for rounding
    many = np.linspace(-1, 2, 26)  # all settings of 26 signs would need 14 GB
    assert common.sign_flips(many) == common.sign_flips(many)
    assert compare_report.p_value(many) == "0.012 (drawn)"
    p = {"c": 0.015, "a": 0.04, "b": 0.03, "d": 0.001}
    assert common.holm(p, 4) == {"d", "c"}  # b is above 0.05 / 2, and so a does not count
    assert common.holm(p, 6) == {"d"}


def test_rates():
    """A rate that is chosen too early, on other base models, or only from the grid."""
    rows = searched("add", "grpo", [0.7, 0.6, 0.5]) + searched("add", "nthr", [0.7, 0.6, 0.8])
    rows += made("add", "grpo", 6e-4, [0.9] * 6, range(4, 10))
    assert protocol.chosen_rate(rows, "add", "culling") == 3e-4
    assert protocol.chosen_rate(rows, "sum", "grpo") == 3e-4
    more = [*rows, *made("add", "grpo", 2.1e-4, [0.9] * 3)]
    assert protocol.accuracy_by_rate(more, "add", "grpo")[2.1e-4] == pytest.approx(90)
    assert protocol.chosen_rate(more, "add", "grpo") == 3e-4  # grpo keeps its rate
    assert protocol.chosen_rate(rows[:8], "add", "grpo") is None  # two base models at the last rate
    assert protocol.chosen_rate(rows, "add", "nthr") is None  # the end of the grid
    accuracy = protocol.accuracy_by_rate(rows, "add", "nthr")
    assert protocol.rates_to_try("nthr", accuracy) == [3e-4, 1.5e-4, 6e-4, 1.2e-3]
    level = searched("add", "half", [0.7, 0.71, 0.5]) + searched("add", "rloo", [0.7, 0.716, 0.5])
    for name, lower in (("half", 0.714), ("rloo", 0.1)):
        level += made("add", name, 7.5e-5, [lower] * 3)
    assert protocol.chosen_rate(level, "add", "half") == 3e-4  # 1.4 points are no reason
    assert protocol.chosen_rate(level, "add", "rloo") == 1.5e-4
    for beyond, best in ((0.75, 6e-4), (0.9, 1.2e-3)):
        more = made("add", "nthr", 1.2e-3, [beyond] * 3)
        assert protocol.chosen_rate([*rows, *more], "add", "nthr") == best


def test_times_of_runs(monkeypatch, tmp_path):
    """Times that are not averaged over base models, or those of another variant."""
    about = {"task": "add", "variant": "critic"}
    times = [about | {"seed": 2 + n, "of_grpo": n, "same_time": 5.0 * n} for n in (2, 3)]
    common.write_rows(tmp_path / "timing.csv", times)
    monkeypatch.setattr(analysis, "TABLES", tmp_path)
    analysis.run_times.cache_clear()
    assert analysis.run_times()["add", "critic"] == pytest.approx((2.5, 12.5))
    shown = compare_report.COLUMNS["time of a run"]
    assert shown(analysis.Effect("add", "critic", 3e-4, "", [], 3e-4)) == "2.50"
    assert shown(analysis.Effect("add", "half", 3e-4, "", [], 3e-4)) == ""
    analysis.run_times.cache_clear()


def test_equal_time(monkeypatch, tmp_path):
    """Pairs of other base models or with another run of grpo; a share for points; an average over
    as many evaluations of grpo, or over all of them, in place of the same times."""
    curve = {"0": 0.0, "100": 0.3, "400": 0.9}  # so 0.6 after 250 steps
    runs_there = [row | curve for row in made("add", "grpo", 3e-4, [0.5, 0.6, 0.9], (4, 5, 6))]
    common.write_rows(tmp_path / "compare.csv", runs_there)
    monkeypatch.setattr(equal_time, "RUNS", tmp_path / "compare.csv")
    about = {"task": "add", "variant": "verifree", "steps": 40}  # evaluated after 25 and 40 steps
    about |= dict.fromkeys(equal_time.COLUMNS, 0.4)
    rows = [about | {"seed": seed} for seed in (4, 5)]
    *_, line = equal_time.page(rows).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:4] == ["add", "`verifree`", "40", "2"]
    of_grpo = 100 * (0.6 + 0.9) / 2  # after 250 = 400 * 25 / 40 steps, and after 400
    found = [float(cell.split()[0]) for cell in cells[4:]]
    assert found == pytest.approx([40 - of_grpo, 12.5, -15.0], abs=0.01)


def test_jobs(monkeypatch):
    """Runs that a set lacks, makes twice or again, or not in order of seed."""
    on_grid = len(TASKS) * len(FIRST) * len(GRID)
    sizes = {"rates": on_grid * (len(NAMES) - 3) + 2 * 3 * 2, "dense": on_grid}
    sizes |= {"narrow": on_grid, "caps": 2 * 3 * 3 * 2, "by-step": on_grid}  # cispo has two rates
    sizes |= {"difficulty": 3 * on_grid, "finer": 2 * 3 * 4, "value-rate": on_grid}
    nothing_chosen = dict.fromkeys(protocol.SETS, 0) | sizes
    assert {x: len([*compare.runs_of(x, [])]) for x in protocol.SETS} == nothing_chosen
    rows = [row for x in product(TASKS, SEARCHED) for row in searched(*x, [0.7, 0.6, 0.5])]
    for row in common.matching(rows, task="add", variant="nthr", lr=6e-4):
        row["mean_sampled"] = 0.8
    rows += made("add", "nthr", 1.2e-3, [0.1] * 3)
    for row in common.matching(rows, variant="cispo"):
        rows.append(row | {"flags": protocol.CAPS[0], "mean_sampled": row["lr"] != 3e-4})
    planned = {name: [*compare.runs_of(name, rows)] for name in protocol.SETS}
    of_all = planned["variants"]
    seeds = [run.seed for run in of_all]
    assert len({*of_all}) == len(of_all) == len(TWELVE) * 2 * len(NAMES) and seeds == sorted(seeds)
    rates = {x: {run.lr for run in of_all if run[:2] == ("add", x)} for x in ("nthr", "cispo")}
    assert rates == {"nthr": {6e-4}, "cispo": {3e-4}}
    assert {run.lr for run in planned["low-cap"]} == {2.1e-4}
    made_at_all = {run.variant for runs in planned.values() for run in runs}
    assert made_at_all == {*NAMES, *protocol.CONTROLS} - {"double", "quarter"}  # see studies.dose
    rows += made("add", "grpo", 3e-4, [0.7], seeds=[5])
    monkeypatch.setattr(compare, "read_rows", lambda _: rows)
    args = SimpleNamespace(set=["rates", "variants"], tasks=["add"], seeds=[4, 5], out="x")
    assert len(compare.missing_runs(args)) == 2 * len(NAMES) - 1
    assert compare.words_about_rows(args) == f"Runs of --set that have rows: 1 of {2 * len(NAMES)}."
    args.seeds = [99]
    assert compare.words_about_rows(args).startswith("Nothing to run")
    monkeypatch.setattr(compare, "side_by_side", lambda f, jobs, *_: pytest.fail())
    args.only_tables = True
    compare.fill(args)


def test_a_row_of_a_run(tmp_path, monkeypatch, capsys):
    """Other settings than the row says; a run made again or mislaid; step 0 in the mean; lines and
    bars of several runs in one terminal."""
    monkeypatch.setattr(train, "warm_up", lambda *_: [*train.tqdm([0], "warm-up"), 0.0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run = Run(
        "add", "nthr", 6e-4, "--steps 2 --every 1 --prompts 2 --width 8 --max-grad-norm 1e9", 4
    )
    (row,) = compare.trained(run, tmp_path)
    assert Run.of(row) == run and row["scaled"] == 0
    (folder,) = tmp_path.glob("*/*")
    runs.model_after("add", "base", 4, tmp_path)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(train, "run", None)
    assert compare.trained(run, tmp_path) == [row]
    assert not runs.is_finished(run._replace(lr=3e-4), tmp_path)
    for name, torn in product(("code.txt", "summary.json"), (slice(50), slice(0))):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[torn])
        assert not runs.is_finished(run, tmp_path)
        (folder / name).write_bytes(whole)
    with monkeypatch.context() as patch:
        patch.setattr(train.torch, "__version__", "9.9")
        assert not runs.is_finished(run, tmp_path)  # made by another PyTorch
    monkeypatch.setattr(compare, "ROWS", tmp_path / "ROWS")
    other = row | {"seed": 3}
    compare.add_rows([row])
    compare.add_rows([other, row])
    kept = common.read_rows(compare.ROWS)
    assert [Run.of(x) for x in kept] == [Run.of(other), run]
    for name, x in row.items():
        assert kept[1][name] == (pytest.approx(x, rel=1e-4) if isinstance(x, float) else x)
    steps = [dict.fromkeys(train.COLUMNS.split(), i) for i in range(5)]
    steps[1]["sampled"] = steps[3]["sampled"] = ""
    steps[4]["grad_norm"] = 1e10
    common.write_rows(folder / "metrics.csv", steps)
    row = compare.row_of(folder)
    assert [name for name in row if name.isdigit()] == ["0", "2", "4"]
    assert (row["mean_sampled"], row["scaled"], row["all_fail"]) == (3, 0.25, 2.5)


def test_variants_beside_the_committed_ones(tmp_path, monkeypatch, capsys):
    """Own runs that are not drawn, drawn as if committed, or written to results/."""
    monkeypatch.setattr(train, "base_model", lambda args: train.new_model(args))
    asked = []
    note = lambda f, jobs, *_: asked.extend(jobs) or [f(*job) for job in asked]  # noqa: E731
    monkeypatch.setattr(compare, "side_by_side", note)
    drawn = []
    monkeypatch.setattr(pictures, "forest", lambda *parts: drawn.append(parts))
    argv = ["compare", "--variants", "half", "half", "--seeds", "2", "1", "2"]
    argv += ["--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*argv, "--steps", "50", "--prompts", "2", "--width", "8"])
    compare.main()
    ((path, results, tasks),) = drawn
    assert len(asked) == 4  # what is named twice is run once
    assert path == tmp_path / "forest.png" and tasks == ["add"]
    assert results[-1].n == 2 and results[-1].flags == "--steps 50 --prompts 2 --width 8"
    assert all(x.n == 12 for x in results[:-1] if x.task == "add")
    assert "| add | `half` | 0.0003 | 2 |" in capsys.readouterr().out


def test_verify(monkeypatch, capsys):
    """A column that differs and is said to agree; a traceback for a row that is not there."""
    old = next(made("add", "half", 3e-4, [0.5], [4]))
    new = old | {"all_fail": 0.6, "clipped": 0.2}
    monkeypatch.setattr(compare, "read_rows", lambda _: [old | {"seed": 5}, old])
    monkeypatch.setattr(compare, "side_by_side", lambda f, jobs, *_: [[new]])
    compare.verify("add", "half", "4")
    lines = capsys.readouterr().out.splitlines()
    differ = [line.split() for line in lines if "agrees" not in line]
    assert differ[0] == ["all_fail", "0.6", "differs:", "0.5"] and len(lines) == len(new)
    assert differ[1:] == [["clipped", "0.2", "differs:"]]  # rows of earlier editions have none
    for head in (("add", "half", "99"), ("add", "half", "x"), ("mul", "half", "4")):
        with pytest.raises(SystemExit, match="has no run of half on (add|mul) from base model"):
            compare.verify(*head)


def test_code_that_made_a_run(tmp_path):
    """A run that is trusted although its code has changed, or that has the hash of code that was
    changed while it ran; one made again for a comment."""
    (tmp_path / "studies").mkdir()
    for name in ("train", "tasks", "model", "grpo", "advantages", "studies/ablations"):
        shutil.copy(runs.ROOT / f"{name}.py", tmp_path / f"{name}.py")
    names = ("grpo", "critic", "nthr", "nthr_eta0")
    before = {name: runs.code_hash(name, tmp_path) for name in names}
    assert before == {name: runs.code_hash(name) for name in names}
    assert len({*before.values()}) == len(names)
    (tmp_path / "model.py").write_text("")
    assert before == {name: runs.code_hash(name, tmp_path) for name in names}  # this code runs
    shutil.copy(runs.ROOT / "model.py", tmp_path / "model.py")
    for file, old, new, changed in (
        ("grpo.py", '"""', '"""Another word. ', set()),
        ("train.py", "import csv", "import csv  # a comment", set()),
        ("model.py", "def forward(", "def forward_(", {*names}),
        ("advantages.py", "torch.where(trained.mask", "(trained.mask", {*names}),
        ("advantages.py", "return -(A * bias)", "return (A * bias)", {"critic"}),
        ("advantages.py", "s > tau", "s >= tau", {"nthr", "nthr_eta0"}),
        ("studies/ablations.py", "eta=0.0", "eta=0.1", {"nthr_eta0"}),
        ("tasks.py", "DRAWS = 1250", "DRAWS = 1251", {*names}),
    ):
        text = (tmp_path / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new, 1))
        runs.statements.cache_clear()
        after = {name: runs.code_hash(name, tmp_path) for name in names}
        (tmp_path / file).write_text(text)
        assert {name for name in names if after[name] != before[name]} == changed, (file, new)


PLAIN = "def mine(rollout):\n    return WEIGHT * grpo(rollout)\n"
OTHER = 'mine = lambda x: VARIANTS["f"](x)\ndef f(x):\n    return 5\n'
OWN_CODE = {  # what is put into advantages.py, and into mine.py beside it, and what changes there
    "a rule": ("def mine(rollout, x=0.5):\n    return x * grpo(rollout)\n", "", "0.5"),
    "a constant": (PLAIN + "WEIGHT: float = 0.5\n", "", "0.5"),
    "another variant": (OTHER, "", "5"),
    "no name": ('VARIANTS["mine"] = lambda rollout: 0.5\n', "", "0.5"),
    "a file": ("from mine import f as mine\n", "def f(x):\n    return 0.5\n", "0.5"),
}


@pytest.mark.parametrize("kind", OWN_CODE)
def test_own_code_that_made_a_run(kind, tmp_path, monkeypatch):
    """The old row for a rule whose constant, table or file has changed; runs of other variants that
    are made again for a rule that they do not use, or all runs for a comment."""
    text, beside, old = OWN_CODE[kind]
    monkeypatch.setitem(runs.TRAINED, "mine", print)
    shutil.copy(runs.ROOT / "train.py", tmp_path)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "ablations.py").write_text("")

    def hashes(text, beside):
        own = f"{(runs.ROOT / 'advantages.py').read_text()}\n{text}"
        for name, code in {"advantages": own, "mine": beside}.items():
            (tmp_path / f"{name}.py").write_text(code)
        runs.statements.cache_clear()
        runs.files.cache_clear()
        return [runs.code_hash(name, tmp_path) for name in ("mine", "grpo", "pos_only")]

    before = hashes(text, beside)
    assert before == hashes(f"# A comment\n{text}# Another\n", f"# A comment\n{beside}")
    assert (old in text) != (old in beside)
    mine, *others = hashes(text.replace(old, "1" + old), beside.replace(old, "1" + old))
    assert mine != before[0]
    if kind in ("a rule", "another variant"):
        assert others == before[1:]


def test_a_rule_in_a_file_of_its_own(tmp_path, monkeypatch):
    """A run that is trusted although the file of its rule, or one beside it, has changed; a rule
    that is not found because it was registered after the studies were imported."""
    rule = "from near import W\ndef mine(x):\n    return W + 1\n"
    files = {"own_rule": (rule, "W + 2"), "near": ("W = 1\n", "W = 2")}
    for name, (text, _) in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    rule = importlib.import_module("own_rule").mine

    def code_hash():
        runs.statements.cache_clear()
        runs.files.cache_clear()
        return runs.code_hash("mine")

    for registered in (rule, partial(rule)):
        monkeypatch.setitem(train.VARIANTS, "mine", registered)
        before = code_hash()
        for name, (text, changed) in files.items():
            (tmp_path / f"{name}.py").write_text(f"# A comment\n{text}")
            assert code_hash() == before
            (tmp_path / f"{name}.py").write_text(text.replace(changed[:-1] + "1", changed))
            assert code_hash() != before
            (tmp_path / f"{name}.py").write_text(text)


def test_what_is_missing(tmp_path, monkeypatch, capsys):
    """A variant that is measured again, or one that is left out where others are there; rows that
    are missing, of which nothing is said."""
    names = ["grpo", "half"]
    args = SimpleNamespace(tasks=["add"], seeds=[4, 5], out="x", jobs=1, only_tables=True)

    def measure(task, seed, out, missing):
        return [{"task": task, "seed": seed, "variant": x, "seen": out} for x in missing]

    monkeypatch.setattr(common, "side_by_side", lambda f, jobs, *_: [f(*job) for job in jobs])
    path = tmp_path / "some.csv"
    common.write_rows(path, measure("add", 4, "y", ["half"]))
    assert len(common.complete(path, measure, names, args)) == 1
    assert (
        capsys.readouterr().err == "Rows missing in some.csv: 3. The first one is of add 4 grpo.\n"
    )
    with pytest.raises(SystemExit, match="other.csv has no rows, so no page is made from it"):
        common.complete(tmp_path / "other.csv", measure, names, args)
    args.only_tables = False
    rows = common.complete(path, measure, names, args)
    expected = {(4, "half", "y"), (4, "grpo", "x"), (5, "grpo", "x"), (5, "half", "x")}
    assert {(row["seed"], row["variant"], row["seen"]) for row in rows} == expected
    assert len(rows) == 4 and common.read_rows(path) == rows
    singly = lambda seed, name, out: measure("add", seed, out, [name])[0]  # noqa: E731
    heads = [(4, "half"), (5, "nthr"), (6, "nthr")]
    assert common.complete_singly(path, singly, heads, args)[4:] == measure("add", 5, "x", ["nthr"])
    assert capsys.readouterr().err == "Rows missing in some.csv: 1. The first one is of 6 nthr.\n"
    args.seeds = [4, 99]
    with pytest.raises(SystemExit, match="This study has the base models 4, 5, 6."):
        common.complete_singly(path, singly, heads, args)


def test_noise_floor():
    """A deviation of other rows, of n in place of n - 1, or over one base model's mean."""
    rows = [*made("add", "dr_grpo", 3e-4, [0.9] * 3), *made("add", "rloo", 3e-4, [0.1] * 3)]
    rows += made("add", "dr_grpo", 3e-4, [0.50, 0.51, 0.52], range(4, 7))
    rows += made("add", "rloo", 3e-4, [0.50, 0.50, 0.50], range(4, 7))
    rows += made("add", "rloo", 1.5e-4, [0.2, 0.3, 0.9], range(4, 7))
    assert analysis.noise_floor(rows, "add") == pytest.approx(0.01)
    _, low, high = common.interval([0.00, 0.01, 0.02])
    assert f"{100 * (high - low) / 2:.1f}" == "2.5"
    text = analysis.words_about_noise(rows, "add")
    assert "with a standard deviation of 1.00" in text
    assert "2.5 over 3, 1.0 over 6, 0.6 over 12." in text


def test_names_do_not_touch():
    """Names nearer than they may be, out of order, or moved although there is room."""
    assert pictures.spread(np.array([0.1, 0.5, 0.9]), 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert pictures.spread(np.array([0.5, 0.5, 0.9]), 0.1) == pytest.approx([0.45, 0.55, 0.9])


def test_slow_variants_stand_below_the_others(monkeypatch):
    """A slow variant among fast ones; a blue name for a gain on one task; a time that was not
    measured; a value outside the picture that is drawn as if it were inside."""
    plt = pytest.importorskip("matplotlib.pyplot")
    _, axes = plt.subplots(1, 2, squeeze=False, sharey=True)
    monkeypatch.setattr(pictures, "picture", lambda *_, **more: nullcontext(axes))
    times = {("add", "fast"): 1.1, ("add", "slow"): 1.3, ("mul", "slow"): 1.1, ("add", "late"): 1.2}
    times = {head: (time, 400) for head, time in times.items()}
    monkeypatch.setattr(pictures, "run_times", lambda: times)
    results = []
    for name, significant, *points in (
        ("fast", ["mul"], 3, 3),
        ("half", TASKS, 2, 2),
        ("slow", TASKS, 9, -20),
        ("late", TASKS, 8, 15),
    ):
        for task, x in zip(TASKS, points):
            about = {"task": task, "variant": name, "significant": task in significant, "n": 12}
            results.append(SimpleNamespace(**about, average=common.Interval(x / 100)))
    pictures.forest(None, results)
    names = {x.get_text(): x.get_color() == pictures.UP for x in axes[0][0].get_yticklabels()}
    assert [*names] == ["slow", "late", "cost more time:", "half", "fast"]  # from the bottom
    assert [name for name in names if names[name]] == ["late", "half"]
    texts = [{x.get_text() for x in ax.texts} - {""} for ax in axes[0]]
    assert texts == [{"1.3×", "1.2×"}, {"1.1×", "−20"}]
    markers = {line.get_xdata()[1]: line.get_marker() for line in axes[0][1].lines[1:5]}
    assert markers == {-14: "<", 10.5: ">", 2: "o", 3: "o"}


def test_a_page_of_some_rows(tmp_path, monkeypatch):
    """Other pairs of runs, another family of comparisons, bold for what is not significant; a
    variant that is in the tables before it has rows, or not once it has them."""
    monkeypatch.setattr(pictures, "TABLES", tmp_path)
    first = [x for x in product(TASKS, SEARCHED) for x in searched(*x, [0.5, 0.2, 0.1])]
    assert analysis.effects(first) == []
    about = partial(pytest.approx, abs=0.01)  # rows have five digits
    level = np.linspace(0.3, 0.6, 12)  # of base models
    rows = []
    expected = {}
    for gain, n, *head in (
        (10, 12, "add", "half", 3e-4, ""),
        (0, 12, "add", "grpo", 3e-4, ""),
        (-10, 12, "add", "critic", 3e-4, ""),
        (-5, 12, "mul", "dr_grpo", 3e-4, ""),
        (-4, 12, "mul", "process", 3e-4, ""),
        (-6, 12, "mul", "rloo", 3e-4, ""),
        (0, 12, "mul", "grpo", 3e-4, ""),
        (10, 9, "add", "nthr", 3e-4, ""),  # not significant: p = 2 / 2**9
        (30, 12, "add", "nthr", 6e-4, ""),  # not its own rate
        (-20, 6, "add", "dense", 3e-4, ""),
        (0, 6, "add", "grpo", 3e-4, LIMITS["1"]),
        (-5, 6, "add", "half", 3e-4, LIMITS["1"]),
        (0, 6, "sum", "grpo", 3e-4, ""),
        (20, 6, "sum", "verifree", 3e-4, ""),
    ):
        beside = 0.1 * (head[-1] != "")  # with another limit grpo is better, too
        values = level[:n] + gain / 100 + beside
        rows += made(*head[:3], values[::-1], range(n + 3, 3, -1), *head[3:])
        gain -= 0.5 * (head[1] == "dr_grpo")  # the mean of its runs and those of rloo
        expected[tuple(head)] = (about(gain), about(gain / 2), n)
    rows += made("add", "half", 3e-4, [0.0], [16])  # where grpo has no run
    rows += made("add", "focal", 3e-4, [0.5], [4])  # the others are not there yet
    expected["add", "focal", 3e-4, ""] = (about(20), about(10), 1)
    results = analysis.effects(first + rows)
    effects = {}
    for x in results:
        gains = 100 * x.average.value, 100 * x.minus_grpo("final_sampled").mean()
        effects[x.task, x.variant, x.lr, x.flags] = (*gains, x.n)
    assert effects == expected
    names = {x.variant for x in results if x.significant}
    assert names == {"half", "critic", "dr_grpo", "process"}
    page = compare_report.page(first + rows, results)
    assert (page.count("**+"), page.count("**-")) == (1, 3)
    # Neither grpo nor rloo is compared, and culling and ppo have no rows here.
    assert f"{2 * (len(NAMES) - 4)} comparisons" in page.replace("\n", " ")
    of_pair = [x for x in page.splitlines() if "rloo" in x and "| 12 |" in x]
    assert len(of_pair) == 1 and "| mul | `dr_grpo = rloo` | 0.0003 | 12 | **-5.5" in of_pair[0]
    parts = [sum("| add |" in x for x in part.splitlines()) for part in page.split("\n## ")]
    assert parts == [0, 4, 0, 2, 3, 3 * 8, 0, len(SEARCHED)]
    assert "| add | `half` | 0.0003 | 12 | **+10.0" in page
    plain = re.sub(r" \(.*?\)", "", page)  # without intervals
    assert plain.count("| add | `half` | +10.0 |  | -5.0 |  |") == 2  # the average, and greedy
    assert plain.count("| add | `half` | +5.0 |  | -2.5 |  |") == 1  # sampled at the end
    of_six = 100 * level[:6].mean()
    assert f"| add | `grpo` | {of_six:.1f} % |  | {of_six + 10:.1f} % |  |" in plain
    assert "| add | `half` minus `nthr` | 9 |" in plain
    assert f"| add | `grpo {LIMITS['1']}` minus `grpo` | 6 | +10.0 | 0.031 |" in plain
    assert page.count("| sum |") == 2
    pictures.draw([])
    assert not [*tmp_path.glob("*.png")]
    pictures.draw(results)
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {f"{x}{dark}.png" for x in ("forest", "learning") for dark in ("", "-dark")}
