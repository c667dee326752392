// The overview, runs side by side, and what is worth acting on.
function overview() {
  document.querySelector("#overview h1").textContent = DATA.title;
  document.querySelector("#overview .lead").textContent = DATA.lead;
  $("overview-body").append(
    MANY
      ? comparison()
      : make(
          "div.tiles",
          {},
          ...RUNS[0].tiles.map((tile) =>
            make(
              "div.tile.card",
              {},
              make("span.name", {}, tile.name),
              make("span.value", {}, shown(tile.value, tile.form)),
              make("span.note", {}, [tile.about, tile.note].filter(Boolean).join("; ")),
              tile.metric && RUNS[0].metrics[tile.metric] ? spark(RUNS[0].metrics[tile.metric]) : null,
            ),
          ),
        ),
  );
}

/** The runs side by side, a row a quantity; the best stands out where better is known. */
function comparison() {
  const names = [...new Set(RUNS.flatMap((run) => run.tiles.map((tile) => tile.name)))];
  const rows = names.map((name) => {
    const tiles = RUNS.map((run) => run.tiles.find((tile) => tile.name === name) || null),
      known = tiles.filter(Boolean);
    const values = known.map((tile) => tile.value),
      better = known[0].better;
    const best = better && new Set(values).size > 1 ? Math[better === "more" ? "max" : "min"](...values) : null;
    return {
      cells: [
        {text: name, note: known[0].about},
        ...tiles.map((tile) =>
          tile === null
            ? {text: "–", number: true}
            : {text: shown(tile.value, tile.form), note: tile.note, number: true, best: tile.value === best},
        ),
      ],
    };
  });
  const heads = RUNS.map((run) => ({
    node: make("span", {title: run.folder}, dot(runColour(run)), run.name),
    number: true,
  }));
  return make("div.card", {}, table(["", ...heads], rows, "The runs side by side"));
}

function spark(values) {
  const known = values.map((value, index) => [index, value]).filter(([, value]) => value !== null);
  if (known.length < 2) return null;
  const line = smoothed(
    known.map(([, value]) => value),
    Math.ceil(known.length / 20),
  );
  const low = Math.min(...line),
    high = Math.max(...line),
    last = values.length - 1 || 1;
  const svg = drawn("svg", {viewBox: "0 0 200 34", preserveAspectRatio: "none", "aria-hidden": "true"});
  const places = line.map(
    (value, index) =>
      `${((known[index][0] / last) * 200).toFixed(1)} ${(31 - ((value - low) / (high - low || 1)) * 28).toFixed(1)}`,
  );
  svg.append(
    drawn("path", {
      d: `M${places.join("L")}`,
      fill: "none",
      stroke: "var(--run-0)",
      "stroke-width": 1.6,
      "vector-effect": "non-scaling-stroke",
    }),
  );
  return svg;
}

function warnings() {
  if (!DATA.warnings.length)
    return $("warnings-body").append(
      make("p.fine", {}, "Nothing stands out. docs/report.md lists what was looked at, and the limits."),
    );
  $("warnings-body").append(
    ...DATA.warnings.map((one) =>
      make(
        `div.warning.card.${one.level}`,
        {},
        make(
          "span.icon",
          {"aria-label": one.level === "act" ? "act on this" : "worth knowing"},
          one.level === "act" ? "▲" : "○",
        ),
        make(
          "div",
          {},
          make("h3", {}, one.title, MANY ? make("span.run", {}, RUNS[one.run].name) : null),
          make("p.evidence", {}, one.evidence),
          make(
            "p.advice",
            {},
            ...one.advice.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part)),
          ),
        ),
        make(
          "div.go",
          {},
          one.chart && DATA.charts.some((chart) => chart.id === one.chart)
            ? make("button.link", {type: "button", click: () => goToChart(one.chart)}, "curve")
            : null,
          one.filter && RUNS[one.run].rollouts.shown.some((rollout) => rollout.flags.includes(one.filter))
            ? make("button.link", {type: "button", click: () => goToRollouts(one.run, one.filter)}, "rollouts")
            : null,
        ),
      ),
    ),
  );
}

function goToChart(id) {
  const card = $(`chart-${id}`);
  card.scrollIntoView({block: "center"});
  card.classList.add("lit");
  setTimeout(() => card.classList.remove("lit"), 1800);
}
