"use strict";
// What the page computes: the advantages of each rule, the model and its updates, the clip. It draws nothing.
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

const scores = (x) => onTokens(x.tokens, (j, u) => // s of nthr: how much a token's gradient agrees with those of the correct responses
  sum(x.tokens.map((text, i) => (x.rewards[i] ? sum([...text].map((_, t) => x.K(i, t, j, u))) : 0))));

const ADVANTAGES = {
  grpo: (x) => onResponses(x, standardise(x.rewards)),
  half: (x) => onResponses(x, standardise(x.rewards).map((A) => (A < 0 ? A / 2 : A))),
  pos_only: (x) => onResponses(x, standardise(x.rewards).map((A) => Math.max(A, 0))),
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
const LAST = 40; // updates: the end of the slider
let table; // prefixes: {prefix: row}; begin: logits [row][character]; product(row, row); length of an update

const unpack = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer); // little-endian

function readTable() {
  const { tokens, characters, probs, products, rewards } = data.lab;
  const known = new Set(tokens.flatMap((text) => [...text].map((_, t) => text.slice(0, t))));
  const prefixes = new Map([...known].map((prefix, row) => [prefix, row]));
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

const probability = (p, text) => [...text].reduce((all, character, t) => // of this response, or of all that begin with it
  all * p[table.prefixes.get(text.slice(0, t))][data.lab.characters.indexOf(character)], 1);

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

let made = new Map();
function remember(key, make) {
  if (made.size > 120) made = new Map(); // else 256 patterns of rewards would fill the memory
  if (!made.has(key)) made.set(key, make());
  return made.get(key);
}

function course(name, rewards) { // after 0, 1, .. updates: the advantages, and the probabilities after each prefix
  return remember(`${name} ${rewards}`, () => {
    let z = table.begin;
    return Array.from({ length: LAST + 1 }, () => {
      const p = z.map(softmax);
      const x = groupOf(rewards, p);
      const A = ADVANTAGES[name](x);
      z = moved(z, x, A);
      return { A, p };
    });
  });
}

const opening = () => data.lab.rewards;
const none = () => "0".repeat(opening().length);
const right = () => data.lab.rewards.indexOf("1"); // the correct response
const lineOf = (name, rewards) => remember(`line ${name} ${rewards}`, () => // how likely it is after 0, 1, .. updates
  course(name, rewards).map(({ p }) => probability(p, data.lab.tokens[right()])));

// ---- The tree: a branch is what follows a fork up to the next one. Its nodes are prefixes.
function readTree() {
  const { tokens } = data.lab;
  const nodes = new Map();
  tokens.forEach((text, i) => [...text].forEach((_, t) => {
    const prefix = text.slice(0, t + 1);
    if (!nodes.has(prefix)) nodes.set(prefix, { prefix, t, through: [], parent: nodes.get(text.slice(0, t)) });
    nodes.get(prefix).through.push(i);
  }));
  const after = (parent) => [...nodes.values()].filter((node) => node.parent === parent);
  const endsAt = ({ through, t }) => through.filter((i) => tokens[i].length === t + 1);
  const order = []; // of the responses, from top to bottom
  const branches = []; // in the order in which one reads them
  const grow = (start, siblings, up) => {
    const branch = { nodes: [start], through: start.through, siblings, up };
    branches.push(branch);
    siblings.push(branch);
    let next = after(start);
    while (next.length === 1 && !endsAt(branch.nodes.at(-1)).length) {
      branch.nodes.push(next[0]);
      next = after(next[0]);
    }
    const rows = endsAt(branch.nodes.at(-1)).map((i) => order.push(i) - 1);
    const below = [];
    next.forEach((node) => grow(node, below, branch));
    branch.row = mean([...rows, ...below.map(({ row }) => row)]);
  };
  const roots = [];
  after(undefined).forEach((node) => grow(node, roots, null));
  return { branches, order };
}

const sumOf = (A, nodes) => sum(nodes.flatMap(({ through, t }) => through.map((i) => A[i][t])));

function pushOn({ nodes: [start], siblings }, { A, p }) { // what an update does to a branch at its fork
  const own = sumOf(A, [start]);
  const fork = sumOf(A, siblings.map(({ nodes }) => nodes[0]));
  const chance = probability(p, start.prefix) / (start.parent ? probability(p, start.parent.prefix) : 1);
  const net = own - chance * fork;
  return { own, fork, chance, net: Math.abs(net) < 1e-9 ? 0 : net };
}

// ---- The clip
const push = (name, ratio, A) => // on the logarithm of a token's probability: the gradient of the loss. gspo has one ratio a response.
  (name === "cispo" ? Math.min(ratio, data.clips.cispo.high) : ended(name, ratio, A) ? 0 : ratio) * A;
const ended = (name, ratio, A) => (A > 0 ? ratio > data.clips[name].high : ratio < data.clips[name].low);

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

function clipped(n) { // the logits after n updates with grpo's clip
  return n === 0 ? table.begin : remember(`clipped ${n}`, () => {
    const z = clipped(n - 1);
    const A = ADVANTAGES.grpo(sampled());
    const pushes = ratios("grpo", z).map((row, i) => row.map((ratio, t) => push("grpo", ratio, A[i][t])));
    return moved(z, groupOf(data.lab.rewards, z.map(softmax)), pushes);
  });
}

