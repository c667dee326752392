// Cost by role, where the time went, and the settings.
const COSTS = [
  ["calls", "count"],
  ["retries", "count"],
  ["tokens read", "count"],
  ["tokens written", "count"],
  ["of these not used", "count"],
  ["seconds", "seconds"],
];

function cost() {
  const cards = [MANY ? costComparison() : costByRole(RUNS[0]), timeCard()];
  $("cost-body").append(
    cards.some(Boolean) ? make("div.one", {}, ...cards) : make("p.empty", {}, "No cost was logged."),
  );
}

function costByRole({cost}) {
  const columns = COSTS.filter(([name]) => cost.roles.some((role) => name in role));
  const rows = cost.roles.map((role) => ({
    cells: [
      {text: role.name, note: role.note},
      ...columns.map(([name, form]) => ({text: name in role ? shown(role[name], form) : "", number: true})),
    ],
  }));
  return rows.length
    ? make(
        "div.card",
        {},
        make("h3", {}, "By role"),
        make("p.about", {}, cost.note),
        table(["role", ...columns.map(([name]) => ({text: name, number: true}))], rows, "Cost by role"),
      )
    : null;
}

function costComparison() {
  const roles = new Map(RUNS.flatMap((run) => run.cost.roles.map((role) => [role.name, role.note])));
  const rows = [...roles].flatMap(([role, note]) =>
    COSTS.map(([name, form]) => {
      const values = RUNS.map((run) => (run.cost.roles.find((one) => one.name === role) || {})[name]);
      return {name, values, form};
    })
      .filter(({values}) => values.some((value) => value !== undefined))
      .map(({name, values, form}, index) => ({
        cells: [
          {text: `${role}: ${name}`, note: index ? "" : note},
          ...values.map((value) => ({text: shown(value, form), number: true})),
        ],
      })),
  );
  const heads = RUNS.map((run) => ({
    node: make("span", {title: run.cost.note}, dot(runColour(run)), run.name),
    number: true,
  }));
  return rows.length ? make("div.card", {}, table(["", ...heads], rows, "Cost by role")) : null;
}

function timeCard() {
  const stages = [...new Set(RUNS.flatMap((run) => run.cost.time.map((one) => one.name)))];
  if (!stages.length) return null;
  const rows = RUNS.filter((run) => run.cost.time.length).map((run) => {
    const bar = make("div.shares", {
      role: "img",
      "aria-label": run.cost.time.map((one) => `${one.name} ${shown(one.share, "share")}`).join(", "),
    });
    bar.append(
      ...run.cost.time.map((one) => {
        const part = make("i", {title: `${one.name}: ${shown(one.share, "share")}`});
        part.style.width = `${one.share * 100}%`;
        part.style.background = stageColour(stages, one.name);
        return part;
      }),
    );
    return {
      cells: [MANY ? run.name : "all updates", {node: bar}, {text: shown(run.cost.seconds, "seconds"), number: true}],
    };
  });
  const keys = make(
    "div.key",
    {},
    ...stages.map((name) => {
      const shares = RUNS.flatMap((run) => run.cost.time.filter((one) => one.name === name).map((one) => one.share));
      return make("span", {}, dot(stageColour(stages, name)), ` ${name}${MANY ? "" : ` ${shown(shares[0], "share")}`}`);
    }),
  );
  const card = make(
    "div.card",
    {},
    make("h3", {}, "Where the time went"),
    make("p.about", {}, "Updates only: evaluations and checkpoints are not in it."),
    table(["run", "shares of the time", {text: "time", number: true}], rows, "Where the time went"),
    keys,
  );
  keys.style.padding = "8px 14px 6px";
  return card;
}

const stageColour = (stages, name) => colour([0, 2, 4, 3, 1, 7][stages.indexOf(name)] ?? 5);

function settings() {
  const differing = DATA.settings.filter((one) => one.differs).length;
  const choice = make(
    "select",
    {"aria-label": "Which settings", change: () => draw()},
    MANY ? make("option", {value: "differ"}, `that differ (${differing})`) : null,
    make("option", {value: "results"}, "that decide results"),
    make("option", {value: "all"}, "all"),
  );
  const search = make("input.search", {
    type: "search",
    placeholder: "name or value",
    "aria-label": "Search settings",
    input: () => draw(),
  });
  const place = make("div.card", {});
  const draw = () => {
    const words = search.value.toLowerCase();
    const rows = DATA.settings.filter(
      (one) =>
        (choice.value !== "differ" || one.differs) &&
        (choice.value !== "results" || one.decides) &&
        `${one.name} ${one.values.join(" ")}`.toLowerCase().includes(words),
    );
    place.replaceChildren(
      rows.length
        ? table(
            ["setting", ...RUNS.map((run) => run.name)],
            rows.map((one) => ({
              as: one.differs ? "differs" : "",
              cells: [one.name, ...one.values.map((value) => ({text: value === null ? "–" : value, as: "value"}))],
            })),
            "Settings",
          )
        : make("p.empty", {}, "No setting."),
    );
  };
  $("settings-body").append(make("div.tools", {}, make("label", {}, "settings", choice), search), place);
  draw();
}
