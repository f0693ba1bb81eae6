"use strict";
const $ = (id) => document.getElementById(id);
let data;

// ---- The advantages. Each function gets a group x and returns A[i][t]: response i, token t.
// x.rewards, x.tokens (texts), x.pi, x.H, x.bias [i][t]; x.L and x.L_given [i]; x.answer; x.K(i, t, j, u).
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const mean = (numbers) => sum(numbers) / numbers.length;
const deviation = (r) => Math.sqrt(mean(r.map((x) => (x - mean(r)) ** 2)));
const centre = (r) => r.map((x) => (r.every((y) => y === r[0]) ? 0 : x - mean(r)));
const standardise = (r) => centre(r).map((x) => x / (deviation(r) + 1e-6));
const onTokens = (texts, A) => texts.map((text, i) => [...text].map((_, t) => A(i, t)));
const onResponses = (x, A) => onTokens(x.tokens, (i) => A[i]);

function quantile(numbers, q) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const place = Math.round(q * (sorted.length - 1) * 1e9) / 1e9; // 0.8 * 5 is 4, whatever the rounding
  const below = sorted[Math.floor(place)];
  return below + (place % 1) * (sorted[Math.ceil(place)] - below);
}

function scores(x) { // s of nthr: how much a token's gradient agrees with those of the correct responses
  return onTokens(x.tokens, (j, u) => sum(x.tokens.map((text, i) =>
    x.rewards[i] ? sum([...text].map((_, t) => x.K(i, t, j, u))) : 0)));
}

function threshold(x, s) { // tau of nthr
  return Math.min(...s.filter((_, i) => x.rewards[i]).map(mean));
}

function spared(x) { // the tokens of incorrect responses with s > tau
  const s = scores(x);
  const tau = threshold(x, s);
  return onTokens(x.tokens, (i, t) => !x.rewards[i] && s[i][t] > tau);
}

function forks(x) { // the tokens whose entropy is among the highest fifth of the group
  const least = quantile(x.H.flat(), 0.8);
  return onTokens(x.tokens, (i, t) => x.H[i][t] >= least);
}

const eta = (x) => 2 * Math.abs(mean(x.rewards) - 0.5);
const trainedText = (x, text) => (text.includes("#") ? `${text.split("#")[0]}#${x.answer}$` : text);

const ADVANTAGES = {
  grpo: (x) => onResponses(x, standardise(x.rewards)),
  dr_grpo: (x) => onResponses(x, centre(x.rewards)),
  rloo: (x) => onResponses(x, centre(x.rewards).map((A) => A * x.rewards.length / (x.rewards.length - 1))),
  pos_only: (x) => onResponses(x, standardise(x.rewards).map((A) => Math.max(A, 0))),
  reinforce: (x) => onResponses(x, x.rewards),
  half: (x) => onResponses(x, standardise(x.rewards).map((A) => (A < 0 ? A / 2 : A))),
  critic(x) {
    const A = standardise(x.rewards);
    return onTokens(x.tokens, (i, t) => A[i] + x.bias[i][t]);
  },
  compensation(x) {
    const A = standardise(x.rewards);
    return onTokens(x.tokens, (i, t) => (A[i] > 0 ? A[i] * (2 - x.pi[i][t] / Math.max(...x.pi[i])) : A[i]));
  },
  culling: (x) => ADVANTAGES.grpo(x),
  gspo: (x) => ADVANTAGES.grpo(x), // this one and the next change the loss: see PUSH
  cispo: (x) => ADVANTAGES.grpo(x),
  negative: (x) => onResponses(x, x.rewards.some((r) => r) ? standardise(x.rewards) : x.rewards.map(() => -1)),
  ngrpo: (x) => onResponses(x, standardise([...x.rewards, 1])),
  likelihood: (x) => onResponses(x, standardise(x.rewards.some((r) => r) ? x.rewards : x.L)),
  maxrl(x) {
    const mu = mean(x.rewards);
    return onResponses(x, centre(x.rewards).map((A) => (mu === 0 ? 0 : A / mu)));
  },
  forking(x) {
    const A = standardise(x.rewards);
    const fork = forks(x);
    return onTokens(x.tokens, (i, t) => (fork[i][t] ? A[i] : 0));
  },
  verifree(x) { // on other tokens: the response up to its marker, then the true answer and the end
    const L = x.L_given;
    const mu = mean(L);
    const sd = Math.sqrt(mu * (1 - mu)) + 1e-6;
    const above = centre(L).map((A) => A * L.length / (L.length - 1));
    const texts = x.tokens.map((text) => trainedText(x, text));
    return onTokens(texts, (i, t) => {
      const marker = texts[i].indexOf("#");
      const given = marker >= 0 && t > marker;
      return mu > 0.999 ? 0 : (given ? L[i] : above[i]) / sd;
    });
  },
  process(x) { // it reads no rewards: a step is correct if the response agrees with the solution to its end
    const ends = onTokens(x.tokens, (i, t) => ",#$".includes(x.tokens[i][t]));
    const R = onTokens(x.tokens, (i, t) => Number(x.solution.startsWith(x.tokens[i].slice(0, t + 1))));
    const steps = R.flatMap((row, i) => row.filter((_, t) => ends[i][t]));
    const pushes = onTokens(x.tokens, (i, t) =>
      ends[i][t] ? (R[i][t] - mean(steps)) / (deviation(steps) + 1e-6) : 0);
    return onTokens(x.tokens, (i, t) => sum(pushes[i].slice(t)));
  },
  nthr(x) {
    const A = standardise(x.rewards);
    const chosen = spared(x);
    return onTokens(x.tokens, (i, t) => (chosen[i][t] ? eta(x) * A[i] : A[i]));
  },
};

// ---- The model: a table with the distribution over the next token for each known prefix
const STEP = 0.3; // how far one update goes
let table; // prefixes: {prefix: row}; begin: logits [row][character]; product(row, row)

function unpack(text) {
  return new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer); // little-endian
}

function readTable() {
  const { tokens, characters, probs, products } = data.lab;
  const prefixes = new Map();
  for (const text of tokens) {
    for (let t = 0; t < text.length; t++) {
      const prefix = text.slice(0, t);
      if (!prefixes.has(prefix)) prefixes.set(prefix, prefixes.size);
    }
  }
  const p = unpack(probs);
  const V = characters.length;
  const begin = [...prefixes.values()].map((row) => [...p.subarray(row * V, (row + 1) * V)].map((x) => Math.log(x)));
  const triangle = unpack(products);
  const product = (a, b) => triangle[Math.max(a, b) * (Math.max(a, b) + 1) / 2 + Math.min(a, b)];
  table = { prefixes, begin, product, V };
}

function softmax(row) {
  const top = Math.max(...row);
  const powers = row.map((z) => Math.exp(z - top));
  const total = sum(powers);
  return powers.map((x) => x / total);
}

function probability(p, text) { // of this response, or of all that begin with it
  return [...text].reduce((all, character, t) =>
    all * p[table.prefixes.get(text.slice(0, t))][data.lab.characters.indexOf(character)], 1);
}

function groupOf(tokens, rewards, p) { // what the functions above want, under this model
  const places = tokens.map((text) => [...text].map((character, t) =>
    [table.prefixes.get(text.slice(0, t)), data.lab.characters.indexOf(character)]));
  let g; // of all tokens: one-hot - probability
  return {
    tokens, rewards, places, answer: data.lab.problem[2], solution: data.lab.problem[1] + "$",
    pi: places.map((row) => row.map(([s, k]) => p[s][k])),
    H: places.map((row) => row.map(([s]) => -sum(p[s].map((x) => (x > 0 ? x * Math.log(x) : 0))))),
    K(i, t, j, u) {
      g ??= places.map((row) => row.map(([s, token]) => p[s].map((x, k) => (k === token) - x)));
      const other = g[j][u];
      return g[i][t].reduce((total, x, k) => total + x * other[k], 0) * table.product(places[i][t][0], places[j][u][0]);
    },
  };
}

function theEight(rewards, p) { // the recorded responses, with these rewards: a text of 0 and 1
  const { tokens, bias, L, L_given } = data.lab;
  const G = rewards.length;
  const x = groupOf(tokens.slice(0, G), [...rewards].map(Number), p);
  return { ...x, bias: bias.slice(0, G), L: L.slice(0, G), L_given: L_given.slice(0, G) };
}

function uniform(seed) { // mulberry32: the same numbers on every machine
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function draw(p, n) { // update n: as many responses as were recorded; one that leaves the table ends there
  const random = uniform(n);
  return data.lab.tokens.map(() => {
    let text = "";
    while (table.prefixes.has(text)) {
      let u = random();
      const q = p[table.prefixes.get(text)];
      let k = 0;
      while (k < q.length - 1 && u >= q[k]) u -= q[k++];
      text += data.lab.characters[k];
    }
    return text;
  });
}

function rewardOf(text, rewards) { // the reader's; what nobody recorded is incorrect
  return Number(rewards[data.lab.tokens.indexOf(text)] ?? 0);
}

function nextGroup({ rewards, fresh }, z, n) {
  const p = z.map(softmax);
  if (!fresh) return theEight(rewards, p);
  const texts = draw(p, n);
  return groupOf(texts, texts.map((text) => rewardOf(text, rewards)), p);
}

function updated(z, x, name) { // z + step times the mean over responses of A (one-hot - probability)
  const A = ADVANTAGES[name](x);
  const p = z.map(softmax);
  const next = z.map((row) => [...row]);
  x.places.forEach((places, i) => places.forEach(([row, token], t) => {
    for (let k = 0; k < table.V; k++) next[row][k] += STEP / x.tokens.length * A[i][t] * ((k === token) - p[row][k]);
  }));
  return next;
}

// What happened so far: the rewards of each update, and whether its responses were drawn. A rule that is
// chosen later makes the same updates.
let past = [];
let models = {}; // rule: the logits after 0, 1, 2, .. updates

function modelOf(name, n) { // after n updates; the table does not learn what needs a network
  if (NETWORK.includes(name)) return table.begin;
  const made = models[name] ??= [table.begin];
  for (let k = made.length - 1; k < n; k++) made.push(updated(made[k], nextGroup(past[k], made[k], k), name));
  return made[n];
}

function since() { // the updates before the rewards became what they are: bars are compared with these
  return past.findLastIndex(({ rewards }) => rewards !== state.rewards) + 1;
}

// ---- State; the address follows it, and never the other way round but at the start
const names = () => Object.keys(data.variants);
const NETWORK = ["critic", "likelihood", "verifree"]; // these need more than the table
const within = (low, high) => (x) => x !== "" && x >= low && x <= high;
const FIELDS = { // name: [default, what is allowed]
  rewards: [() => data.lab.rewards.join(""), (text) => /^[01]+$/.test(text) && text.length === data.lab.tokens.length],
  fresh: [() => 0, (x) => x === "0" || x === "1"],
  rule: [() => "half", (name) => name !== "grpo" && names().includes(name)],
  token: [() => "2.6", (text) => /^[1-8]\.[0-9]{1,2}$/.test(text)],
  tour: [() => 1, (x) => within(1, TOUR.length + 1)(x) && x % 1 === 0],
  loss: [() => "grpo", (name) => losses().includes(name)],
  ratio: [() => 2, within(0, 6)],
  sign: [() => 1, (x) => Math.abs(x) === 1],
  run: [() => Object.keys(data.runs)[0], (name) => name in data.runs],
  level: [() => 4, (x) => within(0, 99)(x) && x % 1 === 0],
  step: [() => 50, within(0, 1e9)],
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
  fit();
  $("error").textContent = bad.length ? `The address asks for ${bad.join(", ")}, which this page does not have. ` +
    "It shows the default instead." : "";
}

function fit() { // what depends on another choice
  if (!levels().includes(state.level)) state.level = levels()[0];
  state.step = steps().reduce((best, s) => Math.abs(s - state.step) < Math.abs(best - state.step) ? s : best);
  const [i, t] = state.token.split(".").map(Number); // counted from 1
  const row = Math.min(i, data.lab.tokens.length);
  state.ratio = Math.min(state.ratio, ratioEnd());
  state.token = `${row}.${Math.min(Math.max(t, 1), data.lab.tokens[row - 1].length)}`;
}

let writing = null;
function writeAddress() { // at most three times a second
  writing ??= setTimeout(() => {
    writing = null;
    const changed = Object.entries(state).filter(([name, value]) => value !== FIELDS[name][0]());
    history.replaceState(null, "", "#" + new URLSearchParams(changed));
  }, 400);
}

function change(values, what = drawAll) {
  Object.assign(state, values);
  fit();
  what();
  writeAddress();
}

// ---- Drawing
const fixed = (x, digits = 2) => x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "\u2212");
const number = (A) => (A === 0 ? "0" : (fixed(A).match(/[1-9]/) && A > 0 ? "+" : "") + fixed(A));
const signed = (A) => `<b class="${A > 0 ? "up" : A < 0 ? "down" : ""}">${number(A)}</b>`;
const WORDS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight"];
const word = (n) => WORDS[n] ?? String(n);
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const percent = (x) => (x > 0 && x < 0.000005 ? "<0.001" : fixed(100 * x, x < 0.001 ? 3 : 2));
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const shown = (character) => (character === " " ? "a space" : `\u201c${character}\u201d`);

let palette = null;
function colours() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/g).map((x) => parseInt(x, 16));
  palette ??= { zero: rgb("--zero"), up: rgb("--up"), down: rgb("--down") };
  return palette;
}

function colour(A) { // neutral at 0, blue up, orange down; small ones are seen, too
  const { zero, up, down } = colours();
  const size = A === 0 ? 0 : 0.15 + 0.85 * Math.min(Math.abs(A) / 2.65, 1);
  const rgb = zero.map((x, k) => Math.round(x + size * ((A < 0 ? down : up)[k] - x)));
  const linear = rgb.map((x) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  // Black or white, whichever has more contrast: at least 4.5 : 1 on any colour.
  return { backgroundColor: `rgb(${rgb})`, color: light > 0.179 ? "#000" : "#fff" };
}

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(element.style, value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name in element) element[name] = value;
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

function html(id, text) { // a screen reader should not read again what did not change
  if ($(id).dataset.now === text) return;
  $(id).dataset.now = text;
  $(id).innerHTML = text;
}

function range(values) { // the numbers of a response's tokens
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return number(low) === number(high) ? [number(low)] : [`${number(low)} to`, number(high)];
}

const spans = (lines) => lines.map((line) => el("span", {}, line));

// The tokens of response i as the reader sees them; a is null where nothing is trained. verifree does not train
// the answer that was sampled, but the true one, which is shown beside it. Without A all is untrained.
function tokensOf(x, name, A, i) {
  const text = x.tokens[i];
  const marker = A && name === "verifree" ? text.indexOf("#") : -1;
  const sampled = [...text].map((character, t) => ({
    character, a: !A || (marker >= 0 && t > marker) ? null : A[i][t],
    marks: character === x.solution[t] ? [] : ["incorrect"],
  }));
  const given = marker < 0 ? [] : [...`${x.answer}$`].map((character, k) => ({
    character, a: A[i][marker + 1 + k], marks: ["given"],
  }));
  return [...sampled, ...given];
}

function together(cells, length) { // what stands after the response's own tokens stays in one line
  const given = cells.splice(length);
  return given.length ? [...cells, el("span", { className: "after" }, "\u2192", ...given)] : cells;
}

// ---- The boards: grpo only, and grpo beside a rule
const AXES = [0.15, 0.3, 0.6, 1]; // where the bars of both boards may end
let axis = AXES[0];
const small = matchMedia("(max-width: 60em)");

function sideOf(name) { // all numbers of one side of a board
  const z = modelOf(name, past.length);
  const x = nextGroup({ rewards: state.rewards, fresh: state.fresh && !NETWORK.includes(name) }, z, past.length);
  const A = ADVANTAGES[name](x);
  const { tokens } = data.lab;
  const policies = [modelOf(name, since()), z].map((logits) => logits.map(softmax));
  const [before, now] = policies.map((p) => tokens.map((text) => probability(p, text)));
  const learns = !NETWORK.includes(name);
  return { name, x, A, policies, before, now, learns, moved: learns && past.length > since() };
}

const base = () => theEight(state.rewards, table.begin.map(softmax)); // for texts, which no update changes

function build(board, rules) { // the elements, once: later only texts, colours and widths change
  const span = (className, ...children) => el("span", { className }, ...children);
  const side = (...children) => el("div", { className: "side" }, ...children);
  const bar = () => el("div", { className: "track" }, el("i"), el("i", { className: "was" }));
  const value = () => el("div", { className: "value" }, span("before"), el("b"));
  const rule = (name) => el("span", { className: "rule", data: { rule: name } }); // seen where the sides are stacked
  const short = rules.length === 2 || small.matches;
  const axes = () => span("axis", el("b", {}, "0"),
    span("", "probability", short ? "" : span("wide", ": line before, bar now")), el("b", { className: "end" }));
  const title = (name) => (rules.length === 2 ? name : "response");
  const heading = (name) => side(span("tokens", title(name)), span("A", "advantage"), axes(), span("value"));
  const rows = data.lab.tokens.map((text, i) => el("div", { className: "row" },
    el("button", { data: { flip: i, key: `flip${i}` } }),
    ...rules.map((name) => side(el("div", { className: "tokens" }), el("div", { className: "A" }), bar(), value(), rule(name)))));
  const rest = el("div", { className: "row rest" }, el("span"), ...rules.map((name) =>
    side(span("tokens", "all others"), el("div", { className: "A" }), value(), rule(name))));
  const head = el("div", { className: "row head" }, el("span", {}, "reward"), ...rules.map(heading));
  board.replaceChildren(head, ...rows, rest);
  board.classList.toggle("two", rules.length === 2);
  const length = Math.max(...data.lab.tokens.map((text) => text.length));
  board.style.setProperty("--length", length);
  board.style.setProperty("--tokens", `${1.2 * length + 2.1}em`);
  board.dataset.rules = rules;
}

function direction(before, now) {
  return Math.abs(now / before - 1) < 0.0005 ? "" : now > before ? "rose" : "fell";
}

function drawBar(side, before, now, moved) {
  const track = side.querySelector(".track");
  track.className = `track ${drawValue(side, before, now, moved)}`;
  const [bar, was] = track.children;
  bar.style.width = `${100 * Math.min(now / axis, 1)}%`;
  was.style.width = `calc(${100 * Math.min(before / axis, 1)}% + 1px)`;
}

function drawValue(side, before, now, moved) {
  const way = moved ? direction(before, now) : "";
  const [old, text] = side.querySelector(".value").children;
  old.textContent = moved ? `${percent(before)} \u2192 ` : "";
  text.className = way && (way === "rose" ? "up" : "down");
  text.textContent = `${percent(now)}\u2009% ${{ rose: "\u25b2", fell: "\u25bc" }[way] ?? "\u2002"}`;
  return way;
}

function drawBoard(board, sides, shared = null) {
  const rules = sides.map((side) => side.name);
  if (board.dataset.rules !== String(rules)) build(board, rules);
  const { tokens, rewards } = data.lab;
  const head = board.querySelector(".head");
  sides.forEach((side, k) => head.children[k + 1].classList.toggle("still", !side.learns));
  for (const end of head.querySelectorAll(".end")) end.textContent = `${100 * axis} %`;
  for (const each of head.querySelectorAll(".axis")) each.classList.toggle("changed", axis > AXES[0]);
  tokens.forEach((text, i) => {
    const row = board.children[i + 1];
    const button = row.children[0];
    button.textContent = (sides.length === 2 ? "" : "reward ") + state.rewards[i];
    button.ariaPressed = state.rewards[i] === "1";
    const verdict = rewards[i] ? "correct" : "incorrect";
    button.ariaLabel = `Response ${i + 1}, ${text}, is ${verdict}: reward ${state.rewards[i]}`;
    sides.forEach((side, k) => {
      const long = shared?.rows.includes(i) ? shared.length : 0;
      drawSide(row.children[k + 1], side, i, k > 0 ? sides[0] : null, sides.length === 2, long);
    });
  });
  sides.forEach((side, k) => drawRest(board.lastChild.children[k + 1], side));
}

// Response i on one side of a board. grpo: the side to compare with. The first `shared` tokens are marked.
function drawSide(box, side, i, grpo, pointed, shared) {
  const { x, A, name, learns } = side;
  const text = data.lab.tokens[i];
  const at = x.tokens.indexOf(text); // a drawn group may lack it
  const parts = at < 0 ? tokensOf(base(), name, null, i) : tokensOf(x, name, A, at);
  const cells = parts.map(({ character, a, marks }, t) => {
    const differs = grpo && !state.fresh && a !== null &&
      (marks.includes("given") || Math.abs(a - grpo.A[i][t]) > 1e-9);
    const classes = ["token", ...marks, t < shared && "shared", differs && "differs"].filter((c) => c);
    const cell = el("span", { className: classes.join(" "), style: a === null ? {} : colour(a) }, character);
    if (pointed) {
      const place = `${i + 1}.${t + 1}`;
      cell.tabIndex = -1; // drawChosen makes one of them the tab stop
      Object.assign(cell.dataset, { token: place, key: `${place} ${grpo ? 1 : 0}` });
      cell.ariaLabel = [character === " " ? "space" : character, ...marks,
        a === null ? "not trained" : `advantage ${number(a)}`].join(", ");
    }
    return cell;
  });
  const correct = data.lab.rewards[i] ? "correct" : "incorrect";
  const mark = el("span", { className: "mark", ariaLabel: `${i + 1}, ${correct}` },
    `${i + 1} ${correct === "correct" ? "\u2713" : ""}`);
  fill(box.children[0], mark, ...together(cells, text.length));
  const values = parts.map(({ a }) => a).filter((a) => a !== null);
  fill(box.children[1], ...spans(values.length ? range(values) : ["\u2013"]), often(side, (y) => y === text));
  box.classList.toggle("still", !learns);
  drawBar(box, side.before[i], side.now[i], side.moved);
}

function drawRest(box, side) { // all other responses together
  const { tokens } = data.lab;
  const once = (p, i) => tokens.indexOf(tokens[i]) === i;
  const [before, now] = [side.before, side.now].map((p) => 1 - sum(p.filter(once)));
  const unknown = (y) => !tokens.includes(y);
  const other = side.x.tokens.findIndex(unknown);
  fill(box.children[1], ...spans(other < 0 ? [] : range(side.A[other])), often(side, unknown));
  box.classList.toggle("still", !side.learns);
  drawValue(box, before, now, side.moved);
}

function often(side, which) { // in a drawn group
  const n = side.x.tokens.filter(which).length;
  return state.fresh && side.learns ? el("small", {}, `drawn ${n}\u00d7`) : "";
}

function stretch(sides) { // the axis only grows, until the reader starts again
  const most = Math.max(...sides.filter((side) => side.learns).flatMap((side) => side.now));
  axis = AXES.find((end) => end >= axis && end >= most) ?? 1;
}

function sharedWith(side) { // a response without reward that rose as its beginning did, and a rewarded one that has it
  const { tokens } = data.lab;
  const rewarded = tokens.map((_, i) => i).filter((i) => state.rewards[i] === "1");
  let best = null;
  tokens.forEach((text, i) => {
    if (state.rewards[i] === "1" || direction(side.before[i], side.now[i]) !== "rose") return;
    for (const j of rewarded) {
      let length = 0;
      while (length < text.length && text[length] === tokens[j][length]) length++;
      const [before, now] = side.policies.map((p) => probability(p, text.slice(0, length)));
      if (now > before && length > (best?.length ?? 0)) best = { rows: [i, j], length };
    }
  });
  return best;
}

function drawFirst() {
  const side = sideOf("grpo");
  const { x, A } = side;
  const G = x.rewards.length;
  const n = sum(x.rewards);
  const begun = since();
  const made = past.length - begun;
  const guessing = state.tour === 1 && predicted === null; // question 1 asks why a response without reward rises
  const shared = made && !guessing ? sharedWith(side) : null;
  drawBoard($("first"), [side], shared);
  const mu = mean(x.rewards);
  const sigma = deviation(x.rewards);
  const exact = (digits) => // the division as it is shown gives the result that is shown
    [1, 0].every((r) => fixed((r - mu) / Number(sigma.toFixed(digits))) === fixed((r - mu) / sigma));
  const digits = [2, 3, 4].find(exact) ?? 4;
  const worked = (r) => `(${r} \u2212 ${fixed(mu, 3)})\u00a0/\u00a0${fixed(sigma, digits)} = ${signed(A[x.rewards.indexOf(r)][0])}`;
  const who = n === 0 ? `none of ${word(G)} has` : n < G ? `${word(n)} of ${word(G)} ${n === 1 ? "has" : "have"}` :
    `${G === 2 ? "both" : `all ${word(G)}`} have`;
  const group = (state.fresh ? `Drawn for the next update: ${who}` : capital(who)) + " reward 1" + (sigma ?
    `: A = ${worked(1)}. ` +
    `${G - n === 1 ? "The other gets" : "The others get"} ${worked(0)}.` :
    `, so every advantage is (${mu} \u2212 ${mu}) / (0 + 0.000001) = 0. The millionth avoids 0 / 0.`);
  const rose = (i) => direction(side.before[i], side.now[i]) === "rose";
  const wrong = [...state.rewards].findIndex((r, i) => r === "1" && !data.lab.rewards[i] && (!made || rose(i)));
  const right = data.lab.rewards.indexOf(1);
  const lines = begun + made ? [] : ["Update the model and watch the bars: lines mark where they began."];
  if (!sigma && !made) lines.splice(0, 1, "The next update will change nothing.");
  if (begun && !made) lines.push("You changed the rewards: the lines now mark where the bars are.");
  if (made && right >= 0) {
    const factor = fixed(side.now[right] / side.before[right], 1);
    const idle = past.filter((update, k) => k >= begun && !deviation(nextGroup(update, modelOf("grpo", k), k).rewards));
    const still = idle.length === made;
    lines.push(`After ${plural(made, "update")}${begun ? ` with these rewards (${past.length} in all)` : ""} the correct response is ` +
      `${still ? "unchanged: all advantages were 0" : factor === "1.0" ? "about as likely as before" : `${factor} times as likely`}.`);
    if (idle.length && !still) {
      lines.push(`${capital(word(idle.length))} of them drew equal rewards and changed nothing.`);
    }
  }
  if (shared) {
    const [risen, like] = shared.rows.map((i) => i + 1);
    lines.push(`Response ${risen} got likelier with reward 0: it begins like response ${like} (thick line).`);
  } else if (wrong >= 0 && made) lines.push(`Response ${wrong + 1} is incorrect, but rewarded: it got likelier.`);
  else if (wrong >= 0 && !state.fresh && n < G) {
    lines.push(`Response ${wrong + 1} is incorrect, but rewarded: an update pushes it up.`);
  }
  const offer = made >= 10 && n > 0 && !state.fresh && !own; // one thing at a time: a question has its own
  if (offer) lines.push("Now set all rewards to 0.");
  html("sentence", group);
  html("outcome", lines.join(" "));
  document.querySelector("[data-share='0']").classList.toggle("offered", offer);
  for (const count of document.querySelectorAll("[data-count]")) count.textContent = plural(past.length, "update");
  for (const radio of document.getElementsByName("fresh")) radio.checked = Number(radio.value) === state.fresh;
}

// What if we ...: the ideas, by what they change, and why one would want them (see the docstrings).
const IDEAS = {
  "push each response with another strength": {
    dr_grpo: ["do not divide by the deviation", "Prompts with nearly equal rewards then count no more. " +
      "Its other change, to the loss, is not seen here."],
    rloo: ["compare with the other responses only", "In grpo's mean each response is partly compared with itself."],
    maxrl: ["divide by the mean instead", "Rarely solved prompts count most."],
    reinforce: ["use the reward itself", "Nothing is subtracted, so successes are pushed up even if all succeed."],
    pos_only: ["never push down", "The model only imitates correct responses."],
    half: ["push down half as hard", "This is the simplest way to push down less."],
  },
  "treat some groups differently": {
    negative: ["push groups without success down", "Probability moves to untried answers."],
    ngrpo: ["add one imagined success", "Groups without success then teach something."],
    culling: ["stop drawing solved prompts", "No samples go to solved problems."],
    likelihood: ["reward promising steps if all fail", "Some failures may reason better than others."],
  },
  "treat some tokens differently": {
    nthr: ["spare what failures share with successes", "Pushing shared steps down can hurt successes."],
    forking: ["train only unsure tokens", "At unsure tokens a response can go either way."],
    compensation: ["push improbable tokens of successes harder", "Successes with improbable tokens should teach more."],
    critic: ["let a second network judge tokens", "Not every token of a correct response helped."],
    process: ["reward each correct step", "Steps may be correct although the answer is not."],
    verifree: ["train on the true answer", "We know the answer, so sampling need not find it."],
  },
  "change the loss": {
    gspo: ["clip whole responses", "A response gets one reward, so the clip judges it whole."],
    cispo: ["never stop a push", "Tokens that moved far keep learning."],
  },
};

const firstLine = (name) => data.variants[name].split("\n")[0]; // of the docstring: its idea

function why(name) { // a rule that this page does not know says what it is
  return Object.values(IDEAS).map((group) => group[name]?.[1]).find((text) => text) ?? firstLine(name);
}

function drawRule() {
  const select = $("rule");
  if (!select.options.length) {
    const known = Object.values(IDEAS).flatMap((group) => Object.keys(group));
    const others = Object.fromEntries(names().filter((n) => n !== "grpo" && !known.includes(n)).map((n) => [n, [n]]));
    for (const [label, group] of Object.entries({ ...IDEAS, others })) {
      const known = Object.entries(group).filter(([name]) => names().includes(name));
      const options = known.map(([name, [idea]]) => new Option(idea, name));
      if (options.length) select.append(el("optgroup", { label }, ...options));
    }
  }
  select.value = state.rule;
  const paper = data.variants[state.rule].match(/arXiv ([0-9.]+[0-9])/);
  const links = paper ? [el("a", { href: `https://arxiv.org/abs/${paper[1]}` }, paper[0]), ", "] : [];
  fill($("about-rule"), el("b", {}, state.rule), `: ${why(state.rule)} (`, ...links,
    el("a", { href: "../advantages.py" }, "code"), ")");
}

function factor(A, other) { // other is factor * A in all tokens, or the factor is null
  const [a, b] = [A.flat(), other.flat()];
  const k = a.findIndex((x) => x !== 0);
  const f = b[k] / a[k];
  return k >= 0 && a.length === b.length && f > 0 && a.every((x, t) => Math.abs(f * x - b[t]) < 1e-9) ? f : null;
}

const DIFFERS = { // when a rule that gives what grpo gives is another one
  negative: "It differs if all rewards are 0.",
  likelihood: "It differs if all rewards are 0.",
  culling: "It changes which prompts are drawn, not the advantages.",
};

function risen(side) { // a response with A < 0 that rose, and why
  if (!side.moved || past.some(({ fresh }) => fresh) || state.fresh) return "";
  const shared = sharedWith(side);
  const below = (i) => Math.max(...side.A[i]) < 0;
  const rises = (i) => side.now[i] / side.before[i];
  const best = shared && below(shared.rows[0]) ? shared.rows[0] :
    side.A.map((_, i) => i).filter(below).sort((i, j) => rises(j) - rises(i))[0];
  if (best === undefined || direction(side.before[best], side.now[best]) !== "rose") return "";
  return `Response ${best + 1} rose although its A is below 0: ` + (best === shared?.rows[0] ?
    `it begins like response ${shared.rows[1] + 1}.` : "it gained more from pushes on the others than its own took.");
}

function drawSecond() {
  const sides = ["grpo", state.rule].map(sideOf);
  drawRule();
  drawBoard($("second"), sides);
  const [one, other] = sides;
  const of = (side, r) => {
    const values = side.A.filter((_, i) => side.x.rewards[i] === r).flat();
    return values.length ? range(values).join(" ") : "";
  };
  const gives = (side) => [1, 0].map((r) => of(side, r) && `${of(side, r)} for reward ${r}`).filter((t) => t).join(", ");
  const right = data.lab.rewards.indexOf(1);
  const lines = [`${other.name} gives ${gives(other)}.`];
  const f = state.fresh ? null : factor(one.A, other.A);
  if (String(other.A) === String(one.A) || (f && fixed(f) === "1.00")) { // maxrl is it but for the millionth
    lines[0] = `With these rewards ${other.name} gives what grpo gives.`;
    if (!losses().includes(other.name)) lines.push(DIFFERS[other.name] ?? "With others it differs.");
  } else if (f) {
    lines.push(`That is grpo times ${fixed(f)}: with the same step size it only moves ${f > 1 ? "more" : "less"}. ` +
      "The factor depends on the rewards.");
  }
  if (losses().includes(other.name)) lines.push("Only its clip differs, which you find below.");
  if (!other.learns) lines.push("It needs a network instead of this table, so the update buttons are off.");
  else if (past.length && right >= 0) {
    const [its, grpos] = [other, one].map((side) => `${percent(side.now[right])} %`);
    lines.push(`Both begin at the base model and make all ${plural(past.length, "update")}: the correct response then has ` +
      `${its}, with grpo ${grpos}.`);
  }
  html("compared", lines.join(" "));
  html("risen", risen(other));
  for (const button of document.querySelectorAll("#beside .controls button")) button.disabled = !other.learns;
  drawChosen(sides);
  drawRules();
}

function drawChosen(sides = ["grpo", state.rule].map(sideOf)) {
  for (const cell of $("second").querySelectorAll("[data-token]")) {
    const here = cell.dataset.token === state.token;
    cell.classList.toggle("chosen", here);
    cell.tabIndex = here && cell.dataset.key.endsWith("1") ? 0 : -1;
  }
  const [row, column] = state.token.split(".").map(Number);
  const i = row - 1;
  const text = data.lab.tokens[i];
  const said = sides.map(({ x, A, name }) => {
    const at = x.tokens.indexOf(text);
    const part = at < 0 ? null : tokensOf(x, name, A, at)[column - 1];
    return `${name} ${!part || part.a === null ? "none" : number(part.a)}`;
  });
  const { solution } = sides[0].x;
  const t = column - 1;
  const character = text[t] ?? tokensOf(sides[1].x, state.rule, sides[1].A, i)[t]?.character ?? "";
  const lines = [`Token ${column} of response ${row} is ${shown(character)}`];
  const wanted = solution[t] ? shown(solution[t]) : "ended";
  if (text[t] && text[t] !== solution[t]) lines[0] += `, where the solution has ${wanted}`;
  lines[0] += ".";
  if (text[t]) lines.push(`Its base probability was ${fixed(base().pi[i][t], 3)}.`);
  html("chosen", [...lines, `Advantages: ${said.join(", ")}.`].join(" "));
}

function drawRules() { // all rules: what tokens of rewarded and other responses get
  const x = base();
  const cell = (A, r) => {
    const values = A.filter((_, i) => x.rewards[i] === r).flat();
    return el("td", {}, values.length ? range(values).join(" ") : "\u2013");
  };
  const rows = names().map((name) => {
    const A = ADVANTAGES[name](x);
    const choose = name === "grpo" ? name : el("button", { data: { variant: name, key: name } }, name);
    return el("tr", { ariaSelected: name === state.rule }, el("th", { scope: "row" }, choose), cell(A, 1), cell(A, 0));
  });
  const head = ["rule", "A, reward 1", "A, reward 0"].map((text) => el("th", { scope: "col" }, text));
  $("variants").textContent = names().length;
  fill($("rules"), el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}

// ---- The clip
const losses = () => ["grpo", "gspo", "cispo"].filter((name) => name in data.variants);
const limits = (name) => ({ clip_low: 0.2, clip_high: 0.2, ...data.losses[name] });

const PUSH = { // on the logarithm of a token's probability: what the loss has as its gradient
  grpo: (ratio, A) => stopped("grpo", ratio, A) ? 0 : ratio * A,
  gspo: (ratio, A) => stopped("gspo", ratio, A) ? 0 : ratio * A, // the ratio of the whole response
  cispo: (ratio, A) => Math.min(ratio, 1 + limits("cispo").clip_high) * A,
};

function stopped(name, ratio, A) {
  const { clip_low, clip_high } = limits(name);
  return A > 0 ? ratio > 1 + clip_high : ratio < 1 - clip_low;
}

const ratioEnd = () => (state.loss === "cispo" ? 6 : 2.5); // its limit is far to the right

function drawClip() {
  const { ratio, sign, loss } = state;
  fill($("losses"), ...losses().map((name) =>
    el("button", { ariaPressed: name === loss, data: { key: name, loss: name } }, name)));
  const question = TOUR[state.tour - 1];
  const pending = question?.place === "clip" && predicted === null; // what is shown must not answer it yet
  const hidden = (r, A) => pending && A === question.before.sign && r > 1;
  const asked = hidden(ratio, sign);
  const width = Math.min(innerWidth - 32, 540);
  const end = ratioEnd();
  const x = (r) => 40 + r / end * (width - 55);
  const y = (v) => 130 - v * 112 / end;
  const push = (r) => PUSH[loss](r, sign);
  const points = Array.from({ length: 100 * end + 1 }, (_, k) => k / 100).filter((r) => !hidden(r, sign));
  const pieces = []; // the line is cut where the push ends
  points.forEach((r, k) => {
    if (!k || Math.abs(push(r) - push(points[k - 1])) > 0.2) pieces.push([]);
    pieces.at(-1).push(`${x(r)},${y(push(r))}`);
  });
  const across = (end === 6 ? [0, 1, 2, 3, 4, 5, 6] : [0, 0.5, 1, 1.5, 2, 2.5]).map((r) =>
    `<text x="${x(r)}" y="262" text-anchor="middle">${r}</text>`).join("");
  const down = (end === 6 ? [-5, -2.5, 0, 2.5, 5] : [-2, -1, 0, 1, 2]).map((v) =>
    `<path d="M${x(0)} ${y(v)}H${x(end)}" stroke="var(--line)"/>
    <text x="32" y="${y(v) + 4}" text-anchor="end">${number(v).replace(/\.?0+$/, "") || 0}</text>`).join("");
  const shade = `var(--${sign > 0 ? "up" : "down"})`;
  const { clip_low, clip_high } = limits(loss);
  const limit = sign > 0 || loss === "cispo" ? 1 + clip_high : 1 - clip_low;
  const label = `<path d="M${x(limit)} 24V245" stroke="var(--muted)"/>
    <text x="${x(limit)}" y="14" text-anchor="middle">${loss === "cispo" ? "cut" : "ends"} at ${fixed(limit)}</text>`;
  $("curve").setAttribute("viewBox", `0 0 ${width} 290`);
  $("curve").innerHTML = `${down}${across}${label}<path d="M${x(ratio)} 15V245" stroke="var(--text)" stroke-dasharray="3 4"/>` +
    pieces.map((piece) =>
      `<polyline points="${piece.join(" ")}" fill="none" stroke="${shade}" stroke-width="4"/>`).join("") +
    `<circle cx="${x(ratio)}" cy="${y(push(ratio))}" r="${asked ? 0 : 7}" fill="var(--page)" stroke="var(--text)" stroke-width="3"/>
    <text x="${x(end / 2)}" y="284" text-anchor="middle">ratio${loss === "gspo" ? " of the response" : ""}</text>
    <text x="4" y="14">push</text>`;
  $("ratio").max = end;
  $("ratio").value = ratio;
  $("ratio-now").textContent = fixed(ratio);
  for (const radio of document.getElementsByName("sign")) radio.checked = Number(radio.value) === sign;
  const [lowest, highest] = [fixed(1 - clip_low), fixed(1 + clip_high)];
  const rule = {
    grpo: `grpo stops a push that went far enough: up above ${highest}, down below ${lowest}.`,
    gspo: `gspo has one ratio for the whole response, and narrow limits: ${lowest} and ${highest}. The range is a ` +
      'hundred times that of its paper (<a href="https://arxiv.org/abs/2507.18071">arXiv 2507.18071</a>), because ' +
      "responses are short here.",
    cispo: `cispo never stops a push; it only cuts weights above ${highest}.`,
  }[loss];
  const far = asked ? "" : push(ratio) === 0 && ratio > 0 ? "Here the push has ended." :
    `Here the push is ${signed(push(ratio))}.`;
  html("clip-says", `${rule} ${far}`);
  const at = [[0.5, 1], [1.1, 1], [2, 1], [0.5, -1], [0.9, -1], [2, -1]];
  const top = ["ratio", "A", ...losses()].map((text) => el("th", { scope: "col" }, text));
  const rows = at.map(([r, A]) => el("tr", {},
    el("th", { scope: "row" }, r), el("th", { scope: "row" }, A > 0 ? "+1" : "\u22121"),
    ...losses().map((name) => {
      const pushed = PUSH[name](r, A);
      const here = name === loss && r === ratio && A === sign;
      if (hidden(r, A)) return el("td", {}, "?");
      return el("td", { className: pushed > 0 ? "up" : pushed < 0 ? "down" : "", ariaSelected: here }, number(pushed));
    })));
  fill($("pushes"), el("caption", {}, "push"), el("thead", {}, el("tr", {}, ...top)), el("tbody", {}, ...rows));
}

// ---- The recorded runs
const TASKS = { add: "add", mul: "multiply", sum: "sum" };
const kept = () => data.runs[state.run].kept;
const steps = () => kept().map((row) => row.step);
const unit = () => (state.run.startsWith("sum") ? "terms" : "digits"); // what a level counts
const levels = () => kept()[0].groups.map((group) => group.problem[3]);

function options(select, values, chosen, text = (value) => value) {
  const now = values.map(text).join();
  if (select.dataset.now !== now) select.replaceChildren(...values.map((v) => new Option(text(v), v)));
  select.dataset.now = now;
  select.value = chosen;
}

function runGroup() {
  const group = kept()[steps().indexOf(state.step)].groups[levels().indexOf(state.level)];
  return { ...group, answer: group.problem[2], solution: group.problem[1] + "$" };
}

function drawRuns() {
  const variant = state.run.split("-")[1];
  const title = (run) => run.replace(/^(\w+)-/, (_, task) => `${TASKS[task] ?? task}, `);
  options($("run"), Object.keys(data.runs), state.run, title);
  const { groups } = kept()[0];
  const prompts = Object.fromEntries(groups.map(({ problem: [prompt, , , level] }) =>
    [level, prompt.replaceAll(" ", "")]));
  options($("level"), levels(), state.level, (level) => prompts[level]);
  $("step").max = steps().length - 1;
  $("step").value = steps().indexOf(state.step);
  $("step").ariaValueText = `training step ${state.step}`;
  drawChart();
  $("slower").hidden = !state.run.startsWith("add");
  const x = runGroup();
  const A = ADVANTAGES[variant](x);
  const n = sum(x.rewards);
  const sure = Math.max(...A.flat()) > 5 ? "The model is nearly sure of it, so verifree divides by almost 0: the " +
    "advantage is large, but a token that is nearly sure hardly moves." : "";
  const truth = variant === "verifree" ? `After the arrow: the true answer, which is trained. ${sure}` :
    n === 0 || n === x.rewards.length ? "All rewards are equal: every advantage is 0." : "";
  $("summary").textContent = `Training step ${state.step}: ${n} of ${x.rewards.length} correct. ` +
    `Solution ${x.solution.slice(0, -1)}. ${truth}`;
  $("summary").classList.toggle("long", variant === "verifree");
  $("responses").style.setProperty("--length", Math.max(...x.tokens.map((text) => text.length)));
  const head = ["reward", "response", "advantage"].map((text) => el("span", {}, text));
  fill($("responses"), el("div", { className: "row head" }, ...head), ...x.tokens.map((text, i) => {
    const parts = tokensOf(x, variant, A, i);
    const cells = parts.map(({ character, a, marks }) =>
      el("span", { className: ["token", ...marks].join(" "), style: a === null ? {} : colour(a) }, character));
    const values = parts.map(({ a }) => a).filter((a) => a !== null);
    const reward = `${x.rewards[i] ? "\u2713" : "\u2717"} ${x.rewards[i]}`;
    return el("div", { className: "row" }, el("span", {}, reward),
      el("div", { className: "tokens" }, ...together(cells, text.length)),
      el("div", { className: "A" }, ...spans(range(values))));
  }));
}

function drawChart() {
  const shares = kept().map((row) => Object.values(row.sampled_by_level));
  const last = steps().at(-1) || 1;
  const width = Math.min(innerWidth - 20, 1400); // its letters stay readable on a telephone
  const x = (step) => 52 + (width - 160) * step / last;
  const y = (share) => 190 - 175 * share;
  const quarters = [0, 0.25, 0.5, 0.75, 1];
  const parts = quarters.map((share) => `<path d="M52 ${y(share)}H${width - 108}" stroke="var(--line)"/>
    <text x="46" y="${y(share) + 4}" text-anchor="end">${share * 100} %</text>`);
  const labels = []; // at the ends of the lines
  const digits = []; // on the thin lines, which look the same
  const line = (points, name, colour, stroke) => {
    const places = points.map(([step, share]) => `${x(step)},${y(share)}`).join(" ");
    parts.push(`<polyline points="${places}" fill="none" stroke="${colour}" ${stroke}/>`);
    labels.push({ end: y(points.at(-1)[1]), names: [name] });
  };
  const [task, variant] = state.run.split("-");
  const chosen = levels().indexOf(state.level);
  const others = Object.entries(data.runs).filter(([run]) => run !== state.run && run.startsWith(`${task}-`)).map(([run, { kept }]) =>
    [run.split("-")[1], kept.map((row) => Object.values(row.sampled_by_level)[chosen])]); // other variants on the same task
  levels().forEach((level, i) => {
    if (i === chosen) return;
    line(shares.map((row, k) => [steps()[k], row[i]]), level, "var(--muted)", 'stroke-width="1"');
    const near = (k) => [...shares[k].filter((_, j) => j !== i), ...others.map(([, its]) => its[k])];
    const clear = (k) => Math.min(...near(k).map((share) => Math.abs(share - shares[k][i])));
    const [k] = shares.map((_, n) => n).slice(0, -1).sort((a, b) => clear(b) - clear(a)); // far from the other lines
    digits.push(`<text class="digit" x="${x(steps()[k ?? 0])}" y="${y(shares[k ?? 0][i]) + 4}" text-anchor="middle">${level}</text>`);
  });
  for (const [other, its] of others) {
    line(its.map((share, k) => [steps()[k], share]), other, "var(--text)", 'stroke-width="2" stroke-dasharray="6 4"');
  }
  line(shares.map((row, k) => [steps()[k], row[chosen]]), `<tspan font-weight="700">${variant}</tspan>`, "var(--text)", 'stroke-width="4"');
  labels.sort((a, b) => a.end - b.end);
  for (const label of labels) { // thin lines that end together share a label
    const near = labels.find((other) => !isNaN(other.names[0]) && !isNaN(label.names[0]) && label.end - other.end < 14);
    if (near && near !== label) near.names.push(...label.names.splice(0));
  }
  const seen = labels.filter((label) => label.names.length);
  seen.forEach((label, k) => { label.y = Math.max(label.end, (seen[k - 1]?.y ?? 0) + 14); }); // none over another
  for (const label of seen) {
    const name = label.names.sort().join(", ") + (isNaN(label.names[0]) ? "" : ` ${unit()}`);
    parts.push(`<path d="M${width - 106} ${label.end}L${width - 94} ${label.y}" stroke="var(--muted)"/>
      <text x="${width - 90}" y="${label.y + 4}">${name}</text>`);
  }
  parts.push(`<path d="M${x(state.step)} 10V195" stroke="var(--text)"/>`); // the other rule is dashed
  const ticks = quarters.map((part) => Math.round(part * last));
  parts.push(...ticks.map((step) => `<text x="${x(step)}" y="210" text-anchor="middle">${step}</text>`));
  parts.push(`<text x="4" y="-4">correct samples</text>`);
  parts.push(`<text x="${x(last / 2)}" y="228" text-anchor="middle">training step</text>`);
  $("chart").setAttribute("viewBox", `0 -18 ${width} 252`);
  $("step").style.margin = `0 calc(${10800 / width}% - 0.5em) 0 calc(${5200 / width}% - 0.5em)`;
  $("step").style.width = `calc(${100 - 16000 / width}% + 1em)`;
  $("chart").innerHTML = [...parts, ...digits].join("");
}

let playing = null;
function stop() {
  clearInterval(playing);
  playing = null;
  $("play").textContent = "play";
}

function play() {
  if (playing) return stop();
  if (state.step === steps().at(-1)) change({ step: 0 }, drawRuns);
  $("play").textContent = "stop";
  playing = setInterval(() => {
    change({ step: steps()[steps().indexOf(state.step) + 1] ?? state.step }, drawRuns);
    if (state.step === steps().at(-1)) stop();
  }, 500);
}

// ---- The guided questions: a prediction first, then the page shows the answer
const near = () => { // the failure that shares most tokens with the correct response
  const right = data.lab.tokens[Math.max(data.lab.rewards.indexOf(1), 0)];
  const same = (text) => [...text].filter((character, t) => character === right[t]).length;
  return data.lab.tokens.map((text, i) => [data.lab.rewards[i] ? -1 : same(text), i]).sort((a, b) => b[0] - a[0])[0][1];
};
const wrongStep = () => { // the last step of all correct answers, if they share a wrong one
  const last = (text) => text.split("#")[0].split(",").at(-1);
  const { tokens, rewards, solution } = runGroup();
  const written = [...new Set(tokens.filter((_, i) => rewards[i]).map(last))];
  return written.length === 1 && written[0] !== last(solution) ?
    `But all ${word(sum(rewards))} write a wrong last step (${written[0]} for ${last(solution)}): only answers are rewarded.` : "";
};
const alone = () => data.lab.rewards.map((r, i) => Number(i === data.lab.rewards.indexOf(1))).join("");
const TOUR = [
  { place: "lab",
    ask: () => `Response ${near() + 1} has correct steps, but one wrong digit: reward 0. ` +
      "What do ten updates do to it?",
    choices: ["It gets less likely.", "It stays.", "It gets likelier."], right: 2, updates: 10,
    answer: ({ before, now }) => `${percent(before[near()])} % became ${percent(now[near()])} %. ` +
      "It begins like the correct response. GRPO does not know which token was wrong: all tokens get one advantage." },
  { place: "lab", ask: () => "You give a second response reward 1. What happens to +2.65?",
    choices: ["It grows.", "It stays.", "It shrinks."], right: 2,
    after: () => ({ rewards: [...alone()].map((r, i) => (i === near() ? "1" : r)).join("") }),
    answer: () => "It shrinks to +1.73: a success is less of an exception now." },
  { place: "lab", ask: () => "You set all rewards to 0. What does grpo give each response?",
    choices: ["\u22121", "\u22120.38", "0"], right: 2,
    after: () => ({ rewards: "0".repeat(data.lab.tokens.length) }),
    answer: () => "0: every reward equals the mean. Equal rewards teach grpo nothing." },
  { place: "beside", seen: "#second .row:has([data-flip]) > :nth-child(3) > .tokens",
    ask: () => "Pushing a failure down can hurt a success with the same tokens. So nthr pushes the framed tokens of these " +
      `answers to ${data.lab.problem[0].replaceAll(" ", "")} less. Is a wrong digit among them?`,
    choices: ["no", "yes"], right: 1, before: { rule: "nthr" },
    answer: ({ x }) => {
      const framed = spared(x).flatMap((bits, i) => bits.map((bit, t) => bit && [x.tokens[i][t], x.solution[t]]));
      const pairs = framed.filter((pair) => pair);
      const wrong = pairs.filter(([character, wanted]) => character !== wanted).length;
      return `${wrong} of the ${pairs.length} framed tokens ${wrong === 1 ? "has" : "have"} a dotted line. The rule measures ` +
        "how a push acts on the success, not which token is wrong.";
    } },
  { place: "clip",
    ask: () => "A failure's token (A = \u22121) became twice as likely (ratio 2). Does grpo's clip stop its push down?",
    choices: ["yes", "no"], right: 1, before: { loss: "grpo", sign: -1, ratio: 2 },
    answer: () => "It moved the wrong way. The clip only ends pushes that went far enough in their direction, " +
      "as at ratio 0.5." },
  { place: "runs", seen: "#responses .tokens",
    ask: () => `At step 0 all eight answers to ${runGroup().problem[0].replaceAll(" ", "")} are wrong. Training never ` +
      `uses it. Is it solved at step ${steps().at(-1)}?`,
    choices: ["no", "yes"], right: 1, before: { step: 0, level: 5 }, after: () => ({ step: 1e9 }),
    answer: () => `${capital(word(sum(runGroup().rewards)))} of eight are correct, learned on other prompts. ${wrongStep()}` },
];
const END = "GRPO compares the responses to one prompt and gives all tokens of a response one advantage. So it needs successes " +
  "and failures in a group, and it cannot tell a wrong token from a right one.";
const ASKED = ["rewards", "fresh", "rule", "loss", "sign", "ratio", "run", "level", "step"]; // what questions change
let predicted = null;
let own = null; // the reader's settings, while questions change them

function keepOwn() {
  own ??= { past, ...Object.fromEntries(ASKED.map((name) => [name, state[name]])) };
}

function restart() {
  past = [];
  models = {};
  axis = AXES[0];
}

function set(values, updates = 0) { // a question's own start
  restart();
  Object.assign(state, { rewards: alone(), fresh: 0, run: FIELDS.run[0]() }, values);
  for (let n = 0; n < updates; n++) past.push({ rewards: state.rewards, fresh: 0 });
}

function openTour(n) {
  keepOwn();
  predicted = null;
  const question = TOUR[n - 1];
  if (question) {
    stop();
    set(question.before ?? {});
  } else {
    const { past: mine, run, level, step, ...values } = own; // the chart of the last question stays in view
    own = null;
    restart();
    past = mine;
    Object.assign(state, values);
  }
  change({ tour: n });
  const card = document.querySelector(".place > div");
  card.querySelector("h3").focus({ preventScroll: true });
  card.scrollIntoView({ block: "end" }); // what it asks about is above
}

function predict(k) {
  const question = TOUR[state.tour - 1];
  if (predicted === null) {
    keepOwn();
    set({ ...question.before, ...question.after?.() }, question.updates);
  }
  predicted = k;
  change({});
  $("said").textContent = document.querySelector(".verdict").textContent;
  document.querySelector(".place > div").scrollIntoView({ block: "nearest" });
}

function evidence({ seen }) { // on a small screen what a question is about would be out of view, so a copy stands in its box
  if (!seen || !small.matches) return [];
  const copies = [...document.querySelectorAll(seen)].map((tokens) =>
    el("div", {}, ...[...tokens.querySelectorAll(".token")].map(({ className, style, textContent }) =>
      el("span", { className: className.replace("chosen", ""), style: { cssText: style.cssText } }, textContent))));
  const box = el("div", { className: "seen", ariaHidden: true }, ...copies);
  box.style.setProperty("--length", Math.max(...copies.map((copy) => copy.children.length)));
  return [box];
}

function drawTour() {
  const question = TOUR[state.tour - 1];
  for (const place of document.querySelectorAll(".place")) {
    if (place.dataset.place !== (question?.place ?? "runs")) place.replaceChildren();
  }
  const button = (text, key, act) => el("button", { onclick: act, data: { key } }, text);
  const box = document.querySelector(`[data-place="${question?.place ?? "runs"}"]`);
  const card = (title, next, ...below) => fill(box, el("div", { id: "tour", role: "region", ariaLabel: "Questions" },
    el("div", { className: "top" }, el("h3", { tabIndex: -1 }, title), next), ...below));
  if (!question) {
    card("What you have seen", button("first question", "next", () => openTour(1)),
      el("p", {}, `${END} Your own settings above are back.`));
    return;
  }
  const answered = predicted !== null;
  const mark = (k) => (!answered ? "" : k === question.right ? "\u2713 " : k === predicted ? "\u2717 " : "");
  const choices = question.choices.map((text, k) => el("button", {
    ariaPressed: predicted === k, className: answered && k === question.right ? "right" : "",
    data: { key: `choice${k}` }, onclick: () => predict(k),
  }, mark(k) + text));
  const right = el("b", {}, predicted === question.right ? "Right. " : "Not quite. ");
  const verdict = answered ? el("p", { className: "verdict" }, right, question.answer(sideOf("grpo"))) : "";
  const onward = state.tour < TOUR.length ? "next" : "finish";
  const next = button(answered ? onward : "skip", "next", () => openTour(state.tour + 1));
  card(`Question ${state.tour} of ${TOUR.length}`, next, el("p", {}, question.ask()), ...evidence(question),
    el("div", { className: "options", role: "group", ariaLabel: "Your prediction" }, ...choices), verdict);
}

// ---- Start
function drawBoards() {
  stretch(["grpo", state.rule].map(sideOf));
  drawFirst();
  drawSecond();
}

function drawAll() {
  drawBoards();
  drawClip();
  drawRuns();
  drawTour();
}

function update(n) {
  for (let k = 0; k < n; k++) {
    past.push({ rewards: state.rewards, fresh: state.fresh });
  }
  drawBoards();
}

function preset(share) {
  const G = data.lab.tokens.length;
  if (share === "one") return change({ rewards: alone() }, drawBoards);
  const n = Math.floor(Number(share) * G);
  const order = data.lab.tokens.map((_, i) => i).sort((i, j) => data.lab.rewards[j] - data.lab.rewards[i] || i - j);
  const chosen = order.slice(0, n); // correct responses first
  change({ rewards: data.lab.tokens.map((_, i) => Number(chosen.includes(i))).join("") }, drawBoards);
}

function flip(i) {
  const bits = [...state.rewards];
  bits[i] = bits[i] === "1" ? "0" : "1";
  change({ rewards: bits.join("") }, drawBoards);
}

function tokenEvents(board) {
  const choose = (token) => token && token !== state.token && change({ token }, drawChosen);
  board.onmouseover = (event) => choose(event.target.dataset.token);
  board.onkeydown = (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move || !event.target.dataset.token) return;
    event.preventDefault();
    const [i, t] = event.target.dataset.token.split(".").map(Number);
    const next = board.querySelector(`[data-key="${i + move[0]}.${t + move[1]} 1"]`);
    if (!next) return;
    next.focus();
    choose(next.dataset.token);
  };
}

function start() {
  try {
    data = JSON.parse($("data").textContent);
    readTable();
    readAddress();
    $("how-many").textContent = capital(word(data.lab.tokens.length));
    $("prompt").textContent = data.lab.problem[0].replaceAll(" ", "");
    $("step-size").textContent = STEP;
    $("all").hidden = false;
    drawAll();
  } catch (error) {
    $("error").textContent = `This file is damaged (${error}). Make it anew with python -m tools.explore.`;
    return;
  }
  addEventListener("hashchange", () => { readAddress(); drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette = null; drawAll(); });
  small.addEventListener("change", () => {
    for (const board of ["first", "second"]) delete $(board).dataset.rules;
    drawAll();
  });
  addEventListener("resize", () => { drawClip(); drawChart(); });
  $("update").onclick = () => update(1);
  $("presets").onclick = (event) => event.target.dataset.share && preset(event.target.dataset.share);
  for (const button of document.querySelectorAll("[data-updates]")) {
    button.onclick = () => update(Number(button.dataset.updates));
  }
  for (const button of document.querySelectorAll("[data-again]")) {
    button.onclick = () => { restart(); drawBoards(); };
  }
  for (const board of ["first", "second"]) {
    $(board).onclick = ({ target }) => {
      if (target.dataset.flip) flip(Number(target.dataset.flip));
      else if (target.dataset.token) change({ token: target.dataset.token }, drawChosen);
    };
  }
  tokenEvents($("second"));
  for (const radio of document.getElementsByName("fresh")) {
    radio.onchange = () => change({ fresh: Number(radio.value) }, drawBoards);
  }
  $("rules").onclick = ({ target }) => target.dataset.variant && change({ rule: target.dataset.variant }, drawBoards);
  $("rule").onchange = () => change({ rule: $("rule").value }, drawBoards);
  $("losses").onclick = (event) => event.target.dataset.loss && change({ loss: event.target.dataset.loss }, drawClip);
  $("ratio").oninput = () => change({ ratio: Number($("ratio").value) }, drawClip);
  for (const radio of document.getElementsByName("sign")) {
    radio.onchange = () => change({ sign: Number(radio.value) }, drawClip);
  }
  $("play").onclick = play;
  $("run").onchange = () => change({ run: $("run").value }, drawRuns);
  $("level").onchange = () => change({ level: Number($("level").value) }, drawRuns);
  $("step").oninput = () => { stop(); change({ step: steps()[$("step").value] }, drawRuns); };
}
addEventListener("DOMContentLoaded", start);
