// Everything but curves and rollouts: overview, warnings, cost, settings, and what the whole page shares.
const SECTIONS = ["overview", "warnings", "curves", "rollouts", "cost", "settings"];

function header() {
  const saved = (() => { try { return localStorage.getItem("mintrl-theme"); } catch { return null; } })();
  const show = (theme) => document.documentElement.dataset.theme = theme;
  show(saved || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    show(theme);
    try { localStorage.setItem("mintrl-theme", theme); } catch { /* a page from a file may keep nothing */ }
  });
  const acts = DATA.warnings.filter((one) => one.level === "act").length;
  document.querySelector("nav").append(...SECTIONS.map((id) => make("a", {href: `#${id}`},
    id[0].toUpperCase() + id.slice(1), id === "warnings" && acts ? make("span.count", {}, String(acts)) : null)));
  document.querySelector("footer").textContent = DATA.footer;
}

function legend() {
  if (!MANY) return;
  $("legend").hidden = false;
  $("legend").append(...RUNS.map((run) => {
    const chip = make("button.chip", {type: "button", "aria-pressed": "true", title: `${run.folder}: show or hide its curves`, click: () => {
      view.hidden.has(run) ? view.hidden.delete(run) : view.hidden.add(run);
      chip.setAttribute("aria-pressed", String(!view.hidden.has(run)));
      redraw();
    }}, dot(runColour(run)), run.name);
    return chip;
  }));
}

const runColour = (run) => colour(GROUPS.length > 1 ? GROUPS.indexOf(run.group) : 0);

function overview() {
  document.querySelector("#overview h1").textContent = DATA.title;
  document.querySelector("#overview .lead").textContent = DATA.lead;
  $("overview-body").append(MANY ? comparison() : make("div.tiles", {}, ...RUNS[0].tiles.map((tile) => make("div.tile.card", {},
    make("span.name", {}, tile.name), make("span.value", {}, shown(tile.value, tile.form)), make("span.note", {}, [tile.about, tile.note].filter(Boolean).join("; ")),
    tile.metric && RUNS[0].metrics[tile.metric] ? spark(RUNS[0].metrics[tile.metric]) : null))));
}

/** The runs side by side, a row a quantity; the best stands out where better is known. */
function comparison() {
  const names = [...new Set(RUNS.flatMap((run) => run.tiles.map((tile) => tile.name)))];
  const rows = names.map((name) => {
    const tiles = RUNS.map((run) => run.tiles.find((tile) => tile.name === name) || null), known = tiles.filter(Boolean);
    const values = known.map((tile) => tile.value), better = known[0].better;
    const best = better && new Set(values).size > 1 ? Math[better === "more" ? "max" : "min"](...values) : null;
    return {cells: [{text: name, note: known[0].about}, ...tiles.map((tile) => tile === null ? {text: "–", number: true}
      : {text: shown(tile.value, tile.form), note: tile.note, number: true, best: tile.value === best})]};
  });
  const heads = RUNS.map((run) => ({node: make("span", {title: run.folder}, dot(runColour(run)), run.name), number: true}));
  return make("div.card", {}, table(["", ...heads], rows, "The runs side by side"));
}

function spark(values) {
  const known = values.map((value, index) => [index, value]).filter(([, value]) => value !== null);
  const line = smoothed(known.map(([, value]) => value), Math.ceil(known.length / 20));
  const low = Math.min(...line), high = Math.max(...line), last = values.length - 1 || 1;
  const svg = drawn("svg", {viewBox: "0 0 200 34", preserveAspectRatio: "none", "aria-hidden": "true"});
  const places = line.map((value, index) => `${(known[index][0] / last * 200).toFixed(1)} ${(31 - (value - low) / (high - low || 1) * 28).toFixed(1)}`);
  svg.append(drawn("path", {d: `M${places.join("L")}`, fill: "none", stroke: "var(--run-0)", "stroke-width": 1.6, "vector-effect": "non-scaling-stroke"}));
  return svg;
}

function warnings() {
  if (!DATA.warnings.length) return $("warnings-body").append(make("p.fine", {}, "Nothing stands out. docs/report.md lists what was looked at, and the limits."));
  $("warnings-body").append(...DATA.warnings.map((one) => make(`div.warning.card.${one.level}`, {},
    make("span.icon", {"aria-label": one.level === "act" ? "act on this" : "worth knowing"}, one.level === "act" ? "▲" : "○"),
    make("div", {}, make("h3", {}, one.title, MANY ? make("span.run", {}, RUNS[one.run].name) : null),
      make("p.evidence", {}, one.evidence), make("p.advice", {}, ...one.advice.split("`").map((part, index) => index % 2 ? make("code", {}, part) : part))),
    make("div.go", {},
      one.chart && DATA.charts.some((chart) => chart.id === one.chart) ? make("button.link", {type: "button", click: () => goToChart(one.chart)}, "curve") : null,
      one.filter && RUNS[one.run].rollouts.shown.some((rollout) => rollout.flags.includes(one.filter)) ? make("button.link", {type: "button", click: () => goToRollouts(one.run, one.filter)}, "rollouts") : null))));
}

function goToChart(id) {
  const card = $(`chart-${id}`);
  card.scrollIntoView({block: "center"});
  card.classList.add("lit");
  setTimeout(() => card.classList.remove("lit"), 1800);
}

function curves() {
  if (!DATA.charts.length) return $("charts").append(make("p.empty", {}, "No numbers were logged."));
  const smoothing = make("input", {type: "range", min: "0", max: "20", value: String(view.smoothing), "aria-label": "Smoothing in percent of the run", input: (event) => {
    view.smoothing = Number(event.target.value);
    width.textContent = `${view.smoothing} %`;
    redraw();
  }});
  const width = make("span", {}, `${view.smoothing} %`);
  const axis = make("select", {change: () => (view.clock = axis.value === "clock", zoom(null))},
    make("option", {value: "update"}, "updates"), make("option", {value: "clock"}, "training time"));
  const unzoom = make("button.link", {id: "unzoom", type: "button", hidden: true, click: () => zoom(null)}, "whole run");
  $("curve-tools").append(make("label", {}, "over", axis), make("label", {title: "A trailing mean over this share of the run"}, "smoothing", smoothing, width), unzoom,
    make("span", {}, "Drag over a curve to zoom into all of them, double click to leave."));
  charts.push(...DATA.charts.map((spec) => new Chart(spec)));
  const names = [...new Set(RUNS.flatMap((run) => Object.keys(run.metrics)))].sort();
  const any = new Chart({id: "any", title: "any metric", about: "Any number that was logged.", series: [{label: "", metrics: [names.includes("grad_norm") ? "grad_norm" : names[0]]}]});
  const choice = make("select", {"aria-label": "Metric to draw", change: () => (any.spec.series = [{label: "", metrics: [choice.value]}], any.draw())},
    ...names.map((name) => make("option", {value: name, selected: name === any.spec.series[0].metrics[0]}, name)));
  any.title.replaceWith(choice);
  charts.push(any);
  $("charts").append(...charts.map((chart) => chart.card));
}

const COSTS = [["calls", "count"], ["retries", "count"], ["tokens read", "count"], ["tokens written", "count"], ["of these in vain", "count"], ["seconds", "seconds"]];

function cost() {
  const card = MANY ? costComparison() : costByRole(RUNS[0]);
  $("cost-body").append(card === null && !timeCard() ? make("p.empty", {}, "No cost was logged.") : make("div.one", {}, card, timeCard()));
}

function costByRole({cost}) {
  const columns = COSTS.filter(([name]) => cost.roles.some((role) => name in role));
  const rows = cost.roles.map((role) => ({cells: [{text: role.name, note: role.note}, ...columns.map(([name, form]) => ({text: name in role ? shown(role[name], form) : "", number: true}))]}));
  return rows.length ? make("div.card", {}, make("h3", {}, "By role"), make("p.about", {}, cost.note),
    table(["role", ...columns.map(([name]) => ({text: name, number: true}))], rows, "Cost by role")) : null;
}

function costComparison() {
  const roles = new Map(RUNS.flatMap((run) => run.cost.roles.map((role) => [role.name, role.note])));
  const rows = [...roles].flatMap(([role, note]) => COSTS.map(([name, form]) => {
    const values = RUNS.map((run) => (run.cost.roles.find((one) => one.name === role) || {})[name]);
    return {name, values, form};
  }).filter(({values}) => values.some((value) => value !== undefined)).map(({name, values, form}, index) => ({
    cells: [{text: `${role}: ${name}`, note: index ? "" : note}, ...values.map((value) => ({text: shown(value, form), number: true}))],
  })));
  const heads = RUNS.map((run) => ({node: make("span", {title: run.cost.note}, dot(runColour(run)), run.name), number: true}));
  return rows.length ? make("div.card", {}, table(["", ...heads], rows, "Cost by role")) : null;
}

function timeCard() {
  const stages = [...new Set(RUNS.flatMap((run) => run.cost.time.map((one) => one.name)))];
  if (!stages.length) return null;
  const rows = RUNS.filter((run) => run.cost.time.length).map((run) => {
    const bar = make("div.shares", {role: "img", "aria-label": run.cost.time.map((one) => `${one.name} ${shown(one.share, "share")}`).join(", ")});
    bar.append(...run.cost.time.map((one) => {
      const part = make("i", {title: `${one.name}: ${shown(one.share, "share")}`});
      part.style.width = `${one.share * 100}%`;
      part.style.background = stageColour(stages, one.name);
      return part;
    }));
    return {cells: [MANY ? run.name : "all updates", {node: bar}, {text: shown(run.cost.seconds, "seconds"), number: true}]};
  });
  const keys = make("div.key", {}, ...stages.map((name) => {
    const shares = RUNS.flatMap((run) => run.cost.time.filter((one) => one.name === name).map((one) => one.share));
    return make("span", {}, dot(stageColour(stages, name)), ` ${name}${MANY ? "" : ` ${shown(shares[0], "share")}`}`);
  }));
  const card = make("div.card", {}, make("h3", {}, "Where the time went"), make("p.about", {}, "Updates only: evaluations and checkpoints are not in it."),
    table(["run", "shares of the time", {text: "time", number: true}], rows, "Where the time went"), keys);
  keys.style.padding = "8px 14px 6px";
  return card;
}

const stageColour = (stages, name) => colour([0, 2, 4, 3, 1, 7][stages.indexOf(name)] ?? 5);

function settings() {
  const differing = DATA.settings.filter((one) => one.differs).length;
  const choice = make("select", {"aria-label": "Which settings", change: () => draw()},
    MANY ? make("option", {value: "differ"}, `that differ (${differing})`) : null,
    make("option", {value: "results"}, "that decide results"), make("option", {value: "all"}, "all"));
  const search = make("input.search", {type: "search", placeholder: "name or value", "aria-label": "Search settings", input: () => draw()});
  const place = make("div.card", {});
  const draw = () => {
    const words = search.value.toLowerCase();
    const rows = DATA.settings.filter((one) => (choice.value !== "differ" || one.differs) && (choice.value !== "results" || one.decides)
      && `${one.name} ${one.values.join(" ")}`.toLowerCase().includes(words));
    place.replaceChildren(rows.length ? table(["setting", ...RUNS.map((run) => run.name)], rows.map((one) => ({as: one.differs ? "differs" : "",
      cells: [one.name, ...one.values.map((value) => ({text: value === null ? "–" : value, as: "value"}))]})), "Settings") : make("p.empty", {}, "No setting."));
  };
  $("settings-body").append(make("div.tools", {}, make("label", {}, "settings", choice), search), place);
  draw();
}

header();
legend();
overview();
warnings();
curves();
browser();
cost();
settings();
