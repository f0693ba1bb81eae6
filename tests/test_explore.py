"""The advantage lab in a real browser, used as a person would: mouse, keyboard, phone, dark mode.

The page computes every advantage and update in JavaScript. The tests compare them with the Python
functions and with autograd.
"""

import inspect
import math
import re
import shutil
import time
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

import train
from advantages import VARIANTS, decode_responses, nthr_scores, token_bias, with_advantages
from grpo import Rollout, policy_loss, sample_rollout
from tasks import ADD, CHARACTERS
from test_grpo import FAIL, MIXED, problem, sample, tiny_gpt
from tools import explore

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WEIGHTS = Path(__file__).parent.parent / "course" / "weights" / "add-base.pt"
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="neither chromium nor google-chrome is here")
LR = 3e-4  # of the critic's network, which does not act on its first output
DESKTOP = (1280, 720)
PHONE = (390, 844)


# ---- Pages and browsers
@pytest.fixture(scope="module")
def groups() -> dict[str, tuple]:
    """Two groups of eight, each with a critic's network: of a model that can add, and of another
    whose responses have any length and often no marker."""
    able = train.new_model(train.parse_arguments([]))
    weights = torch.load(WEIGHTS, weights_only=True)
    able.load_state_dict({name: w.float() for name, w in weights.items()})
    question = problem(ADD, [347, 285], 3)
    rng = torch.Generator().manual_seed(0)
    first = sample_rollout(able, ADD, [question], 8, generator=rng)
    other = sample(tiny_gpt(), (3,), G=8)
    return {"able": (first, tiny_gpt(outputs=1)), "tiny": (other, tiny_gpt(outputs=1))}


@pytest.fixture(scope="module")
def recorded() -> list[Rollout]:
    """Two groups of a recorded run, one of them mixed, at two steps."""
    kept = [sample(tiny_gpt(), (2, 5), G=4, seed=seed) for seed in (0, 1)]
    return [replace(rollout, rewards=torch.tensor([MIXED, FAIL])) for rollout in kept]


@pytest.fixture(scope="module")
def pages(groups, recorded, tmp_path_factory) -> dict[str, str]:
    """Addresses: a page for each group, and the one that is handed out."""
    kept = []
    for step, rollout in zip((0, 25), recorded):
        shown = [explore.texts_and_rewards(explore.one(rollout, p)) for p in range(2)]
        kept.append({"step": step, "sampled_by_level": {2: 0.3, 5: 0.4}, "groups": shown})
    runs = {"add-grpo": {"kept": kept}, "add-verifree": {"kept": kept}}
    addresses = {"committed": explore.PAGE.as_uri()}
    for name, (rollout, network) in groups.items():
        path = tmp_path_factory.mktemp("page") / f"{name}.html"
        lab = explore.lab(rollout, token_bias(network, rollout))
        path.write_text(explore.page({"lab": lab, "runs": runs}), encoding="utf-8")
        addresses[name] = path.as_uri()
    return addresses


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """No other flags than these: most drivers switch off what slows a page down for a person."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    folder = tmp_path_factory.mktemp("profile")
    for flag in ("--headless=new", "--no-sandbox", f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    """The browser at the size of a desk; afterwards its console must be empty."""
    show(chromium, DESKTOP)
    yield chromium
    assert chromium.get_log("browser") == []


def show(browser, size, dark=False) -> None:
    width, height = size
    phone = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def visit(browser, address: str) -> None:
    browser.get("about:blank")  # else another fragment of the same page would not load it
    browser.get(address)
    while browser.execute_script("return document.readyState") != "complete":
        time.sleep(0.05)  # on a busy machine get() once came back before the page had begun


def element(browser, selector: str):
    return browser.find_element(By.CSS_SELECTOR, selector)


def texts(browser, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((x) => x.textContent)"
    return [text.replace("\u2212", "-") for text in browser.execute_script(script, selector)]


# ---- The numbers
def with_rewards(rollout: Rollout, G: int) -> Rollout:
    """A rollout of one group -> its first G responses with all 2^G patterns of rewards."""
    patterns = torch.tensor([*product((0.0, 1.0), repeat=G)])
    P = len(patterns)
    names = ("tokens", "mask", "logprobs", "probs", "hidden")
    tensors = {name: getattr(rollout, name)[:, :G] for name in names}
    tensors = {name: x.expand(P, *x.size()[1:]) for name, x in tensors.items()}
    tensors["prompts"] = rollout.prompts.expand(P, -1)
    about = {"problems": rollout.problems * P, "texts": [rollout.texts[0][:G]] * P}
    return replace(rollout, rewards=patterns, **tensors, **about)


def undecided(name: str, rollout: Rollout) -> torch.Tensor:
    """Tokens so near to a threshold that rounding decides on which side they are, (P, G, T)."""
    if name == "nthr":
        correct = rollout.rewards == 1
        s = nthr_scores(rollout)
        sbar = s.masked_fill(~rollout.mask, 0).sum(-1) / rollout.mask.sum(-1)
        tau = sbar.masked_fill(~correct, math.inf).amin(1)[:, None, None]
        return (s - tau).abs() < 1e-4 * (1 + tau.abs())
    if name == "forking":
        H = torch.special.entr(rollout.probs).sum(-1).masked_fill(~rollout.mask, math.nan)
        distance = (H - H.flatten(1).nanquantile(0.8, dim=1)[:, None, None]).abs()
        return (distance > 0) & (distance < 1e-5)
    return torch.zeros_like(rollout.mask)


def advantages(name: str, x: Rollout, network) -> Rollout:
    """With A (P, G, T) of the Python function, for each group as if it were the only one."""
    variant = VARIANTS[name]
    apply = variant(deepcopy(network), LR) if isinstance(variant, type) else variant
    if name != "forking":  # its threshold is that of the whole batch
        return with_advantages(x, apply)
    apart = [with_advantages(explore.one(x, p), apply) for p in range(len(x.rewards))]
    return replace(x, A=torch.cat([group.A for group in apart]))


ALL_PATTERNS = """
  const [name, G] = arguments;
  const p = table.begin.map(softmax);
  const patterns = [];
  for (let k = 0; k < 2 ** G; k++) {
    patterns.push(ADVANTAGES[name](theEight(k.toString(2).padStart(G, "0"), p)).flat());
  }
  return patterns;
"""


@pytest.mark.parametrize("group", ["able", "tiny"])
def test_every_advantage_is_the_python_functions(browser, pages, groups, group):
    """All rewards of 2 to 8 responses, all variants, all tokens. The inputs are recorded as 32-bit
    numbers, of which Python computes in 32 bits and the page in 64: they agree to 0.0001."""
    rollout, network = groups[group]
    visit(browser, pages[group])
    assert browser.execute_script("return names()") == [*VARIANTS]
    skipped = compared = 0
    for G in range(2, 9) if group == "able" else (3, 8):
        x = with_rewards(rollout, G)
        for name in VARIANTS:
            trained = advantages(name, x, network)
            shown = torch.tensor(browser.execute_script(ALL_PATTERNS, name, G))
            expected = trained.A.flatten(1)[:, trained.mask[0].flatten()]
            assert shown.size() == expected.size(), name
            near = torch.zeros_like(shown, dtype=torch.bool)
            if name in ("nthr", "forking"):
                near = undecided(name, x).flatten(1)[:, trained.mask[0].flatten()]
            wrong = ((shown - expected).abs() > 1e-4) & ~near
            assert not wrong.any(), (name, G, shown[wrong][:3], expected[wrong][:3])
            skipped += near.sum().item()
            compared += near.numel()
    assert skipped < 0.001 * compared


def span(values: torch.Tensor) -> list[float]:
    """The numbers that the page shows for these advantages: lowest and highest, or one."""
    low, high = values.min().item(), values.max().item()
    return [low] if f"{low:.2f}" == f"{high:.2f}" else [low, high]


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"[+-]?[0-9]+(?:\.[0-9]+)?", text)]


def test_what_is_shown_is_what_is_computed(browser, pages, groups):
    """A number in another row or column, a stale one, a rounded one; for flips by the mouse."""
    rollout, network = groups["able"]
    visit(browser, pages["able"] + "#rewards=00000000")
    rewards = torch.zeros(1, 8)
    for i in (2, 7, 0, 2):
        element(browser, f"#first [data-flip='{i}']").click()
        rewards[0, i] = 1 - rewards[0, i]
        x = replace(rollout, rewards=rewards)
        assert texts(browser, "#rules tbody th") == [*VARIANTS]
        cells = texts(browser, "#rules td")
        for k, name in enumerate(VARIANTS):
            trained = advantages(name, x, network)
            for r, cell in zip((1, 0), cells[2 * k : 2 * k + 2]):
                chosen = trained.A[0][rewards[0] == r][trained.mask[0][rewards[0] == r]]
                assert numbers(cell) == pytest.approx(span(chosen), abs=0.00501), name
        for board, side, name in (
            ("first", 2, "grpo"),
            ("second", 2, "grpo"),
            ("second", 3, "half"),
        ):
            shown = texts(browser, f"#{board} .row:has([data-flip]) > :nth-child({side}) > .A")
            expected = [A[0].item() for A in with_advantages(x, VARIANTS[name]).A[0]]
            assert [*map(float, shown)] == pytest.approx(expected, abs=0.00501)
        n = int(rewards.sum())
        assert element(browser, "#sentence").text.startswith(f"{['One', 'Two', 'Three'][n - 1]} of")
        worked = r"\((\d) - ([\d.]+)\)\s/\s([\d.]+) = ([+-]\d\.\d\d)"
        found = re.findall(worked, texts(browser, "#sentence")[0])
        assert [float(A) for *_, A in found] == pytest.approx(
            [((8 - n) / n) ** 0.5, -((n / (8 - n)) ** 0.5)], abs=0.00501
        )
        # The formula as it is worked out must give the result that stands behind it.
        for r, mu, sigma, A in found:
            assert f"{(int(r) - float(mu)) / float(sigma):+.2f}" == A


def test_recorded_runs_are_what_the_variants_say(browser, pages, recorded):
    """Another step, level or variant. For verifree the sampled answers were hidden."""
    for (p, level), (k, step), name in product(
        enumerate((2, 5)), enumerate((0, 25)), ("grpo", "verifree")
    ):
        address = f"#run=add-{name}&step={step}&level={level}"
        visit(browser, pages["able"] + address)
        rollout = explore.one(recorded[k], p)
        trained = with_advantages(rollout, VARIANTS[name])
        script = "return ADVANTAGES[arguments[0]](runGroup()).flat()"
        shown = torch.tensor(browser.execute_script(script, name), dtype=torch.float32)
        torch.testing.assert_close(shown, trained.A[0][trained.mask[0]], atol=1e-4, rtol=0)
        rows = texts(browser, "#responses .tokens")
        given = rollout.problems[0].answer + "$"
        for row, text in zip(rows, decode_responses(rollout), strict=True):
            added = "\u2192" + given if name == "verifree" and "#" in text else ""
            assert row == text + added


# ---- The model of the page: a table
def of_table(z, texts, rewards, rollout: Rollout) -> Rollout:
    """These texts as a rollout of the policy with logits z (prefixes, V), whose vectors h are those
    that the network had after the same prefix."""
    first = {}
    for i, text in enumerate(decode_responses(rollout)):
        for t in range(len(text)):
            first.setdefault(text[:t], (i, t))
    row = {prefix: n for n, prefix in enumerate(first)}
    T = max(map(len, texts))
    rows = torch.tensor([[row.get(text[:t], 0) for t in range(T)] for text in texts])
    tokens = [[CHARACTERS.index(c) for c in text.ljust(T, "_")] for text in texts]
    i, t = zip(*first.values())
    logprobs = z.log_softmax(1)[rows].gather(-1, torch.tensor(tokens)[..., None])[..., 0]
    return Rollout(
        tokens=torch.tensor([tokens]),
        mask=torch.tensor([[[t < len(text) for t in range(T)] for text in texts]]),
        rewards=torch.tensor([rewards], dtype=z.dtype),
        logprobs=logprobs[None],
        probs=z.softmax(1)[rows].detach()[None],
        hidden=rollout.hidden[0, i, t].double()[rows][None],
        problems=rollout.problems,
    )


def step_of(z, texts, rewards, rollout, name) -> torch.Tensor:
    """z after one update, by autograd; None if rounding decides what nthr or forking do."""
    z = z.clone().requires_grad_()
    x = of_table(z, texts, rewards, rollout)
    sampled = replace(x, logprobs=x.logprobs.detach())
    if (undecided(name, sampled) & x.mask).any() and name == "nthr":
        return None
    A = with_advantages(sampled, VARIANTS[name]).A
    push = torch.autograd.grad((A * x.logprobs).masked_fill(~x.mask, 0).sum() / len(texts), z)[0]
    return (z + 0.3 * push).detach()


def begin(rollout: Rollout) -> torch.Tensor:
    first = {}
    for i, text in enumerate(decode_responses(rollout)):
        for t in range(len(text)):
            first.setdefault(text[:t], (i, t))
    return torch.stack([rollout.probs[0][place] for place in first.values()]).double().log()


ONE_UPDATE = """
  const [name, rewards, fresh, n] = arguments;
  let z = table.begin;
  const before = { rewards: "10010000", fresh: 0 };
  for (let k = 0; k < n; k++) z = updated(z, nextGroup(before, z, k), "grpo");
  const x = nextGroup({ rewards, fresh }, z, n);
  return { z, texts: x.tokens, rewards: x.rewards, after: updated(z, x, name) };
"""


def test_an_update_is_a_step_along_the_gradient(browser, pages, groups):
    """The gradient by hand against autograd, for every variant that needs no more than the table:
    on the recorded responses and on drawn ones, at the start and after updates."""
    rollout, _ = groups["able"]
    visit(browser, pages["able"])
    variants = [name for name in VARIANTS if name not in ("critic", "likelihood", "verifree")]
    assert browser.execute_script("return names().filter((n) => !NETWORK.includes(n))") == variants
    compared = 0
    for name, rewards, fresh, n in product(
        variants, ("10000000", "01100010", "00000000"), (0, 1), (0, 30)
    ):
        made = browser.execute_script(ONE_UPDATE, name, rewards, fresh, n)
        z = torch.tensor(made["z"], dtype=torch.float64)
        if n == 0:
            torch.testing.assert_close(z, begin(rollout), atol=1e-5, rtol=0)
        assert (made["texts"] == decode_responses(rollout)) == (not fresh)
        expected = step_of(z, made["texts"], made["rewards"], rollout, name)
        if expected is None:
            continue
        after = torch.tensor(made["after"], dtype=torch.float64)
        torch.testing.assert_close(after, expected, atol=1e-6, rtol=0)
        moves = (after - z).abs().max() > 1e-4
        assert moves or name not in ("negative", "ngrpo") or rewards != "00000000"
        compared += 1
    assert compared > 140


def test_bars_show_the_probabilities_of_both_models(browser, pages, groups):
    """Updates by two rules, a change of rewards, another update: the line is where the bars were at
    the change. A bar of another response or model, a lost update."""
    rollout, _ = groups["able"]
    ys = decode_responses(rollout)
    visit(browser, pages["able"] + "#rewards=10000000&rule=ngrpo")
    element(browser, "#second [data-flip='3']").click()
    for _ in range(3):
        element(browser, "#update").click()
    element(browser, "#beside [data-updates='10']").click()
    element(browser, "#first [data-flip='3']").click()
    element(browser, "#update").click()
    distinct = torch.tensor([ys.index(y) == i for i, y in enumerate(ys)])
    for side, name in ((2, "grpo"), (3, "ngrpo")):
        z = begin(rollout)
        for n in range(14):
            rewards = [1.0] + [0.0] * 7
            rewards[3] = float(n < 13)
            changed = z
            z = step_of(z, ys, rewards, rollout, name)
        p = [of_table(w, ys, rewards, rollout).logprobs[0] for w in (changed, z)]
        mask = of_table(z, ys, rewards, rollout).mask[0]
        before, now = (100 * x.masked_fill(~mask, 0).sum(-1).exp() for x in p)
        rows = texts(browser, f"#second .row:not(.head) > :nth-child({side}) .value")
        shown = torch.tensor([numbers(row) for row in rows])
        rest = [100 - x[distinct].sum() for x in (before, now)]
        expected = torch.stack([torch.cat([x, r[None]]) for x, r in zip((before, now), rest)], 1)
        assert torch.allclose(shown.double(), expected, atol=0.0051)
        for row, (b, a) in zip(rows, expected.tolist()):
            assert ("\u25b2" in row) == (a > 1.0005 * b) and ("\u25bc" in row) == (a < 0.9995 * b)
        widths = browser.execute_script(
            f"return [...document.querySelectorAll('#second .row:not(.head) > :nth-child({side}) "
            "i:not(.was)')].map((x) => parseFloat(x.style.width))"
        )
        end = numbers(texts(browser, "#second .axis .end")[0])[0]
        scaled = [min(100 * a / end, 100) for _, a in expected.tolist()[:-1]]
        assert widths == pytest.approx(scaled, abs=0.01)  # all others: a number, no bar


def test_a_rule_that_is_chosen_later_has_made_the_same_updates(browser, pages):
    """Choosing a rule began again in silence, so two rules could not be compared."""
    visit(browser, pages["committed"] + "#rule=half")
    for fresh in ("0", "1"):
        element(browser, f"input[name='fresh'][value='{fresh}']").click()
        for _ in range(4):
            element(browser, "#update").click()
    values = texts(browser, "#second .value")
    Select(element(browser, "#rule")).select_by_value("rloo")
    assert texts(browser, "#second .value") != values
    assert texts(browser, "[data-count]") == ["8 updates"] * 2
    element(browser, "#every summary").click()
    element(browser, "#rules [data-variant='half']").click()
    browser.execute_script("models = {}; drawBoards()")
    assert texts(browser, "#second .value") == values


def test_new_responses_are_drawn_from_the_table(browser, pages):
    """As often as they are likely; one that leaves the table ends there and is incorrect."""
    visit(browser, pages["able"])
    script = "const p = table.begin.map(softmax); const all = [];"
    script += "for (let n = 0; n < 1000; n++) all.push(...draw(p, n)); return all"
    drawn = browser.execute_script(script)
    recorded, prefixes, p = browser.execute_script(
        "const p = table.begin.map(softmax); return [data.lab.tokens, [...table.prefixes.keys()],"
        "data.lab.tokens.map((text) => probability(p, text))]"
    )
    for text, share in zip(recorded, p):
        spread = (share * (1 - share) / len(drawn)) ** 0.5
        assert abs(drawn.count(text) / len(drawn) - share) < 4 * spread
    assert all(text[:-1] in prefixes and text not in prefixes for text in drawn)
    assert any(text not in recorded for text in drawn)
    reward = "return rewardOf(arguments[0], '11111111')"
    assert browser.execute_script(reward, recorded[3]) == 1
    assert browser.execute_script(reward, next(y for y in drawn if y not in recorded)) == 0


def test_the_push_is_the_gradient_of_the_loss(browser, pages):
    """For one token, each loss that the table LOSS has, both signs, inside and outside its limits:
    a limit of another loss, the clip for the other sign, a push of cispo that ends."""
    visit(browser, pages["able"])
    losses = browser.execute_script("return losses()")
    assert ("cispo" in losses) == ("cispo" in VARIANTS) and losses[0] == "grpo"
    for name, ratio, A in product(
        losses,
        (0.4, 0.5, 0.79, 0.81, 0.96, 0.98, 1.0, 1.03, 1.05, 1.19, 1.21, 2.0, 7.0),
        (1.0, -1.0),
    ):
        ones = torch.ones(1, 1, 1)
        logprobs = (math.log(ratio) * ones).requires_grad_()
        keys = inspect.signature(policy_loss).parameters
        options = {k: v for k, v in train.LOSS.get(name, {}).items() if k in keys}
        loss, _ = policy_loss(logprobs, 0 * ones, A * ones, ones, **options)
        loss.backward()
        shown = browser.execute_script(
            "return PUSH[arguments[0]](arguments[1], arguments[2])", name, ratio, A
        )
        assert shown == pytest.approx(-logprobs.grad.item(), abs=1e-6), (name, ratio, A)
    cells = [*map(float, texts(browser, "#pushes td"))]
    rows = [*map(float, texts(browser, "#pushes tbody th"))]
    rows = [*zip(rows[::2], rows[1::2])]
    assert {*product((0.5, 2.0), (1.0, -1.0))} < {*rows}
    for k, row in enumerate(rows):
        script = "return losses().map((name) => PUSH[name](arguments[0], arguments[1]))"
        shown = cells[k * len(losses) : (k + 1) * len(losses)]
        assert shown == browser.execute_script(script, *row)
    for one, other in ((0, 1), (0, 2), (1, 2)):  # each pair of losses differs in a row
        assert cells[one :: len(losses)] != cells[other :: len(losses)]


def test_the_limits_of_gspo_have_a_source(browser, pages):
    """The paper has 0.0003 and 0.0004; nothing said why the numbers here are others."""
    visit(browser, pages["committed"] + "#loss=gspo")
    said = element(browser, "#clip-says").text
    low, high = (train.LOSS["gspo"][key] for key in ("clip_low", "clip_high"))
    assert (low, high) == pytest.approx((100 * 0.0003, 100 * 0.0004))
    assert f"{1 - low:.2f} and {1 + high:.2f}" in said
    assert "a hundred times that of its paper (arXiv 2507.18071)" in said
    for name, sign, limit in (("gspo", 1, 1 + high), ("grpo", -1, 0.8), ("cispo", -1, 1.2)):
        visit(browser, pages["committed"] + f"#loss={name}&sign={sign}")
        assert any(text.endswith(f" at {limit:.2f}") for text in texts(browser, "#curve text"))


def test_the_clip_shows_its_ratio_and_every_limit(browser, pages):
    """cispo cuts above 1, and its axis ended at 2.5. A ratio beyond the axis of another loss."""
    visit(browser, pages["committed"] + "#loss=cispo&ratio=5.5")
    assert element(browser, "#ratio-now").text == "5.50"
    assert "the push is +1.20" in element(browser, "#clip-says").text
    ends = [
        float(x.get_dom_attribute("cx"))
        for x in browser.find_elements(By.CSS_SELECTOR, "#curve circle")
    ]
    assert ends[0] < float(element(browser, "#curve").get_dom_attribute("viewBox").split()[2])
    element(browser, "#losses button").click()
    assert element(browser, "#ratio-now").text == "2.50"
    assert element(browser, "#ratio").get_property("value") == "2.5"


# ---- The command
def test_help_and_bad_lines_start_nothing(monkeypatch, capsys, tmp_path):
    """--help ran for ten minutes and wrote over the page; a bad --out was found at the end."""
    monkeypatch.setattr(explore, "record", None)
    page = explore.PAGE.read_bytes()
    other = tmp_path / "other.html"
    other.write_text("another page")
    nowhere = str(tmp_path / "no" / "page.html")
    inside = str(other / "page.html")
    outs = (nowhere, inside, str(tmp_path), str(tmp_path / ("x" * 300)), "/dev/null")
    lines = [["--help"], ["--steps", "-1"], ["--tasks", "sub"], *(["--out", out] for out in outs)]
    for line in (
        *lines,
        ["--keep", "--out", str(tmp_path / "no")],
        ["--keep", "--out", str(other)],
    ):
        with pytest.raises(SystemExit) as stop:
            explore.main(line)
        assert stop.value.code == (0 if line == ["--help"] else 2)
        said = capsys.readouterr()
        assert ("--tasks" in said.out) == (line == ["--help"])
        assert line[0] not in ("--out", "--keep") or line[-1] in said.err
    assert explore.PAGE.read_bytes() == page
    assert [*tmp_path.iterdir()] == [other] and other.read_text() == "another page"


@pytest.mark.parametrize("late", [False, True])
def test_a_full_disk_leaves_the_old_page(monkeypatch, capsys, tmp_path, late):
    """The old page was emptied before the new one was written. A disk that is full from the start
    is found before the work, and one that fills meanwhile costs only the new page."""

    def no_space(path, *args, **options):
        with path.open("w") as file:
            file.write("<!DOCTYPE")
        raise OSError(28, "No space left on device")

    work = []
    monkeypatch.setattr(explore, "record", lambda *args: work.append(1) or {"lab": {}, "runs": {}})
    monkeypatch.setattr(Path, "write_text" if late else "write_bytes", no_space)
    path = tmp_path / "page.html"
    with path.open("w") as file:
        file.write("the old page")
    with pytest.raises(SystemExit) as stop:
        explore.main(["--out", str(path)])
    assert stop.value.code == 2 and "No space left" in capsys.readouterr().err
    assert len(work) == late
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "the old page"


def test_a_page_is_made(monkeypatch, tmp_path, groups):
    """All of the command but the warm-up, which is replaced by kept weights."""
    able = groups["able"][0].model
    monkeypatch.setattr(train, "base_model", lambda args: deepcopy(able))
    monkeypatch.setattr(explore, "CRITIC_ROLLOUTS", 1)
    path = tmp_path / "page.html"
    explore.main(["--steps", "1", "--tasks", "add", "--out", str(path)])
    recorded = explore.recording(path)
    assert [*recorded["runs"]] == ["add-grpo", "add-verifree"]
    for run in recorded["runs"].values():
        assert [row["step"] for row in run["kept"]] == [0, 1]
    group = recorded["lab"]
    ys = [y.removesuffix("$") for y in group["tokens"]]
    assert explore.telling(problem(ADD, [347, 285], 3), ys, group["rewards"])
    assert [*tmp_path.iterdir()] == [path]


# ---- The page as a person uses it
def test_the_page_is_made_from_this_code():
    """An edit of the template or of a docstring that the page lacks."""
    shown = explore.PAGE.read_text(encoding="utf-8")
    again = "make it anew: python -m tools.explore --keep"
    assert shown == explore.page(explore.recording(explore.PAGE)), again
    assert len(shown.encode()) < 600_000


def test_sweeping_the_tokens_does_not_choke_the_page(browser, pages):
    """Each hover wrote the address, until the browser refused and the page showed another state."""
    visit(browser, pages["committed"])
    # The browser must drop calls here as it does for a person, else this test proves nothing.
    script = "for (let i = 0; i < 400; i++) history.replaceState(null, '', '#n=' + i)"
    browser.execute_script(script)
    assert not browser.current_url.endswith("#n=399")
    assert "Throttling" in browser.get_log("browser")[0]["message"]
    visit(browser, pages["committed"])
    browser.execute_script("""
      window.written = 0;
      const write = history.replaceState.bind(history);
      history.replaceState = (...args) => { window.written++; write(...args); };
    """)
    began = time.monotonic()
    rows = 0
    while time.monotonic() - began < 20:
        for i in range(1, 9):
            chain = ActionChains(browser, duration=0)
            for t in range(1, 14):
                chain.move_to_element(element(browser, f"#second [data-key='{i}.{t} 1']"))
            chain.perform()
        rows += 8
    state = browser.execute_script("return { ...state, address: location.hash, n: written }")
    assert state["token"] == "8.13"
    assert rows > 8
    Select(element(browser, "#rule")).select_by_value("dr_grpo")
    time.sleep(1)
    about = element(browser, "#about-rule").text
    address, n = browser.execute_script("return [location.hash, written]")
    assert "rule=dr_grpo" in address and "token=8.13" in address
    assert about.startswith("dr_grpo: Prompts with nearly equal rewards")
    first = browser.execute_script("return firstLine('dr_grpo')")  # of a rule without an idea
    assert first == VARIANTS["dr_grpo"].__doc__.splitlines()[0]
    assert "Token 13 of response 8" in element(browser, "#chosen").text
    assert 1 < n <= 3 * (time.monotonic() - began) + 1


def test_keyboard(browser, pages):
    """A reward and a token without a mouse; the focus must survive the redrawing."""
    visit(browser, pages["committed"])
    before = element(browser, "#sentence").text
    element(browser, "#first [data-flip='3']").send_keys(Keys.SPACE)
    pressed = browser.switch_to.active_element
    assert pressed.get_dom_attribute("data-flip") == "3"
    assert pressed.get_dom_attribute("aria-pressed") == "true"
    assert element(browser, "#sentence").text != before
    element(browser, "#second [tabindex='0']").send_keys(Keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert browser.switch_to.active_element.get_dom_attribute("data-token") == "3.7"
    assert "Token 7 of response 3" in element(browser, "#chosen").text
    before = texts(browser, "#first .value")
    element(browser, "#update").send_keys(Keys.ENTER)
    assert texts(browser, "#first .value") != before


def test_the_address_keeps_the_state(browser, pages):
    visit(browser, pages["committed"])
    element(browser, "#presets [data-share='0']").click()
    Select(element(browser, "#rule")).select_by_value("ngrpo")
    element(browser, "#losses button:last-child").click()
    time.sleep(1)
    address = browser.current_url
    seen = [
        element(browser, x).text for x in ("#sentence", "#about-rule", "#compared", "#clip-says")
    ]
    assert "None of eight" in seen[0] and seen[1].startswith("ngrpo")
    visit(browser, address)
    again = [
        element(browser, x).text for x in ("#sentence", "#about-rule", "#compared", "#clip-says")
    ]
    assert again == seen


BAD = [
    "rule=nonsense",
    "rule=grpo",
    "rewards=12",
    "rewards=1",
    "tour=99",
    "run=x&step=abc",
    "ratio=9",
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_address_shows_the_default(browser, pages, bad):
    visit(browser, pages["committed"])
    default = element(browser, "#all").text
    visit(browser, f"{pages['committed']}#{bad}")
    assert element(browser, "#all").text == default
    assert "The address asks for" in element(browser, "#error").text


def test_what_a_screen_says_about_groups_without_differences(browser, pages):
    """All-fail, all-pass, singular and plural, for eight responses as for two."""
    for rewards, *says in (
        ("00000000", "None of eight has reward 1, so every advantage is (0 \u2212 0) /"),
        ("11111111", "All eight have reward 1, so every advantage is (1 \u2212 1) /"),
        ("00100000", "One of eight has reward 1: A = ", "= +2.65. The others get "),
        ("11111110", "Seven of eight have reward 1: A = ", "+0.38. The other gets "),
    ):
        visit(browser, pages["committed"] + f"#rewards={rewards}")
        said = element(browser, "#sentence").text
        assert said.startswith(says[0]) and says[-1] in said
    before = texts(browser, "#first .value")
    browser.execute_script("change({ rewards: '00000000' }, drawBoards)")
    element(browser, "#update").click()
    assert [x.split()[-2:-1] for x in texts(browser, "#first .value")] == [
        x.split()[:1] for x in before
    ]
    assert not browser.find_elements(By.CSS_SELECTOR, "#first .rose, #first .fell")


@pytest.mark.parametrize("size", [DESKTOP, PHONE, (320, 640)])
def test_the_guided_questions(browser, pages, size):
    """Each prediction has an answer, the right option is marked, the answer is on the screen with
    what it is about, and the reader's own settings are back at the end."""
    show(browser, size)
    visit(
        browser, pages["committed"] + "#rewards=11100000&rule=rloo&sign=-1&run=add-verifree&level=3"
    )
    count = browser.execute_script("return TOUR.length")
    about = ["#first .row:nth-child(6)", "#first .row:nth-child(8)", "#first .row:nth-child(9)",
             "#second .row:nth-child(8)", "#pushes", "#responses .row:last-child"]  # fmt: skip
    assert count == len(about)
    for n in range(1, count + 1):
        assert f"Question {n} of {count}" in element(browser, "#tour").text
        assert not browser.find_elements(By.CSS_SELECTOR, "#tour .right")
        assert element(browser, "#tour [data-key='next']").text == "skip"
        above = """
          const [card, picture] = [$("tour"), document.querySelector(arguments[0])];
          return card.getBoundingClientRect().top - picture.getBoundingClientRect().top;
        """
        assert (
            browser.execute_script(above, about[n - 1]) > 0
        )  # the card is below what it asks about
        if n == 4:
            assert element(browser, "#about-rule").text.startswith("nthr")
        if n == 5:  # its ratio is the one it asks about, and nothing says the answer yet
            assert element(browser, "#ratio-now").text == "2.00"
            assert "twice as likely" in element(browser, "#tour").text
            assert "Here the push" not in element(browser, "#clip-says").text
            assert not browser.find_elements(By.CSS_SELECTOR, "#pushes [aria-selected='true']")
            cells = texts(browser, "#pushes td")
            assert cells[-3:] == ["?"] * 3 and "?" not in cells[:-3]
            ends = "return [...document.querySelectorAll('#curve polyline')].map((x) => "
            ends += "parseFloat(x.getAttribute('points').split(' ').at(-1)))"
            drawn = "parseFloat($('curve').querySelector('circle').getAttribute('cx'))"
            assert max(browser.execute_script(ends)) < browser.execute_script(f"return {drawn}")
        if n == 6:
            assert "every advantage is 0" in element(browser, "#summary").text
            prompt = Select(element(browser, "#level")).first_selected_option.text
            assert (
                f"At step 0 all eight answers to {prompt} are wrong" in texts(browser, "#tour")[0]
            )
        # On a small screen the box has a copy of what it asks about.
        shown = texts(browser, "#tour .seen > div")
        rows = {
            4: "#second .row:has([data-flip]) > :nth-child(3) > .tokens",
            6: "#responses .tokens",
        }
        copied = texts(browser, rows[n]) if n in rows and size[0] < 960 else []
        assert [re.sub(r"^\d \u2713?", "", row) for row in copied] == shown
        if n == 4 and copied:
            framed = len(texts(browser, "#second .differs"))
            assert len(texts(browser, "#tour .seen .differs")) == framed > 0
        element(browser, "#tour [data-key='choice0']").click()
        right = browser.execute_script("return TOUR[state.tour - 1].right")
        verdict = element(browser, "#tour .verdict").text
        assert verdict.startswith("Right. " if right == 0 else "Not quite. "), verdict
        marked = texts(browser, "#tour .options button")
        assert [text[0] == "\u2713" for text in marked] == [k == right for k in range(len(marked))]
        assert right == 0 or marked[0][0] == "\u2717"
        assert texts(browser, "#tour .right") == [marked[right]]
        element(browser, f"#tour [data-key='choice{right}']").click()
        assert element(browser, "#tour .verdict").text.startswith("Right. ")
        for selector in ("#tour", "#tour .seen > :last-child" if copied else about[n - 1]):
            assert browser.execute_script(VISIBLE, selector), (n, selector)
        assert browser.execute_script(COVERED) == []
        screen = element(browser, "#lab").text.replace("\u2212", "-")
        if n == 1:
            assert "got likelier with reward 0" in screen
            assert len(texts(browser, "#first .shared")) > 10
        if n == 2:
            assert "+1.73" in screen
        if n == 3:
            assert "None of eight" in screen
        if n == 4:
            wrong, framed = map(
                int, re.search(r"(\d+) of the (\d+) framed", verdict_of(browser)).groups()
            )
            assert len(texts(browser, "#second .differs")) == framed
            assert len(texts(browser, "#second .differs.incorrect")) == wrong > 0
        if n == 5:
            assert "the push is \u22122.00" in element(browser, "#clip-says").text
            assert texts(browser, "#pushes td")[-3] == "-2.00"
        if n == 6:
            assert "7 of 8 correct" in element(browser, "#summary").text
            assert "Seven of eight" in verdict_of(browser)
            assert "all seven write a wrong last step (13 for 15)" in verdict_of(browser)
            shown = texts(browser, "#responses .row:has(.A):not(.head)")
            assert all(",13#" in row for row in shown if row.startswith("\u2713"))
            seen = ("#play", "#chart") if size == DESKTOP else ()
            assert all(browser.execute_script(VISIBLE, selector) for selector in seen)
        assert not browser.find_elements(By.CSS_SELECTOR, ".offered")  # one instruction at a time
        element(browser, "#tour [data-key='next']").click()
    assert "GRPO compares" in element(browser, "#tour").text
    assert "Your own settings above are back" in element(browser, "#tour").text
    assert Select(element(browser, "#level")).first_selected_option.text == prompt
    kept = browser.execute_script(
        "return [state.rewards, state.rule, state.sign, state.run, state.level, past.length]"
    )
    assert kept == ["11100000", "rloo", -1, "add-grpo", 5, 0]  # the last question's chart stays


def verdict_of(browser) -> str:
    return element(browser, "#tour .verdict").text


VISIBLE = """
  const box = document.querySelector(arguments[0]).getBoundingClientRect();
  return box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth;
"""
# What lies over the middle of a text of the question: nothing may.
COVERED = """
  return [...document.querySelectorAll("#tour h3, #tour p, #tour button")].filter((x) => {
    const [box] = x.getClientRects(); // its first line
    const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    return !x.contains(top);
  }).map((x) => x.textContent);
"""


def test_the_first_screen_is_one_screen(browser, pages):
    """Group, rewards, advantages, bars, sentence and button; below them the first question."""
    for size in (DESKTOP, (1920, 1080), PHONE):
        show(browser, size)
        visit(browser, pages["committed"])
        for selector in ("#update", "#sentence", "#first", "#outcome", "#tour"):
            assert browser.execute_script(VISIBLE, selector), (size, selector)
        # Nothing but the table's head stands between the arithmetic and the table.
        gap = "return $('first').getBoundingClientRect().top - "
        gap += "$('sentence').getBoundingClientRect().bottom"
        assert browser.execute_script(gap) < 12
    show(browser, (320, 568))
    visit(browser, pages["committed"])
    assert browser.execute_script(VISIBLE, "#first .row:nth-child(8)")  # the correct response
    show(browser, DESKTOP)
    element(browser, "#update").click()  # two rules side by side have their percentages as well
    rows = browser.find_elements(By.CSS_SELECTOR, "#second .row:not(.head) .value")
    assert all(len(numbers(row.text)) == 2 for row in rows), [row.text for row in rows]
    for size in (PHONE, (320, 640)):  # the buttons scrolled away
        show(browser, size)
        visit(browser, pages["committed"])
        browser.execute_script("$('first').lastChild.scrollIntoView({ block: 'end' })")
        browser.execute_script("scrollBy(0, 200)")
        assert browser.execute_script("return scrollY") > 150
        assert browser.execute_script(VISIBLE, "#update")
        element(browser, "#update").click()
        assert texts(browser, "[data-count]") == ["1 update"] * 2


def test_drawn_responses_are_not_mixed_with_updates(browser, pages):
    """The sentence named the last batch and all batches as if they were one."""
    visit(browser, pages["committed"])
    element(browser, "input[name='fresh'][value='1']").click()
    element(browser, "#lab [data-updates='10']").click()
    said = "After 10 updates the correct response is unchanged: all advantages were 0."
    assert said in element(browser, "#outcome").text  # none of these drew a success
    for _ in range(3):
        element(browser, "#lab [data-updates='10']").click()
    said = element(browser, "#sentence").text
    drawn = browser.execute_script("return sum(sideOf('grpo').x.rewards)")
    who = ["none of eight has", "one of eight has", "two of eight have"][drawn]
    assert said.startswith(f"Drawn for the next update: {who} reward 1")
    idle = browser.execute_script("""
      return past.filter((_, k) => {
        const [before, after] = [k, k + 1].map((n) => modelOf("grpo", n));
        return String(before) === String(after);
      }).length;
    """)
    said = element(browser, "#outcome").text
    shown = re.search(r"(\w+) of them drew equal rewards and changed nothing", said)[1]
    assert shown.lower() == browser.execute_script("return word(arguments[0])", idle)
    assert "After 40 updates the correct response is" in said and "advantage" not in said
    visit(browser, pages["committed"] + "#fresh=1&rewards=00000000")
    for n in range(3):  # it said "watch the bars"
        said = element(browser, "#outcome").text
        assert "watch the bars" not in said and "nothing" in said or "all advantages were 0" in said
        element(browser, "#update").click()


def test_updates_move_bars_and_offer_what_is_next(browser, pages):
    """Grey bars before the first update, then colours; after ten updates the next thing."""
    visit(browser, pages["committed"])
    assert not browser.find_elements(By.CSS_SELECTOR, ".rose, .fell, .offered")
    right = browser.execute_script("return data.lab.rewards.indexOf(1)")
    for n in range(1, 11):
        element(browser, "#update").click()
        assert element(browser, "[data-count]").text == f"{n} update{'s' * (n > 1)}"
        bar = f"#first .row:nth-child({right + 2}) .track"
        assert "rose" in element(browser, bar).get_dom_attribute("class")
        assert bool(browser.find_elements(By.CSS_SELECTOR, ".offered")) == (n == 10)
    said = element(browser, "#outcome").text  # question 1 asks about response 5
    assert "times as likely" in said and "Response 5" not in said
    assert texts(browser, "#first .shared") == []
    element(browser, ".offered").click()
    assert "every advantage is (0" in element(browser, "#sentence").text
    # The axis grows only where a bar needs it, is marked then, and is the old one at the start.
    ends = []
    for _ in range(6):
        ends.append(numbers(texts(browser, "#first .end")[0])[0])
        values = [
            numbers(text)[-1] for text in texts(browser, "#first .row:has([data-flip]) .value")
        ]
        assert max(values) <= ends[-1] and ends == sorted(ends)
        changed = bool(browser.find_elements(By.CSS_SELECTOR, "#first .axis.changed"))
        assert changed == (ends[-1] > ends[0])
        browser.execute_script("state.rewards = alone(); update(10)")
    assert ends[-1] > ends[0]
    element(browser, "#lab [data-again]").click()
    assert not browser.find_elements(By.CSS_SELECTOR, ".rose, .fell, .offered, .changed")


@pytest.mark.parametrize("rule", ["critic", "likelihood", "verifree"])
@pytest.mark.parametrize("chosen_first", [True, False])
def test_rules_that_need_a_network_after_drawn_responses(browser, pages, rule, chosen_first):
    """The page tried to update the table by them, threw, and no button worked any more."""
    visit(browser, pages["committed"])
    if chosen_first:
        Select(element(browser, "#rule")).select_by_value(rule)
    element(browser, "input[name='fresh'][value='1']").click()
    element(browser, "#update").click()
    if not chosen_first:
        Select(element(browser, "#rule")).select_by_value(rule)
    element(browser, "#update").click()
    assert texts(browser, "[data-count]") == ["2 updates"] * 2
    assert element(browser, "#about-rule").text.startswith(rule)
    assert "It needs a network" in element(browser, "#compared").text
    assert "the update buttons are off" in element(browser, "#compared").text
    buttons = browser.find_elements(By.CSS_SELECTOR, "#beside .controls button")
    assert len(buttons) == 3 and not any(button.is_enabled() for button in buttons)
    Select(element(browser, "#rule")).select_by_value("half")
    assert all(button.is_enabled() for button in buttons)


def test_every_rule_says_why_and_where_it_is_from(browser, pages):
    """Only a name stood there. Earlier updates were replayed in silence."""
    visit(browser, pages["committed"])
    for rule in VARIANTS:
        if rule == "grpo":
            continue
        Select(element(browser, "#rule")).select_by_value(rule)
        about = element(browser, "#about-rule")
        why = about.text.removeprefix(f"{rule}: ").split(" (")[0]
        assert why.endswith(".") and 4 < len(why.split()) < 22
        assert why != browser.execute_script("return firstLine(arguments[0])", rule)
        source = re.search("arXiv ([0-9.]+[0-9])", VARIANTS[rule].__doc__.split("\n\n")[0])
        links = [link.get_dom_attribute("href") for link in about.find_elements(By.TAG_NAME, "a")]
        papers = [f"https://arxiv.org/abs/{source[1]}"] if source else []
        assert links == [*papers, "../advantages.py"]
    Select(element(browser, "#rule")).select_by_value("half")
    assert "begin" not in element(browser, "#compared").text
    element(browser, "#beside [data-updates='10']").click()
    Select(element(browser, "#rule")).select_by_value("pos_only")
    says = "Both begin at the base model and make all 10 updates"
    assert says in element(browser, "#compared").text


def test_the_sentence_is_about_these_rewards(browser, pages):
    """All advantages 0 and "the model learns it"; a rise that other rewards had made."""
    visit(browser, pages["committed"] + "#tour=7")  # question 1 hides what it asks
    element(browser, "#presets [data-share='1']").click()
    for _ in range(2):
        said = element(browser, "#lab").text
        assert "every advantage is (1" in said and "rewarded" not in said
        assert "watch the bars" not in said
        element(browser, "#update").click()
    said = "After 2 updates the correct response is unchanged: all advantages were 0."
    assert said in element(browser, "#outcome").text
    element(browser, "#lab [data-again]").click()
    element(browser, "#presets [data-share='one']").click()
    element(browser, "#lab [data-updates='10']").click()
    assert "Response 5 got likelier with reward 0" in element(browser, "#outcome").text
    grown = texts(browser, "#first .row:not(.head) .value")
    browser.execute_script("change({ rewards: '10000000' }, drawBoards)")
    said = element(browser, "#outcome").text
    assert (
        said.endswith("Response 1 is incorrect, but rewarded: an update pushes it up.")
        and "You changed the rewards: the lines now mark where the bars are." in said
    )
    assert not browser.find_elements(By.CSS_SELECTOR, "#first .rose, #first .fell, #first .shared")
    element(browser, "#update").click()
    said = element(browser, "#outcome").text
    assert "After 1 update with these rewards (11 in all) the correct response is" in said
    assert "Response 7" not in said
    assert "fell" in element(browser, "#first .row:nth-child(8) .track").get_dom_attribute("class")
    now = texts(browser, "#first .row:not(.head) .value")  # the old bar is the new line
    assert [numbers(x)[0] for x in now] == [numbers(x)[-1] for x in grown]


def test_nobody_rises_by_what_it_does_not_share(browser, pages):
    """The response that the sentence names has risen, and so has what it shares."""
    visit(browser, pages["committed"])
    named = 0
    for bits in range(256):
        found = browser.execute_script(
            """
            restart();
            state.rewards = arguments[0];
            for (let n = 0; n < 5; n++) past.push({ rewards: state.rewards, fresh: 0 });
            const side = sideOf("grpo");
            const shared = sharedWith(side);
            if (!shared) return null;
            const [i, j] = shared.rows;
            const begin = data.lab.tokens[i].slice(0, shared.length);
            return [state.rewards[i] + state.rewards[j], side.now[i] > side.before[i],
              data.lab.tokens[j].startsWith(begin),
              probability(side.policies[1], begin) > probability(side.policies[0], begin)];
            """,
            f"{bits:08b}",
        )
        assert found in (None, ["01", True, True, True]), bits
        named += found is not None
    assert named > 10


def test_every_token_has_the_colour_of_its_advantage(browser, pages):
    """Tokens on which a rule agrees with grpo were blank, so that forking looked inverted."""
    for rule in ("half", "nthr", "forking", "compensation"):
        visit(browser, pages["committed"] + f"#rule={rule}")
        wrong = browser.execute_script("""
          const [grpo, side] = ["grpo", state.rule].map(sideOf);
          const wrong = [];
          side.A.forEach((row, i) => row.forEach((a, t) => {
            const cell = document.querySelector(`#second [data-key="${i + 1}.${t + 1} 1"]`);
            const paint = getComputedStyle(cell).backgroundColor.replaceAll(" ", "");
            if (paint !== colour(a).backgroundColor.replaceAll(" ", "") ||
              cell.matches(".differs") !== (a !== grpo.A[i][t])) wrong.push([i, t, paint]);
          }));
          return wrong;
        """)
        assert wrong == [], rule


def test_a_rule_that_only_scales_says_so(browser, pages):
    """maxrl looked best and dr_grpo worst at one step size: both are grpo times a number."""
    for rewards, rule, n in (
        ("00000010", "maxrl", 8 * 7**0.5 / 8),
        ("00000010", "dr_grpo", 7**0.5 / 8),
        ("00000010", "rloo", 7**0.5 / 7),
        ("11110000", "rloo", 4 / 7),
        ("11110000", "maxrl", None),  # "grpo times 1.00: it only moves more"
        ("00000010", "half", None),
        ("00000010", "reinforce", None),
        ("00000010", "gspo", None),
        ("00000000", "negative", None),
    ):
        visit(browser, pages["committed"] + f"#rewards={rewards}&rule={rule}")
        said = element(browser, "#compared").text
        more = "more" if n and n > 1 else "less"
        scaled = n and f"grpo times {n:.2f}: with the same step size it only moves {more}"
        assert scaled in said if n else "grpo times" not in said, rule


def test_a_rule_that_gives_what_grpo_gives_says_when_it_differs(browser, pages):
    for rewards, rule, says in (
        ("11110000", "maxrl", "With others it differs."),
        ("00000000", "half", "With others it differs."),
        ("00000010", "negative", "It differs if all rewards are 0."),
        ("00000010", "likelihood", "It differs if all rewards are 0."),
        ("00000010", "culling", "It changes which prompts are drawn, not the advantages."),
        ("00000010", "gspo", "Only its clip differs, which you find below."),
    ):
        visit(browser, pages["committed"] + f"#rewards={rewards}&rule={rule}")
        same = f"With these rewards {rule} gives what grpo gives. {says}"
        assert element(browser, "#compared").text.startswith(same)


def test_a_rise_against_the_push_has_a_reason(browser, pages):
    """All responses were pushed down, number 4 got likelier, and nothing said why."""
    visit(browser, pages["committed"] + "#rewards=00000000&rule=negative")
    assert element(browser, "#risen").text == ""
    element(browser, "#beside [data-updates='10']").click()
    rows = texts(browser, "#second .row:has([data-flip]) > :nth-child(3) .value")
    assert [k for k, row in enumerate(rows, 1) if "\u25b2" in row] == [4]
    said = "Response 4 rose although its A is below 0: it gained more from pushes on the others"
    assert element(browser, "#risen").text.startswith(said)
    own = """ // its own push makes it less likely, the seven others make it likelier
      const x = theEight(state.rewards, table.begin.map(softmax));
      return [(i) => i === 3, (i) => i !== 3].map((which) => {
        const z = table.begin.map((row) => [...row]);
        x.places.forEach((places, i) => which(i) && places.forEach(([row, token]) => {
          const p = softmax(table.begin[row]);
          p.forEach((share, k) => { z[row][k] -= STEP / 8 * ((k === token) - share); });
        }));
        return probability(z.map(softmax), data.lab.tokens[3]) /
          probability(table.begin.map(softmax), data.lab.tokens[3]);
      });
    """
    alone, others = browser.execute_script(own)
    assert alone < 1 < alone * others
    visit(browser, pages["committed"] + "#rule=half")
    element(browser, "#beside [data-updates='10']").click()
    said = "Response 5 rose although its A is below 0: it begins like response 7."
    assert element(browser, "#risen").text == said


def test_small_numbers_presets_and_a_division_by_zero(browser, pages):
    """ "0.000 %" is not true, "0 - 0 = 0" hid the division, and half left the correct one out."""
    visit(browser, pages["committed"])
    element(browser, "#presets [data-share='0.5']").click()
    assert browser.execute_script("return state.rewards") == "11100010"
    element(browser, "#presets [data-share='0']").click()
    assert "(0 - 0) / (0 + 0.000001) = 0" in texts(browser, "#sentence")[0]
    shown = browser.execute_script("return [0.000004, 0.00002, 0.0123].map(percent)")
    assert shown == ["<0.001", "0.002", "1.23"]


@pytest.mark.parametrize("size", [PHONE, (320, 640), (600, 900), (1000, 800)])
def test_two_rules_one_below_the_other(browser, pages, size):
    """On a phone rows had no names, wavy lines were cut off, and earlier numbers were missing."""
    show(browser, size)
    visit(browser, pages["committed"] + "#rule=compensation")
    browser.execute_script("update(10)")
    labels = browser.execute_script("""
      return [...document.querySelectorAll("#second .row:not(.head) .rule")].map((x) =>
        [getComputedStyle(x, "::before").content, x.clientWidth, x.scrollWidth]);
    """)
    assert [name for name, *_ in labels] == ['"grpo"', '"compensation"'] * 9
    assert all(room >= width > 0 for _, room, width in labels), labels
    heights = browser.execute_script("""
      const sides = document.querySelectorAll(".board .row:not(.head):not(.rest) .side");
      return [...sides].map((side) => {
        const cell = side.querySelector(".token");
        const { top, bottom } = cell.getBoundingClientRect();
        const range = document.createRange();
        range.selectNodeContents(cell);
        const text = range.getBoundingClientRect();
        const below = side.nextElementSibling ?? side.parentElement.nextElementSibling;
        const bar = side.querySelector(".track").getBoundingClientRect();
        const next = bar.top > top + 12 ? bar.top : below.getBoundingClientRect().top;
        return [bottom - text.bottom, next - bottom];
      });
    """)
    for _, gap in heights:
        assert gap >= -0.5
    if size[0] <= 960:
        assert min(room for room, _ in heights) > 4, heights
    rows = browser.find_elements(By.CSS_SELECTOR, ".board .row:not(.head) .value")
    assert all(len(numbers(row.text)) == 2 for row in rows), [row.text for row in rows]
    assert element(browser, "#first .head .A").text == "advantage"


def test_advantages_of_a_run_are_beside_their_tokens(browser, pages):
    """400 pixels were between them. The chart's axis has a name, and a large advantage a reason."""
    for size in (DESKTOP, (1920, 1080)):
        show(browser, size)
        for run in ("add-grpo", "add-verifree"):
            visit(browser, pages["committed"] + f"#run={run}&step=400&level=3")
            gaps = browser.execute_script("""
              return [...document.querySelectorAll("#responses .row:not(.head)")].map((row) =>
                row.querySelector(".A").getBoundingClientRect().left -
                [...row.querySelectorAll(".token")].at(-1).getBoundingClientRect().right);
            """)
            assert max(gaps) < 100
            sure = "nearly sure" in element(browser, "#summary").text
            assert sure == (run == "add-verifree")
    assert "correct samples" in texts(browser, "#chart text")


def test_a_run_is_drawn_over_the_other(browser, pages):
    """Two runs could not be compared, and a label named three lines, one of them far away."""
    for size, run, other in product(
        (DESKTOP, (320, 640)), ("add-grpo", "mul-verifree"), ("grpo", "verifree")
    ):
        if other in run:
            continue
        show(browser, size)
        for level in (2, 3, 4, 5):
            visit(browser, pages["committed"] + f"#run={run}&level={level}")
            lines, labels, ends, shares = browser.execute_script(
                """
              const run = `${state.run.split("-")[0]}-${arguments[0]}`;
              const points = (line) => line.getAttribute("points").split(" ");
              const y = (line) => points(line).map((place) => Number(place.split(",")[1]));
              const lines = [...document.querySelectorAll("#chart polyline")];
              const labels = document.querySelectorAll("#chart [d*=L] + text");
              return [y(lines.find((x) => x.matches("[stroke-dasharray]"))),
                [...labels].map((x) => [x.textContent, Number(x.getAttribute("y")) - 4]),
                lines.map((x) => y(x).at(-1)),
                data.runs[run].kept.map((row) => row.sampled_by_level[state.level])];
            """,
                other,
            )
            assert lines == pytest.approx([190 - 175 * share for share in shares])
            places = sorted(y for _, y in labels)
            assert min(b - a for a, b in zip(places, places[1:])) > 13  # no label over another
            assert all(min(abs(end - y) for y in places) < 45 for end in ends)
            names = " ".join(name for name, _ in labels)
            assert {other, run.split("-")[1]} <= {*names.split()}
            assert sorted(texts(browser, "#chart .digit")) == [
                str(n) for n in (2, 3, 4, 5) if n != level
            ]
            assert len(texts(browser, "#chart [stroke-dasharray]")) == 1  # the other rule
            slow = element(browser, "#slower").is_displayed()
            assert slow == run.startswith("add")
            found = [int(n) for n in re.findall(r"\d", names)]
            assert sorted(found) == [n for n in (2, 3, 4, 5) if n != level]
            assert browser.execute_script(CUT) == []


def test_a_run_can_be_played(browser, pages):
    visit(browser, pages["committed"] + "#step=325")
    element(browser, "#play").click()
    for _ in range(100):
        if "Training step 400" in element(browser, "#summary").text:
            break
        time.sleep(0.1)
    assert element(browser, "#play").text == "play"
    assert "Training step 400" in element(browser, "#summary").text


PLACES = """
  const texts = "#sentence *, #outcome *, .track i, .value *, .A *";
  return [...document.querySelectorAll("#lab, #lab *")].filter((x) => !x.matches(texts))
    .map((x) => x.getBoundingClientRect()).map((box) => [box.x, box.y, box.width, box.height]);
"""


@pytest.mark.parametrize("size", [DESKTOP, (1000, 800), (600, 900), PHONE, (320, 640)])
def test_nothing_moves_when_a_reward_changes(browser, pages, size):
    """Columns jumped by up to 15 pixels when a number got another width."""
    show(browser, size)
    for updates in (0, 10, 40):
        visit(browser, pages["committed"])
        browser.execute_script("update(arguments[0])", updates)
        time.sleep(0.5)
        before = browser.execute_script(PLACES)
        for rewards in ("00000000", "11111111", "01000000", "00100101", "11110111", "11111011"):
            browser.execute_script("change({ rewards: arguments[0] }, drawBoards)", rewards)
            assert browser.execute_script(PLACES) == before, (updates, rewards)
        for i in range(8):
            element(browser, f"#first [data-flip='{i}']").click()
            browser.execute_script("scrollTo(0, 0)")
            assert browser.execute_script(PLACES) == before, (updates, i)
        for rewards in ("00000000", "01000010", "11111011"):  # the longest sentences
            browser.execute_script("change({ rewards: arguments[0] }); update(3)", rewards)
            time.sleep(0.5)
            assert browser.execute_script(PLACES) == before, (updates, rewards)


WIDTHS = [*range(320, 420, 10), *range(420, 1000, 30), 1000, 1100, 1200, 1217, 1280, 1440, 1600]
WIDTHS += [1920, 2240, 2560]


def test_nothing_is_wider_than_the_screen(browser, pages):
    """It was cut off at 320 to 350 and at 897 to 929 pixels."""
    assert len(WIDTHS) >= 40
    for rule in ("half", "verifree", "nthr"):
        visit(browser, pages["committed"] + f"#rule={rule}&run=add-verifree&step=25&level=5")
        browser.execute_script("axis = 1; update(10); $('every').open = $('about').open = true")
        for width in WIDTHS:
            show(browser, (width, 800))
            browser.execute_script("return new Promise((done) => setTimeout(done, 50))")
            script = "return document.documentElement.scrollWidth"
            assert browser.execute_script(script) <= width, (rule, width)
            assert browser.execute_script(CUT) == [], (rule, width)


# Elements that reach over the edge of the screen, and texts that are wider than their element.
CUT = """
  return [...document.querySelectorAll("main *")].filter((x) => x.checkVisibility() &&
    !x.closest(".hidden") && (x.getBoundingClientRect().right > innerWidth + 0.5 ||
    x.matches("button, .A, .axis, .tokens, .value, p, td") && x.clientWidth &&
    x.scrollWidth > x.clientWidth + 1))
    .map((x) => `${x.tagName}.${x.className} ${x.textContent.slice(0, 30)}`);
"""


def test_at_most_920_words(browser, pages):
    """All of the page, with what is behind its buttons: questions, answers, ideas, sentences."""
    visit(browser, pages["committed"])
    written = browser.execute_script("""
      const texts = [];
      const walk = (node) => {
        if (node.nodeType === 3) texts.push(node.data);
        else if (!node.matches("noscript, #tour, #about-rule")) node.childNodes.forEach(walk);
      };
      walk(document.querySelector("main"));
      const said = (x) => (x instanceof Function ? x(sideOf("grpo")) : x);
      for (const { ask, choices, answer } of TOUR) texts.push(said(ask), ...choices, said(answer));
      const about = names().filter((name) => name !== "grpo").map(why);
      return [...texts, END, ...about, "arXiv, code"].join(" ");
    """)
    words = [word for word in written.split() if re.search("[A-Za-z]", word)]
    assert 600 < len(words) <= 920
    assert not {"nthr_scores", "tau", "eta", "z#", "pi_max"} & set(words)


CONTRAST = """
  const light = (rgb) => rgb.map((x) => x / 255).map((x) =>
    x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((total, x, k) => total + x * [0.2126, 0.7152, 0.0722][k], 0);
  const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
  const ground = (x) => {
    for (; x; x = x.parentElement) {
      const found = rgb(getComputedStyle(x).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("main *")].filter((x) => x.checkVisibility() &&
    [...x.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && x.tagName !== "OPTION")
    .map((x) => {
      const style = getComputedStyle(x);
      const a = light(rgb(x instanceof SVGElement ? style.fill : style.color).slice(0, 3));
      const b = light(ground(x));
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), x.textContent.slice(0, 30)];
    }).filter(([contrast]) => contrast < 4.5);
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_light_and_dark(browser, pages, dark):
    """Contrast of all text, on all colours that five patterns of rewards give."""
    show(browser, DESKTOP, dark)
    visit(browser, pages["committed"])
    browser.execute_script("$('every').open = $('about').open = true")
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)")
    for rewards, rule in (("10000000", "half"), ("00000000", "verifree"), ("11110000", "nthr"),
                          ("11111110", "compensation"), ("11111111", "critic")):  # fmt: skip
        script = "update(1); change({ rewards: arguments[0], rule: arguments[1] });"
        assert browser.execute_script(script + CONTRAST, rewards, rule) == []
    show(browser, DESKTOP)
