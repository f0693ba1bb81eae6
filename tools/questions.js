// ---- The questions: a prediction first, then the page shows the answer
const taskOf = (k) => Object.keys(data.runs)[k];
const shareOf = (task, column, kind) => `${fixed(100 * data.runs[taskOf(task)].grpo.at(column).equal[kind], 0)}\u00a0%`;
const chances = (name, text) => course(name, opening()).map(({ p }) => probability(p, text));
const most = (numbers) => numbers.indexOf(Math.max(...numbers));
const near = () => most(data.lab.tokens.map((text, i) => // the failure that shares most tokens with the correct response
  (i === right() ? -1 : [...text].filter((c, t) => c === data.lab.tokens[right()][t]).length)));
const common = () => { // what it and the correct response begin with
  const [one, other] = [near(), right()].map((i) => data.lab.tokens[i]);
  return one.slice(0, [...one].findIndex((c, t) => c !== other[t]));
};
const ofNear = () => chances("grpo", data.lab.tokens[near()]);
const peak = () => most(ofNear());
const likeliest = () => most(data.lab.tokens.map((text, i) => (i === right() ? 0 : chances("grpo", text)[0]))); // of the failures
const asOpened = () => state.rule === "grpo" && state.rewards === opening();
const QUESTIONS = [
  { card: "lab",
    ask: () => `Response ${near() + 1} is wrong, so it is pushed down. What do ten updates do to it?`,
    choices: ["less likely", "no change", "likelier"], right: 2,
    show: () => ({ rewards: opening(), rule: "grpo", n: 0 }), then: () => play(10),
    answer: () => `${percent(ofNear()[0])}\u00a0% became ${percent(ofNear()[10])}\u00a0%. It begins like response ${right() + 1}, which is pushed up harder. ` +
      "GRPO does not know which token was wrong, so all get one advantage." },
  { card: "lab",
    ask: () => `Response ${near() + 1} is likeliest after ${peak()} updates. Then it falls, and at the end it is below its start. Why?`,
    choices: ["Shared tokens fall", "Its own tokens fall", "The clip ends its rise"], right: 1,
    show: () => ({ rewards: opening(), rule: "grpo", n: LAST }),
    answer: () => {
      const [shared, own] = [common(), data.lab.tokens[near()]].map((text) => chances("grpo", text));
      const of = (n) => [shared[n], own[n] / shared[n]].map((p) => fixed(100 * p, 0));
      const [[s0, f0], [s1, f1], [s2]] = [0, peak(), LAST].map(of);
      return `First ${s0}\u00a0%, then ${s1}\u00a0% and ${s2}\u00a0% of all responses begin with the shared tokens. As response ${near() + 1} ` +
        `go on ${f0}\u00a0%, ${f1}\u00a0% and ${fixed(100 * own[LAST] / shared[LAST], 1)}\u00a0% of these.`;
    } },
  { card: "rules", known: () => state.rule === "pos_only" && state.n > 0,
    ask: () => `pos_only pushes nothing down. What do twenty updates do to response ${likeliest() + 1}, which is wrong?`,
    choices: ["less likely", "no change", "likelier"], right: 0,
    show: () => ({ rewards: opening(), rule: "pos_only", n: 20 }),
    answer: () => {
      const p = chances("pos_only", data.lab.tokens[likeliest()]);
      return `${percent(p[0])}\u00a0% became ${percent(p[20])}\u00a0%. At a fork all ways add up to 100 %, so what one way gains, the others lose.`;
    } },
  { card: "clip", known: () => state.loss === "gspo",
    ask: () => `gspo gives a response one ratio. After 3 updates, how many of response ${right() + 1}\u2019s ${data.lab.tokens[right()].length} tokens does it still push?`,
    choices: ["all", "all but two", "none"], right: 2, show: () => ({ loss: "gspo", since: 3 }),
    answer: () => `None. The ratio of the response, the geometric mean of its tokens\u2019, is ${fixed(ratios("gspo", clipped(3))[right()][0])}, and above ${
      fixed(data.clips.gspo.high)} the push of all ends at once.` },
  { card: "run", known: () => state.task !== taskOf(0) || !taskOf(1),
    ask: () => `On ${taskOf(1)}, how many of grpo\u2019s first training groups fail altogether and teach nothing?`,
    choices: ["a tenth", "a third", "more than half"], right: 2, show: () => ({ task: taskOf(1) }),
    answer: () => `${shareOf(1, 1, 0)} in the first 25 steps; on ${taskOf(0)} ${shareOf(0, 1, 0)}. Groups whose responses are all correct teach nothing either. ` +
      `At the end of ${taskOf(0)} they are ${shareOf(0, -1, 1)} of all groups.` },
];

let orders; // of the choices: new with each visit
const shuffled = (numbers) => numbers.map((k) => [Math.random(), k]).sort((a, b) => a[0] - b[0]).map(([, k]) => k);
const marked = (n, character) => state.asked.slice(0, n) + character + state.asked.slice(n + 1);

function predict(n, k) {
  change({ ...QUESTIONS[n].show(), asked: marked(n, String(k)) });
  QUESTIONS[n].then?.();
  drawCards();
}

function drawCards() {
  for (const card of document.querySelectorAll(".card")) {
    const n = QUESTIONS.findIndex((question, k) => question.card === card.dataset.card && state.asked[k] !== "s");
    const question = QUESTIONS[n];
    const predicted = !question || state.asked[n] === "-" ? null : Number(state.asked[n]);
    const other = card.dataset.card === "lab" && !asOpened(); // its questions are about what the page began with
    const off = other && n === 0 && predicted === null;
    card.classList.toggle("closed", n < 0 || (other && !off)); // what is hidden keeps its room
    if (n < 0) { fill(card); continue; }
    const waits = predicted !== null && question.then && state.n < 10 && playing; // one watches first
    const sign = (k) => (predicted === null || waits ? "" : k === question.right ? "\u2713 " : k === predicted ? "\u2717 " : "");
    const offered = predicted === null || waits ? orders[n] : orders[n].filter((k) => sign(k));
    const choices = offered.map((k) => el("button", {
      ariaPressed: predicted === k, className: sign(k).startsWith("\u2713") ? "right" : "",
      data: { key: `choice${k}`, choice: k }, onclick: () => predict(n, k),
    }, sign(k) + question.choices[k]));
    const after = predicted === null && question.then ? marked(n, "s").replace("s-", "ss") : marked(n, "s"); // without its follow-up
    const next = el("button", { className: "next", data: { key: "next" }, onclick: () => change({ asked: after }) },
      predicted === null ? "skip" : "close");
    const text = predicted === null ? [el("b", {}, "Predict: "), question.ask(), off ? " (This question is about grpo and the first rewards: choose them to answer it.)" : ""] :
      waits ? [`Watch response ${near() + 1}.`] :
      [el("span", { className: "verdict" }, el("b", {}, predicted === question.right ? "Right. " : "Not quite. "), question.answer())];
    fill(card, el("p", {}, ...text), el("div", { className: "options", role: "group", ariaLabel: "Your prediction" }, ...(off ? [] : [...choices, next])));
  }
}
