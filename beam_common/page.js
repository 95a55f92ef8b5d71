"use strict";

// The data are the text of the page's JSON element. Texts of the runs are only ever set as text.
const source = document.querySelector("script[type='application/json']");
const { runs, questions } = JSON.parse(source.textContent);
const several = runs.length > 1; // the first run is the reference

// An element with attributes, and children that are elements or strings; a string is a text.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A text in any script, its control characters made visible.
function text(tag, css, value) {
  const visible = (found) => String.fromCharCode(0x2400 + found.charCodeAt(0));
  const shown = value.replace(/[\x00-\x08\x0b-\x1f]/g, visible);
  return element(tag, { class: css, dir: "auto" }, shown);
}

function worded(name) {
  return name.replaceAll("_", " ");
}

// ------------------------------------------------------------------------------------------------
// What is known of a question.

// What its address in the page is made of.
function keyOf(question) {
  return [question.chat_id, question.question_type, question.question_index].join("/");
}

// What happened to an answer, beside its score.
function trouble(run) {
  if (run.error !== null) return "failed";
  if (run.finish_reason === "length") return "cut";
  return run.response?.trim() === "" ? "empty" : "";
}

const known = (question) => question.runs.filter((run) => run);
const beats = (run, other) => run && other && run.score > other.score;

const FILTERS = {
  "all questions": () => true,
  "scores differ": (question) => new Set(known(question).map((run) => run.score)).size > 1,
  "lower than the reference": ({ runs: [first, ...rest] }) =>
    rest.some((run) => beats(first, run)),
  "higher than the reference": ({ runs: [first, ...rest] }) =>
    rest.some((run) => beats(run, first)),
  "score below 1": (question) => known(question).some((run) => run.score < 1),
  "cut, empty or failed": (question) => known(question).some((run) => trouble(run)),
  "a verdict unreadable or failed": (question) =>
    known(question).some((run) => run.verdicts.some((verdict) => verdict.status !== "scored")),
};
const OF_SEVERAL = ["scores differ", "lower than the reference", "higher than the reference"];

// The judge's reason where its reply is the JSON it was asked for, else the reply.
function reasonOf(reply) {
  try {
    const verdict = JSON.parse(reply.slice(reply.indexOf("{"), reply.lastIndexOf("}") + 1));
    return String(verdict.reason ?? verdict.explanation ?? reply);
  } catch {
    return reply;
  }
}

// ------------------------------------------------------------------------------------------------
// One question, as a line that opens.

function chip(run, place) {
  const score = run ? String(Number(run.score.toFixed(2))) : "–";
  const words = run && trouble(run) ? `${score} ${trouble(run)}` : score;
  const made = element("span", { class: "chip", title: runs[place] }, words);
  made.style.setProperty("--score", run ? run.score : 0);
  return made;
}

function lineOf(question) {
  const key = keyOf(question);
  const ability = worded(question.question_type);
  const summary = element(
    "summary",
    {},
    element("a", { href: `#${encodeURIComponent(key)}`, title: "link to this question" }, "#"),
    text("span", "place", `chat ${question.chat_id} · ${ability} ${question.question_index}`),
    element("span", { class: "chips" }, ...question.runs.map(chip)),
    text("span", "asked", question.question || "(question unknown)"),
  );
  const line = element("details", { id: key, class: "question" }, summary);
  line.addEventListener("toggle", () => {
    if (line.open && line.children.length === 1) line.append(bodyOf(question));
  });
  return line;
}

function bodyOf(question) {
  const places = compared.value === "" ? [...runs.keys()] : [0, Number(compared.value)];
  const grid = element("div", { class: "grid" });
  grid.style.setProperty("--columns", places.length);
  const addRow = (cellsOf) => {
    for (const place of places) {
      const run = question.runs[place];
      const cells = run ? cellsOf(run, place) : ["not scored"];
      const css = place === 0 ? "cell first" : "cell";
      grid.append(element("div", { class: css }, text("b", "name", runs[place]), ...cells));
    }
  };
  addRow((run, place) => [chip(run, place), responseOf(run)]);
  criteriaOf(question).forEach((criterion, item) => {
    grid.append(text("div", "criterion", criterion || "(criterion unknown)"));
    addRow((run) => verdictOf(run.verdicts.findLast((verdict) => verdict.item === item)));
  });
  const gold = text("div", "gold", question.gold_answer || "(gold answer unknown)");
  return element("div", { class: "body" }, gold, grid);
}

function responseOf(run) {
  if (run.error !== null) return text("div", "response error", run.error);
  return text("div", "response", run.response ?? "(response unknown)");
}

// What is judged: the items of the rubric, or the order of all of them.
function criteriaOf({ question_type, rubric, runs: answers }) {
  const order = rubric.map((event, place) => `${place + 1}. ${event}`).join("\n");
  const criteria = question_type === "event_ordering" ? [order] : [...rubric];
  for (const { item } of answers.flatMap((run) => run?.verdicts ?? [])) criteria[item] ??= "";
  return criteria;
}

function verdictOf(verdict) {
  if (!verdict) return ["no verdict"];
  const reply = verdict.reply ?? "";
  const reason = reasonOf(reply);
  const level = verdict.status === "scored" ? String(verdict.level) : verdict.status;
  const cells = [element("span", { class: "level" }, level), text("div", "reason", reason)];
  if (reason !== reply) {
    const whole = element("details", {}, element("summary", {}, "reply"), text("div", "", reply));
    cells.push(whole);
  }
  return cells;
}

// ------------------------------------------------------------------------------------------------
// Choosing among the questions.

function chooser(label, options) {
  const choices = options.map(([value, words]) => element("option", { value }, words));
  const select = element("select", { "aria-label": label }, ...choices);
  select.addEventListener("change", update);
  return select;
}

function choicesOf(name, all, wordsOf) {
  const values = new Set(questions.map((question) => String(question[name])));
  return [["", all], ...[...values].map((value) => [value, wordsOf(value)])];
}

const filters = Object.keys(FILTERS).filter((name) => several || !OF_SEVERAL.includes(name));
const others = runs.map((name, place) => [place, `${runs[0]} and ${name}`]).slice(1);
const filter = chooser("filter", filters.map((name) => [name, name]));
const ability = chooser("ability", choicesOf("question_type", "all abilities", worded));
const chat = chooser("chat", choicesOf("chat_id", "all chats", (value) => `chat ${value}`));
const compared = chooser("runs", [["", "all runs"], ...others]);
const search = element("input", { type: "search", placeholder: "search in all texts" });
const count = element("output", {});
const list = element("section", {});

const lines = new Map(); // of questions shown before
const haystacks = new Map(); // the texts of a question, in lower case, once it was searched

function holds(question, words) {
  if (!haystacks.has(question)) haystacks.set(question, JSON.stringify(question).toLowerCase());
  return haystacks.get(question).includes(words);
}

function isChosen(question) {
  const words = JSON.stringify(search.value.trim().toLowerCase()).slice(1, -1);
  return (
    FILTERS[filter.value](question) &&
    (ability.value === "" || ability.value === question.question_type) &&
    (chat.value === "" || chat.value === String(question.chat_id)) &&
    (words === "" || holds(question, words))
  );
}

function update(event) {
  if (event?.target === compared) lines.clear();
  const chosen = questions.filter(isChosen);
  for (const question of chosen) {
    if (!lines.has(question)) lines.set(question, lineOf(question));
  }
  list.replaceChildren(...chosen.map((question) => lines.get(question)));
  count.textContent = `${chosen.length} of ${questions.length} questions`;
}

// Open the question that the address names, whatever is filtered.
function follow() {
  const key = decodeURIComponent(location.hash.slice(1));
  const question = questions.find((candidate) => keyOf(candidate) === key);
  if (!question) return;
  if (!isChosen(question)) {
    for (const select of [filter, ability, chat]) select.selectedIndex = 0;
    search.value = "";
    update();
  }
  const line = lines.get(question);
  line.open = true;
  line.scrollIntoView();
}

let waiting;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(update, 150);
});
addEventListener("hashchange", follow);
const choosers = runs.length > 2 ? [filter, ability, chat, compared] : [filter, ability, chat];
const bar = element("nav", {}, ...choosers, search, count);
document.querySelector("main").append(bar, list);
if (several) filter.value = "scores differ";
update();
follow();
