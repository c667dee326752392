// One rollout: its facts, its group, its text with the colours that `mintrl show` has in a terminal, its reviews.
function detail(one) {
  const fact = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
  const head = make(
    "div.head",
    {},
    make("button.link.back", {type: "button", click: () => elements.browser.classList.remove("open")}, "← list"),
    ...tags(one),
    one.flags.includes("revised") ? make("span.tag", {}, "revised") : null,
    make(
      "span.move",
      {},
      make("button.link", {type: "button", "aria-label": "Previous rollout", click: () => move(-1)}, "↑"),
      make("button.link", {type: "button", "aria-label": "Next rollout", click: () => move(1)}, "↓"),
    ),
  );
  const facts = make(
    "dl.facts",
    {},
    fact("update, row", `${one.update}, ${one.row}`),
    fact("role", one.role),
    fact("reward", shown(one.reward)),
    fact("advantage", one.advantage === null ? "not trained on" : shown(one.advantage)),
    fact("tokens", one.tokens.toLocaleString("en-US")),
    one.role === "intervened" ? fact("by the judge", shown(one.share, "share")) : null,
    fact("time", shown(one.seconds, "seconds")),
    one.row_id === null ? null : fact("data row", String(one.row_id)),
  );
  const text = make(
    "div.text",
    {"data-rollout": `${one.update}-${one.row}`},
    ...one.parts.map(([kind, content]) =>
      ({
        p: () => document.createTextNode(content),
        j: () => make("ins", {title: "written by the judge"}, content),
        d: () => make("del", {title: "discarded"}, content),
        n: () => make("span.why", {}, content),
        g: () => make("span.gap", {}, content),
      })[kind](),
    ),
  );
  return [
    head,
    facts,
    mates(one),
    one.why ? make("div.label", {}, "Why this reward") : null,
    one.why ? make("div.text.quiet", {}, one.why) : null,
    make("div.label", {}, "Prompt"),
    make("div.text.quiet", {}, one.prompt),
    make("div.label", {}, "Response"),
    text,
    reviews(one),
  ].filter(Boolean);
}

/** The rewards of the whole group: what this rollout is compared with. */
function mates(one) {
  const all = RUNS[search.run].rollouts.shown;
  const set = (role) => {
    const own = one.mates.filter((mate) => mate[0] === role);
    if (!own.length) return null;
    return make(
      "span.set",
      {},
      `${role} `,
      ...own.map(([, reward, row]) => {
        const kind = `mate${{right: ".ok", unknown: ".unknown", wrong: ""}[outcome(reward)]}${row === one.row ? ".me" : ""}`;
        const other = row !== one.row && all.find((rollout) => rollout.update === one.update && rollout.row === row);
        const title = `row ${row}: reward ${shown(reward)}${other ? "; open it" : ""}`;
        return other
          ? make(`button.${kind}`, {type: "button", title, "aria-label": title, click: () => show(other)})
          : make(`span.${kind}`, {title});
      }),
    );
  };
  return make(
    "div.mates",
    {},
    make("span", {}, "its group:"),
    set("control"),
    set("intervened"),
    make("span", {}, "filled: right"),
  );
}

function reviews(one) {
  if (!one.reviews.length) return null;
  const words = {keep: "keep", revise: "revise", no_verdict: "no verdict"};
  return make(
    "div",
    {},
    make("div.label", {}, "Reviews"),
    table(
      [
        "tokens",
        "verdict",
        "step",
        "reason",
        {text: "kept", number: true},
        {text: "correction", number: true},
        {text: "time", number: true},
      ],
      one.reviews.map((review) => ({
        cells: [
          `${review.from}–${review.to}`,
          words[review.decision],
          review.step === null ? "" : String(review.step + 1),
          review.reason,
          {text: String(review.kept), number: true},
          {text: review.correction ? String(review.correction) : "", number: true},
          {text: shown(review.seconds, "seconds"), number: true},
        ],
      })),
      "Reviews",
    ),
  );
}
