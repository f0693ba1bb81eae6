// ---- The moving tree of the README: three beats, each with its sentence, and a still one for readers who prefer no motion.
const TIMES = [[0, 0], [4, 0], [4.8, 3], [5.6, 6], [6.4, 9], [7.5, 13], [11.5, 13], [12, 17], [12.6, 21], [13.2, 26], [14, 33], [15, 40], [20, 40]];
const BEATS = [[0, 4], [4, 11.5], [11.5, 20]]; // from when to when a sentence is shown, in seconds

function picture(wide, dark) {
  const [light, night] = [0, 1].map((k) => document.styleSheets[0].cssRules[k]).map((rule) => (rule.cssRules?.[0] ?? rule).style);
  const paint = (name) => ((dark && night.getPropertyValue(name)) || light.getPropertyValue(name)).trim();
  palette = Object.fromEntries(["zero", "up", "down"].map((name) => [name, paint(`--${name}`).match(/[0-9a-f]{2}/g).map((x) => parseInt(x, 16))]));
  const now = course("grpo", opening(), 0);
  const [five, seven, parts] = [near(), right(), factors("grpo", opening(), 0)];
  const [width, top, left, begin, end] = wide ? [830, 84, 500, 560, 730] : [400, 112, 240, 286, 346]; // of the picture, the tree, the rows, their curves
  const height = top + 35 * tree.order.length + 8;
  const own = layout(left - 16, 35);
  const place = { ...own, X: (t) => own.X(t) + 8, y: (row) => top + own.y(row) };
  const round = (text) => String(text).replace(/-?\d+\.\d+/g, (x) => Number(x).toFixed(1).replace(/\.0$/, ""));
  const timing = `dur="20s" repeatCount="indefinite" keyTimes="`;
  const moving = (name, of, still) => (still ? "" : `<animate attributeName="${name}" ${timing}${TIMES.map(([time]) => time / 20).join(";")}" values="${
    TIMES.map(([, n]) => round(of(n))).join(";")}"/>`);
  const during = ([from, to], content) => `<g opacity="0">${content}<animate attributeName="opacity" calcMode="discrete" ${timing}${
    [0, from, to].filter((time, k) => (k === 0 || time) && time < 20).map((time) => time / 20).join(";")}" values="${from ? "0;1" : "1"}${to < 20 ? ";0" : ""}"/></g>`;
  const halo = `stroke="${paint("--page")}" stroke-width="4" paint-order="stroke" stroke-linejoin="round"`;
  const text = (x, y, content, way = "", more = "") => `<text x="${round(x)}" y="${round(y)}" fill="${paint(way ? `--${way}-text` : "--text")}" ${more}>${content}</text>`;
  const say = (lines) => (wide ? [lines[0], lines.slice(1).join(" ")] : lines).map((line, k) =>
    text(8, (wide ? 26 : 22) + (k ? 4 : 0) + 22 * k, line, "", k ? `font-size="${wide ? 17 : 15}"` : `font-size="${wide ? 20 : 17}" font-weight="700"`)).join("");
  const sentences = [
    [`A model answers ${data.lab.problem[0].replaceAll(" ", "")} eight times`, `Only response ${seven + 1} is correct. GRPO pushes all its`, "tokens up and all tokens of the others down."],
    [`Response ${five + 1} is pushed down, but it rises`, `It shares its first tokens with response ${seven + 1}. They`, "gain more than its own tokens lose."],
    [`Then response ${five + 1} falls`, "Its own tokens now lose more than the shared", "ones gain. GRPO has found the wrong token."],
  ];
  const fork = tree.branches.find(({ nodes }) => nodes.at(-1).prefix === common()); // where the two responses part
  const leaf = tree.branches.find(({ through }) => through.length === 1 && through[0] === five);
  const bold = `font-size="${wide ? 15 : 14}" font-weight="700"`;
  const product = (n) => text(place.X(fork.nodes[0].t), place.y(fork.row) + 38, `shared: ${times(parts[0][n])}`, "up", `${bold} ${halo}`) +
    text(left - 8, place.y(leaf.row) - 8, `own: ${times(parts[1][n])}`, "down", `text-anchor="end" ${bold} ${halo}`) +
    text(width - 6, place.y(leaf.row) + 5, times(parts[2][n]), trend(parts[2][n]), `text-anchor="end" ${bold}`);
  const x = (n) => begin + (end - begin) * n / LAST;
  const scene = (still, n = peak()) => tree.branches.map((branch) => {
    const [d, fill] = [(n) => shape(branch, ({ prefix }) => Math.max(1.5, place.full * probability(now[n].p, prefix)), place), (n) => colour(pushOn(branch, now[n]).net)];
    return `<path d="${round(d(n))}" fill="${fill(n)}">${moving("d", d, still)}${moving("fill", fill, still)}</path>`;
  }).join("") + tree.branches.map(({ nodes, row }) => text(nodes.map(({ t }) => place.X(t + 1) - place.col / 2).join(" "), place.y(row) + 4.5,
    nodes.map(({ prefix }) => prefix.at(-1).replace(" ", "\u00a0")).join(""), "", `class="m" ${halo}`)).join("") + tree.order.map((i, row) => {
    const line = lineOf("grpo", opening(), i);
    const y = (n) => place.y(row) + 10 - 20 * (line[n] - Math.min(...line)) / (Math.max(...line) - Math.min(...line));
    const curve = round(line.map((_, n) => `${x(n)},${y(n)}`).join(" "));
    const [color, broad] = [paint(i === seven ? "--up" : "--down"), i === five || i === seven];
    return (broad ? `<rect x="${left - 4}" y="${place.y(row) - 16}" width="${width - left + 2}" height="32" rx="5" fill="${color}" opacity="0.15"/>` : "") +
      text(left + 2, place.y(row) + 5, `${i + 1}\u2009${i === seven ? "\u2713" : "\u2717"}`, "", 'font-size="14" font-weight="700"') +
      `${['opacity="0.3"', still ? "" : 'clip-path="url(#far)"'].map((way) => `<polyline points="${curve}" fill="none" stroke="${color}" stroke-width="${broad ? 3 : 1.5}" ${way}/>`).join("")}
      <circle cx="${round(x(n))}" cy="${round(y(n))}" r="${broad ? 5 : 3}" fill="${color}">${moving("cx", x, still)}${moving("cy", y, still)}</circle>`;
  }).join("") + (still ? say(sentences[1]) + product(n) : BEATS.map((beat, k) => during(beat, say(sentences[k]))).join("") +
    during([7.5, 11.5], product(n)) + during([15, 20], product(LAST)));
  const made = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="${sentences.flat().join(" ")}">
<style>text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif } .m { font: 13px ui-monospace, Menlo, "DejaVu Sans Mono", monospace; text-anchor: middle }
.still { display: none } @media (prefers-reduced-motion: reduce) { .still { display: inline } .moves { display: none } }</style>
<rect width="${width}" height="${height}" rx="6" fill="${paint("--page")}"/>
${text(8, top - 6, `${wide ? "Width: probability. Colour: the sum of all pushes, up (blue) or down (orange)." : "Sum of all pushes: blue up, orange down"}`, "", 'font-size="12"')}
${text(begin, top - 6, wide ? "Probability, 0 to 40 updates, own scales" : "0 to 40 updates", "", 'font-size="12"')}
<g class="moves"><clipPath id="far"><rect x="${begin}" width="0" height="${height}">${moving("width", (n) => x(n) - begin, false)}</rect></clipPath>${scene(false)}</g>
<g class="still">${scene(true)}</g></svg>\n`;
  palette = null;
  return made;
}

const pictures = () => Object.fromEntries([["light", true, false], ["dark", true, true], ["phone", false, false], ["phone-dark", false, true]]
  .map(([name, ...how]) => [`tree-${name}.svg`, picture(...how)]));
addEventListener("load", () => { document.body.textContent = JSON.stringify(pictures()); }); // explore.py reads it
