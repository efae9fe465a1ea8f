// The searches of an agent, above the list of its run: what each found, and the answer at the end.
const listAlone = listOf;
listOf = function (run, place, query, found) {
  const made = listAlone(run, place, query, found);
  if (run.steps) made.querySelector("h3").after(searchesOf(run, found));
  return made;
};

function searchesOf(run, found) {
  const seen = new Set();
  const steps = run.steps.map(([search, docs, isFirst], number) => {
    const passages = docs.map((doc) => {
      const [title, , labels] = found.passages[doc] || ["", "", {}];
      const chips = data.annotators.filter((name) => name in labels).map((name) => {
        const good = labels[name][LABEL] >= RIGHT;
        return element("span", {className: `chip ${good ? "yes" : "no"}`}, `${good ? "\u2713" : "\u2717"} ${name}`);
      });
      const again = seen.has(doc) ? element("span", {className: "chip"}, "seen before") : "";
      seen.add(doc);
      return element("li", {}, element("bdi", {}, title || doc), ...[again, ...chips].filter(Boolean).flatMap((chip) => [" ", chip]));
    });
    const mark = isFirst ? element("span", {className: "chip yes"}, "first useful passage") : "";
    return element("div", {className: "passage"}, element("h4", {}, `Search ${number + 1}: `, element("bdi", {}, search || "(no text)")),
      mark, passages.length ? element("ul", {}, ...passages) : element("p", {className: "quiet"}, "No passages."));
  });
  const rest = run.taken - run.steps.length;
  if (rest) steps.push(element("p", {className: "quiet"}, `${rest.toLocaleString("en")} more searches are in trace_steps.parquet.`));
  if (run.output !== null) steps.push(element("p", {}, "Answer: ", inline(run.output, found.answers)));
  return element("details", {open: true}, element("summary", {}, `Trace: ${run.taken.toLocaleString("en")} search${run.taken === 1 ? "" : "es"}`), ...steps);
}
