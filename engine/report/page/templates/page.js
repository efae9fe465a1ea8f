"use strict";
// The table of queries and what stands behind each. All texts of users are set as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const [ID, TEXT, SCORES, MEASURES, USEFUL, HOLDING, KINDS, PART] = [0, 1, 2, 3, 4, 5, 6, 7];
// A trace: the label, and where it comes from.
const [LABEL, OUTPUT, ANSWER] = [0, 1, 2];
const PER_PAGE = 50;
const byId = (id) => document.getElementById(id);
const loaded = new Map();
const state = {words: "", kinds: 0, column: 0, down: true, page: 0, shown: [], open: null};

// Called by the scripts beside the page (or in it), each with the details of some queries.
function details(part, queries) { loaded.set(part, queries); }

function element(name, properties, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key in made) made[key] = value; else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

const figure = (value) => value === null || value === undefined ? "\u2014" : value.toFixed(3).replace("-", "\u2212");

function disagreement(query) {
  let far = 0;
  query[SCORES].forEach((score, run) => {
    const measure = query[MEASURES][run];
    if (score !== null && measure !== null) far = Math.max(far, Math.abs(score - measure));
  });
  return far;
}

// Name, value to sort by, and text of every column.
function columns() {
  const found = [{name: "query", value: (query) => query[TEXT] || query[ID], isText: true}];
  const has = (place) => data.queries.some((query) => query[place] !== null);
  data.runs.forEach((run, place) => {
    const whose = data.runs.length > 1 ? `${run}: ` : "";
    if (data.metric) found.push({name: `${whose}end to end`, value: (query) => query[SCORES][place]});
    if (data.measure) found.push({name: `${whose}${data.measure}`, value: (query) => query[MEASURES][place]});
  });
  if (has(USEFUL)) found.push({name: "useful passages", value: (query) => query[USEFUL], isCount: true});
  if (has(HOLDING)) found.push({name: "with the answer", value: (query) => query[HOLDING], isCount: true});
  if (data.metric && data.measure) found.push({name: "disagreement", value: disagreement});
  return found;
}
const COLUMNS = columns();

function compare(a, b) {
  const {value, isText} = COLUMNS[state.column];
  const [x, y] = [value(a), value(b)];
  if (x === y) return 0;
  if (x === null) return 1;
  if (y === null) return -1;
  const order = isText ? x.localeCompare(y) : x - y;
  return state.down ? -order : order;
}

function select() {
  const words = state.words.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  state.shown = data.queries.filter((query) => {
    if ((query[KINDS] & state.kinds) !== state.kinds) return false;
    const text = `${query[TEXT]} ${query[ID]}`.toLocaleLowerCase();
    return words.every((word) => text.includes(word));
  }).sort(compare);
  state.page = 0;
  show();
}

function show() {
  const pages = Math.max(1, Math.ceil(state.shown.length / PER_PAGE));
  const first = state.page * PER_PAGE;
  const rows = state.shown.slice(first, first + PER_PAGE).map((query, place) => row(query, first + place));
  byId("table").tBodies[0].replaceChildren(...rows);
  byId("count").textContent = `${state.shown.length.toLocaleString("en")} of ${data.queries.length.toLocaleString("en")} queries`
    + (data.left_out ? `; ${data.left_out.toLocaleString("en")} more, of least disagreement, are in the tables of the results` : "");
  byId("page").textContent = `Page ${state.page + 1} of ${pages}`;
  byId("before").disabled = state.page === 0;
  byId("after").disabled = state.page >= pages - 1;
  byId("pages").hidden = pages === 1;
  COLUMNS.forEach((_, place) => {
    const head = byId("table").tHead.rows[0].cells[place];
    if (place === state.column) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function row(query, place) {
  const name = query[TEXT] || query[ID];
  const text = query[PART]
    ? element("button", {type: "button", dir: "auto", onclick: () => open(place)}, name)
    : element("span", {className: "plain", dir: "auto"}, name);
  const cells = [element("th", {scope: "row"}, text, query[TEXT] ? element("span", {className: "id"}, query[ID]) : "")];
  for (const {value, isCount} of COLUMNS.slice(1)) {
    const found = value(query);
    cells.push(element("td", {className: "figure"}, isCount && found !== null ? String(found) : figure(found)));
  }
  return element("tr", {}, ...cells);
}

function load(query, then) {
  const part = query[PART];
  if (loaded.has(part)) { then(loaded.get(part)[query[ID]]); return; }
  // Scripts, since pages that are opened from disk may fetch nothing else.
  const script = element("script", {src: `report/queries-${String(part).padStart(4, "0")}.js`});
  script.onload = () => then(loaded.get(part)[query[ID]]);
  script.onerror = () => { byId("dialog-body").replaceChildren(element("p", {}, `${script.getAttribute("src")} is missing beside this page; copy the folder report/ with it, or make a page of one file: erag report DIR --single-file`)); };
  document.head.append(script);
}

function open(place) {
  const query = state.shown[place];
  if (!query || !query[PART]) return;
  state.open = place;
  byId("dialog-title").textContent = query[TEXT] || query[ID];
  byId("dialog-body").replaceChildren(element("p", {className: "quiet"}, "Loading\u2026"));
  byId("previous-query").disabled = place === 0;
  byId("next-query").disabled = place >= state.shown.length - 1;
  if (!byId("dialog").open) byId("dialog").showModal();
  history.replaceState(null, "", `#query=${encodeURIComponent(query[ID])}`);
  load(query, (found) => { if (state.open === place) body(query, found); });
}

function body(query, found) {
  const answers = found.answers.length
    ? element("p", {}, "Answers: ", ...found.answers.flatMap((answer, place) => [place ? " \u00b7 " : "", element("bdi", {}, answer)]))
    : "";
  const lists = found.runs.map((run, place) => listOf(data.runs[place], run, place, query, found));
  byId("dialog-body").replaceChildren(
    element("p", {className: "quiet"}, `${query[ID]}`, ...kindsOf(query)), answers, changed(found), element("div", {className: "lists"}, ...lists));
  byId("dialog-body").scrollTop = 0;
}

function kindsOf(query) {
  return data.filters.filter((_, place) => query[KINDS] >> place & 1).map(([, name, meaning]) => element("span", {className: "chip", title: meaning, style: "margin-inline-start: .5rem"}, name));
}

// What changed from the best run to the second, in words.
function changed(found) {
  if (found.runs.length < 2) return "";
  const [first, second] = found.runs;
  const useful = (doc) => Object.entries(found.passages[doc][2]).some(([name, trace]) => name === data.annotators[0] && trace[LABEL] >= 0.5);
  const only = (a, b) => a.list.filter((doc) => !b.list.includes(doc));
  const phrase = (a, b, name) => {
    const missed = only(a, b);
    const helps = missed.filter(useful).length;
    return `${missed.length} only in ${name}` + (missed.length ? ` (${helps} useful)` : "");
  };
  const both = first.list.length - only(first, second).length;
  return element("p", {}, `Passages: ${both} in both runs, ${phrase(first, second, data.runs[0])}, ${phrase(second, first, data.runs[1])}.`);
}

function listOf(name, run, place, query, found) {
  const parts = [];
  if (run.score !== null) {
    const good = run.score >= 0.5;
    parts.push(element("div", {className: "whole"},
      element("strong", {}, `Whole list, first ${data.given} passages`),
      element("div", {className: "chips"}, element("span", {className: `chip ${good ? "yes" : "bad"}`}, `${good ? "\u2713" : "\u2717"} ${data.metric} ${figure(run.score)}`)),
      output(run.output, found.answers), ...thought(run.thought)));
  }
  run.list.forEach((doc, rank) => {
    if (run.score !== null && rank === data.given) parts.push(element("p", {className: "cut"}, "Not given to the reader with the list:"));
    parts.push(passage(doc, rank, place, found));
  });
  if (!run.list.length) parts.push(element("p", {className: "quiet"}, "This run lists nothing for the query."));
  return element("section", {className: "list"}, element("h3", {dir: "auto"}, name), ...parts);
}

function passage(doc, rank, place, found) {
  const [title, text, labels, thoughts] = found.passages[doc];
  const chips = data.annotators.filter((name) => name in labels).map((name) => {
    const value = labels[name][LABEL];
    const whole = Number.isInteger(value) ? String(value) : figure(value);
    return element("span", {className: `chip ${value >= 0.5 ? "yes" : "no"}`}, `${value >= 0.5 ? "\u2713" : "\u2717"} ${name} ${whole}`);
  });
  const elsewhere = found.runs.map((run, other) => [run.list.indexOf(doc), other]).filter(([, other]) => other !== place)
    .map(([at, other]) => at < 0 ? `not in ${data.runs[other]}` : `rank ${at + 1} in ${data.runs[other]}`);
  const read = data.annotators.map((name) => labels[name] && labels[name][OUTPUT] ? [name, labels[name]] : null).filter(Boolean);
  const answers = Object.values(labels).map((trace) => trace[ANSWER]).filter(Boolean).concat(found.answers);
  const outputs = read.map(([name, trace]) => element("p", {}, read.length > 1 ? `${name}: the reader answers ` : "The reader answers ", inline(trace[OUTPUT], answers)));
  const short = text.length <= 420;
  const shown = short ? element("p", {className: "text", dir: "auto"}, ...marked(text, answers))
    : element("details", {open: Object.values(labels).some((trace) => trace[LABEL] > 0)}, element("summary", {}, "Passage"), element("p", {className: "text", dir: "auto"}, ...marked(text, answers)));
  return element("div", {className: "passage"},
    element("h4", {}, `${rank + 1}. `, element("bdi", {}, title || doc)),
    element("span", {className: "id"}, [doc, ...elsewhere].join(" \u00b7 ")),
    element("div", {className: "chips"}, ...chips), ...outputs, ...thought(thoughts), shown);
}

const inline = (text, answers) => element("span", {className: "output"}, ...marked(text || "(nothing)", answers));
const thought = (text) => text ? [element("details", {}, element("summary", {}, "Thought before"), element("p", {className: "text", dir: "auto"}, text))] : [];
const output = (text, answers) => element("p", {}, "The reader answers ", inline(text, answers));

// The text with the answers marked: words in order, whatever stands between them and however they are written.
function marked(text, answers) {
  const patterns = [...new Set(answers)].map((answer) => answer.match(/[\p{L}\p{N}\p{M}]+/gu)).filter(Boolean)
    .map((words) => words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("[^\\p{L}\\p{N}]+(?:(?:a|an|the)[^\\p{L}\\p{N}]+)?"));
  if (!patterns.length) return [text];
  patterns.sort((a, b) => b.length - a.length);
  const sought = new RegExp(`(?<![\\p{L}\\p{N}])(?:${patterns.join("|")})(?![\\p{L}\\p{N}])`, "giu");
  const found = [];
  let last = 0;
  for (const match of text.matchAll(sought)) {
    found.push(text.slice(last, match.index), element("mark", {}, match[0]));
    last = match.index + match[0].length;
  }
  return [...found, text.slice(last)];
}

function start() {
  document.querySelector(".tools").hidden = false;
  byId("table").hidden = false;
  COLUMNS.forEach(({name, isText}, place) => {
    const button = element("button", {type: "button", dir: "auto", onclick: () => {
      state.down = state.column === place ? !state.down : !isText;
      state.column = place;
      select();
    }}, name);
    byId("table").tHead.rows[0].append(element("th", {scope: "col", className: isText ? "" : "figure"}, button));
  });
  data.filters.forEach(([, name, meaning], place) => {
    const bit = 1 << place;
    const count = data.queries.filter((query) => query[KINDS] & bit).length;
    byId("filters").append(element("button", {type: "button", title: meaning, "aria-pressed": "false", onclick: (event) => {
      state.kinds ^= bit;
      event.currentTarget.setAttribute("aria-pressed", String(Boolean(state.kinds & bit)));
      select();
    }}, `${name} (${count.toLocaleString("en")})`));
  });
  byId("search").addEventListener("input", (event) => { state.words = event.target.value; select(); });
  byId("before").onclick = () => { state.page -= 1; show(); };
  byId("after").onclick = () => { state.page += 1; show(); };
  byId("close").onclick = () => byId("dialog").close();
  byId("previous-query").onclick = () => open(state.open - 1);
  byId("next-query").onclick = () => open(state.open + 1);
  byId("dialog").addEventListener("close", () => { state.open = null; history.replaceState(null, "", "#queries"); });
  byId("dialog").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") open(state.open - 1);
    if (event.key === "ArrowRight") open(state.open + 1);
  });
  // Rows by arrow keys, from one query's button to the next.
  byId("table").addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const buttons = [...byId("table").tBodies[0].querySelectorAll("button")];
    const next = buttons[buttons.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)];
    if (next) { next.focus(); event.preventDefault(); }
  });
  // The greatest disagreement first.
  const last = COLUMNS.length - 1;
  state.column = COLUMNS[last].name === "disagreement" ? last : 0;
  state.down = state.column === last;
  select();
  const asked = location.hash.startsWith("#query=") && decodeURIComponent(location.hash.slice(7));
  if (asked) open(state.shown.findIndex((query) => query[ID] === asked));
}
// Scripts of a page of one file follow this one.
document.addEventListener("DOMContentLoaded", start);
