// ---- A curve in each row. All curves are drawn once for a course; while it plays only the dots move, and the clip that ends them.
let heights = []; // of the curves: [row][n], from 0 to 1
function drawCurves() {
  heights = tree.order.map((i) => {
    const p = lineOf(state.rule, state.rewards, i);
    const least = Math.min(...p, 0.98 * p[0]);
    return p.map((x) => 1 - (x - least) / (Math.max(...p, 1.02 * p[0]) - least));
  });
  [...$("rows").children].forEach((row, k) => {
    row.lastChild.className = `curve ${wayOf(sum(steps()[0].A[Number(row.dataset.row)]))}`;
    row.lastChild.firstChild.replaceChildren(el("path", { class: "base", d: `M0 ${heights[k][0]}H${LAST}` }),
      el("polyline", { points: heights[k].map((y, n) => `${n},${y}`).join(" ") }));
  });
}

// ---- The rules: their buttons, and two charts with a line for each
let scales = {}; // of the charts: x(n), y(p), and the lines that have a dot

function drawRules() {
  const { rule } = state;
  const { gain, paper } = data.rules[rule];
  const names = Object.keys(data.rules); // the best one first
  const gains = (name) => data.rules[name].gain >= 0.5;
  const groups = [["", ["grpo"]], ["gains in training", names.filter(gains)], ["does not", names.filter((name) => name !== "grpo" && !gains(name))]];
  const line = (name, { gain: points, idea }) => el("div", {}, choice(name, name === rule, { rule: name },
    ...(points ? [el("small", {}, ` ${number(points, 1)}${name === names[0] ? " points" : ""}`)] : [])), ` ${idea}`);
  fill($("names"), ...groups.map(([label, members]) => el("div", { role: "group", ariaLabel: label || "grpo" },
    label && el("span", { className: "title" }, label), ...members.map((name) => line(name, data.rules[name])))));
  const where = (x, little) => (Math.abs(x) < little ? "about equal to" : x > 0 ? "above" : "below");
  const [toy, trained] = [where(lineOf(rule, opening()).at(-1) - lineOf("grpo", opening()).at(-1), 0), where(gain, 0.5)];
  const says = rule === "grpo" ? "" : `: on this tree response ${right() + 1} ends ${toy} grpo${gain === null ? "" : `, ${toy === trained ? "and" : "<b>but</b>"} in training the rule is ${
    trained} grpo${toy === trained ? " as well" : ""}`}.`;
  html($("about-rule"), `<b>${rule}</b> (<a href="https://arxiv.org/abs/${paper}">paper</a>, <a href="../advantages.py">code</a>)${says}`, true);
  $("clip").checked = Boolean(state.clip);
}

function drawLines() { // those that are not computed yet come after this frame
  const [ready, missing] = [true, false].map((is) => Object.keys(data.rules).filter((name) =>
    made.has(keyOf(name, state.rewards, state.clip)) === is));
  if (missing.length) drawLines.waits ??= setTimeout(() => requestAnimationFrame(() => {
    drawLines.waits = null;
    course(missing[0], state.rewards);
    drawLines();
    moveLines();
  }));
  drawChart("seven", right(), ready);
  drawChart("five", near(), ready);
}

function drawChart(id, i, names) {
  const [width, height] = [widthOf(id), 200];
  const [left, edge, floor] = [46, width - 84, height - 36];
  const lines = names.map((name) => lineOf(name, state.rewards, i));
  const most = Math.max(...lines.flat());
  const top = i === right() ? 1 : [1, 2, 3, 5, 10, 20, 30, 50, 100].find((x) => most <= x / 100) / 100; // only the rewards change it
  const x = (n) => left + (edge - left) * n / LAST;
  const y = (p) => floor - (floor - 8) * p / top;
  const styleOf = (name) => (name === "grpo" ? "grpo" : name === state.rule ? "chosen" : "other");
  const parts = [0, 0.5, 1].map((p) => `<path class="grid" d="M${left} ${y(top * p)}H${edge}"/>
    <text x="${left - 5}" y="${y(top * p) + 4.5}" text-anchor="end">${100 * top * p}\u2009%</text>`);
  parts.push(...[0, 10, 20, 30, 40].map((n) => `<text x="${x(n)}" y="${floor + 17}" text-anchor="middle">${n}</text>`),
    `<text x="${x(LAST / 2)}" y="${floor + 34}" text-anchor="middle">updates</text>`);
  const named = spread(lines.map((line) => y(line.at(-1))), 15, floor + 6);
  for (const style of ["other", "grpo", "chosen"]) names.forEach((name, k) => { // the chosen one above the others
    if (styleOf(name) === style) parts.push(`<g data-line="${name}" class="${style}"><polyline points="${lines[k].map((p, n) => `${x(n)},${y(p)}`).join(" ")}"/>
      <path class="leader" d="M${edge + 2} ${y(lines[k].at(-1))}L${edge + 18} ${named[k]}"/><text x="${edge + 21}" y="${named[k] + 4.5}">${name}</text></g>`);
  });
  const dots = [...new Set(["grpo", state.rule])].filter((name) => names.includes(name));
  parts.push(`<path class="cursor" d="M0 ${y(top)}V${floor}"/>`, ...dots.map((name) => `<circle data-line="${name}" class="${styleOf(name)}" r="4"/>`));
  $(id).setAttribute("viewBox", `0 0 ${width} ${height}`);
  $(id).innerHTML = parts.join("");
  scales[id] = { x, y, dots: dots.map((name) => lines[names.indexOf(name)]) };
  $(id).ariaLabel = `Probability of response ${i + 1} after 40 updates: ` + names.map((name, k) => `${name} ${percent(lines[k].at(-1))} %`).join(", ");
}

function moveLines() { // what moves on curves and lines: the ends, the dots, the cursors
  $("rows").style.setProperty("--at", at / LAST);
  $("rows").style.setProperty("--far", far / LAST);
  [...$("rows").children].forEach((row, k) => row.lastChild.lastChild.style.setProperty("--height", between((n) => heights[k][n])));
  for (const [id, { x, y, dots }] of Object.entries(scales)) {
    $(id).querySelector(".cursor").setAttribute("transform", `translate(${x(at)})`);
    $(id).querySelectorAll("circle").forEach((dot, k) => {
      dot.setAttribute("cx", x(at));
      dot.setAttribute("cy", y(between((n) => dots[k][n])));
    });
  }
}

// ---- The recorded runs: lines and film are in one grid, so that a column has one place
const columns = () => // on a narrow screen every second one
  data.runs[state.task].grpo.map((_, k) => k).filter((k) => matchMedia("(min-width: 30em)").matches || k % 2 === 0);
const solved = ({ rewards }) => [...rewards].filter((r) => r === "1").length;
const ordered = ({ rewards }) => [...rewards].map((_, i) => i).sort((i, j) => rewards[i] - rewards[j] || i - j);

function drawRun() {
  const { problem, ...runs } = data.runs[state.task];
  const places = columns();
  const [shownRun, asked] = state.frame.split("-");
  const place = places.findLast((k) => k <= Number(asked));
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
  }), el("span")]);
  $("film").style.setProperty("--columns", places.length);
  fill($("film"), ...accuracy(runs, places, place), ...film, el("span", {}, "step"),
    ...places.map((k) => el("span", { className: "tick" }, k % 4 ? "" : runs.grpo[k].step)));
  const frame = runs[shownRun][place];
  const n = solved(frame);
  html($("frame-says"), `<b>${shownRun}</b>, training step ${frame.step}: ${n} of ${frame.rewards.length} correct.${
    n % frame.rewards.length ? "" : " Every advantage is 0."}`, true);
  fill($("texts"), ...ordered(frame).map((i) => el("div", { className: "text" },
    frame.rewards[i] === "1" ? "\u2713 " : "\u2717 ", ...marks(frame.tokens[i], `${problem[1]}$`))));
}

function accuracy(runs, places, chosen) { // the axis, the lines (one hundred units a column), their names at their ends
  const x = (k) => 100 * (k / (places[1] ?? 1) + 0.5);
  const lines = [["grpo", "mixed", runs.grpo.map(({ equal }) => equal && 1 - sum(equal)), "mixed"],
    ...["half", "grpo"].map((run) => [run, "", runs[run].map(({ sampled }) => sampled), run])];
  const drawn = lines.map(([run, kind, shares]) => el("polyline", { class: `${run} ${kind}`,
    points: shares.flatMap((share, k) => (share === null ? [] : `${x(k)},${100 - 100 * share}`)).join(" ") }));
  const at = (top, text, name = "") => el("span", { className: name, style: `top: ${top}%` }, text);
  const named = spread(lines.map(([, , shares]) => 100 - 100 * shares.at(-1)), 13, 100);
  const ends = lines.map(([run, kind, shares, name], k) => at(named[k], `${name} ${fixed(100 * shares.at(-1), kind ? 0 : 1)}\u2009%`, `${run} ${kind}`));
  return [el("span", { className: "axis" }, ...[100, 50, 0].map((share) => at(100 - share, `${share}\u2009%`))),
    el("svg", { id: "accuracy", viewBox: `0 0 ${100 * places.length} 100`, preserveAspectRatio: "none", role: "img",
      "aria-label": `At the end: ${ends.map((end) => end.textContent).join(", ")}` },
    ...[100, 50, 0].map((y) => el("path", { d: `M0 ${y}H${100 * places.length}` })), el("path", { class: "cursor", d: `M${x(chosen)} 0V100` }), ...drawn),
    el("span", { className: "ends" }, ...ends)];
}
