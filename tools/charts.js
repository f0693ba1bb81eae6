// ---- The rules: their buttons, and one line for each
let pointed = null; // the rule whose line somebody points at

function drawRules() {
  const { rule } = state;
  fill($("names"), ...Object.entries(data.rules).map(([name, { gain }]) => {
    const button = choice(name, name === rule, { rule: name }, ...beside(gain));
    button.onpointerenter = button.onfocus = () => pointAt(name);
    button.onpointerleave = button.onblur = () => pointAt(null);
    return button;
  }));
  const { gain, idea } = data.rules[rule];
  const where = (x, little) => (Math.abs(x) < little ? "about equal to" : x > 0 ? "above" : "below");
  const [toy, trained] = [where(lineOf(rule, opening()).at(-1) - lineOf("grpo", opening()).at(-1), 0), where(gain, 0.5)];
  const says = { grpo: "", negative: " It differs from grpo only if all responses fail, so all rewards are now 0." }[rule] ??
    ` On this tree it ends ${toy} grpo${gain === null ? "" : `, ${toy === trained ? "and" : "<b>but</b>"} in training it is ${trained} grpo${
      toy === trained ? " as well" : ""}`}.`;
  html("about-rule", `<b>${rule}</b>: ${idea}${says} (${sourceOf(data.rules[rule])})`);
}

function drawLines() { // both scales are fixed
  const [width, height] = [widthOf("lines"), matchMedia("(min-width: 46em)").matches ? geometry.pitch * tree.order.length : 230];
  const [left, floor] = [42, height - 38];
  const x = (n) => left + (width - left - 8) * n / LAST;
  const y = (p) => floor - (floor - 8) * p;
  const parts = [0, 0.25, 0.5, 0.75, 1].map((p) => `<path d="M${left} ${y(p)}H${x(LAST)}" stroke="var(--line)"/>
    <text x="${left - 5}" y="${y(p) + 4.5}" text-anchor="end">${100 * p}\u2009%</text>`);
  parts.push(...[0, 10, 20, 30, 40].map((n) => `<text x="${x(n)}" y="${floor + 17}" text-anchor="middle">${n}</text>`),
    `<text x="${x(LAST / 2)}" y="${floor + 34}" text-anchor="middle">updates</text>`);
  const styleOf = (name) => (name === state.rule && name !== "grpo" ? "chosen" : name === "grpo" ? "grpo" : name === pointed ? "pointed" : "other");
  const order = ["other", "pointed", "grpo", "chosen"];
  const used = Object.keys(data.rules).filter((name) => name !== "negative" || state.rewards === none());
  const lines = used.sort((a, b) => order.indexOf(styleOf(a)) - order.indexOf(styleOf(b)));
  for (const name of lines) {
    const places = lineOf(name, state.rewards).map((p, n) => `${x(n)},${y(p)}`).join(" ");
    parts.push(...["hit", styleOf(name)].map((kind) => `<polyline data-line="${name}" class="${kind}" points="${places}"/>`));
  }
  parts.push(`<path class="cursor" d="M${x(at)} ${y(1)}V${floor}"/>`);
  const named = [...new Set([state.rule, "grpo", pointed])].filter((name) => lines.includes(name));
  for (const name of named) {
    parts.push(`<circle class="${styleOf(name)}" cx="${x(state.n)}" cy="${y(lineOf(name, state.rewards)[state.n])}" r="4"/>`);
  }
  parts.push(...named.map((name, k) => `<text class="name ${styleOf(name)}" x="${left + 8}" y="${y(1) + 18 + 17 * k}">${name} ${
    percent(lineOf(name, state.rewards)[state.n])}\u2009%</text>`));
  draw("lines", width, height, parts);
  $("lines").ariaLabel = `Probability of response ${right() + 1} after ${plural(state.n, "update")}: ` +
    lines.map((name) => `${name} ${percent(lineOf(name, state.rewards)[state.n])} %`).join(", ");
}

const pointAt = (name) => { // at a line or a rule's button
  if (name === pointed) return; // else each movement of the mouse would draw
  pointed = name;
  drawLines();
};

// ---- The clip: the curve of the loss, and below it the tokens, stacked at their ratios
function drawClip() {
  const { loss, since } = state;
  const { low, high, gain } = data.clips[loss];
  const z = clipped(since);
  const [own, read] = ["grpo", loss].map((name) => ratios(name, z)); // where a dot is, and what the loss reads
  const A = ADVANTAGES.grpo(sampled()).map((row) => row[0]);
  fill($("losses"), ...Object.keys(data.clips).map((name) => choice(name, name === loss, { loss: name }, ...beside(data.clips[name].gain))));
  $("since").value = since;
  $("since-now").textContent = since;
  $("how-many").textContent = sum(own.map((row) => row.length));
  const kind = (ratio, sign) => (loss === "cispo" ? (ratio > high ? "cut" : "pushed") : ended(loss, ratio, sign) ? "ended" : "pushed");
  const dots = own.flatMap((row, i) => row.map((ratio, t) =>
    ({ i, t, ratio, sign: Math.sign(A[i]), kind: kind(read[i][t], A[i]) })));
  const of = (sign) => dots.filter((dot) => dot.sign === sign);
  const [up, down] = [1, -1].map((sign) => of(sign).filter((dot) => dot.kind !== "pushed").length);
  html("clip-says", !since ? "Every ratio is 1. Move the slider." : loss === "cispo" ?
    `${up + down} of ${dots.length} ratios are above ${fixed(high)}, where cispo cuts them. No push ends.` :
    `The clip has ended the push of ${up} of the ${of(1).length} tokens with <b class="up">A above 0</b>, ` +
    `${loss === "gspo" ? "whose response has a ratio" : "those with a ratio"} above ${fixed(high)}, and of ${down} of the ${of(-1).length} tokens with ` +
    `<b class="down">A below 0</b>, below ${fixed(low)}.`);
  html("about-loss", `<b>${loss}</b>: ${loss === "grpo" ? "Limit the ratio of each token." : data.clips[loss].idea} ` +
    `${loss === "gspo" ? "Our limits are a hundred times as wide as the paper\u2019s, because responses are short. " : ""}` +
    `${gain ? `In training on add it is ${fixed(Math.abs(gain), 1)} points ${gain > 0 ? "above" : "below"} grpo. ` : ""}(${sourceOf(data.clips[loss])})`);
  drawPanel("above", 1, of(1));
  drawPanel("below", -1, of(-1));
}

const reach = () => remember("reach", () => { // of all ratios that the slider gives: the scale
  const all = Array.from({ length: 11 }, (_, n) => ratios("grpo", clipped(n)).flat()).flat();
  return [Math.floor(10 * Math.min(...all, 0.75)) / 10, Math.ceil(10 * Math.max(...all, 1.25)) / 10];
});

const [DOT, HIGHEST] = [7.5, 16]; // the size of a dot, and how many are stacked at most

function stacked(dots, first, last, bin) { // [dot, column, place]: a full column sends dots to its neighbours
  const columns = Array.from({ length: Math.round((last - first) / bin) }, () => []);
  const side = (ratio) => (ratio < 0.8 - 1e-9 ? 0 : ratio > 1.2 + 1e-9 ? 2 : 1); // no dot crosses a limit
  const far = [...dots].sort((a, b) => Math.abs(b.ratio - 1) - Math.abs(a.ratio - 1));
  for (const dot of far) {
    const own = (dot.ratio - first) / bin;
    const free = columns.map((_, k) => k).filter((k) => columns[k].length < HIGHEST && side(first + (k + 0.5) * bin) === side(dot.ratio));
    const k = free.sort((a, b) => Math.abs(a + 0.5 - own) - Math.abs(b + 0.5 - own))[0];
    columns[k].push(dot);
  }
  return columns.flatMap((column, k) => column.map((dot, place) => [dot, k, place]));
}

function drawPanel(id, sign, dots) {
  const { loss } = state;
  const { low, high } = data.clips[loss];
  const [first, last] = reach();
  const [width, height, axis] = [widthOf(id), 296, 254];
  const x = (ratio) => 12 + (width - 24) * (ratio - first) / (last - first);
  const y = (value) => 76 - 100 * (value - sign) / (last - first);
  const parts = [low, high].filter((limit) => limit >= first && limit <= last && !(loss === "cispo" && limit < 1)).map((limit) =>
    `<path class="limit" d="M${x(limit)} 26V${axis}"/>
    <text x="${x(limit) + (limit < 1 ? -4 : 4)}" y="36" text-anchor="${limit < 1 ? "end" : "start"}">${fixed(limit)}</text>`);
  const grid = Array.from({ length: 201 }, (_, k) => first + k * (last - first) / 200);
  parts.push(`<polyline points="${grid.map((ratio) => `${x(ratio)},${y(objective(loss, ratio, sign))}`).join(" ")}"/>`);
  const bin = 0.1 / Math.max(1, Math.floor((x(1.1) - x(1)) / DOT)); // the limits of grpo are between two columns
  for (const [{ i, t, ratio, kind }, k, place] of stacked(dots, first, last, bin)) {
    parts.push(`<circle class="${kind} ${wayOf(sign)}" cx="${x(first + (k + 0.5) * bin)}" cy="${axis - DOT * (place + 0.6)}" r="3.2">
      <title>token ${t + 1} of response ${i + 1}, ratio ${fixed(ratio)}</title></circle>`);
  }
  parts.push(`<path d="M12 ${axis}H${width - 12}" stroke="var(--muted)"/>`);
  const ticks = Array.from({ length: Math.round(10 * (last - first)) + 1 }, (_, k) => first + k / 10).filter((_, k) => k % 2 === 0);
  parts.push(...ticks.map((ratio) => `<text x="${x(ratio)}" y="${axis + 17}" text-anchor="middle">${ratio.toFixed(1)}</text>`),
    `<text x="2" y="14"><tspan font-weight="700">A ${sign > 0 ? "above" : "below"} 0</tspan>, pushed ${wayOf(sign)}: the objective</text>`,
    `<text x="${width - 2}" y="${axis + 36}" text-anchor="end">${loss === "gspo" ? "curve: ratio of the response; dots: of a token" : "ratio of a token"} \u2192</text>`);
  draw(id, width, height, parts);
  $(id).ariaLabel = `The objective for each ratio if A is ${sign > 0 ? "above" : "below"} 0, and below it the tokens as dots`;
}

// ---- The recorded runs: line and film are in one grid, so that a column has one place
const columns = () => // on a narrow screen every second one
  data.runs[state.task].grpo.map((_, k) => k).filter((k) => innerWidth > 480 || k % 2 === 0);
const frameOf = () => { // the column that is shown: its run, its place
  const [run, k] = state.frame.split("-");
  return [run, columns().findLast((place) => place <= Number(k))];
};
const solved = ({ rewards }) => [...rewards].filter((r) => r === "1").length;
const ordered = ({ rewards }) => [...rewards].map((_, i) => i).sort((i, j) => rewards[i] - rewards[j] || i - j);

function drawRun() {
  const { problem, ...runs } = data.runs[state.task];
  const [shownRun, place] = frameOf();
  const places = columns();
  fill($("tasks"), ...Object.keys(data.runs).map((task) => choice(task, task === state.task, { task })));
  $("asked-for").textContent = problem[0].replaceAll(" ", "");
  const film = Object.entries(runs).flatMap(([run, frames]) => [el("span", { className: run }, run), ...places.map((k) => {
    const n = solved(frames[k]);
    const { rewards, step } = frames[k];
    const cells = ordered(frames[k]).map((i) => el("i", { className: rewards[i] === "1" ? "correct" : "" }));
    const chosen = run === shownRun && k === place;
    return el("button", {
      className: n % rewards.length ? "mixed" : "equal", ariaPressed: chosen, tabIndex: chosen ? 0 : -1,
      data: { frame: `${run}-${k}`, key: `${run}-${k}` }, ariaLabel: `${run}, step ${step}: ${n} of ${rewards.length} correct`,
    }, ...cells);
  })]);
  const ticks = places.map((k) => el("span", { className: "tick" }, k % 4 ? "" : runs.grpo[k].step));
  const axis = el("span", { className: "axis" }, ...["100 %", "50 %", "0 %"].map((text) => el("span", {}, text)));
  $("film").style.setProperty("--columns", places.length);
  fill($("film"), axis, accuracy(runs, places, place), ...film, el("span", {}, "step"), ...ticks);
  const frame = runs[shownRun][place];
  const n = solved(frame);
  const G = frame.rewards.length;
  const A = standardise([...frame.rewards].map(Number));
  html("frame-says", `<b>${shownRun}</b>, training step ${frame.step}: ${n} of ${G} correct. ` + (n % G === 0 ? "Every advantage is 0." :
    `Correct ones get ${signed(Math.max(...A))}, the others ${signed(Math.min(...A) / (shownRun === "half" ? 2 : 1))}.`));
  fill($("texts"), ...ordered(frame).map((i) => el("div", { className: "text" },
    frame.rewards[i] === "1" ? "\u2713 " : "\u2717 ", ...marks(frame.tokens[i], `${problem[1]}$`))));
}

function accuracy(runs, places, chosen) { // one hundred units a column
  const x = (k) => 100 * (k / (places[1] ?? 1) + 0.5);
  const y = (share) => 100 * (1 - share);
  const line = (run, kind, share) => svg("polyline", { class: `${run} ${kind}`, points: runs[run].flatMap((frame, k) =>
    (share(frame) === null ? [] : `${x(k)},${y(share(frame))}`)).join(" ") });
  const grid = [0, 0.5, 1].map((share) => svg("path", { d: `M0 ${y(share)}H${100 * places.length}` }));
  const total = (of) => sum(runs.half.map(of)) - sum(runs.grpo.map(of));
  const [grpo, half] = ["grpo", "half"].map((run) => fixed(100 * runs[run].at(-1).sampled, 1));
  const says = `Accuracy on new problems: grpo (thin) ends at ${grpo} %, half (green) at ${half} %. Dotted: the share of grpo\u2019s ` +
    "training groups with unequal rewards. Only these teach." + (total(solved) * total(({ sampled }) => sampled) < 0 && Math.abs(total(solved)) > 0.1 * sum(runs.grpo.map(solved)) ?
      " On this one problem grpo has more correct responses than half; on all new problems half is more accurate." : "");
  html("accuracy-says", says);
  return svg("svg", { id: "accuracy", viewBox: `0 0 ${100 * places.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": says },
    ...grid, svg("path", { class: "cursor", d: `M${x(chosen)} 0V100` }), line("grpo", "mixed", ({ equal }) => equal && 1 - sum(equal)),
    line("half", "", ({ sampled }) => sampled), line("grpo", "", ({ sampled }) => sampled));
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
