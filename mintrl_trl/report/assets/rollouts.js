// The rollout browser: filters, and the list; what a rollout looks like stands in rollout.js.
const FILTERS = [
  ["rescued", "rescued"],
  ["derailed", "derailed"],
  ["revised", "revised"],
  ["no_verdict", "no verdict"],
  ["truncated", "cut at the limit"],
];
const ROLES = [
  ["", "all roles"],
  ["control", "control"],
  ["intervened", "intervened"],
];
const REWARDS = [
  ["", "any reward"],
  ["right", "right"],
  ["wrong", "wrong"],
  ["unknown", "no reward"],
];
const search = {run: 0, flag: "", role: "", outcome: "", update: "", words: "", found: [], at: 0};
const elements = {};

const outcome = (reward) => (reward === null ? "unknown" : reward > 0 ? "right" : "wrong");

function browser() {
  const judged = RUNS.findIndex((run) => run.rollouts.shown.some((one) => one.flags.includes("revised")));
  const first = judged >= 0 ? judged : RUNS.findIndex((run) => run.rollouts.shown.length);
  if (first < 0)
    return $("rollouts-body").append(make("p.empty", {}, "No rollouts were recorded, or none were asked for."));
  search.run = first;
  const select = (name, options, label) =>
    (elements[name] = make(
      "select",
      {"aria-label": label, change: (event) => ((search[name] = event.target.value), filter())},
      ...options.map(([value, text]) => make("option", {value}, text)),
    ));
  const runs = make(
    "select",
    {
      id: "rollout-run",
      "aria-label": "Run",
      change: (event) => (
        (search.run = Number(event.target.value)),
        (search.update = ""),
        (search.at = 0),
        updates(),
        filter()
      ),
    },
    ...RUNS.map((run, index) =>
      make("option", {value: index, disabled: !run.rollouts.shown.length, selected: index === first}, run.name),
    ),
  );
  elements.run = runs;
  elements.chips = FILTERS.map(([flag, text]) => {
    const chip = make(
      "button.chip",
      {
        type: "button",
        "data-flag": flag,
        "aria-pressed": "false",
        click: () => ((search.flag = search.flag === flag ? "" : flag), filter()),
      },
      text,
      make("span.n"),
    );
    return chip;
  });
  elements.words = make("input.search", {
    type: "search",
    id: "rollout-words",
    placeholder: "text in prompt or response",
    "aria-label": "Text in prompt or response",
    input: (event) => ((search.words = event.target.value.toLowerCase()), filter()),
  });
  elements.list = make("div.list", {role: "group", "aria-label": "Rollouts"});
  elements.detail = make("div.detail", {"aria-live": "off"});
  elements.browser = make("div.browser.card", {}, elements.list, elements.detail);
  elements.count = make("p.about", {id: "rollout-count"});
  $("rollouts-body").append(
    make(
      "div.filters",
      {},
      MANY ? runs : null,
      ...elements.chips,
      select("role", ROLES, "Role"),
      select("outcome", REWARDS, "Reward"),
      (elements.update = make("select", {
        id: "rollout-update",
        "aria-label": "Update",
        change: (event) => ((search.update = event.target.value), filter()),
      })),
      elements.words,
    ),
    elements.count,
    make(
      "div.key",
      {},
      make("span", {}, "policy"),
      make("ins", {}, "judge"),
      make("del", {}, "discarded"),
      make("i", {}, "the judge’s reason"),
    ),
    elements.browser,
  );
  elements.list.addEventListener("keydown", (event) => {
    const step = {ArrowDown: 1, j: 1, ArrowUp: -1, k: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    move(step);
  });
  updates();
  filter();
  follow();
  window.addEventListener("hashchange", follow);
}

/** The address of a rollout, `#rollout-RUN-UPDATE-ROW`: what is open can be sent to someone who has the page. */
const address = (one) => `#rollout-${search.run}-${one.update}-${one.row}`;

function follow() {
  const [, run, update, row] = (location.hash.match(/^#rollout-(\d+)-(\d+)-(\d+)$/) || []).map(Number);
  const one = run in RUNS && RUNS[run].rollouts.shown.find((other) => other.update === update && other.row === row);
  if (!one) return;
  goToRollouts(run, "");
  show(one);
}

function updates() {
  const all = [...new Set(RUNS[search.run].rollouts.shown.map((one) => one.update))].sort((a, b) => a - b);
  elements.update.replaceChildren(
    make("option", {value: ""}, "all updates"),
    ...all.map((one) => make("option", {value: one}, `update ${one}`)),
  );
}

function matches(rollout) {
  return (
    (!search.flag || rollout.flags.includes(search.flag)) &&
    (!search.role || rollout.role === search.role) &&
    (!search.outcome || outcome(rollout.reward) === search.outcome) &&
    (search.update === "" || rollout.update === Number(search.update)) &&
    (!search.words ||
      rollout.prompt.toLowerCase().includes(search.words) ||
      rollout.parts
        .map(([, text]) => text)
        .join("")
        .toLowerCase()
        .includes(search.words))
  );
}

function filter() {
  const {shown: all, total, counts} = RUNS[search.run].rollouts;
  search.found = all.filter(matches);
  search.at = 0;
  for (const chip of elements.chips) {
    const flag = chip.dataset.flag,
      here = all.filter((one) => one.flags.includes(flag)).length;
    chip.setAttribute("aria-pressed", String(search.flag === flag));
    chip.disabled = !here;
    chip.lastChild.textContent = flag in counts ? counts[flag].toLocaleString("en-US") : String(here);
  }
  const found = `${search.found.length === all.length ? "" : `${search.found.length} of `}${plural(all.length, "rollout")}`;
  elements.count.textContent =
    all.length === total
      ? `${found}, all that the run made.`
      : `${found} in this page, chosen to be telling, of ${total.toLocaleString("en-US")} in the run. Numbers beside filters count the whole run.`;
  const [skip, leave] = shared(all.map((one) => one.prompt));
  elements.list.replaceChildren(
    ...search.found.map((one, index) =>
      make(
        "button.row",
        {type: "button", click: () => open(index, true)},
        make("span.first", {}, ...tags(one), make("span.when", {}, `update ${one.update}`)),
        make(
          "span.prompt",
          {},
          one.prompt
            .slice(skip, one.prompt.length - leave)
            .replace(/\s+/g, " ")
            .slice(0, 160),
        ),
        strip(one),
      ),
    ),
  );
  elements.list.scrollTop = 0;
  elements.browser.classList.remove("open");
  const telling = [["rescued", "derailed"], ["revised"]].map((flags) =>
    search.found.findIndex((one) => flags.some((flag) => one.flags.includes(flag))),
  );
  if (search.found.length) open(telling.find((index) => index >= 0) ?? 0, false);
  else
    (elements.list.append(make("p.empty", {}, "No rollout in this page meets the filters.")),
      elements.detail.replaceChildren());
}

/** Lengths of what all prompts begin and end with, such as a system prompt: a list of them shows what they differ in. */
function shared(prompts) {
  const [first, ...others] = new Set(prompts);
  if (!others.length) return [0, 0];
  const least = Math.min(...[first, ...others].map((one) => one.length));
  let start = 0,
    end = 0;
  while (start < least && others.every((one) => one[start] === first[start])) start++;
  while (end < least - start && others.every((one) => one.at(-1 - end) === first.at(-1 - end))) end++;
  start = first.slice(0, start).search(/\S*$/); // back to the beginning of a word
  end = end && end - first.slice(-end).search(/\s|$/);
  return start > 20 ? [start, Math.max(0, end)] : [0, 0];
}

function tags(one) {
  const kind = outcome(one.reward);
  const flags = FILTERS.filter(([flag]) => one.flags.includes(flag) && flag !== "revised");
  return [
    make(`span.tag.${kind}`, {}, kind === "unknown" ? "no reward" : `${kind} ${shown(one.reward)}`),
    ...flags.map(([flag, text]) => make(`span.tag.${flag}`, {}, text)),
    flags.length ? null : make("span.tag", {}, one.role),
  ].filter(Boolean);
}

/** The response as a line: whose text stands where. */
function strip(one) {
  const parts = one.strip,
    total = parts.reduce((sum, [, tokens]) => sum + tokens, 0) || 1;
  return make(
    "span.strip",
    {"aria-hidden": "true"},
    ...parts.map(([kind, tokens]) => {
      const part = make(kind === "p" ? "i" : `i.${kind}`);
      part.style.width = `${(tokens / total) * 100}%`;
      return part;
    }),
  );
}

function move(step) {
  const next = search.at + step;
  if (next < 0 || next >= search.found.length) return;
  open(next, true);
  if (elements.list.offsetParent) elements.list.children[next].focus({preventScroll: true});
}

function open(index, chosen) {
  search.at = index;
  [...elements.list.children].forEach((row, place) => row.setAttribute("aria-current", String(place === index)));
  const row = elements.list.children[index];
  const {list} = elements,
    end = row.offsetTop + row.offsetHeight;
  if (row.offsetTop < list.scrollTop) list.scrollTop = row.offsetTop;
  else if (end > list.scrollTop + list.clientHeight) list.scrollTop = end - list.clientHeight;
  elements.detail.replaceChildren(...detail(search.found[index]));
  elements.detail.scrollTop = 0;
  if (chosen) {
    try {
      history.replaceState(null, "", address(search.found[index]));
    } catch {
      /* a page inside another page may have no address */
    }
    elements.browser.classList.add("open");
    if (matchMedia("(max-width: 760px)").matches) elements.browser.scrollIntoView({block: "start"});
  }
}

/** Open a rollout wherever the filters stand; they are taken back where they hide it. */
function show(rollout) {
  if (!search.found.includes(rollout)) reset();
  open(search.found.indexOf(rollout), true);
}

function reset() {
  Object.assign(search, {flag: "", role: "", outcome: "", update: "", words: ""});
  elements.role.value = elements.outcome.value = elements.update.value = elements.words.value = "";
  filter();
}

function goToRollouts(run, flag) {
  search.run = run;
  elements.run.value = String(run);
  Object.assign(search, {role: "", outcome: "", update: "", words: "", flag});
  elements.role.value = elements.outcome.value = elements.words.value = "";
  updates();
  filter();
  $("rollouts").scrollIntoView();
}
