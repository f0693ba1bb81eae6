"""The advantage lab in a real browser, used as a person would: mouse, keyboard, phone, dark mode.

The page computes every advantage in JavaScript. The tests compare it with the Python functions.
"""

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
from advantages import VARIANTS, nthr_scores, token_bias
from grpo import Rollout, policy_loss, sample_rollout
from tasks import ADD, Problem
from test_grpo import FAIL, MIXED, problem, sample, tiny_gpt
from tools import explore

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WEIGHTS = Path(__file__).parent.parent / "course" / "weights" / "add-base.pt"
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="neither chromium nor google-chrome is here")
LR = 3e-4  # of the critic's network, which does not act on its first output
DESKTOP = (1280, 900)
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
def recorded(groups) -> Rollout:
    """Two groups of a recorded run, one of them mixed."""
    rollout = sample(tiny_gpt(), (2, 5), G=4)
    return replace(rollout, rewards=torch.tensor([MIXED, FAIL]))


@pytest.fixture(scope="module")
def pages(groups, recorded, tmp_path_factory) -> dict[str, str]:
    """Addresses: a page for each group, and the one that is handed out."""
    row = {"entropy": 0.5, "all_fail": 0.25, "sampled_by_level": {2: 0.3, 5: 0.4}}
    row["groups"] = explore.groups(recorded)
    runs = {"add-grpo": {"kept": [{"step": step} | row for step in (0, 25)]}}
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
    phone = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def visit(browser, address: str) -> None:
    browser.get("about:blank")  # else another fragment of the same page would not load it
    browser.get(address)


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
        sbar = s.sum(-1) / rollout.mask.sum(-1)
        tau = sbar.masked_fill(~correct, math.inf).amin(1)[:, None, None]
        return (s - tau).abs() < 1e-4 * (1 + tau.abs())
    if name == "forking":
        H = torch.special.entr(rollout.probs).sum(-1).masked_fill(~rollout.mask, math.nan)
        distance = (H - H.flatten(1).nanquantile(0.8, dim=1)[:, None, None]).abs()
        return (distance > 0) & (distance < 1e-5)
    return torch.zeros_like(rollout.mask)


ALL_PATTERNS = """
  const [name, G] = arguments;
  const patterns = [];
  for (let k = 0; k < 2 ** G; k++) {
    state.G = G;
    state.rewards = k.toString(2).padStart(G, "0").padEnd(8, "0");
    patterns.push(ADVANTAGES[name](firstGroup()).flat());
  }
  return patterns;
"""


@pytest.mark.parametrize("group", ["able", "tiny"])
def test_every_advantage_is_the_python_functions(browser, pages, groups, group):
    """All rewards of 2 to 8 responses, all variants, all tokens. The inputs are recorded as 32-bit
    numbers, of which Python computes in 32 bits and the page in 64: they agree to 0.0001."""
    rollout, network = groups[group]
    visit(browser, pages[group])
    assert browser.execute_script("return Object.keys(ADVANTAGES).sort()") == sorted(VARIANTS)
    skipped = compared = 0
    for G in range(2, 9) if group == "able" else (3, 8):
        x = with_rewards(rollout, G)
        for name, variant in VARIANTS.items():
            apply = variant(deepcopy(network), LR) if isinstance(variant, type) else variant
            trained = apply(x)
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


def test_what_is_shown_is_what_is_computed(browser, pages, groups):
    """A number in another row or column, a stale one, a rounded one; for flips by the mouse."""
    rollout, _ = groups["able"]
    visit(browser, pages["able"] + "#rewards=00000000")
    names = texts(browser, "#matrix thead button")
    rewards = torch.zeros(1, 8)
    for i in (2, 7, 0, 2):
        element(browser, f"#group tr[data-flip='{i}'] .tokens").click()
        rewards[0, i] = 1 - rewards[0, i]
        x = replace(rollout, rewards=rewards)
        cells = texts(browser, "#matrix td")
        for column, name in enumerate(names):
            if name == "critic":
                continue
            trained = VARIANTS[name](x)
            means = [A[m].mean().item() for A, m in zip(trained.A[0], trained.mask[0])]
            shown = [float(cell) for cell in cells[column :: len(names)]]
            assert shown == pytest.approx(means, abs=0.00501), name
        sentence = element(browser, "#sentence").text
        verdict = "correct" if rewards[0, i] else "incorrect"
        assert sentence.startswith(f"Response {i + 1} is now {verdict}.")


def test_recorded_runs_are_what_the_variants_say(browser, pages, recorded):
    """Another step or level, a scale lost in packing; pi is rounded to 1/32767, so to 0.001."""
    for p, level in enumerate((2, 5)):
        visit(browser, pages["able"] + f"#step=25&level={level}&c=nthr&at=2.1")
        for name, variant in VARIANTS.items():
            if name == "critic":
                continue
            trained = variant(recorded)
            script = "return ADVANTAGES[arguments[0]](runGroup()).flat()"
            shown = torch.tensor(browser.execute_script(script, name))
            wrong = (shown - trained.A[p][trained.mask[p]]).abs() > 1e-3
            assert not wrong.any(), name
        probability = f"probability pi = {recorded.logprobs[p, 1, 0].exp():.3f}"
        assert probability in element(browser, "#run-chosen").text
        assert texts(browser, "#run-tokens td")[0] == recorded.texts[p][0][0]


def two_tokens(z: torch.Tensor, ys: list[int]) -> Rollout:
    """A rollout of the policy of two tokens with logits z (3, 2): first, after a, after b."""
    tokens = torch.tensor([[[y // 2, y % 2] for y in ys]])  # (1, G, 2)
    rows = torch.stack([torch.zeros_like(tokens[..., 0]), 1 + tokens[..., 0]], dim=-1)
    logprobs = z.log_softmax(1)[rows].gather(-1, tokens[..., None])[..., 0]
    return Rollout(
        tokens=tokens,
        mask=torch.ones_like(tokens, dtype=torch.bool),
        rewards=torch.tensor([[float(y == 2) for y in ys]], dtype=z.dtype),
        logprobs=logprobs,
        probs=z.softmax(1)[rows].detach(),
        hidden=torch.eye(3, dtype=z.dtype)[rows],
        problems=[Problem("", "", "", 1)],
    )


def test_an_update_is_a_step_along_the_gradient(browser, pages):
    """The gradient by hand against autograd, for every variant that the small policy can have."""
    visit(browser, pages["able"])
    begin = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8]], dtype=torch.float64).log()
    compared = 0
    for ys in ([0, 1, 2, 3], [0, 1, 0, 1, 0, 1, 1, 2], [2, 2, 3, 1, 0], [0, 3, 0], [2, 2]):
        for name in browser.execute_script("return UPDATES"):
            z = begin.clone().requires_grad_()
            x = two_tokens(z, ys)
            A = VARIANTS[name](replace(x, logprobs=x.logprobs.detach())).A
            if undecided(name, x).any() and name == "nthr":
                continue
            push = torch.autograd.grad((A * x.logprobs).sum() / len(ys), z)[0]
            script = "return updated(BEGIN, arguments[0], arguments[1])"
            shown = torch.tensor(browser.execute_script(script, ys, name), dtype=torch.float64)
            torch.testing.assert_close(shown, begin + 0.5 * push, atol=1e-6, rtol=0)
            compared += 1
    assert compared > 40


def test_the_clip_is_that_of_the_loss(browser, pages):
    visit(browser, pages["able"])
    for ratio, A in product((0.4, 0.79, 0.81, 1.0, 1.19, 1.21, 1.8), (1.0, -1.0)):
        ones = torch.ones(1, 1, 1)
        loss = policy_loss(math.log(ratio) * ones, 0 * ones, A * ones, ones)
        shown = browser.execute_script("return goal(arguments[0], arguments[1])", ratio, A)
        assert shown == pytest.approx(-loss.item(), abs=1e-6)


# ---- The command
def test_help_and_bad_lines_start_nothing(monkeypatch, capsys, tmp_path):
    """--help ran for ten minutes and wrote over the page; a bad folder is found at the end."""
    monkeypatch.setattr(explore, "record", None)
    page = explore.PAGE.read_bytes()
    nowhere = str(tmp_path / "no" / "page.html")
    missing = str(tmp_path / "page.html")
    lines = (["--help"], ["--steps", "-1"], ["--tasks", "sub"], ["--out", nowhere])
    for line in (*lines, ["--keep", "--out", missing]):
        with pytest.raises(SystemExit) as stop:
            explore.main(line)
        assert stop.value.code == (0 if line == ["--help"] else 2)
        assert ("--tasks" in capsys.readouterr().out) == (line == ["--help"])
    assert explore.PAGE.read_bytes() == page and not list(tmp_path.iterdir())


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
    assert sum(recorded["lab"]["rewards"]) == sum(recorded["lab"]["rewards"][:2]) == 1


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
                chain.move_to_element(element(browser, f"#a-tokens td[data-token='{i}.{t}']"))
            chain.perform()
        rows += 8
    state = browser.execute_script("return { ...state, address: location.hash, n: written }")
    assert state["token"] == "8.13"
    assert rows > 8
    Select(element(browser, "#b")).select_by_visible_text("dr_grpo")
    time.sleep(1)
    after = browser.execute_script("return [location.hash, $('b-about').textContent, written]")
    assert "b=dr_grpo" in after[0] and "token=8.13" in after[0]
    assert VARIANTS["dr_grpo"].__doc__.splitlines()[0] in after[1]
    assert "Token 13 of response 8" in element(browser, "#chosen").text
    assert 1 < after[2] <= 3 * (time.monotonic() - began) + 1


def test_keyboard(browser, pages):
    """A row, a slider and a token without a mouse; the focus must survive the redrawing."""
    visit(browser, pages["committed"])
    before = element(browser, "#sentence").text
    element(browser, "[data-key='flip3']").send_keys(Keys.SPACE)
    pressed = browser.switch_to.active_element
    assert pressed.get_dom_attribute("data-key") == "flip3"
    assert pressed.get_dom_attribute("aria-pressed") == "true"
    assert element(browser, "#sentence").text != before
    element(browser, "#G").send_keys(Keys.ARROW_LEFT)
    assert len(texts(browser, "#group tbody tr")) == 7
    element(browser, "#a-tokens [tabindex='0']").send_keys(Keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert browser.switch_to.active_element.get_dom_attribute("data-token") == "3.6"
    assert "Token 6 of response 3" in element(browser, "#chosen").text


def test_the_address_keeps_the_state(browser, pages):
    visit(browser, pages["committed"])
    element(browser, "#presets [data-share='0']").click()
    element(browser, "#matrix [data-variant='ngrpo']").click()
    time.sleep(1)
    address = browser.current_url
    sentence = element(browser, "#sentence").text
    assert "all-fail" in sentence
    visit(browser, address)
    assert element(browser, "#sentence").text == sentence
    assert element(browser, "#note h2").text == "ngrpo"


@pytest.mark.parametrize("bad", ["a=nonsense", "rewards=12", "G=99", "run=x&step=abc", "at=9.9"])
def test_a_bad_address_shows_the_default(browser, pages, bad):
    visit(browser, pages["committed"])
    default = element(browser, "#all").text
    visit(browser, f"{pages['committed']}#{bad}")
    assert element(browser, "#all").text == default
    assert "The address asks for" in element(browser, "#error").text


def test_two_sides_never_show_the_same_variant(browser, pages):
    """A variant that is chosen again for the other side left it beside itself: grpo and grpo."""
    visit(browser, pages["committed"] + "#a=grpo&b=grpo")
    sides = "return [state.a, state.b, $('a').value, $('b').value]"
    assert browser.execute_script(sides) == ["grpo", "nthr"] * 2
    element(browser, "#matrix [data-variant='nthr']").click()
    assert browser.execute_script(sides) == ["nthr", "grpo"] * 2
    element(browser, "#matrix button[data-variant='grpo']").click()
    assert browser.execute_script(sides) == ["grpo", "nthr"] * 2
    Select(element(browser, "#b")).select_by_visible_text("grpo")
    assert browser.execute_script(sides) == ["nthr", "grpo"] * 2
    visit(browser, pages["committed"] + "#a=half&b=maxrl")
    element(browser, "#matrix button[data-variant='maxrl']").click()
    assert browser.execute_script(sides) == ["maxrl", "half"] * 2
    Select(element(browser, "#w")).select_by_visible_text("grpo")
    assert browser.execute_script("return [state.u, state.w]") == ["pos_only", "grpo"]


def test_what_a_screen_says_about_groups_without_differences(browser, pages):
    """It said that a variant still pushes, and not in which direction."""
    visit(browser, pages["committed"] + "#rewards=00000000")
    says = element(browser, "#sentence").text
    assert "negative and ngrpo push every token down" in says
    for rewards in ("00000000", "11111111"):
        visit(browser, pages["committed"] + f"#rewards={rewards}")
        says = element(browser, "#sentence").text
        pushing = "return names().filter((n) => ADVANTAGES[n](firstGroup()).flat().some((a) => a))"
        for name in browser.execute_script(pushing):
            assert name in says


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_six_questions(browser, pages, size):
    """Each prediction has an answer, the answer is on the screen with what it is about, and the
    reader's own settings are back at the end."""
    show(browser, size)
    visit(browser, pages["committed"] + "#rewards=11100000&a=half")
    element(browser, "#tour [data-key='next']").click()
    for n in range(1, 7):
        assert f"Question {n} of 6" in element(browser, "#tour").text
        element(browser, "#tour [data-key='choice0']").click()
        verdict = element(browser, "#tour .verdict").text
        assert verdict.startswith(("Right. ", "Not quite. ")), verdict
        right = browser.execute_script("return TOUR[state.tour - 1].right")
        element(browser, f"#tour [data-key='choice{right}']").click()
        about = ["#group tr:nth-child(2)", "#policies .bars", "#clip-says"][max(n - 4, 0)]
        for selector in ("#tour", about):
            assert browser.execute_script(VISIBLE, selector), (n, selector)
        assert element(browser, "#tour .verdict").text.startswith("Right. ")
        if n == 1:
            assert "+1.73" in element(browser, "#sentence").text
        if n == 2:
            assert "all-fail" in element(browser, "#sentence").text
        if n == 4:
            count = re.search(r"pushes (\d+) tokens", element(browser, "#tour").text)[1]
            assert len(texts(browser, "#group .spared")) == int(count) > 0
        if n == 5:
            assert "Nobody sampled bb, and still bb rose" in element(browser, "#policies").text
        if n == 6:
            assert "pushed down" in element(browser, "#clip-says").text
        element(browser, "#tour [data-key='next']").click()
    assert len(texts(browser, "#tour li")) == 4
    assert browser.execute_script("return [state.rewards, state.a]") == ["11100000", "half"]
    element(browser, "#tour [data-key='leave']").click()
    assert "Six questions" in element(browser, "#tour").text


def test_updates_can_be_played(browser, pages):
    """Fifty updates of two variants; then the correct response is the likeliest."""
    visit(browser, pages["committed"] + "#u=grpo&w=reinforce")
    element(browser, "#play").click()
    for _ in range(200):
        if "50 updates" in element(browser, "#updates").text:
            break
        time.sleep(0.1)
    both = browser.execute_script(
        "return Object.values(policy.sides).map((s) => probabilities(s.z))"
    )
    assert all(max(p) == p[2] for p in both)
    element(browser, "#again").click()
    assert "6.0 %" in element(browser, "#policies .bars").text


VISIBLE = """
  const box = document.querySelector(arguments[0]).getBoundingClientRect();
  return box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth;
"""


def test_phone(browser, pages):
    """Nothing is wider than the screen, and the answer to a tap is on it."""
    for size in (PHONE, (1000, 900), DESKTOP):
        show(browser, size)
        visit(browser, pages["committed"] + "#all=1&a=verifree&b=nthr")
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= size[0], size
    show(browser, PHONE)
    visit(browser, pages["committed"])
    widths = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert widths == [390, 390]
    element(browser, "#group tr[data-flip='4'] .tokens").click()
    for selector in ("#sentence", "#group tr:last-child .mean", "#group tr:first-child .tokens"):
        assert browser.execute_script(VISIBLE, selector), selector
    assert "Two of eight are correct" in element(browser, "#sentence").text
    show(browser, DESKTOP)


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
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)")
    for rewards, a in (("10000000", "grpo"), ("00000000", "verifree"), ("11110000", "nthr"),
                       ("11111110", "compensation"), ("11111111", "critic")):  # fmt: skip
        script = "change({ rewards: arguments[0], a: arguments[1] });"
        assert browser.execute_script(script + CONTRAST, rewards, a) == []
    show(browser, DESKTOP)
