// ---- The first screen: the responses as one tree of tokens, a row for each of them, and why one of them rises.
let tree; // branches and order, as readTree makes them
let geometry;
let shown = null; // the branch that somebody points at
const steps = () => course(state.rule, state.rewards);

function layout(width, pitch) { // where the tokens of the responses are
  const length = Math.max(...data.lab.tokens.map((text) => text.length));
  const forks = [...new Set(tree.branches.filter(({ siblings }) => siblings.length > 1).map(({ nodes }) => nodes[0].t))];
  const col = width / (length + 0.9 * forks.length);
  const X = (t) => col * (t + 0.9 * forks.filter((fork) => fork < t).length);
  return { width, length, col, pitch, X, y: (row) => pitch * (row + 0.5), full: 0.94 * pitch };
}

function build() { // the elements, once for each width: later only shapes, colours and texts change
  const { tokens, problem } = data.lab;
  const pitch = matchMedia("(max-width: 46em)").matches ? 40 : 38;
  const together = common().length;
  fill($("rows"), ...tree.order.map((i) => {
    const pair = [near(), right()].indexOf(i);
    const part = (name, from, to) => el("span", { className: name }, ...marks(tokens[i].slice(from, to), `${problem[1]}$`, from));
    const row = el("div", { className: `row ${["near", "right"][pair] ?? ""}`, data: { row: i } },
      el("span", { className: "mark" }, `${i + 1}\u2009${i === right() ? "\u2713" : "\u2717"}`),
      el("span", { className: "text" }, ...(pair < 0 ? [part("", 0)] : [part("up", 0, together), part(pair ? "up" : "down", together)])),
      el("button", { title: "Click: the other reward", data: { key: `flip${i}` },
        onclick: () => change({ rewards: [...state.rewards].map((r, k) => (k === i ? 1 - r : r)).join("") }) }),
      el("span", { className: "A" }), el("b", { className: "now" }),
      el("span", { className: "curve", ariaHidden: "true" }, el("svg", { viewBox: "0 0 40 1", preserveAspectRatio: "none" }), el("i")));
    return onPoint(row, tree.branches.findLast(({ through }) => through.includes(i)));
  }));
  geometry = layout(widthOf("tree"), pitch);
  document.body.style.setProperty("--pitch", `${pitch / 16}em`);
  document.body.style.setProperty("--length", geometry.length);
  for (const branch of tree.branches) {
    const y = geometry.y(branch.row);
    const places = branch.nodes.map(({ t }) => geometry.X(t + 1) - geometry.col / 2);
    const letters = branch.nodes.map(({ prefix }, k) => el("tspan", { x: places[k] }, prefix.at(-1).replace(" ", "\u00a0")));
    branch.parts = [el("path"), el("text", { class: "letters", y: y + 4.5 }, ...letters), el("text", {
      class: "net", x: Math.min(places[0] - 4, geometry.width - 41), y: y + (branch.through.length > 1 ? 0.64 * pitch : 17.5) })];
    branch.parts.forEach((part) => onPoint(part, branch));
  }
  $("tree").setAttribute("viewBox", `0 0 ${geometry.width} ${pitch * tree.order.length}`);
  $("tree").replaceChildren(...[0, 1, 2].flatMap((k) => tree.branches.map(({ parts }) => parts[k]))); // no branch covers a text
  fill($("branches"), ...tree.branches.map((branch, k) => el("li", {
    tabIndex: k ? -1 : 0, onfocus: () => point(branch), onblur: () => point(null), data: { key: `branch${k}` } })));
}

function onPoint(element, branch) { // a mouse that leaves ends it; a finger that lifts does not
  element.onpointerenter = ({ pointerType }) => { if (pointerType === "mouse") point(branch); };
  element.onpointerleave = ({ pointerType }) => { if (pointerType === "mouse") point(null); };
  element.onclick = ({ target }) => { if (!target.closest("button")) point(branch); };
  return element;
}

function point(branch) {
  shown = branch;
  drawTree();
  drawLegend();
  for (const row of $("rows").children) row.classList.toggle("shown", Boolean(shown?.through.includes(Number(row.dataset.row))));
}

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
    const on = shown?.through.every((i) => through.includes(i)); // on the way to what is shown
    const large = Math.abs(net) >= 0.5 || through.includes(near()) || through.includes(right());
    ["fill", "stroke"].forEach((name) => path.setAttribute(name, colour(net)));
    label.setAttribute("class", `net ${wayOf(net)}`);
    label.textContent = siblings.length > 1 && (large || on) ? number(net) : "";
    branch.parts.forEach((part) => { part.classList.toggle("dim", shown && !on); });
    path.classList.toggle("shown", branch === shown);
    nodes.forEach((node, t) => letters.children[t].classList.toggle("hollow", Boolean(state.clip) && hasLeft(node, now.p, steps()[0].p)));
    if (!playing) $("branches").children[k].textContent = sums(branch); // one reads the list when the slider rests
  });
}

const sums = (branch) => { // what the number on a branch is
  const { nodes: [{ prefix }], through } = branch;
  const { own, fork, chance, net } = pushOn(branch, steps()[state.n]);
  const [p0, p] = [0, state.n].map((n) => percent(probability(steps()[n].p, prefix)));
  return `Response${through.length > 1 ? "s" : ""} ${through.map((i) => i + 1).join(", ")} (“${prefix}”): The pushes through this branch add up to ${
    number(own)}. Its share at the fork, ${fixed(100 * chance, 0)}\u2009%, of the fork\u2019s sum ${number(fork)} is taken off: ${
    number(net)}. ${state.n ? `${p0}\u2009% \u2192 ` : ""}${p}\u2009% of all responses begin so.`;
};

function drawLegend() {
  html($("legend"), shown ? sums(shown) : state.clip ? "Hollow letters: the ratio of this token, its probability now divided by that at the start, has left " +
    `${CLIP.join(" to ")}. No push takes it further.` : '<b class="up">Blue</b> branches gain against the others at their fork, <b class="down">orange</b> ones ' +
    "lose; a number is this <b>net push</b>. Point at a branch or tap it for its sums. Each curve has its own scale. Dotted tokens differ from the solution, and $ is the end.");
}

function drawRows() {
  for (const row of $("rows").children) {
    const i = Number(row.dataset.row);
    const [, , button, A, value] = row.children;
    button.textContent = state.rewards[i];
    button.ariaPressed = state.rewards[i] === "1";
    button.ariaLabel = `Response ${i + 1}, ${data.lab.tokens[i]}, is ${i === right() ? "correct" : "incorrect"}: reward ${state.rewards[i]}`;
    html(A, range(steps()[state.n].A[i]).map((A) => `<span class="${wayOf(A)}">${number(A)}</span>`).join(""));
    const line = lineOf(state.rule, state.rewards, i);
    const way = trend(line[state.n] / line[0]);
    value.textContent = `${percent(line[state.n])}\u2009% ${ARROWS[way]}`;
    value.className = `now ${way}`;
  }
}

function drawWhy() { // the near failure: what it shares with the correct response, times its own; when it falls, also since its peak
  const parts = factors(state.rule, state.rewards, state.clip);
  const top = most(parts[2]);
  const line = (label, from, shared, own) => {
    const now = parts.map((part) => part[state.n] / part[from]);
    const chip = (k, note) => `<span class="chip ${trend(now[k])}">${note} <b>${times(now[k])}</b></span>`;
    return `<b>${label}:</b> ${chip(0, shared)} ${chip(1, own)} <span><i>=</i> ${
      chip(2, { up: "likelier", down: "less likely", "": "unchanged" }[trend(now[2])])}</span>`;
  };
  html($("why"), `<p>${line(`Response ${near() + 1}`, 0, `<code>${common()}</code> shared with ${right() + 1}`,
    `<code>${data.lab.tokens[near()].slice(common().length)}</code> its own`)}</p><p class="since">${
    top && state.n > top ? line(`Since update ${top}`, top, "shared", "its own") : ""}</p>`, true);
  document.body.classList.toggle("asking", state.asked[0] === "-" && !state.n); // no colour answers the first question
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
  html($("worked"), "<b>Advantage</b> A\u00a0= (reward \u2212 mean) / standard deviation. " + (!sigma ?
    `All rewards are ${mu}, so every advantage is (${mu} \u2212 ${mu}) / (0 + 0.000001) = 0, and updates change nothing.` :
    `${rule === "ngrpo" ? "ngrpo adds a reward of 1. Now " : ""}${n} of ${G} rewards ${n === 1 ? "is" : "are"} 1: ` +
    [1, 0].filter((r) => own.includes(r)).map(division).join(`. ${G - n === 1 ? "The other one" : "The others"}: `) + "." +
    (["nthr", "forking"].includes(rule) ? ` ${rule} varies A by token: two values under A are its smallest and largest.` : "")), true);
}
