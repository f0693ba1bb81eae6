// ---- The page: its state, which the address follows, the small things that all drawings use, and the start.
const $ = (id) => document.getElementById(id);
const within = (low, high) => (x) => /^\d+$/.test(x) && Number(x) >= low && Number(x) <= high;
const FIELDS = { // name: [default, what is allowed]
  rewards: [() => data.lab.rewards, (text) => /^[01]+$/.test(text) && text.length === data.lab.tokens.length],
  n: [() => 0, within(0, LAST)],
  rule: [() => "grpo", (name) => Object.hasOwn(data.rules, name)],
  clip: [() => 0, within(0, 1)],
  task: [() => Object.keys(data.runs)[0], (name) => Object.hasOwn(data.runs, name)],
  frame: [() => "grpo-3", (text) => /^(grpo|half)-\d+$/.test(text)],
  asked: [() => "-".repeat(QUESTIONS.length), (text) => /^[-s012]+$/.test(text) && text.length === QUESTIONS.length],
};
const state = {};

function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  for (const [name, [initial, valid]] of Object.entries(FIELDS)) {
    const text = address.get(name);
    state[name] = text === null || !valid(text) ? initial() : typeof initial() === "number" ? Number(text) : text;
  }
  far = 0;
  settle();
}

function writeAddress() { // once all has come to rest: browsers refuse to do it often
  clearTimeout(writeAddress.waits);
  writeAddress.waits = setTimeout(() => {
    const changed = Object.entries(state).filter(([name, value]) => value !== FIELDS[name][0]());
    history.replaceState(null, "", "#" + new URLSearchParams(changed));
  }, 200);
}

function settle() { // what the page shows is no prediction any more
  QUESTIONS.forEach(({ known }, n) => { if (state.asked[n] === "-" && known?.()) state.asked = marked(n, "s"); });
}

function change(values, what = drawLab) { // what plays goes on
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
const times = (x) => `\u00d7${x.toFixed(Math.min(Math.max(2 - Math.floor(Math.log10(x)), 0), 9))}`; // three digits that count
const ARROWS = { up: "\u25b2", down: "\u25bc", "": "\u2002" };
const trend = (ratio) => (ratio > 1.0005 ? "up" : ratio < 0.9995 ? "down" : "");
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const range = (values) => [Math.min(...values), Math.max(...values)].filter((x, k, all) => !k || number(x) !== number(all[0]));

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
  const drawn = /^(svg|path|polyline|text|tspan)$/.test(tag);
  const element = document.createElementNS(`http://www.w3.org/${drawn ? "2000/svg" : "1999/xhtml"}`, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && !drawn) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function fill(element, ...children) { // new children; what had the focus has it again
  const key = element.contains(document.activeElement) && document.activeElement.dataset.key;
  element.replaceChildren(...children);
  if (key) element.querySelector(`[data-key="${key}"]`)?.focus({ preventScroll: true });
}

let news = [];
function html(element, text, tell = false) { // with tell, a screen reader hears it when all has come to rest
  if (element.dataset.now === text) return;
  element.dataset.now = text;
  element.innerHTML = text;
  if (!tell) return;
  news = [...news.filter((other) => other !== element), element];
  clearTimeout(html.waits);
  html.waits = setTimeout(() => {
    $("live").textContent = news.map((changed) => changed.textContent).join(" ");
    news = [];
  }, 700);
}

function roam(event, items, wide = 1) { // by the arrows, in a list or in a grid so wide
  const k = items.indexOf(event.target);
  const move = { ArrowDown: wide, ArrowUp: -wide, ArrowRight: 1, ArrowLeft: -1, Home: -k, End: items.length - 1 - k }[event.key];
  if (move === undefined || k < 0) return null;
  event.preventDefault();
  const next = items[k + move] ?? items[k];
  items.forEach((item) => { item.tabIndex = item === next ? 0 : -1; });
  next.focus({ preventScroll: true });
  return next;
}

const choice = (text, chosen, dataset, ...more) => el("button", { ariaPressed: chosen, data: { key: text, ...dataset } }, text, ...more);
const marks = (text, solution, from = 0) => // of a response; what differs from the solution has dots below it
  [...text].map((c, t) => (c === solution[from + t] ? c : el("u", {}, c)));

const widthOf = (id) => // of a drawing, in sixteenths of the page's letters, so that its own grow with them
  Math.max(16 * $(id).parentElement.clientWidth / parseFloat(getComputedStyle(document.body).fontSize), 40);

function spread(heights, gap, last) { // places for names: as near as possible to these heights, with this gap, none below the last
  const order = heights.map((_, k) => k).sort((a, b) => heights[a] - heights[b]);
  const places = [];
  order.forEach((k, n) => { places[k] = Math.min(Math.max(heights[k], n ? places[order[n - 1]] + gap : 0), last - gap * (order.length - 1 - n)); });
  return places;
}

// ---- The slider
let playing; // the next frame
let at = 0; // where the slider is; between two updates while it plays
let far = 0; // how far it was: there the curves end
let rested = false; // the first play rests where the near failure is likeliest
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
const between = (of) => of(Math.floor(at)) * (1 - at % 1) + of(Math.ceil(at)) * (at % 1);
const stop = () => { playing = cancelAnimationFrame(playing); };

function play() {
  if (still()) return change({ n: (state.n + 1) % (LAST + 1) });
  if (state.n === LAST) state.n = far = 0;
  at = state.n;
  let last = null;
  const frame = (time) => {
    const rest = !rested && asOpened() && state.n < peak(); // a rule that was chosen meanwhile goes on
    const until = rest ? peak() : LAST;
    at = Math.min(until, at + (last === null ? 0 : Math.min(time - last, 100) / 220));
    last = time;
    if (at === until) {
      [rested, playing] = [rested || rest, null];
      return change({ n: until });
    }
    playing = requestAnimationFrame(frame);
    const next = state.n !== Math.floor(at);
    state.n = Math.floor(at);
    move(next);
  };
  playing = requestAnimationFrame(frame);
  for (const begins of [settle, drawCards, drawPlace]) begins();
}

// ---- Start
function move(next = true) { // the drawings; and if there is a next update, the texts
  far = Math.max(far, at);
  drawTree(next);
  moveLines();
  if (!next) return;
  $("slider").value = state.n;
  $("slider").ariaValueText = $("count").textContent = plural(state.n, "update");
  drawRows();
  drawWhy();
}

function drawPlace() { // what the slider moves
  if (!playing) at = state.n;
  $("play").textContent = playing ? "pause" : still() ? "next update" : state.n === LAST ? "again" : state.n ? "go on" : "play";
  move();
  drawLegend();
}

const drawLab = () => [drawWorked, drawRules, drawCurves, drawLines, drawPlace, drawCards].forEach((draws) => draws());
const drawAll = () => { drawLab(); drawRun(); };
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
  const choose = (id, act) => { $(id).onclick = ({ target }) => target.closest("button") && act(target.closest("button").dataset); };
  $("play").onclick = () => { if (!playing) return play(); stop(); change({}); };
  $("slider").oninput = () => { stop(); change({ n: Number($("slider").value) }, drawPlace); drawCards(); };
  $("clip").onchange = () => change({ clip: Number($("clip").checked) });
  choose("names", ({ rule }) => change({ rule }));
  choose("tasks", ({ task }) => change({ task }, drawRun));
  choose("film", ({ frame }) => change({ frame }, drawRun));
  $("branches").onkeydown = (event) => roam(event, [...$("branches").children]);
  $("film").onkeydown = (event) => {
    const next = roam(event, [...$("film").querySelectorAll("button")], columns().length);
    if (next) change({ frame: next.dataset.frame }, drawRun);
  };
  document.onclick = ({ target }) => { if (shown && !target.closest("#tree, #rows, #branches")) point(null); };
}
addEventListener("DOMContentLoaded", start);
