"use strict";
// The table of queries and what stands behind each. All texts of users are set as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const [ID, TEXT, SCORES, MEASURES, USEFUL, HOLDING, KINDS, PART, ANSWERS, OUTPUTS, GROUPS] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
// A trace: the label, and where it comes from; the last is the place of its call, from 1.
const [LABEL, OUTPUT, ANSWER, , CALL] = [0, 1, 2, 3, 4];
// The least score that counts as an answer.
const RIGHT = 0.5;
// Letters of which two lines are shown of a passage that is closed: more than fit.
const SHOWN = 300;
const PER_PAGE = 50;
const KIND_NAMES = {
  useful_absent: ["useful, answer absent", "the reader answers from a passage that does not contain the answer"],
  present_useless: ["answer present, useless", "a passage contains the answer, and the reader does not answer from it"],
  list_fails: ["one passage succeeds, the list fails", "the reader answers from a passage alone, and not from the list that holds it"],
  single_fails: ["the list succeeds, no passage does", "the reader answers from the list, and from none of its passages alone"],
};
const byId = (id) => document.getElementById(id);
const loaded = new Map();
const state = {words: "", tests: new Map(), column: null, down: true, page: 0, shown: [], open: null};

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

// How far measure and end-to-end score are apart, in the run where that is most, and the place of this run.
function disagreement(query) {
  let found = [0, null];
  query[SCORES].forEach((score, run) => {
    const measure = query[MEASURES][run];
    if (score !== null && measure !== null && Math.abs(score - measure) > found[0]) found = [Math.abs(score - measure), run];
  });
  return found;
}

const several = data.runs.length > 1;
const OF_LISTS = several ? ["useful passages of all runs", "with the answer, of all runs"] : ["useful passages", "with the answer"];
// Whether every score is 0 or 1, so that a mark says it.
const isBinary = data.queries.every((query) => query[SCORES].every((score) => score === null || score === 0 || score === 1));
const mark = (score) => score === null ? "" : isBinary ? (score ? "\u2713" : "\u2717") : figure(score);

// What may be filtered by a button: name, meaning, and which queries it lets through.
const FILTERS = data.filters.map((kind, place) => ({name: KIND_NAMES[kind][0], meaning: KIND_NAMES[kind][1], test: (query) => query[KINDS] >> place & 1}));
if (several && data.metric) FILTERS.unshift({name: "runs differ", meaning: "the end-to-end scores of the runs are not the same", test: (query) => new Set(query[SCORES].filter((score) => score !== null)).size > 1});

// What may be filtered by a choice: name, choices, and which queries a choice lets through.
const CHOICES = [
  ...(data.metric ? data.runs.slice(0, 8).map((run, place) => ({name: `answer with ${run}`, choices: ["right", "wrong"], test: (query, choice) => query[SCORES][place] !== null && (query[SCORES][place] >= RIGHT) === (choice === 0)})) : []),
  ...data.slices.map(([field, names], place) => ({name: field, choices: names, test: (query, choice) => query[GROUPS][place] === choice})),
];

// Name, value to sort by, and what a cell shows, of every column.
function columns() {
  const found = [{name: "query", value: (query) => query[TEXT] || query[ID], isText: true}];
  const has = (place) => data.queries.some((query) => query[place] !== null && query[place] !== "");
  const count = (place) => ({value: (query) => query[place], cell: (query) => query[place] === null ? "\u2014" : String(query[place])});
  if (has(ANSWERS)) found.push({name: "gold answer", value: (query) => query[ANSWERS], isText: true, cell: (query) => query[ANSWERS]});
  data.runs.forEach((run, place) => {
    const value = (query) => query[SCORES][place];
    if (data.metric) found.push({name: several ? run : `answer (${data.metric})`, value, wide: true, cell: (query) => answered(query[SCORES][place], query[OUTPUTS][place])});
  });
  if (has(USEFUL)) found.push({name: OF_LISTS[0], ...count(USEFUL)});
  if (has(HOLDING)) found.push({name: OF_LISTS[1], ...count(HOLDING)});
  if (data.measure && !data.metric) data.runs.forEach((run, place) => found.push({name: several ? `${run}: ${data.measure}` : data.measure, value: (query) => query[MEASURES][place]}));
  if (data.metric && data.measure) found.push({name: `largest |${data.measure} \u2212 ${data.metric}|`, value: (query) => disagreement(query)[0], cell: (query) => {
    const [far, run] = disagreement(query);
    return several && far ? [figure(far), " ", element("bdi", {className: "id"}, data.runs[run])] : [figure(far)];
  }});
  return found;
}

function answered(score, output) {
  const good = score !== null && score >= RIGHT;
  const said = score === null ? "" : isBinary ? element("span", {className: "spoken"}, good ? "right: " : "wrong: ") : "";
  return element("div", {className: `answered ${score === null ? "" : good ? "good" : "poor"}`, dir: "auto"},
    element("span", {className: "sign", "aria-hidden": isBinary ? "true" : "false"}, mark(score)), said, output === null ? "\u2014" : output || "(nothing)");
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
  const tests = [...state.tests.values()];
  state.shown = data.queries.filter((query) => {
    if (!tests.every((test) => test(query))) return false;
    const text = `${query[TEXT]} ${query[ID]} ${query[ANSWERS]}`.toLocaleLowerCase();
    return words.every((word) => text.includes(word));
  });
  if (state.column !== null) state.shown.sort(compare);
  state.page = 0;
  show();
}

function show() {
  const pages = Math.max(1, Math.ceil(state.shown.length / PER_PAGE));
  const first = state.page * PER_PAGE;
  const rows = state.shown.slice(first, first + PER_PAGE).map((query, place) => row(query, first + place));
  byId("table").tBodies[0].replaceChildren(...rows);
  byId("count").textContent = `${state.shown.length.toLocaleString("en")} of ${data.queries.length.toLocaleString("en")} queries`
    + (data.left_out ? `; ${data.left_out.toLocaleString("en")} more are in the tables of the results` : "");
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
  for (const {value, cell, isText, wide} of COLUMNS.slice(1)) {
    cells.push(element("td", {className: wide || isText ? "wide" : "figure", dir: "auto"}, ...(cell ? [cell(query)].flat() : [figure(value(query))])));
  }
  return element("tr", {}, ...cells);
}

function load(part, then, otherwise) {
  if (loaded.has(part)) { then(loaded.get(part)); return; }
  // Scripts, since pages that are opened from disk may fetch nothing else.
  const script = element("script", {src: `report/queries-${String(part).padStart(4, "0")}.js`});
  script.onload = () => then(loaded.get(part));
  script.onerror = () => otherwise(`${script.getAttribute("src")} is missing beside this page; copy the folder report/ with it, or make a page of one file: erag report DIR --single-file`);
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
  load(query[PART], (found) => { if (state.open === place) body(query, found[query[ID]]); },
    (fault) => byId("dialog-body").replaceChildren(element("p", {}, fault)));
}

function body(query, found) {
  const answers = found.answers.length
    ? element("p", {}, "Gold answers: ", ...found.answers.flatMap((answer, place) => [place ? " \u00b7 " : "", element("bdi", {}, answer)]))
    : "";
  const groups = data.slices.map(([field, names], place) => query[GROUPS][place] === null ? "" : `${field}: ${names[query[GROUPS][place]]}`).filter(Boolean);
  const lists = found.runs.map((run, place) => listOf(run, place, query, found));
  byId("dialog-body").replaceChildren(
    element("p", {className: "quiet"}, query[ID], ...kindsOf(query), groups.length ? ` \u00b7 ${groups.join(" \u00b7 ")}` : ""), answers, changed(found),
    element("div", {className: "lists"}, ...lists));
  byId("dialog-body").scrollTop = 0;
}

const kindsOf = (query) => FILTERS.filter(({test}) => test(query)).map(({name, meaning}) => element("span", {className: "chip", title: meaning, style: "margin-inline-start: .5rem"}, name));

// How long a call took; of one that was read together with others, what calls of its kind took on average.
function took(seconds, role, kind) {
  const shown = (value) => `${value < 10 ? value.toPrecision(2) : value.toFixed()} s`;
  if (seconds !== undefined) return shown(seconds);
  const mean = role === 0 && data.seconds[kind];
  return mean ? `read in a batch (mean of ${kind === "whole" ? "lists" : "single passages"}: ${shown(mean)})` : "seconds not known";
}

// Which passages runs share, and which one lists alone, in words.
function changed(found) {
  if (!several) return "";
  const useful = (doc) => found.passages[doc][2][data.annotators[0]]?.[LABEL] >= RIGHT;
  const listing = (doc) => found.runs.filter((run) => run.list.includes(doc)).length;
  const shared = Object.keys(found.passages).map(listing).filter((count) => count > 1);
  const all = shared.filter((count) => count === data.runs.length).length;
  const own = found.runs.map((run, place) => {
    const alone = run.list.filter((doc) => listing(doc) === 1);
    return `${alone.length} only in ${data.runs[place]}` + (alone.length ? ` (${alone.filter(useful).length} useful)` : "");
  });
  const common = data.runs.length === 2 ? [`${all} in both`] : [`${all} in all ${data.runs.length} runs`, `${shared.length - all} in some of them`];
  return element("p", {}, `Passages: ${[...common, ...own].join(", ")}.`);
}

// The passages that turned a right answer wrong: of the list as it was given, and of passages alone. Known only where the
// same reader read the list without the passage: as another run's list, as the one passage that is left, or as no passage.
function spoilers(run, found) {
  const key = (list) => JSON.stringify(list);
  const known = new Map();
  for (const other of found.runs) if (other.score !== null) known.set(key(other.list.slice(0, other.given ?? data.given)), other.score);
  if (data.own_labels) {
    for (const [doc, [, , labels]] of Object.entries(found.passages)) {
      if (labels[data.by_reader]) known.set(key([doc]), labels[data.by_reader][LABEL]);
    }
  }
  const given = run.list.slice(0, run.given ?? data.given);
  const isWrong = run.score !== null && run.score < RIGHT;
  const right = (list) => known.get(key(list)) >= RIGHT;
  const spoiled = isWrong ? given.filter((doc) => right(given.filter((other) => other !== doc))) : [];
  const alone = right([]) ? run.list.filter((doc) => known.get(key([doc])) < RIGHT) : [];
  return new Map([...alone.map((doc) => [doc, "without any passage the reader is right, and from this one it is not"]),
    ...spoiled.map((doc) => [doc, "without this passage the reader is right on the list, and with it it is not"])]);
}

function listOf(run, place, query, found) {
  const name = data.runs[place];
  const spoiling = spoilers(run, found);
  const parts = [];
  if (run.score !== null) {
    const good = run.score >= RIGHT;
    const given = run.list.slice(0, run.given ?? data.given);
    const chips = [element("span", {className: `chip ${good ? "yes" : "bad"}`}, `${good ? "\u2713" : "\u2717"} ${data.metric} ${figure(run.score)}`)];
    if (query[MEASURES][place] !== null) chips.push(element("span", {className: "chip"}, `${data.measure} ${figure(query[MEASURES][place])}`));
    parts.push(element("div", {className: "whole"},
      element("strong", {}, given.length ? `Whole list, first ${given.length} passages` : "Without passages"),
      element("div", {className: "chips"}, ...chips),
      output(run.output, found.answers), ...sent(run.call, query, given, found)));
  }
  run.list.forEach((doc, rank) => {
    if (run.score !== null && rank === (run.given ?? data.given)) parts.push(element("p", {className: "cut"}, "Not given to the reader with the list:"));
    parts.push(passage(doc, rank, place, query, found, spoiling));
  });
  if (!run.list.length) parts.push(element("p", {className: "quiet"}, "This run lists nothing for the query."));
  return element("section", {className: "list"}, element("h3", {dir: "auto"}, name), ...parts);
}

function passage(doc, rank, place, query, found, spoiling) {
  const [title, text, labels, calls] = found.passages[doc];
  const chips = data.annotators.filter((name) => name in labels).map((name) => {
    const value = labels[name][LABEL];
    const whole = Number.isInteger(value) ? String(value) : figure(value);
    return element("span", {className: `chip ${value >= RIGHT ? "yes" : "no"}`}, `${value >= RIGHT ? "\u2713" : "\u2717"} ${name} ${whole}`);
  });
  if (spoiling.has(doc)) chips.push(element("span", {className: "chip bad", title: spoiling.get(doc)}, `\u2717 turned a right answer wrong: ${spoiling.get(doc)}`));
  const elsewhere = found.runs.map((run, other) => [run.list.indexOf(doc), other]).filter(([, other]) => other !== place)
    .map(([at, other]) => at < 0 ? `not in ${data.runs[other]}` : `rank ${at + 1} in ${data.runs[other]}`);
  const read = data.annotators.map((name) => labels[name] && (labels[name][OUTPUT] || labels[name][CALL]) ? [name, labels[name]] : null).filter(Boolean);
  const answers = Object.values(labels).map((trace) => trace[ANSWER]).filter(Boolean).concat(found.answers);
  const told = new Set();
  const outputs = read.flatMap(([name, trace]) => {
    const call = trace[CALL] && !told.has(trace[CALL]) ? calls[trace[CALL] - 1] : null;
    told.add(trace[CALL]);
    return [element("p", {}, read.length > 1 ? `${name}: the reader answers ` : "The reader answers ", inline(trace[OUTPUT], answers)), ...sent(call, query, [doc], found)];
  });
  const short = text.length <= 420;
  const shown = short ? element("p", {className: "text", dir: "auto"}, ...marked(text, answers))
    : element("details", {open: Object.values(labels).some((trace) => trace[LABEL] > 0)}, element("summary", {}, "Passage", element("span", {className: "start", dir: "auto"}, ...marked(text.slice(0, SHOWN), answers))), element("p", {className: "text", dir: "auto"}, ...marked(text, answers)));
  return element("div", {className: "passage"},
    element("h4", {}, `${rank + 1}. `, element("bdi", {}, title || doc)),
    element("span", {className: "id"}, [doc, ...elsewhere].join(" \u00b7 ")),
    element("div", {className: "chips"}, ...chips), ...outputs, shown);
}

const inline = (text, answers) => element("span", {className: "output"}, ...marked(text || "(nothing)", answers));
const output = (text, answers) => element("p", {}, data.recorded ? "Recorded answer: " : "The reader answers ", inline(text, answers));

const tokens = (count) => `${count.toLocaleString("en")} token${count === 1 ? "" : "s"}`;

// What a call was: its tokens, where its output ended, its seconds, the thought before it, and the prompt as it was sent.
function sent(call, query, docs, found) {
  if (!call) return [];
  const [role, prompt, written, isCut, thought, seconds] = call;
  const parts = role === null ? null : data.prompts[role];
  // A function does not say how many tokens it reads and writes.
  const facts = prompt || written ? [`prompt ${tokens(prompt)}${isCut ? ", cut to the reader's longest input" : ""}`, `output ${tokens(written)}`] : ["tokens not known"];
  if (parts && written) facts.push(written >= parts.most_new_tokens ? `finish: length (the limit of ${tokens(parts.most_new_tokens)})` : `finish: stop (before the limit of ${tokens(parts.most_new_tokens)})`);
  facts.push(took(seconds, role, docs.length > 1 ? "whole" : "single"));
  const made = [element("p", {className: "id"}, facts.join(" \u00b7 "))];
  if (thought) made.push(fold("Thought before the answer", () => [thought]));
  made.push(parts ? fold(isCut ? "Prompt before it was cut" : "Prompt as sent", () => promptOf(parts, query[TEXT], docs.map((doc) => found.passages[doc])))
    : element("p", {className: "id"}, "The text of the prompt is not kept."));
  return made;
}

// Texts that are made when they are asked for.
function fold(name, make) {
  const made = element("details", {className: "sent"}, element("summary", {}, name));
  made.addEventListener("toggle", () => {
    if (made.open && made.children.length === 1) made.append(...make().map((text) => element("pre", {dir: "auto"}, text)));
  });
  return made;
}

// White space as Python has it: what a prompt makes one blank of.
const SPACE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/;
const joined = (text) => text.split(SPACE).filter(Boolean).join(" ");
const stripped = (text) => text.replace(new RegExp(`^${SPACE.source}`), "").replace(new RegExp(`${SPACE.source}$`), "");
const filled = ({literals, fields}, values) => literals[0] + fields.map((name, place) => values[name] + literals[place + 1]).join("");

// The prompts of a call, as Prompt.render of the engine makes them.
function promptOf(parts, query, passages) {
  if (parts.fused && passages.length > 1) return passages.flatMap((one) => promptOf(parts, query, [one]));
  const ordered = parts.best_last ? [...passages].reverse() : passages;
  const shown = ordered.map(([title, text], place) => {
    const values = {title: joined(title), text: joined(text), number: String(place + 1)};
    return filled(values.title ? parts.passage : parts.untitled, values);
  }).join("");
  const text = stripped(filled(parts.body, {query: stripped(query), passages: shown}));
  return [...(parts.system ? [`System message: ${parts.system}`] : []), parts.head + text + parts.tail];
}

// The queries that are shown as CSV (RFC 4180), with whole outputs; no cell that a spreadsheet would calculate.
function save() {
  const parts = [...new Set(state.shown.map((query) => query[PART]).filter(Boolean))];
  const next = () => { if (parts.length) load(parts.shift(), next, next); else download(csv()); };
  next();
}

function csv() {
  const whole = (query, run) => { const part = loaded.get(query[PART]); return part && part[query[ID]] ? part[query[ID]].runs[run].output : query[OUTPUTS][run]; };
  const gold = (query) => { const part = loaded.get(query[PART]); return part && part[query[ID]] ? part[query[ID]].answers.join(" \u00b7 ") : query[ANSWERS]; };
  const head = ["query_id", "query", "answers", ...data.runs.flatMap((run) => [`${run}: ${data.metric}`, `${run}: output`, `${run}: ${data.measure}`]), ...OF_LISTS, ...data.slices.map(([field]) => field)];
  const rows = state.shown.map((query) => [query[ID], query[TEXT], gold(query),
    ...data.runs.flatMap((_, run) => [query[SCORES][run], whole(query, run), query[MEASURES][run]]), query[USEFUL], query[HOLDING],
    ...data.slices.map(([, names], place) => query[GROUPS][place] === null ? "" : names[query[GROUPS][place]])]);
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    if (/^([=@\t\r]|[-+](?!\d[\d.,]*$))/.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll("\"", "\"\"")}"` : text;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",") + "\r\n").join("");
}

function download(text) {
  const url = URL.createObjectURL(new Blob([text], {type: "text/csv;charset=utf-8"}));
  element("a", {href: url, download: "queries.csv"}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

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
  for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
  byId("table").hidden = false;
  COLUMNS.forEach(({name, isText, wide}, place) => {
    const button = element("button", {type: "button", dir: "auto", onclick: () => {
      state.down = state.column === place ? !state.down : !isText;
      state.column = place;
      select();
    }}, name);
    byId("table").tHead.rows[0].append(element("th", {scope: "col", className: isText || wide ? "wide" : "figure"}, button));
  });
  FILTERS.forEach(({name, meaning, test}) => {
    const count = data.queries.filter(test).length;
    byId("filters").append(element("button", {type: "button", title: meaning, "aria-pressed": "false", onclick: (event) => {
      if (!state.tests.delete(name)) state.tests.set(name, test);
      event.currentTarget.setAttribute("aria-pressed", String(state.tests.has(name)));
      select();
    }}, `${name} (${count.toLocaleString("en")})`));
  });
  CHOICES.forEach(({name, choices, test}, number) => {
    const chosen = element("select", {"aria-label": name, onchange: (event) => {
      state.tests.delete(number);
      if (event.target.value) state.tests.set(number, (query) => test(query, Number(event.target.value)));
      select();
    }}, element("option", {value: ""}, "any"), ...choices.map((choice, place) => element("option", {value: String(place)}, choice)));
    byId("choices").append(element("label", {}, element("bdi", {}, name), " ", chosen));
  });
  byId("save").onclick = save;
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
  select();
  hint();
  const asked = location.hash.startsWith("#query=") && decodeURIComponent(location.hash.slice(7));
  if (asked) open(state.shown.findIndex((query) => query[ID] === asked));
}
// Scripts of a page of one file follow this one.
document.addEventListener("DOMContentLoaded", start);
