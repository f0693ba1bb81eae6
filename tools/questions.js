// ---- The questions: a prediction first, then the page shows the answer
const chances = (name, i) => lineOf(name, opening(), i, 0);
const peak = () => most(chances("grpo", near()));
const likeliest = () => most(data.lab.tokens.map((_, i) => (i === right() ? 0 : chances("grpo", i)[0]))); // of the failures
const asOpened = () => state.rule === "grpo" && state.rewards === opening() && !state.clip;
const became = (name, i, n) => `${percent(chances(name, i)[0])}\u00a0% became ${percent(chances(name, i)[n])}\u00a0%.`;
const plain = () => ({ rewards: opening(), rule: "grpo", clip: 0 });
const QUESTIONS = [
  { card: "lab", known: () => asOpened() && state.n > 0,
    ask: () => `Response ${near() + 1} is wrong, so it is pushed down. What do ${peak()} updates do to it?`,
    choices: ["less likely", "no change", "likelier"], right: 2,
    show: () => ({ ...plain(), n: 0 }), then: () => { rested = false; far = 0; if (still()) change({ n: peak() }); else play(); },
    answer: () => `${became("grpo", near(), peak())} It begins like response ${right() + 1}, which is pushed up harder.` },
  { card: "lab",
    ask: () => `After update ${peak()} response ${near() + 1} fell. Why?`,
    choices: ["the shared tokens fell", "the shared ones rose more slowly than its own fell", "its advantage fell"], right: 1,
    show: () => ({ ...plain(), n: LAST }),
    answer: () => {
      const [shared, own, all] = factors("grpo", opening(), 0).map((part) => times(part[LAST] / part[peak()]));
      return `The shared tokens rose ever more slowly (${shared}), while its own kept falling (${own}): together ${all}. Now give response ${near() + 1} the reward.`;
    } },
  { card: "rules", known: () => state.rule === "pos_only" && state.n > 0,
    ask: () => `pos_only pushes nothing down. What do twenty updates do to response ${likeliest() + 1}, which is wrong?`,
    choices: ["less likely", "no change", "likelier"], right: 0,
    show: () => ({ ...plain(), rule: "pos_only", n: 20 }),
    answer: () => `${became("pos_only", likeliest(), 20)} At a fork all ways add up to 100 %, so what one way gains, the others lose.` },
];

const marked = (n, character) => state.asked.slice(0, n) + character + state.asked.slice(n + 1);

function predict(n, k) {
  stop();
  change({ ...QUESTIONS[n].show(), asked: marked(n, String(k)) });
  QUESTIONS[n].then?.();
  drawCards();
}

function drawCards() {
  for (const card of document.querySelectorAll(".card")) {
    const within = card.contains(document.activeElement);
    const n = QUESTIONS.findIndex((question, k) => question.card === card.dataset.card && state.asked[k] !== "s");
    const question = QUESTIONS[n];
    card.hidden = !question;
    const predicted = !question || state.asked[n] === "-" ? null : Number(state.asked[n]);
    const waits = card.dataset.card === "lab" && ((playing && asOpened() && (predicted === null || state.n < peak())) ||
      (n === 1 && predicted === null && far < LAST)); // one watches first
    const sign = (k) => (predicted === null || waits ? "" : k === question.right ? "\u2713 " : k === predicted ? "\u2717 " : "");
    const offered = !question || waits ? [] : [0, 1, 2].filter((k) => predicted === null || sign(k));
    const choices = offered.map((k) => el("button", {
      ariaPressed: predicted === k, className: sign(k).startsWith("\u2713") ? "right" : "",
      data: { key: `choice${k}`, choice: k }, onclick: () => predict(n, k),
    }, sign(k) + question.choices[k]));
    const after = predicted === null && question?.then ? marked(n, "s").replace("s-", "ss") : marked(n, "s"); // without its follow-up
    const next = el("button", { className: "next", data: { key: "next" }, onclick: () => change({ asked: after }) },
      predicted === null ? "skip" : "close");
    const text = !question ? [] : waits ? [`${playing ? "Watch" : "Go on, and watch"} response ${near() + 1}.`] :
      predicted === null ? [el("b", {}, question.known ? "Predict: " : "Explain: "), question.ask()] :
      [el("span", { className: "verdict" }, el("b", {}, predicted === question.right ? "Right. " : "Not quite. "), question.answer())];
    fill(card, ...(!question ? [] : [el("p", {}, ...text), el("div", { className: "options", role: "group", ariaLabel: "Your answer" }, ...choices, ...(waits ? [] : [next]))]));
    if (within && !card.contains(document.activeElement)) // what had the focus is gone
      (card.querySelector("button") ?? [...document.querySelectorAll("button")].find((x) => card.compareDocumentPosition(x) & 4 && x.tabIndex === 0)).focus();
  }
}
