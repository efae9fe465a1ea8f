"use strict";
// Tasks one after another; what was judged is kept by the browser, and saved as the lines that --preferences reads.
const data = JSON.parse(document.getElementById("data").textContent);
const KEY = `erag-ask-${document.getElementById("data").dataset.key}`, CRITERIA = data.of_answers ? ["correct", "dense", "detailed"] : [];
const $ = (id) => document.getElementById(id);
const NONE = "none", EQUAL = "equal";
const passages = new Map(data.passages.map((one) => [one.doc_id, one]));
// What runs gave for a task, in the order that was drawn; runs that gave the same are one side.
const sides = new Map(data.tasks.map((task) => [task.query_id, []]));
for (const {query_id, run, output, doc_id} of data.sides) {
  const known = sides.get(query_id), same = known.find((one) => one.output === output);
  if (same) { same.runs.push(run); same.lists.push(doc_id); } else known.push({output, runs: [run], lists: [doc_id]});
}
// By the place of a task: {best: a side, "none" or "equal"; criteria: the same by name}. Places in the order of judging.
let judged = {}, order = [], at = 0, keeps = true, saved = true;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function recall() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) || "null");
    if (kept) ({judged, order, at} = kept);
    localStorage.setItem(KEY, JSON.stringify({judged, order, at}));
  } catch { keeps = false; }
  at = Number.isInteger(at) && at >= 0 && at < data.tasks.length ? at : 0;
  $("kept").hidden = keeps;
}

function keep() {
  try { localStorage.setItem(KEY, JSON.stringify({judged, order, at})); } catch { keeps = false; $("kept").hidden = false; }
}

const choice = () => judged[at] && judged[at].best;

// The title and the text of a passage.
function passage(id) {
  const {title, text} = passages.get(id);
  return [...(title ? [element("h3", {dir: "auto"}, title)] : []), element("p", {dir: "auto", class: "given"}, text)];
}

function side({output, lists}, place) {
  const name = `${data.of_answers ? "Answer" : "Passage"} ${place + 1}`;
  const is_best = choice() === place || choice() === EQUAL;
  const made = element("article", {class: is_best ? "side chosen" : "side", "aria-label": name});
  made.append(element("h2", {}, name));
  if (data.of_answers) {
    made.append(element("p", {dir: "auto", class: "given"}, output || "(no answer)"));
    // Runs that gave the same answer may have made it from different passages.
    lists.forEach((ids, number) => {
      const which = lists.length > 1 ? ` (list ${number + 1} of ${lists.length})` : "";
      made.append(element("details", {}, element("summary", {}, `Made from ${ids.length} ${ids.length === 1 ? "passage" : "passages"}${which}`),
        ...ids.map((id) => element("div", {class: "passage"}, ...passage(id)))));
    });
  } else made.append(...passage(output));
  const button = element("button", {type: "button", "aria-pressed": String(choice() === place)}, `${name} is best `, element("kbd", {}, String(place + 1)));
  button.addEventListener("click", () => judge(place));
  made.append(button);
  return made;
}

function criterion(name, shown) {
  const made = element("fieldset", {}, element("legend", {}, `Most ${name}`));
  const known = ((judged[at] || {}).criteria || {})[name];
  const options = [...shown.map((_, place) => [place, `Answer ${place + 1}`]), [EQUAL, "equally"], [NONE, "none"]];
  for (const [value, text] of options) {
    const input = element("input", {type: "radio", name, value: String(value)});
    input.checked = known === value;
    input.addEventListener("change", () => {
      judged[at] = judged[at] || {criteria: {}};
      judged[at].criteria[name] = value;
      saved = false;
      keep();
    });
    made.append(element("label", {}, input, ` ${text}`));
  }
  return made;
}

function show(focus) {
  const task = data.tasks[at], done = order.length, shown = sides.get(task.query_id);
  $("query").textContent = task.query;
  $("sides").replaceChildren(...shown.map(side));
  $("criteria").replaceChildren(...CRITERIA.map((name) => criterion(name, shown)));
  $("equal").setAttribute("aria-pressed", String(choice() === EQUAL));
  $("none").setAttribute("aria-pressed", String(choice() === NONE));
  $("back").disabled = at === 0;
  $("next").disabled = at === data.tasks.length - 1;
  $("undo").disabled = !done;
  $("save").disabled = !done;
  $("bar").max = data.tasks.length;
  $("bar").value = done;
  $("count").textContent = `Question ${at + 1} of ${data.tasks.length}, ${done} judged`;
  $("done").textContent = done === data.tasks.length ? "All questions are judged: save the file." : "";
  if (focus) { $("query").focus({preventScroll: true}); scrollTo(0, 0); }
}

function judge(best) {
  judged[at] = {criteria: {}, ...judged[at], best};
  order = [...order.filter((place) => place !== at), at];
  saved = false;
  if (at < data.tasks.length - 1) at += 1;
  keep();
  show(true);
}

function undo() {
  if (!order.length) return;
  at = order.pop();
  delete judged[at].best;
  saved = false;
  keep();
  show(true);
}

function move(by) {
  const to = at + by;
  if (to < 0 || to >= data.tasks.length) return;
  at = to;
  keep();
  show(true);
}

// What "best" of a line says: one of what was shown, all of them, or null.
function named(value, shown) {
  return value === NONE ? null : value === EQUAL ? shown : shown[value];
}

function lines() {
  const places = order.slice().sort((a, b) => a - b);
  return places.map((place) => {
    const {query_id, stratum, random, probability, labels} = data.tasks[place], {best, criteria} = judged[place];
    const given = sides.get(query_id), shown = given.map((one) => one.output);
    const line = {query_id, [data.of_answers ? "answers" : "shown"]: shown, best: named(best, shown)};
    if (Object.keys(criteria).length) line.criteria = Object.fromEntries(Object.entries(criteria).map(([name, value]) => [name, named(value, shown)]));
    return JSON.stringify({...line, random, runs: given.map((one) => one.runs), drawn: {stratum, probability, labels, design: data.design}}) + "\n";
  }).join("");
}

function save() {
  if (!order.length) return;
  const url = URL.createObjectURL(new Blob([lines()], {type: "application/x-ndjson;charset=utf-8"}));
  element("a", {href: url, download: "preferences.jsonl"}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  saved = true;
}

addEventListener("keydown", (event) => {
  // Among the choices of a criterion, arrows move between these.
  if (event.ctrlKey || event.metaKey || event.altKey || (event.target.matches("input") && event.key.startsWith("Arrow"))) return;
  const most = sides.get(data.tasks[at].query_id).length;
  if (/^[1-3]$/.test(event.key) && Number(event.key) <= most) judge(Number(event.key) - 1);
  else if (event.key === "0") judge(NONE);
  else if (event.key === "=") judge(EQUAL);
  else if (event.key === "ArrowLeft") move(-1);
  else if (event.key === "ArrowRight") move(1);
  else if (event.key === "u") undo();
  else if (event.key === "s") save();
  else return;
  event.preventDefault();
});
// Where the browser keeps nothing, what was not saved would be lost.
addEventListener("beforeunload", (event) => { if (!keeps && !saved) event.preventDefault(); });
$("equal").addEventListener("click", () => judge(EQUAL));
$("none").addEventListener("click", () => judge(NONE));
$("back").addEventListener("click", () => move(-1));
$("next").addEventListener("click", () => move(1));
$("undo").addEventListener("click", undo);
$("save").addEventListener("click", save);
$("third").hidden = [...sides.values()].every((shown) => shown.length < 3);
recall();
show(false);
