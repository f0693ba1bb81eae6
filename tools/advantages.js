"use strict";
// What the page computes: the advantages of each rule, the model and its updates, the tree. It draws nothing.
let data;

// ---- The advantages. Each function gets a group x and returns A[i][t]: response i, token t.
// x.rewards, x.tokens (texts), x.places[i][t] (the row of a token in the table, its character), x.p (a distribution for each row).
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
  const [below, above] = [Math.floor, Math.ceil].map((round) => sorted[round(place)]);
  return below + (place % 1) * (above - below);
}

function scores(x) { // s of nthr: how much a token's gradient agrees with those of the correct responses
  const correct = new Map(); // row: the sum of their gradients
  x.places.forEach((places, i) => places.forEach(([row, token]) => {
    if (!x.rewards[i]) return;
    const before = correct.get(row) ?? x.p[row].map(() => 0);
    correct.set(row, before.map((part, k) => part + (k === token) - x.p[row][k]));
  }));
  return x.places.map((places) => places.map(([row, token]) => sum([...correct].map(([other, parts]) => {
    const expected = parts.reduce((all, part, k) => all + part * x.p[row][k], 0);
    return (parts[token] - expected) * table.product(row, other);
  }))));
}

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
  ngrpo: (x) => onResponses(x, standardise([...x.rewards, 1])),
  forking(x) { // the tokens whose entropy is among the highest fifth of the group
    const A = standardise(x.rewards);
    const entropy = x.p.map((p) => -sum(p.map((chance) => (chance > 0 ? chance * Math.log(chance) : 0))));
    const H = x.places.map((places) => places.map(([row]) => entropy[row]));
    const least = quantile(H.flat(), 0.8);
    return onTokens(x.tokens, (i, t) => (H[i][t] >= least ? A[i] : 0));
  },
};

// ---- The model: a table with the distribution over the next token for each known prefix
const STEP = 0.3; // how far grpo's first update goes along its gradient; all others have the same length
const LAST = 40; // updates: the end of the slider
const CLIP = [0.8, 1.2]; // the range of the ratio in policy_loss
let table; // prefixes: {prefix: row}; places, as in a group; begin: logits [row][character]; product(row, row); length of an update
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
  const places = tokens.map((text) => [...text].map((character, t) => [prefixes.get(text.slice(0, t)), characters.indexOf(character)]));
  table = { prefixes, places, begin, product };
  const x = groupOf(rewards, begin.map(softmax));
  table.length = STEP * norm(gradient(x, ADVANTAGES.grpo(x)));
}

function softmax(row) {
  const powers = row.map((z) => Math.exp(z));
  const total = sum(powers);
  return powers.map((x) => x / total);
}

const probability = (p, text) => [...text].reduce((all, character, t) => // of this response, or of all that begin with it
  all * p[table.prefixes.get(text.slice(0, t))][data.lab.characters.indexOf(character)], 1);

const chanceOf = ({ prefix, parent }, p) => probability(p, prefix) / (parent ? probability(p, parent.prefix) : 1); // of a token after its prefix
const groupOf = (rewards, p) => ({ // what the functions above want: the first responses, with these rewards, a text of 0 and 1
  p, rewards: [...rewards].map(Number), tokens: data.lab.tokens.slice(0, rewards.length), places: table.places.slice(0, rewards.length),
});

function gradient({ p, places }, pushes) { // the mean over responses of push (one-hot - probability); an advantage is a push
  const total = p.map((row) => row.map(() => 0));
  places.forEach((row, i) => row.forEach(([s, token], t) => {
    const push = pushes[i][t] / pushes.length;
    for (let k = 0; k < p[s].length; k++) total[s][k] += push * ((k === token) - p[s][k]);
  }));
  return total;
}

const norm = (rows) => Math.sqrt(sum(rows.map((row) => row.reduce((all, x) => all + x * x, 0))));
const ended = (ratio, A) => (A > 0 ? ratio > CLIP[1] : ratio < CLIP[0]); // as in policy_loss: no push leads further away
const hasLeft = (node, p, begin) => [1, -1].some((A) => ended(chanceOf(node, p) / chanceOf(node, begin), A));
const made = new Map();
const keyOf = (name, rewards, clip) => `${name} ${rewards} ${clip}`;
function course(name, rewards, clip = state.clip) { // after 0, 1, .. updates: probabilities after each prefix, advantages, pushes
  const key = keyOf(name, rewards, clip);
  if (made.has(key)) return made.get(key);
  if (made.size > 120) made.clear(); // else 256 patterns of rewards would fill the memory
  const begin = table.begin.map(softmax);
  let z = table.begin;
  made.set(key, Array.from({ length: LAST + 1 }, () => {
    const p = z.map(softmax);
    const x = groupOf(rewards, p);
    const A = ADVANTAGES[name](x);
    const goesOn = ([s, k], push) => (clip && ended(p[s][k] / begin[s][k], push) ? 0 : push);
    const pushes = A.map((row, i) => row.map((push, t) => goesOn(x.places[i][t], push)));
    const length = norm(gradient(x, A)); // pushes that have ended are missing in the update; the others are no longer for that
    const step = gradient(x, pushes);
    if (length) z = z.map((row, s) => row.map((value, k) => value + table.length / length * step[s][k]));
    return { p, A, pushes };
  }));
  return made.get(key);
}

const opening = () => data.lab.rewards;
const right = () => data.lab.rewards.indexOf("1"); // the correct response
const lineOf = (name, rewards, i = right(), clip = state.clip) => // how likely a response is after 0, 1, .. updates
  course(name, rewards, clip).map(({ p }) => probability(p, data.lab.tokens[i]));
const alike = (i) => [...data.lab.tokens[i]].findIndex((c, t) => c !== data.lab.tokens[right()][t]); // how many tokens begin as the correct one's
const most = (numbers) => numbers.indexOf(Math.max(...numbers));
const near = () => most(data.lab.tokens.map((_, i) => (i === right() ? -1 : alike(i)))); // the failure that begins most like it
const common = () => data.lab.tokens[near()].slice(0, alike(near())); // what both begin with
const factors = (name, rewards, clip) => { // of the near failure after 0, 1, .. updates: how its shared part, its own and all of it changed
  const along = (text) => course(name, rewards, clip).map(({ p }, _, [begin]) => probability(p, text) / probability(begin.p, text));
  const [shared, all] = [common(), data.lab.tokens[near()]].map(along);
  return [shared, all.map((ratio, n) => ratio / shared[n]), all];
};

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

function pushOn({ nodes: [start], siblings }, { pushes, p }) { // what an update does to a branch at its fork
  const own = sumOf(pushes, [start]);
  const fork = sumOf(pushes, siblings.map(({ nodes }) => nodes[0]));
  const chance = chanceOf(start, p);
  const net = own - chance * fork;
  return { own, fork, chance, net: Math.abs(net) < 1e-9 ? 0 : net };
}
