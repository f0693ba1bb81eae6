// ---- The page: its state, which the address follows, the small things that all drawings use, and the start.
const $ = (id) => document.getElementById(id);
const within = (low, high) => (x) => /^\d+$/.test(x) && Number(x) >= low && Number(x) <= high;
const FIELDS = { // name: [default, what is allowed]
  rewards: [() => data.lab.rewards, (text) => /^[01]+$/.test(text) && text.length === data.lab.tokens.length],
  n: [() => 0, within(0, LAST)],
  rule: [() => "grpo", (name) => Object.hasOwn(data.rules, name)],
  loss: [() => "grpo", (name) => Object.hasOwn(data.clips, name)],
  since: [() => 3, within(0, 10)],
  task: [() => Object.keys(data.runs)[0], (name) => Object.hasOwn(data.runs, name)],
  frame: [() => "grpo-3", (text) => /^(grpo|half)-\d+$/.test(text)],
  asked: [() => "-".repeat(QUESTIONS.length), (text) => /^[-s012]+$/.test(text) && text.length === QUESTIONS.length],
};
const state = {};

function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  const bad = [];
  for (const [name, [initial, valid]] of Object.entries(FIELDS)) {
    const text = address.get(name);
    const fits = text !== null && valid(text);
    if (text !== null && !fits) bad.push(`${name} = ${text}`);
    state[name] = fits ? (typeof initial() === "number" ? Number(text) : text) : initial();
  }
  $("error").textContent = bad.length ? `The address asks for ${bad.join(", ")}, which this page does not have. ` +
    "It shows the default instead." : "";
  settle();
}

let writing = null;
function writeAddress() { // at once, and then at most three times a second: browsers refuse more
  if (writing) return;
  const write = () => {
    const changed = Object.entries(state).filter(([name, value]) => value !== FIELDS[name][0]());
    history.replaceState(null, "", "#" + new URLSearchParams(changed));
  };
  write();
  writing = setTimeout(() => { writing = null; write(); }, 400);
}

function settle() {
  if (state.rule === "negative") state.rewards = none(); // with any success it is grpo
  QUESTIONS.forEach(({ known }, n) => { // what the page shows is no question any more
    if (state.asked[n] === "-" && known?.()) state.asked = marked(n, "s");
  });
}

function change(values, what = drawAll) {
  stop();
  Object.assign(state, values);
  settle();
  what();
  writeAddress();
}

// ---- Numbers and words
const fixed = (x, digits = 2) => x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "\u2212");
const number = (A, digits = 2) => (A === 0 ? "0" : (fixed(A, digits).match(/[1-9]/) && A > 0 ? "+" : "") + fixed(A, digits));
const wayOf = (A) => (A > 0 ? "up" : A < 0 ? "down" : "");
const signed = (A) => `<b class="${wayOf(A)}">${number(A)}</b>`;
const percent = (x) => (x > 0 && x < 0.000005 ? "<0.001" : fixed(100 * x, x < 0.001 ? 3 : 2));
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const range = (values) => [Math.min(...values), Math.max(...values)].filter((x, k, all) => !k || number(x) !== number(all[0]));
const sourceOf = ({ paper }) => (paper ? `<a href="https://arxiv.org/abs/${paper}">paper</a>, ` : "") +
  '<a href="../advantages.py">code</a>';

// ---- Elements
let palette = null;
function colour(A) { // neutral at 0, blue up, orange down; small ones are seen as well
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/g).map((x) => parseInt(x, 16));
  palette ??= { zero: rgb("--zero"), up: rgb("--up"), down: rgb("--down") };
  const size = A === 0 ? 0 : 0.2 + 0.8 * Math.sqrt(Math.min(Math.abs(A) / 2.65, 1));
  return `rgb(${palette.zero.map((x, k) => Math.round(x + size * (palette[A < 0 ? "down" : "up"][k] - x)))})`;
}

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  element.append(...children);
  return element;
}

function fill(element, ...children) { // new children; what had the focus has it again
  const key = element.contains(document.activeElement) && document.activeElement.dataset.key;
  element.replaceChildren(...children);
  if (key) element.querySelector(`[data-key="${key}"]`)?.focus({ preventScroll: true });
}

function html(id, text) { // a screen reader should not read again what did not change
  if ($(id).dataset.now === text) return;
  $(id).dataset.now = text;
  $(id).innerHTML = text;
}

const choice = (text, chosen, dataset, ...more) =>
  el("button", { ariaPressed: chosen, data: { key: text, ...dataset } }, text, ...more);
const beside = (gain) => (gain ? [el("small", {}, ` ${number(gain, 1)}`)] : []); // grpo's is 0
const marks = (text, solution) => // a response; what differs from the solution has dots below it
  [...text].map((c, t) => (c === solution[t] ? c : el("u", {}, c)));

// The width of a drawing in sixteenths of the page's letters, so that its own grow with them.
const letter = () => parseFloat(getComputedStyle(document.body).fontSize) / 16;
const widthOf = (id, least = 200) => Math.max($(id).parentElement.clientWidth / letter(), least);

function draw(id, width, height, parts) {
  $(id).setAttribute("viewBox", `0 0 ${width} ${height}`);
  $(id).innerHTML = parts.join("");
}

// ---- The slider
let playing = null;
let at = 0; // where the slider is; between two updates while it plays
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function stop() {
  if (playing) cancelAnimationFrame(playing);
  playing = null;
}

function play(until = LAST) {
  if (still()) return change({ n: until === LAST ? (state.n + 1) % (LAST + 1) : until });
  if (state.n >= until) state.n = 0;
  at = state.n;
  let last = null;
  const frame = (time) => {
    at = Math.min(until, at + (last === null ? 0 : Math.min(time - last, 100) / 220));
    last = time;
    if (at === until) return change({ n: until });
    state.n = Math.floor(at);
    playing = requestAnimationFrame(frame);
    const { asked } = state;
    settle();
    if (asked !== state.asked) drawCards();
    drawPlace();
  };
  playing = requestAnimationFrame(frame);
  drawPlace();
}

// ---- Start
function drawPlace() { // what the slider moves
  if (!playing) at = state.n;
  $("slider").value = state.n;
  $("slider").ariaValueText = $("count").textContent = plural(state.n, "update");
  $("play").textContent = playing ? "pause" : still() ? "next update" : state.n === LAST ? "again" : "play";
  drawTree();
  drawRows();
  drawLines();
  drawSays();
}

function drawAll() {
  drawWorked();
  drawRules();
  drawPlace();
  drawClip();
  drawRun();
  drawCards();
}

function rebuild() { // for another width, or other colours
  palette = null;
  build();
  drawAll();
}

function start() {
  try {
    data = JSON.parse($("data").textContent);
    readTable();
    tree = readTree();
    readAddress();
    $("prompt").textContent = data.lab.problem[0].replaceAll(" ", "");
    orders = QUESTIONS.map(({ choices }) => shuffled(choices.map((_, k) => k)));
    $("all").hidden = false;
    rebuild();
  } catch (error) {
    $("error").textContent = `This file is damaged (${error}). Make it anew with python -m tools.explore.`;
    return;
  }
  addEventListener("hashchange", () => { stop(); readAddress(); drawAll(); });
  addEventListener("pageshow", drawAll); // a browser that goes back restores its own values of controls
  addEventListener("resize", rebuild);
  for (const query of ["(prefers-color-scheme: dark)", "(prefers-reduced-motion: reduce)"]) matchMedia(query).onchange = rebuild;
  const choose = (id, act) => {
    $(id).onclick = ({ target }) => target.closest("button") && act(target.closest("button").dataset);
  };
  $("play").onclick = () => (playing ? change({}) : play());
  $("slider").oninput = () => change({ n: Number($("slider").value) });
  choose("names", ({ rule }) => change({ rule, ...(state.rule === "negative" ? { rewards: opening() } : {}) }));
  choose("losses", ({ loss }) => change({ loss }));
  choose("tasks", ({ task }) => change({ task }));
  choose("film", ({ frame }) => change({ frame }, drawRun));
  $("lines").onpointermove = ({ target }) => pointAt(target.dataset.line ?? null);
  $("lines").onpointerleave = () => pointAt(null);
  $("film").onkeydown = arrows;
  $("since").oninput = () => change({ since: Number($("since").value) });
}
addEventListener("DOMContentLoaded", start);
