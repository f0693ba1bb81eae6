// ---- The first screen: the responses as one tree of tokens, and a row for each of them.
let tree; // branches and order, as readTree makes them
let geometry;
let shown = null; // the branch that somebody points at

function build() { // the elements, once for each width: later only shapes, colours and texts change
  const { tokens, problem } = data.lab;
  const narrow = matchMedia("(max-width: 46em)").matches; // the rows are below the tree
  const pitch = narrow ? 34 : 38;
  document.body.style.setProperty("--pitch", `${pitch / 16}em`);
  const length = Math.max(...tokens.map((text) => text.length));
  document.body.style.setProperty("--length", length);
  fill($("rows"), ...tree.order.map((i) => {
    const leaf = tree.branches.findLast(({ through }) => through.includes(i));
    const row = el("div", { className: "row", data: { row: i } },
      el("span", { className: "mark" }, `${i + 1}${i === right() ? "\u2009\u2713" : ""}`),
      el("span", { className: "text" }, ...marks(tokens[i], `${problem[1]}$`)),
      el("button", { title: "Click: the other reward", data: { flip: i, key: `flip${i}` }, onclick: () => flip(i) }),
      el("span", { className: "A" }), el("span", { className: "before" }), el("b", { className: "now" }));
    row.onpointerenter = () => point(leaf);
    row.onpointerleave = () => point(null);
    return row;
  }));
  const forks = [...new Set(tree.branches.filter(({ siblings }) => siblings.length > 1).map(({ nodes }) => nodes[0].t))];
  const columns = length + 0.9 * forks.length + (narrow ? 1 : 0);
  const col = widthOf("tree") / columns;
  const X = (t) => col * (t + 0.9 * forks.filter((fork) => fork < t).length);
  geometry = { col, pitch, X, y: (row) => pitch * (row + 0.5), full: 0.94 * pitch };
  $("share").hidden = col <= 23; // then the branches have no room for it
  for (const branch of tree.branches) {
    const { nodes, row, through } = branch;
    const y = geometry.y(row);
    const places = nodes.map(({ t }) => X(t + 1) - col / 2);
    const path = svg("path");
    const letters = svg("text", { class: "letters", x: places.join(" "), y: y + 4.5 },
      nodes.map(({ prefix }) => prefix.at(-1).replace(" ", "\u00a0")).join(""));
    const net = svg("text", { class: "net", x: places[0] - 4, y: y + (through.length > 1 ? 0.64 * pitch : 17.5) });
    const end = narrow && through.filter((i) => tokens[i].length === nodes.at(-1).t + 1).map((i) => i + 1).join();
    branch.parts = [path, letters, net, ...(end ? [svg("text", { class: "leaf", x: X(length) + 2, y: y + 4.5 }, end)] : [])];
    for (const part of branch.parts) Object.assign(part, { onpointerenter: () => point(branch), onpointerleave: () => point(null) });
  }
  draw("tree", col * columns, pitch * tree.order.length, []);
  $("tree").append(...[0, 1, 2, 3].flatMap((k) => tree.branches.flatMap(({ parts }) => parts[k] ?? []))); // no branch covers a text
  const items = tree.branches.map((branch, k) => el("li", {
    tabIndex: k ? -1 : 0, onfocus: () => point(branch), onblur: () => point(null), data: { key: `branch${k}` },
  }));
  fill($("branches"), ...items);
  $("branches").onkeydown = walk;
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
  drawRows();
  drawSays();
}

function flip(i) {
  const rewards = [...state.rewards].map((r, k) => (k === i ? 1 - r : r)).join("");
  change({ rewards, rule: state.rule === "negative" ? "grpo" : state.rule });
}

const steps = () => course(state.rule, state.rewards);

function shape({ nodes, siblings, up, row }, wide) { // from its place in the fork to its own row, and along it
  const { X, y, col } = geometry;
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

function drawTree() {
  const [now, next] = [Math.floor(at), Math.ceil(at)].map((n) => steps()[n]);
  const share = (prefix) => probability(now.p, prefix) * (1 - at % 1) + probability(next.p, prefix) * (at % 1);
  const wide = ({ prefix }) => Math.max(1.5, geometry.full * share(prefix));
  tree.branches.forEach((branch, k) => {
    const { nodes, through, parts } = branch;
    const [{ net, chance }, later] = [now, next].map((step) => pushOn(branch, step));
    const [path, , label] = parts;
    path.setAttribute("d", shape(branch, wide));
    path.setAttribute("fill", colour(net));
    const on = shown?.through.every((i) => through.includes(i)); // on the way to what is shown
    parts.forEach((part) => { part.classList.toggle("dim", shown && !on); });
    path.classList.toggle("shown", branch === shown);
    ["up", "down"].forEach((way) => label.classList.toggle(way, way === wayOf(net)));
    label.textContent = branch.siblings.length > 1 ? number(net) : "";
    if (geometry.col > 23 && through.length > 1 && branch.up) {
      const ofFork = fixed(100 * (chance + (later.chance - chance) * (at % 1)), 0);
      label.append(svg("tspan", { x: Number(label.getAttribute("x")) + 47 }, `${ofFork}\u2009%`));
    }
    const who = `response${through.length > 1 ? "s" : ""} ${through.map((i) => i + 1).join(", ")}`;
    const texts = [nodes[0].prefix.slice(0, -1), nodes.map(({ prefix }) => prefix.at(-1)).join("")];
    if (!playing) $("branches").children[k].textContent = // one reads the list when the slider rests
      `${texts[0] && `after ${texts[0]} `}${texts[1]}, ${who}: ${percent(share(nodes[0].prefix))} %, net push ${number(net)}`;
  });
}

function drawRows() {
  const [begin, now] = [0, state.n].map((n) => steps()[n]);
  for (const row of $("rows").children) {
    const i = Number(row.dataset.row);
    const text = data.lab.tokens[i];
    const [, , button, A, before, value] = row.children;
    button.textContent = state.rewards[i];
    button.ariaPressed = state.rewards[i] === "1";
    button.ariaLabel = `Response ${i + 1}, ${text}, is ${i === right() ? "correct" : "incorrect"}: reward ${state.rewards[i]}`;
    row.classList.toggle("shown", Boolean(shown?.through.includes(i)));
    fill(A, ...range(now.A[i]).map((A) => el("span", { className: wayOf(A) }, number(A))));
    const [p0, p] = [begin, now].map(({ p }) => probability(p, text));
    const way = Math.abs(p / p0 - 1) < 0.0005 ? "" : p > p0 ? "up" : "down";
    before.textContent = state.n ? `${percent(p0)} \u2192` : "\u00a0";
    value.textContent = `${percent(p)}\u2009% ${{ up: "\u25b2", down: "\u25bc" }[way] ?? "\u2002"}`;
    value.className = `now ${way}`;
  }
}

function drawWorked() { // the division of this group, and what the rule makes of it
  const { rule } = state;
  const own = [...state.rewards].map(Number);
  const rewards = rule === "ngrpo" ? [...own, 1] : own;
  const [G, n, mu, sigma] = [rewards.length, sum(rewards), mean(rewards), deviation(rewards)];
  const over = (r) => (rule === "half" && !r ? 2 : 1);
  const result = (r, by) => fixed((r - mu) / by / over(r));
  const digits = [2, 3].find((d) => [1, 0].every((r) => result(r, Number(sigma.toFixed(d))) === result(r, sigma))) ?? 4; // it gives what is shown
  const division = (r) => (rule === "pos_only" && !r ? signed(0) : `(${r} \u2212 ${fixed(mu, 3)})\u00a0/\u00a0${fixed(sigma, digits)}${
    over(r) > 1 ? "\u00a0/\u00a02" : ""} = ${signed((r - mu) / (sigma + 1e-6) / over(r))}`);
  const two = "varies A by token: two values under A are its smallest and largest.";
  html("worked", rule === "process" ? `process compares steps and reads no rewards. It ${two}` :
    rule === "negative" ? `All rewards are 0. For such a group negative sets every A to ${signed(-1)}.` :
    !sigma ? `All rewards are ${mu}, so every advantage is (${mu} \u2212 ${mu}) / (0 + 0.000001) = 0. The millionth avoids 0 / 0.` :
    (rule === "ngrpo" ? `ngrpo adds a reward of 1. Now ${n} of ${G} rewards ${n === 1 ? "is" : "are"} 1, so A = ` :
      `${n} of ${G} responses ${n === 1 ? "has" : "have"} reward 1, so A = `) +
    [1, 0].filter((r) => own.includes(r)).map(division).join(`. ${G - n === 1 ? "The other one gets" : "The others get"} `) + "." +
    (["nthr", "compensation", "forking"].includes(rule) ? ` ${rule} ${two}` : ""));
}

function risen() { // a response that is pushed down and likelier than at first, and one that is pushed up and begins alike
  const [begin, now] = [0, state.n].map((n) => steps()[n]);
  const { tokens } = data.lab;
  const pushed = (i) => sum(now.A[i]);
  let found = null;
  tokens.forEach((text, i) => tokens.forEach((other, j) => {
    if (pushed(i) >= 0 || pushed(j) <= 0 || probability(now.p, text) < 1.0005 * probability(begin.p, text)) return;
    let length = 0;
    while (length < text.length && text[length] === other[length]) length++;
    const [p0, p] = [begin, now].map(({ p }) => probability(p, text.slice(0, length)));
    if (p > p0 && length > (found?.length ?? 0)) found = { i, j, length };
  }));
  return found;
}

function drawSays() { // about the branch that one points at, or about all
  $("says").ariaLive = playing ? "off" : "polite";
  const [begin, now] = [0, state.n].map((n) => steps()[n]);
  if (shown) {
    const { nodes: [{ prefix }], through } = shown;
    const { own, fork, chance, net } = pushOn(shown, now);
    const [p0, p] = [begin, now].map(({ p }) => percent(probability(p, prefix)));
    html("says", `${through.length > 1 ? "Responses" : "Response"} ${through.map((i) => i + 1).join(", ")} (“${prefix}”): ` +
      `The pushes through this branch add up to ${number(own)}. Its share at the fork, ${fixed(100 * chance, 0)}\u2009%, of the fork\u2019s ` +
      `sum ${number(fork)} is taken off: ${signed(net)}. ${state.n ? `${p0}\u2009% \u2192 ` : ""}${p}\u2009% of all responses begin so.`);
    return;
  }
  const [p0, p] = [0, state.n].map((n) => percent(lineOf(state.rule, state.rewards)[n]));
  const found = state.n && !(asOpened() && state.asked[0] === "-") && risen(); // it answers the first question
  html("says", begin.A.flat().every((A) => A === 0) ? "All advantages are 0, so updates change nothing." :
    !state.n ? "Play the updates, or pull the slider. Point at or tap a branch to see what adds up there." :
    `After ${plural(state.n, "update")}, the correct response ${right() + 1} went from ${p0}\u2009% to ${p}\u2009%. ` +
    (found ? `<b class="down">Response ${found.i + 1} is pushed down, but is likelier than at first:</b> its first ${found.length} tokens are ` +
      `response ${found.j + 1}\u2019s.` : ""));
}
