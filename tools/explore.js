"use strict";
const $ = (id) => document.getElementById(id);
let data;

// ---- The advantages. Each function gets a group x and returns A[i][t]: response i, token t.
// x.rewards, x.tokens (texts), x.pi and x.H [i][t], x.K(i, t, j, u), x.solution.
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

const ADVANTAGES = {
  grpo: (x) => onResponses(x, standardise(x.rewards)),
  half: (x) => onResponses(x, standardise(x.rewards).map((A) => (A < 0 ? A / 2 : A))),
  pos_only: (x) => onResponses(x, standardise(x.rewards).map((A) => Math.max(A, 0))),
  reinforce: (x) => onResponses(x, x.rewards),
  nthr(x) { // tokens of incorrect responses whose score is above the least mean of a correct one
    const A = standardise(x.rewards);
    const s = scores(x);
    const least = Math.min(...s.filter((_, i) => x.rewards[i]).map(mean));
    const less = 2 * Math.abs(mean(x.rewards) - 0.5);
    return onTokens(x.tokens, (i, t) => (!x.rewards[i] && s[i][t] > least ? less * A[i] : A[i]));
  },
  compensation(x) {
    const A = standardise(x.rewards);
    return onTokens(x.tokens, (i, t) => (A[i] > 0 ? A[i] * (2 - x.pi[i][t] / Math.max(...x.pi[i])) : A[i]));
  },
  ngrpo: (x) => onResponses(x, standardise([...x.rewards, 1])),
  negative: (x) => onResponses(x, x.rewards.some((r) => r) ? standardise(x.rewards) : x.rewards.map(() => -1)),
  forking(x) { // the tokens whose entropy is among the highest fifth of the group
    const A = standardise(x.rewards);
    const least = quantile(x.H.flat(), 0.8);
    return onTokens(x.tokens, (i, t) => (x.H[i][t] >= least ? A[i] : 0));
  },
  process(x) { // it reads no rewards: all responses have the steps of the solution, as far as they agree with it
    const places = [...x.solution].flatMap((character, t) => (",#$".includes(character) ? [t] : []));
    const R = x.tokens.map((text) => places.map((t) => Number(text.startsWith(x.solution.slice(0, t + 1)))));
    const [mu, sigma] = [mean(R.flat()), deviation(R.flat())];
    const pushes = R.map((row) => row.map((r) => (r - mu) / (sigma + 1e-6)));
    return onTokens(x.tokens, (i, t) => sum(pushes[i].filter((_, k) => places[k] >= t)));
  },
};

// ---- The model: a table with the distribution over the next token for each known prefix
const STEP = 0.3; // how far grpo's first update goes along its gradient; all others have the same length
const UPDATES = 30; // of a line in the chart
let table; // prefixes: {prefix: row}; begin: logits [row][character]; product(row, row); length of an update

function unpack(text) {
  return new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer); // little-endian
}

function readTable() {
  const { tokens, characters, probs, products, rewards } = data.lab;
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
  table = { prefixes, begin, product };
  const x = groupOf(rewards, begin.map(softmax));
  table.length = STEP * norm(gradient(begin, x, ADVANTAGES.grpo(x)));
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

function groupOf(rewards, p) { // what the functions above want: the first responses, with these rewards, a text of 0 and 1
  const tokens = data.lab.tokens.slice(0, rewards.length);
  const places = tokens.map((text) => [...text].map((character, t) =>
    [table.prefixes.get(text.slice(0, t)), data.lab.characters.indexOf(character)]));
  const g = places.map((row) => row.map(([s, token]) => p[s].map((x, k) => (k === token) - x)));
  return {
    tokens, places, g, rewards: [...rewards].map(Number), solution: data.lab.problem[1] + "$",
    pi: places.map((row) => row.map(([s, k]) => p[s][k])),
    H: places.map((row) => row.map(([s]) => -sum(p[s].map((x) => (x > 0 ? x * Math.log(x) : 0))))),
    K: (i, t, j, u) => sum(g[i][t].map((x, k) => x * g[j][u][k])) * table.product(places[i][t][0], places[j][u][0]),
  };
}

function gradient(z, x, pushes) { // the mean over responses of push (one-hot - probability); an advantage is a push
  const total = z.map((row) => row.map(() => 0));
  x.places.forEach((places, i) => places.forEach(([row], t) => {
    x.g[i][t].forEach((part, k) => { total[row][k] += pushes[i][t] * part / pushes.length; });
  }));
  return total;
}

const norm = (rows) => Math.hypot(...rows.flat());

function moved(z, x, pushes) { // one update
  const step = gradient(z, x, pushes);
  const length = norm(step);
  return length ? z.map((row, s) => row.map((x, k) => x + table.length / length * step[s][k])) : z;
}

function updated(z, rewards, name) {
  const x = groupOf(rewards, z.map(softmax));
  return moved(z, x, ADVANTAGES[name](x));
}

// The updates so far, as the address has them: "00000010x10,01000010x2" is ten updates and then two with other rewards.
const segments = (past) => past.split(",").filter((part) => part).map((part) => part.split("x")).map(([r, n]) => [r, Number(n)]);
const joined = (parts) => parts.filter(([, n]) => n).map(([r, n]) => `${r}x${n}`).join();
const count = (past) => sum(segments(past).map(([, n]) => n));

const made = new Map();
function remember(key, make) {
  if (!made.has(key)) made.set(key, make());
  return made.get(key);
}

function logits(name, past) { // of the model that these updates make
  if (!past) return table.begin;
  return remember(`${name} ${past}`, () => {
    const parts = segments(past);
    const [rewards, n] = parts.pop();
    return updated(logits(name, joined([...parts, [rewards, n - 1]])), rewards, name);
  });
}

const policy = (name, past) => logits(name, past).map(softmax);

function lineOf(name, rewards) { // how likely the correct response is after 0, 1, .. updates
  return remember(`line ${name} ${rewards}`, () => Array.from({ length: UPDATES + 1 }, (_, n) =>
    probability(policy(name, joined([[rewards, n]])), data.lab.tokens[right()])));
}

// ---- State; the address follows it, and never the other way round but at the start
const right = () => data.lab.rewards.indexOf("1"); // the correct response
const within = (low, high) => (x) => /^\d+$/.test(x) && x >= low && x <= high;
const rewardsFit = (text) => /^[01]+$/.test(text) && text.length === data.lab.tokens.length;
const FIELDS = { // name: [default, what is allowed]
  rewards: [() => data.lab.rewards, rewardsFit],
  past: [() => "", (text) => text.split(",").every((part) => rewardsFit(part.split("x")[0]) && within(1, 1000)(part.split("x")[1])) &&
    count(text) <= 1000],
  rule: [() => "half", (name) => name in data.rules],
  loss: [() => "grpo", (name) => name in data.clips],
  since: [() => 0, within(0, 10)],
  task: [() => Object.keys(data.runs)[0], (name) => name in data.runs],
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

function change(values, what = drawAll) {
  Object.assign(state, values);
  settle();
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
const choice = (text, chosen, dataset) => el("button", { ariaPressed: chosen, data: { key: text, ...dataset } }, text);

function tokensOf(text, solution, A, marks = () => "") { // coloured by the advantage of each
  return [...text].map((character, t) => el("span", {
    className: `token ${character === solution[t] ? "" : "incorrect"} ${marks(t)}`, style: colour(A[t]),
  }, character));
}

// The width of a drawing in sixteenths of the page's letters, so that its own grow with them; a page without one has `most`.
const letter = () => parseFloat(getComputedStyle(document.body).fontSize) / 16;
const widthOf = (id, most) => Math.max(280, Math.min($(id).parentElement.clientWidth / letter() || most, most));

// ---- The first screen
const ENDS = [0.15, 0.3, 0.45, 0.75, 0.9, 1]; // where the axis of a picture may end
const endFor = (values) => ENDS.find((end) => end >= Math.max(...values)) ?? 1;

function build() { // the elements, once: later only texts, colours and widths change, so bars can glide
  const span = (className, ...children) => el("span", { className }, ...children);
  const div = (className, ...children) => el("div", { className }, ...children);
  const axis = span("axis", span("", "0"), span("", "probability"), span("end"));
  const head = div("row head", span("", "reward"), span("tokens", "response"), span("A", "advantage"), axis);
  const rows = data.lab.tokens.map((_, i) => div("row", el("button", { data: { flip: i } }), div("tokens"), div("A"),
    div("track", el("i"), el("i")), div("value", span("before"), el("b"))));
  $("board").replaceChildren(head, ...rows);
  document.body.style.setProperty("--length", Math.max(...data.lab.tokens.map((text) => text.length)));
  fill($("strip"), div("parts", el("i", { className: "correct" }), el("i", { className: "seven" }), el("i")), div("names"));
}

function situation() { // what the updates with the present rewards did
  const parts = segments(state.past);
  const done = parts.at(-1)?.[0] === state.rewards ? parts.pop()[1] : 0;
  const policies = [joined(parts), state.past].map((past) => policy("grpo", past));
  const [before, now] = policies.map((p) => data.lab.tokens.map((text) => probability(p, text)));
  return { done, policies, before, now };
}

function direction(before, now) {
  return Math.abs(now / before - 1) < 0.0005 ? "" : now > before ? "rose" : "fell";
}

function surprise({ policies, before, now }) { // a response without reward that rose as its beginning did, and a rewarded one that has it
  const { tokens } = data.lab;
  let best = null;
  tokens.forEach((text, i) => {
    if (state.rewards[i] === "1" || direction(before[i], now[i]) !== "rose") return;
    tokens.forEach((other, j) => {
      if (state.rewards[j] === "0") return;
      let length = 0;
      while (length < text.length && text[length] === other[length]) length++;
      const [old, present] = policies.map((p) => probability(p, text.slice(0, length)));
      if (present > old && length > (best?.length ?? 0)) best = { rows: [i, j], length };
    });
  });
  return best;
}

function drawBoard(x, A, { done, before, now }, found) {
  const end = endFor([...before, ...now]);
  const percentOf = (x) => `${100 * Math.min(x / end, 1)}%`;
  $("board").querySelector(".end").textContent = `${100 * end} %`;
  data.lab.tokens.forEach((text, i) => {
    const row = $("board").children[i + 1];
    const [button, tokens, advantage, track, value] = row.children;
    const verdict = i === right() ? "correct" : "incorrect";
    fill(button, el("span", { className: "long" }, "reward "), state.rewards[i]);
    button.ariaPressed = state.rewards[i] === "1";
    button.ariaLabel = `Response ${i + 1}, ${text}, is ${verdict}: reward ${state.rewards[i]}`;
    const shared = found?.rows.includes(i) ? found.length : 0;
    row.classList.toggle("surprise", found?.rows[0] === i);
    const mark = el("span", { className: "mark", ariaLabel: `${i + 1}, ${verdict}` }, `${i + 1} ${i === right() ? "\u2713" : ""}`);
    fill(tokens, mark, ...tokensOf(text, x.solution, A[i], (t) => (t < shared ? "shared" : "")));
    fill(advantage, ...spans(range(A[i])));
    const way = done ? direction(before[i], now[i]) : "";
    const [kept, changed] = track.children;
    kept.style.width = percentOf(way === "fell" ? now[i] : before[i]);
    changed.style.left = kept.style.width;
    changed.style.width = way ? `${100 * Math.abs(Math.min(now[i], end) - Math.min(before[i], end)) / end}%` : 0;
    changed.className = way;
    value.children[0].textContent = done ? `${percent(before[i])} \u2192 ` : "";
    value.children[1].className = { rose: "up", fell: "down" }[way] ?? "";
    value.children[1].textContent = `${percent(now[i])}\u2009% ${{ rose: "\u25b2", fell: "\u25bc" }[way] ?? "\u2002"}`;
  });
}

function drawStrip({ before, now, done }) { // all responses that the model can write: 100 %
  const { tokens } = data.lab;
  const shares = (p) => {
    const correct = p[right()];
    const all = sum(p.filter((_, i) => tokens.indexOf(tokens[i]) === i));
    return [correct, all - correct, 1 - all];
  };
  const [old, present] = [before, now].map(shares);
  const texts = ["correct", "other seven", "all others"].map((name, k) =>
    [name, `${done ? `${fixed(100 * old[k], 1)} \u2192 ` : ""}${fixed(100 * present[k], 1)} %`]);
  const [parts, names] = $("strip").children;
  [...parts.children].forEach((part, k) => { part.style.width = `${100 * present[k]}%`; });
  fill(names, ...texts.map(([name, shares]) => el("span", {}, `${name} `, el("b", {}, shares))));
  $("strip").ariaLabel = `All that the model can write: ${texts.map((text) => text.join(" ")).join(", ")}`;
}

function worked(x, A) { // the sentence above the board
  const G = x.rewards.length;
  const n = sum(x.rewards);
  const mu = mean(x.rewards);
  const sigma = deviation(x.rewards);
  const exact = (digits) => // the division as it is shown gives the result that is shown
    [1, 0].every((r) => fixed((r - mu) / Number(sigma.toFixed(digits))) === fixed((r - mu) / sigma));
  const digits = [2, 3, 4].find(exact) ?? 4;
  const division = (r) => `(${r} \u2212 ${fixed(mu, 3)})\u00a0/\u00a0${fixed(sigma, digits)} = ${signed(A[x.rewards.indexOf(r)][0])}`;
  const who = n === 0 ? `None of ${word(G)} has` : n < G ? `${capital(word(n))} of ${word(G)} ${n === 1 ? "has" : "have"}` :
    `All ${word(G)} have`;
  return `${who} reward 1` + (sigma ? `: A = ${division(1)}. ${G - n === 1 ? "The other gets" : "The others get"} ${division(0)}.` :
    `, so every advantage is (${mu} \u2212 ${mu}) / (0 + 0.000001) = 0. The millionth avoids 0 / 0.`);
}

function told(now, found) { // the sentence below the buttons
  const total = count(state.past);
  const equal = new Set(state.rewards).size === 1;
  const { done } = now;
  if (!done && equal) return "All rewards are equal, so an update changes nothing.";
  if (!total) return "Update the model and watch the bars. Grey is how likely a response was before; blue is what it gains, orange what it loses.";
  if (!done) return "You changed the rewards. The next update uses the new ones.";
  const lines = [`After ${plural(done, total > done ? "more update" : "update")} the correct response is ` +
    (equal ? "unchanged: all advantages were 0." : `${fixed(now.now[right()] / now.before[right()], 1)} times as likely.`)];
  const wrong = [...state.rewards].findIndex((r, i) => r === "1" && i !== right() && direction(now.before[i], now.now[i]) === "rose");
  if (found) {
    const [risen, like] = found.rows.map((i) => i + 1);
    lines.push(`<b class="loud">Response ${risen} was pushed down but rose: its first ${found.length} tokens are ` +
      `response ${like}\u2019s.</b>`);
  } else if (wrong >= 0) lines.push(`Response ${wrong + 1} is incorrect, but rewarded: it became likelier.`);
  return lines.join(" ");
}

function drawFirst() {
  const now = situation();
  const x = groupOf(state.rewards, now.policies[1]);
  const A = ADVANTAGES.grpo(x);
  const found = now.done ? surprise(now) : null;
  drawBoard(x, A, now, found);
  drawStrip(now);
  html("sentence", worked(x, A));
  html("outcome", told(now, found));
  $("count").textContent = plural(count(state.past), "update");
}

// ---- Other rules
const allLines = () => state.asked[QUESTIONS.findIndex(({ card }) => card === "rules")] !== "-"; // after its prediction
const sourceOf = ({ paper }) => (paper ? `<a href="https://arxiv.org/abs/${paper}">paper</a>, ` : "") +
  '<a href="../advantages.py">code</a>';
const near = () => { // the failure that shares most tokens with the correct response
  const { tokens } = data.lab;
  const same = tokens.map((text, i) => (i === right() ? -1 : [...text].filter((c, t) => c === tokens[right()][t]).length));
  return same.indexOf(Math.max(...same));
};

function drawRules() {
  const { rule } = state;
  const none = "0".repeat(state.rewards.length);
  const rewards = rule === "negative" ? none : state.rewards;
  fill($("names"), ...Object.keys(data.rules).map((name) => choice(name, name === rule, { rule: name })));
  const why = rule === "negative" ? " It differs from grpo only if all responses fail, so here all rewards are 0." : "";
  html("about-rule", `<b>${rule}</b>: ${data.rules[rule].idea}${why} (${sourceOf(data.rules[rule])})`);
  drawLines(rewards);
  html("as-trained", rewards === opening() && allLines() ? "When we train on <code>add</code>, half, pos_only, reinforce and nthr also " +
    "end above grpo, and ngrpo and forking below. Only compensation differs: it ends below " +
    '(<a href="../studies/README.md">results</a>).' : "");
  const x = groupOf(rewards, table.begin.map(softmax));
  const rows = [near(), right()].flatMap((i) => ["grpo", rule].map((name) => {
    const [A, grpo] = [name, "grpo"].map((which) => ADVANTAGES[which](x)[i]);
    const text = x.tokens[i];
    const [before, now] = ["", `${rewards}x${UPDATES}`].map((past) => probability(policy(name, past), text));
    const way = { rose: "up", fell: "down" }[direction(before, now)] ?? "";
    const mark = name === "grpo" ? el("h3", {}, `response ${i + 1}${i === right() ? " \u2713" : ""}`) : "";
    return el("div", { className: "pair" }, mark, el("span", { className: "name" }, name),
      el("div", { className: "tokens" }, ...tokensOf(text, x.solution, A, (t) => (Math.abs(A[t] - grpo[t]) > 1e-9 ? "differs" : ""))),
      el("div", { className: "A" }, ...spans(range(A))),
      el("div", { className: "value" }, `${percent(before)} \u2192 `, el("b", { className: way }, `${percent(now)}\u2009%`)));
  }));
  const titles = [["name", "rule"], ["tokens", "response"], ["A", "advantage"], ["value", `after ${UPDATES} updates`]];
  const head = el("div", { className: "pair head" }, ...titles.map(([className, text]) => el("span", { className }, text)));
  fill($("pairs"), head, ...rows);
}

function drawLines(rewards) {
  const shown = ["grpo", ...(allLines() ? Object.keys(data.rules) : [state.rule])];
  const lines = shown.map((name) => ({ name, values: lineOf(name, rewards) }));
  const end = endFor(["grpo", ...Object.keys(data.rules)].flatMap((name) => lineOf(name, rewards)));
  const width = widthOf("lines", 700);
  const [left, edge, height] = [44, width - 118, 250];
  const x = (n) => left + (edge - left) * n / UPDATES;
  const y = (p) => height - (height - 12) * p / end;
  const marks = end === 1 ? 4 : 3;
  const parts = Array.from({ length: marks + 1 }, (_, k) => k * end / marks).map((p) =>
    `<path d="M${left} ${y(p)}H${edge}" stroke="var(--line)"/>
    <text x="${left - 6}" y="${y(p) + 4}" text-anchor="end">${fixed(100 * p, 0)} %</text>`);
  parts.push(...[0, 10, 20, 30].map((n) => `<text x="${x(n)}" y="${height + 18}" text-anchor="middle">${n}</text>`),
    `<text x="${x(UPDATES / 2)}" y="${height + 36}" text-anchor="middle">updates</text>`);
  const order = (name) => (name === state.rule ? 2 : name === "grpo" ? 1 : 0); // the thick line over the others
  for (const { name, values } of [...lines].sort((a, b) => order(a.name) - order(b.name))) {
    const stroke = [["var(--was)", 1.5], ["var(--text)", 2], ["var(--up)", 4]][order(name)];
    parts.push(`<polyline data-line="${name}" points="${values.map((p, n) => `${x(n)},${y(p)}`).join(" ")}" fill="none"
      stroke="${stroke[0]}" stroke-width="${stroke[1]}"/>`);
  }
  const equal = (a, b) => a && b && Math.abs(a.values.at(-1) - b.values.at(-1)) < 1e-9;
  lines.sort((a, b) => (equal(a, b) ? 0 : b.values.at(-1) - a.values.at(-1)));
  lines.forEach((line, k) => { line.y = Math.max(y(line.values.at(-1)), k ? lines[k - 1].y + 15 : 12); });
  lines.at(-1).y = Math.min(lines.at(-1).y, height); // the lowest names move up again, and push those above them
  for (let k = lines.length - 2; k >= 0; k--) lines[k].y = Math.min(lines[k].y, lines[k + 1].y - 15);
  for (const [k, { name, values, y: place }] of lines.entries()) {
    parts.push(`<path d="M${edge + 2} ${y(values.at(-1))}L${edge + 12} ${place}" stroke="var(--muted)" fill="none"/>
      <text x="${edge + 15}" y="${place + 4}" ${order(name) ? 'font-weight="700"' : ""}>${name}${
        equal(lines[k], lines[k + 1]) ? " =" : ""}</text>`);
  }
  draw("lines", width, height + 44, parts);
  $("lines").ariaLabel = "Probability of the correct response after 30 updates: " +
    lines.map(({ name, values }) => `${name} ${percent(values.at(-1))} %`).join(", ");
}

function draw(id, width, height, parts) {
  $(id).setAttribute("viewBox", `0 0 ${width} ${height}`);
  $(id).style.maxWidth = `${width / 16}em`;
  $(id).innerHTML = parts.join("");
}

// ---- The clip
function push(name, ratio, A) { // on the logarithm of a token's probability: what the loss has as its gradient
  if (name === "cispo") return Math.min(ratio, data.clips.cispo.high) * A;
  return ended(name, ratio, A) ? 0 : ratio * A; // the ratio of gspo is that of the whole response
}

function ended(name, ratio, A) {
  return A > 0 ? ratio > data.clips[name].high : ratio < data.clips[name].low;
}

function objective(name, ratio, A) { // its slope times the ratio is the push
  const { low, high } = data.clips[name];
  if (name === "cispo") return A * (ratio < high ? ratio : high * (1 + Math.log(ratio / high)));
  return Math.min(ratio * A, Math.min(Math.max(ratio, low), high) * A);
}

const sampled = () => groupOf(data.lab.rewards, table.begin.map(softmax));

function ratios(name, z) { // of all tokens, since they were sampled
  const [before, now] = [table.begin, z].map((logits) => groupOf(data.lab.rewards, logits.map(softmax)).pi);
  const each = now.map((row, i) => row.map((p, t) => p / before[i][t]));
  return name === "gspo" ? each.map((row) => row.map(() => Math.exp(mean(row.map(Math.log))))) : each;
}

function clipped(name, n) { // the logits after n updates with this loss
  return n === 0 ? table.begin : remember(`clipped ${name} ${n}`, () => {
    const z = clipped(name, n - 1);
    const A = ADVANTAGES.grpo(sampled());
    const pushes = ratios(name, z).map((row, i) => row.map((ratio, t) => push(name, ratio, A[i][t])));
    return moved(z, groupOf(data.lab.rewards, z.map(softmax)), pushes);
  });
}

function drawClip() {
  const { loss, since } = state;
  const { low, high } = data.clips[loss];
  const z = clipped(loss, since);
  const r = ratios(loss, z);
  const A = ADVANTAGES.grpo(sampled()).map((row) => row[0]);
  fill($("losses"), ...Object.keys(data.clips).map((name) => choice(name, name === loss, { loss: name })));
  $("since").value = since;
  $("since-now").textContent = since;
  $("how-many").textContent = sum(r.map((row) => row.length));
  const of = (sign) => r.flatMap((row, i) => (A[i] * sign > 0 ? row : []));
  const counts = [1, -1].map((sign) => of(sign).filter((ratio) => (loss === "cispo" ? ratio > high : ended(loss, ratio, sign))).length);
  const [up, down] = [1, -1].map((sign) => of(sign).length);
  const share = `The correct response has ${percent(probability(z.map(softmax), data.lab.tokens[right()]))}\u2009%.`;
  html("clip-says", (!since ? "Every ratio is 1, so the dots lie on one another. Move the slider. " : loss === "cispo" ?
    `Of ${up + down} tokens, ${counts[0] + counts[1]} are above ${fixed(high)}. Above it a ratio counts as ${fixed(high)} (ringed dots), but no push ends. ` :
    `Of ${up} tokens with <b class="up">A above 0</b>, ${counts[0]} are above ${fixed(high)}; of ${down} with <b class="down">A below 0</b>, ` +
    `${counts[1]} are below ${fixed(low)}. The clip ends the push of these (hollow dots). `) + share);
  html("about-loss", `<b>${loss}</b>: ${loss === "grpo" ? "Limit the ratio of each token." : data.clips[loss].idea} ` +
    `${loss === "gspo" ? "Our limits are a hundred times as wide as the paper\u2019s, because responses are short. " : ""}(${sourceOf(data.clips[loss])})` +
    (loss === "grpo" ? "" : " Here all updates have one size. When we train on <code>add</code>, it learns more slowly than grpo."));
  drawPanel("above", 1, r, A);
  drawPanel("below", -1, r, A);
}

function drawPanel(id, sign, r, A) { // the curve for one sign of A, and on it the tokens
  const { loss } = state;
  const { low, high } = data.clips[loss];
  const all = Object.keys(data.clips).flatMap((name) => ratios(name, clipped(name, 10)).flat());
  const [first, last] = [Math.floor(10 * Math.min(...all, 0.8)) / 10, Math.ceil(10 * Math.max(...all, 1.2)) / 10];
  const [width, height] = [widthOf(id, 560), 240];
  const x = (ratio) => 14 + (width - 28) * (ratio - first) / (last - first);
  const y = (value) => (sign > 0 ? 205 - 160 * (value - first) / (last - first) : 45 - 160 * (value + first) / (last - first));
  const parts = (loss === "cispo" ? [high] : [low, high]).filter((limit) => limit <= last).map((limit) =>
    `<path d="M${x(limit)} 30V212" stroke="var(--muted)" stroke-dasharray="3 4"/>
    <text x="${x(limit)}" y="26" text-anchor="${limit < 1 ? "end" : "start"}">${fixed(limit)}</text>`);
  const points = Array.from({ length: 201 }, (_, k) => first + k * (last - first) / 200);
  parts.push(`<polyline points="${points.map((ratio) => `${x(ratio)},${y(objective(loss, ratio, sign))}`).join(" ")}" fill="none" stroke="var(--line)" stroke-width="6"/>`);
  const way = sign > 0 ? "up" : "down";
  const far = { ratio: 0 };
  r.forEach((row, i) => row.forEach((ratio, t) => {
    if (A[i] * sign <= 0) return;
    const kind = loss === "cispo" ? (ratio > high ? "cut" : "pushed") : ended(loss, ratio, sign) ? "ended" : "pushed";
    parts.push(`<circle class="${kind} ${way}" cx="${x(ratio)}" cy="${y(objective(loss, ratio, sign))}" r="6">
      <title>token ${t + 1} of response ${i + 1}, ratio ${fixed(ratio)}</title></circle>`);
    if (ratio > far.ratio) Object.assign(far, { ratio, i, t });
  }));
  if (far.ratio > 1.1 && loss !== "gspo") { // beside its dot, and not on the curve
    const left = x(far.ratio) > width / 2;
    const [dx, dy] = sign > 0 ? [left ? 6 : -6, -12] : left ? [-12, 10] : [12, -4];
    parts.push(`<text x="${x(far.ratio) + dx}" y="${y(objective(loss, far.ratio, sign)) + dy}" text-anchor="${left ? "end" : "start"}">\u201c${
      data.lab.tokens[far.i][far.t]}\u201d of response ${far.i + 1}</text>`);
  }
  const ticks = [0.5, 1, 1.5, 2, 2.5, 3].filter((ratio) => ratio >= first && ratio <= last);
  parts.push(...ticks.map((ratio) => `<text x="${x(ratio)}" y="228" text-anchor="middle">${ratio}</text>`));
  parts.push(`<text x="4" y="12"><tspan font-weight="700">A ${sign > 0 ? "above" : "below"} 0</tspan>: pushed ${way}${
    loss === "cispo" ? "" : `, until ${fixed(sign > 0 ? high : low)}`}</text>
    <text x="4" y="${height + 4}">\u2191 objective</text>
    <text x="${width - 4}" y="${height + 4}" text-anchor="end">ratio of the ${loss === "gspo" ? "response" : "token"} \u2192</text>`);
  draw(id, width, height + 8, parts);
  $(id).ariaLabel = `The objective for each ratio if A is ${sign > 0 ? "above" : "below"} 0, with the tokens as dots`;
}

// ---- The recorded runs
const columns = () => // of the film: on a narrow screen every second one
  data.runs[state.task].grpo.map((_, k) => k).filter((k) => innerWidth > 480 || k % 2 === 0);
const frameOf = () => { // the column that is shown: its run, its place
  const [run, k] = state.frame.split("-");
  return [run, columns().findLast((place) => place <= Number(k))];
};
const solved = (frame) => [...frame.rewards].filter((r) => r === "1").length;
const ordered = (frame) => [...frame.rewards].map((_, i) => i).sort((i, j) => frame.rewards[i] - frame.rewards[j] || i - j);

function drawRun() {
  const { problem, ...runs } = data.runs[state.task];
  const [shown, place] = frameOf();
  fill($("tasks"), ...Object.keys(data.runs).map((task) => choice(task, task === state.task, { task })));
  $("asked-for").textContent = problem[0].replaceAll(" ", "");
  const film = Object.entries(runs).flatMap(([run, frames]) => [el("span", {}, run), ...columns().map((k) => {
    const n = solved(frames[k]);
    const { rewards, step } = frames[k];
    const cells = ordered(frames[k]).map((i) => el("i", { className: rewards[i] === "1" ? "correct" : "" }));
    const chosen = run === shown && k === place;
    return el("button", {
      className: n % rewards.length ? "mixed" : "equal", ariaPressed: chosen, tabIndex: chosen ? 0 : -1,
      data: { frame: `${run}-${k}`, key: `${run}-${k}` }, ariaLabel: `${run}, step ${step}: ${n} of ${rewards.length} correct`,
    }, ...cells);
  })]);
  const ticks = columns().map((k) => el("span", { className: "tick" }, k % 4 ? "" : runs.grpo[k].step));
  $("film").style.setProperty("--columns", ticks.length);
  fill($("film"), ...film, el("span", {}, "step"), ...ticks);
  drawAccuracy(runs);
  const frame = runs[shown][place];
  const n = solved(frame);
  const rewards = [...frame.rewards].map(Number);
  const A = ADVANTAGES[shown]({ rewards, tokens: frame.tokens });
  html("frame-says", `<b>${shown}</b>, training step ${frame.step}: ${n} of ${rewards.length} correct. ` +
    (n % rewards.length ? `Correct ones get ${signed(A[rewards.indexOf(1)][0])}, the others ${signed(A[rewards.indexOf(0)][0])}.` :
      "Every advantage is 0."));
  fill($("texts"), ...ordered(frame).map((i) => el("div", { className: "tokens" },
    el("span", { className: "mark" }, rewards[i] ? "\u2713" : "\u2717"), ...tokensOf(frame.tokens[i], `${problem[1]}$`, A[i]))));
  $("texts").style.setProperty("--length", Math.max(...frame.tokens.map((text) => text.length)));
}

function drawAccuracy(runs) {
  const [width, left] = [widthOf("accuracy", 900), 46]; // left is the width of the film's first column
  const places = columns();
  const x = (k) => left + (width - left) * (k / (places[1] ?? 1) + 0.5) / places.length;
  const y = (share) => 138 - 126 * share;
  const parts = [0, 0.5, 1].map((share) => `<path d="M${left} ${y(share)}H${width}" stroke="var(--line)"/>
    <text x="${left - 4}" y="${y(share) + 4}" text-anchor="end">${100 * share} %</text>`);
  const line = (run, how, share) => parts.push(`<polyline fill="none" ${how} points="${runs[run].flatMap((frame, k) =>
    (share(frame) === null ? [] : `${x(k)},${y(share(frame))}`)).join(" ")}"/>`);
  line("half", 'stroke="var(--up)" stroke-width="4"', ({ sampled }) => sampled);
  line("grpo", 'stroke="var(--text)" stroke-width="2"', ({ sampled }) => sampled);
  line("grpo", 'stroke="var(--text)" stroke-width="2" stroke-dasharray="2 5"', ({ equal }) => equal && 1 - sum(equal));
  const [grpo, half] = ["grpo", "half"].map((run) => fixed(100 * runs[run].at(-1).sampled, 1));
  const says = `Accuracy on new problems: grpo (black) ends at ${grpo} %, half (blue) at ${half} %. Dotted: the share of grpo\u2019s ` +
    "training groups with unequal rewards: only these teach.";
  html("accuracy-says", says);
  draw("accuracy", width, 144, parts);
  $("accuracy").ariaLabel = says;
}

// ---- The questions: a prediction first, then the page shows the answer
const opening = () => data.lab.rewards;
const taskOf = (k) => Object.keys(data.runs)[k];
const chance = (past) => percent(probability(policy("grpo", past), data.lab.tokens[near()]));
const endOf = (name) => `${fixed(100 * lineOf(name, opening()).at(-1), 0)} %`;
const shareOf = (task, column, kind) => `${fixed(100 * data.runs[taskOf(task)].grpo.at(column).equal[kind], 0)} %`;
const QUESTIONS = [
  { card: "lab", known: () => count(state.past) > 9, // then the page has shown the answer
    ask: () => `Response ${near() + 1} has correct steps, but one wrong digit: reward 0. What do ten updates do to it?`,
    choices: ["It becomes less likely.", "It stays.", "It becomes likelier."], right: 2,
    show: () => ({ rewards: opening(), past: `${opening()}x10` }),
    answer: () => `${chance("")} % became ${chance(`${opening()}x10`)} %. It begins like the correct response, which is pushed up harder. ` +
      "GRPO does not know which token was wrong: all tokens of a response get one advantage." },
  { card: "lab", ask: () => `You give response ${near() + 1} reward 1 as well. What happens to +2.65?`,
    choices: ["It grows.", "It stays.", "It shrinks."], right: 2,
    show: () => ({ rewards: [...opening()].map((r, i) => (i === near() ? "1" : r)).join(""), past: "" }),
    after: () => ({ rewards: opening() }),
    answer: () => `It shrinks to +1.73: a success is less of an exception. ` +
      (state.rewards === opening() ? "" : `Response ${near() + 1} now has reward 1 above.`) },
  { card: "rules", known: () => ["pos_only", "reinforce"].includes(state.rule),
    ask: () => "half pushes failures down half as hard. pos_only never pushes them down. Where does its line end?",
    choices: ["below grpo\u2019s", "between the two", "above half\u2019s"], right: 2,
    show: () => ({ rewards: opening(), rule: "pos_only" }),
    answer: () => `At ${endOf("pos_only")}, half\u2019s at ${endOf("half")}, grpo\u2019s at ${endOf("grpo")}. What an update does not spend on ` +
      "failures goes to the success." },
  { card: "clip", ask: () => `After ten updates with grpo\u2019s clip a token of response ${near() + 1}, whose A is below 0, is ${
      fixed(Math.max(...ratios("grpo", clipped("grpo", 10))[near()]), 1)} times as likely. Does the clip end its push down?`,
    choices: ["yes", "no"], right: 1, show: () => ({ loss: "grpo", since: 10 }),
    answer: () => "It moved the wrong way, downhill. The clip only ends pushes that went far enough in their own direction." },
  { card: "run", known: () => state.task !== taskOf(0) || !taskOf(1),
    ask: () => `On ${taskOf(1)}, how many of grpo\u2019s first training groups fail altogether and teach nothing?`,
    choices: ["a tenth", "a third", "more than half"], right: 2, show: () => ({ task: taskOf(1) }),
    answer: () => `${shareOf(1, 1, 0)} in the first 25 steps; on ${taskOf(0)} ${shareOf(0, 1, 0)}. Groups that all pass teach nothing either: ` +
      `at the end of ${taskOf(0)} they are ${shareOf(0, -1, 1)}.` },
];

let orders; // of the choices: new with each visit
function shuffled(numbers) {
  return numbers.map((k) => [Math.random(), k]).sort((a, b) => a[0] - b[0]).map(([, k]) => k);
}

const marked = (n, character) => state.asked.slice(0, n) + character + state.asked.slice(n + 1);

function settle() { // what the page has shown is no question any more
  QUESTIONS.forEach(({ known }, n) => { if (state.asked[n] === "-" && known?.()) state.asked = marked(n, "s"); });
}

function predict(n, k) {
  change({ ...QUESTIONS[n].show(), asked: marked(n, String(k)) });
  $("said").textContent = document.querySelector(`[data-card=${QUESTIONS[n].card}] .verdict`).textContent;
}

function drawCards() {
  for (const card of document.querySelectorAll(".card")) {
    const n = QUESTIONS.findIndex((question, k) => question.card === card.dataset.card && state.asked[k] !== "s");
    card.hidden = n < 0;
    if (card.hidden) continue;
    const question = QUESTIONS[n];
    const predicted = state.asked[n] === "-" ? null : Number(state.asked[n]);
    const sign = (k) => (predicted === null ? "" : k === question.right ? "\u2713 " : k === predicted ? "\u2717 " : "");
    const choices = orders[n].map((k) => el("button", {
      ariaPressed: predicted === k, className: predicted !== null && k === question.right ? "right" : "",
      data: { key: `choice${k}`, choice: k }, onclick: () => predict(n, k),
    }, sign(k) + question.choices[k]));
    const last = QUESTIONS.findLastIndex((other) => other.card === question.card) === n;
    const close = () => change({ ...(predicted === null ? {} : question.after?.()), asked: marked(n, "s") });
    const next = el("button", { className: "next", data: { key: "next" }, onclick: close }, predicted === null ?
      (question.card === "rules" ? "show all lines" : "skip") : question.after ? "first rewards again" : last ? "close" : "next");
    const verdict = predicted === null ? [] : [el("p", { className: "verdict" },
      el("b", {}, predicted === question.right ? "Right. " : "Not quite. "), question.answer())];
    fill(card, el("p", {}, el("b", {}, "Predict: "), question.ask()),
      el("div", { className: "options", role: "group", ariaLabel: "Your prediction" }, ...choices, next), ...verdict);
  }
}

// ---- Start
function drawAll() {
  drawFirst();
  drawRules();
  drawClip();
  drawRun();
  drawCards();
}

function update(n) {
  const parts = segments(state.past);
  const more = Math.min(n, 1000 - count(state.past));
  if (parts.at(-1)?.[0] === state.rewards) parts.at(-1)[1] += more;
  else parts.push([state.rewards, more]);
  change({ past: joined(parts) });
}

function preset(share) {
  const G = data.lab.tokens.length;
  const n = { none: 0, one: 1, half: G / 2, all: G }[share];
  const order = data.lab.tokens.map((_, i) => i).sort((i, j) => (j === right()) - (i === right()) || i - j); // the correct one first
  change({ rewards: data.lab.tokens.map((_, i) => Number(order.indexOf(i) < n)).join("") });
}

function flip(i) {
  change({ rewards: [...state.rewards].map((r, k) => (k === i ? 1 - r : r)).join("") });
}

function arrows(event) { // in the film: left and right in time, up and down between the runs
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!move || !event.target.dataset.frame) return;
  event.preventDefault();
  const [run, k] = event.target.dataset.frame.split("-");
  const runs = Object.keys(data.runs[state.task]).filter((name) => name !== "problem");
  const [down, along] = [runs[runs.indexOf(run) + move[0]], columns()[columns().indexOf(Number(k)) + move[1]]];
  const next = $("film").querySelector(`[data-frame="${down}-${along}"]`);
  if (!next) return;
  next.focus();
  change({ frame: next.dataset.frame }, drawRun);
}

function start() {
  try {
    data = JSON.parse($("data").textContent);
    readTable();
    readAddress();
    $("prompt").textContent = data.lab.problem[0].replaceAll(" ", "");
    orders = QUESTIONS.map(({ choices }) => shuffled(choices.map((_, k) => k)));
    $("all").hidden = false;
    build();
    drawAll();
  } catch (error) {
    $("error").textContent = `This file is damaged (${error}). Make it anew with python -m tools.explore.`;
    return;
  }
  addEventListener("hashchange", () => { readAddress(); drawAll(); });
  addEventListener("pageshow", drawAll); // a browser that goes back restores its own values of controls
  addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette = null; drawAll(); });
  $("update").onclick = () => update(1);
  $("ten").onclick = () => update(10);
  $("reset").onclick = () => change({ past: "" });
  const choose = (id, act) => {
    $(id).onclick = ({ target }) => {
      const button = target.closest("button");
      if (button) act(button.dataset);
    };
  };
  choose("presets", ({ share }) => preset(share));
  choose("board", ({ flip: i }) => flip(Number(i)));
  choose("names", ({ rule }) => change({ rule }));
  choose("losses", ({ loss }) => change({ loss }));
  choose("tasks", ({ task }) => change({ task }));
  choose("film", ({ frame }) => change({ frame }, drawRun));
  $("film").onkeydown = arrows;
  $("since").oninput = () => change({ since: Number($("since").value) }, drawClip);
}
addEventListener("DOMContentLoaded", start);
