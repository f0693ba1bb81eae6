// ---- The first screen: the responses as one tree of tokens, a row for each of them, and why one of them rises.
let tree; // branches and order, as readTree makes them
let geometry;
let shown = null; // the branch that somebody points at

function layout(width, pitch) { // where the tokens of the responses are
  const length = Math.max(...data.lab.tokens.map((text) => text.length));
  const forks = [...new Set(tree.branches.filter(({ siblings }) => siblings.length > 1).map(({ nodes }) => nodes[0].t))];
  const col = width / (length + 0.9 * forks.length);
  const X = (t) => col * (t + 0.9 * forks.filter((fork) => fork < t).length);
  return { width, col, pitch, X, y: (row) => pitch * (row + 0.5), full: 0.94 * pitch };
}

function build() { // the elements, once for each width: later only shapes, colours and texts change
  const { tokens, problem } = data.lab;
  const pitch = matchMedia("(max-width: 46em)").matches ? 40 : 38;
  document.body.style.setProperty("--pitch", `${pitch / 16}em`);
  document.body.style.setProperty("--length", Math.max(...tokens.map((text) => text.length)));
  const together = common().length;
  fill($("rows"), ...tree.order.map((i) => {
    const leaf = tree.branches.findLast(({ through }) => through.includes(i));
    const parts = [near(), right()].includes(i) ? [0, together, tokens[i].length] : [0, tokens[i].length];
    const text = parts.slice(1).map((end, k) => el("span", { className: parts[2] ? ["up", i === near() ? "down" : "up"][k] : "" },
      ...marks(tokens[i].slice(parts[k], end), `${problem[1]}$`, parts[k])));
    const row = el("div", { className: `row${i === near() ? " near" : i === right() ? " right" : ""}`, data: { row: i } },
      el("span", { className: "mark" }, `${i + 1}\u2009${i === right() ? "\u2713" : "\u2717"}`),
      el("span", { className: "text" }, ...text),
      el("button", { title: "Click: the other reward", data: { flip: i, key: `flip${i}` }, onclick: () => flip(i) }),
      el("span", { className: "A" }), el("b", { className: "now" }),
      el("span", { className: "curve", ariaHidden: "true" }, svg("svg", { viewBox: "0 0 40 1", preserveAspectRatio: "none" }), el("i")));
    onPoint(row, leaf);
    return row;
  }));
  geometry = layout(widthOf("tree"), pitch);
  for (const branch of tree.branches) {
    const { nodes, row, through } = branch;
    const y = geometry.y(row);
    const places = nodes.map(({ t }) => geometry.X(t + 1) - geometry.col / 2);
    const letters = nodes.map(({ prefix }, k) => svg("tspan", { x: places[k] }, prefix.at(-1).replace(" ", "\u00a0")));
    branch.parts = [svg("path"), svg("text", { class: "letters", y: y + 4.5 }, ...letters),
      svg("text", { class: "net", x: places[0] - 4, y: y + (through.length > 1 ? 0.64 * pitch : 17.5) })];
    branch.parts.forEach((part) => onPoint(part, branch));
  }
  draw("tree", geometry.width, pitch * tree.order.length, []);
  $("tree").append(...[0, 1, 2].flatMap((k) => tree.branches.map(({ parts }) => parts[k]))); // no branch covers a text
  fill($("branches"), ...tree.branches.map((branch, k) => el("li", {
    tabIndex: k ? -1 : 0, onfocus: () => point(branch), onblur: () => point(null), data: { key: `branch${k}` },
  })));
  $("branches").onkeydown = walk;
}

function onPoint(element, branch) { // a mouse that leaves ends it; a finger that lifts does not
  element.onpointerenter = ({ pointerType }) => { if (pointerType === "mouse") point(branch); };
  element.onpointerleave = ({ pointerType }) => { if (pointerType === "mouse") point(null); };
  element.onclick = ({ target }) => { if (!target.closest("button")) point(branch); };
}

function walk(event) { // in the list of branches, by the arrows
  const items = [...$("branches").children];
  const k = items.indexOf(event.target);
  const move = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -k, End: items.length - 1 - k }[event.key];
  if (move === undefined) return;
  event.preventDefault();
  const next = items[k + move];
  if (!next) return;
  items.forEach((item) => { item.tabIndex = item === next ? 0 : -1; });
  next.focus({ preventScroll: true });
}

function point(branch) {
  shown = branch;
  drawTree();
  for (const row of $("rows").children) row.classList.toggle("shown", Boolean(shown?.through.includes(Number(row.dataset.row))));
  drawLegend();
}

function flip(i) {
  change({ rewards: [...state.rewards].map((r, k) => (k === i ? 1 - r : r)).join("") });
}

const steps = () => course(state.rule, state.rewards);
const chance = ({ prefix, parent }, { p }) => probability(p, prefix) / (parent ? probability(p, parent.prefix) : 1); // of a token after its prefix

function shape({ nodes, siblings, up, row }, wide, { X, y, col }) { // from its place in the fork to its own row, and along it
  const widths = nodes.map(wide);
  const starts = siblings.map((other) => wide(other.nodes[0]));
  const k = siblings.findIndex((other) => other.nodes === nodes);
  const from = up ? y(up.row) - sum(starts) / 2 + sum(starts.slice(0, k)) + starts[k] / 2 : y(row);
  const [begin, flat] = [X(nodes[0].t) - 0.3, X(nodes[0].t + 1) - col];
  const middle = (begin + flat) / 2;
  const side = (sign) => {
    const edge = nodes.map(({ t }, j) => [X(t + 1), y(row) + sign * widths[j] / 2]);
    return { fork: from + sign * widths[0] / 2, edge: [[flat, y(row) + sign * widths[0] / 2], ...edge] };
  };
  const [over, under] = [side(-1), side(1)];
  return `M${begin} ${over.fork}C${middle} ${over.fork} ${middle} ${over.edge[0][1]} ${over.edge.join("L")}` +
    `L${[...under.edge].reverse().join("L")}C${middle} ${under.edge[0][1]} ${middle} ${under.fork} ${begin} ${under.fork}Z`;
}

function drawTree(next = true) { // between two updates only the shapes
  const wide = ({ prefix }) => Math.max(1.5, geometry.full * between((n) => probability(steps()[n].p, prefix)));
  tree.branches.forEach((branch) => branch.parts[0].setAttribute("d", shape(branch, wide, geometry)));
  if (!next) return;
  const now = steps()[state.n];
  tree.branches.forEach((branch, k) => {
    const { nodes, siblings, through, parts: [path, letters, label] } = branch;
    const { net } = pushOn(branch, now);
    path.setAttribute("fill", colour(net));
    path.setAttribute("stroke", colour(net));
    const on = shown?.through.every((i) => through.includes(i)); // on the way to what is shown
    branch.parts.forEach((part) => { part.classList.toggle("dim", shown && !on); });
    path.classList.toggle("shown", branch === shown);
    nodes.forEach((node, t) => {
      const ratio = chance(node, now) / chance(node, steps()[0]);
      letters.children[t].classList.toggle("hollow", Boolean(state.clip) && (ratio < data.clip[0] || ratio > data.clip[1]));
    });
    const large = Math.abs(net) >= 0.5 || through.includes(near()) || through.includes(right());
    label.setAttribute("class", `net ${wayOf(net)}`);
    label.textContent = siblings.length > 1 && (large || on) ? number(net) : "";
    const who = `response${through.length > 1 ? "s" : ""} ${through.map((i) => i + 1).join(", ")}`;
    const texts = [nodes[0].prefix.slice(0, -1), nodes.map(({ prefix }) => prefix.at(-1)).join("")];
    if (!playing) $("branches").children[k].textContent = // one reads the list when the slider rests
      `${texts[0] && `after ${texts[0]} `}${texts[1]}, ${who}: ${percent(probability(now.p, nodes[0].prefix))} %, net push ${number(net)}`;
  });
}

function drawRows() {
  const now = steps()[state.n];
  for (const row of $("rows").children) {
    const i = Number(row.dataset.row);
    const [, , button, A, value] = row.children;
    button.textContent = state.rewards[i];
    button.ariaPressed = state.rewards[i] === "1";
    button.ariaLabel = `Response ${i + 1}, ${data.lab.tokens[i]}, is ${i === right() ? "correct" : "incorrect"}: reward ${state.rewards[i]}`;
    html(A, range(now.A[i]).map((A) => `<span class="${wayOf(A)}">${number(A)}</span>`).join(""));
    const [p0, p] = [0, state.n].map((n) => lineOf(state.rule, state.rewards, i)[n]);
    value.textContent = `${percent(p)}\u2009% ${{ up: "\u25b2", down: "\u25bc" }[moves(p / p0)] ?? "\u2002"}`;
    value.className = `now ${moves(p / p0)}`;
  }
}

const factors = (name, rewards, clip) => { // of the near failure: how its two parts and the whole changed, after 0, 1, .. updates
  const along = (text) => course(name, rewards, clip).map(({ p }) => probability(p, text) / probability(course(name, rewards, clip)[0].p, text));
  const [shared, all] = [common(), data.lab.tokens[near()]].map(along);
  return [shared, all.map((ratio, n) => ratio / shared[n]), all];
};

function drawWhy() {
  const now = factors(state.rule, state.rewards, state.clip).map((part) => part[state.n]);
  const text = data.lab.tokens[near()];
  const chip = (k, code, note) => `<span class="chip ${moves(now[k])}">${code && `<code>${code}</code> `}${note} <b>${times(now[k])}</b></span>`;
  html($("why"), `<b>Response ${near() + 1}:</b> ${chip(0, common(), `shared with ${right() + 1}`)} ${chip(1, text.slice(common().length), "its own")} ` +
    `= ${chip(2, "", { up: "likelier", down: "less likely" }[moves(now[2])] ?? "unchanged")}`, true);
}

function drawWorked() { // the division of this group, and what the rule makes of it
  const { rule } = state;
  const own = [...state.rewards].map(Number);
  const rewards = rule === "ngrpo" ? [...own, 1] : own;
  const [G, n, mu, sigma] = [rewards.length, sum(rewards), mean(rewards), deviation(rewards)];
  const over = (r) => (rule === "half" && !r ? 2 : 1);
  const result = (r, by) => fixed((r - mu) / by / over(r));
  const digits = [2, 3].find((d) => [1, 0].every((r) => result(r, Number(sigma.toFixed(d))) === result(r, sigma))) ?? 4; // it gives what is shown
  const division = (r) => (rule === "pos_only" && !r ? signed(0) : `(${r}\u00a0\u2212\u00a0${fixed(mu, 3)})\u00a0/\u00a0${fixed(sigma, digits)}${
    over(r) > 1 ? "\u00a0/\u00a02" : ""} = ${signed((r - mu) / (sigma + 1e-6) / over(r))}`);
  html($("worked"), "<b>Advantage</b> A\u00a0= (reward \u2212 mean) / standard deviation. " + (!sigma ? `All rewards are ${mu}, so every advantage is (${mu} \u2212 ${mu}) / (0 + 0.000001) = 0, and updates change nothing.` :
    `${rule === "ngrpo" ? "ngrpo adds a reward of 1. Now " : ""}${n} of ${G} rewards ${n === 1 ? "is" : "are"} 1, so A\u00a0= ` +
    [1, 0].filter((r) => own.includes(r)).map(division).join(`. ${G - n === 1 ? "The other one gets" : "The others get"} `) + "." +
    (["nthr", "forking"].includes(rule) ? ` ${rule} varies A by token: two values under A are its smallest and largest.` : "")), true);
}

function drawLegend() { // what the number on a branch is: in general, or of the branch that one points at
  const now = steps()[state.n];
  if (!shown) return html($("legend"), "The number on a branch is its <b>net push</b>: the sum of the pushes through it, minus its share of the fork\u2019s sum. " +
    "Point at a branch or tap it to see its sums.");
  const { nodes: [{ prefix }], through } = shown;
  const { own, fork, chance, net } = pushOn(shown, now);
  const [p0, p] = [0, state.n].map((n) => percent(probability(steps()[n].p, prefix)));
  return html($("legend"), `${through.length > 1 ? "Responses" : "Response"} ${through.map((i) => i + 1).join(", ")} (“${prefix}”): ` +
    `The pushes through this branch add up to ${number(own)}. Its share at the fork, ${fixed(100 * chance, 0)}\u2009%, of the fork\u2019s ` +
    `sum ${number(fork)} is taken off: ${signed(net)}. ${state.n ? `${p0}\u2009% \u2192 ` : ""}${p}\u2009% of all responses begin so.`, true);
}
