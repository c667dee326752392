// What the whole page shares, and the order in which it draws itself.
const SECTIONS = ["overview", "warnings", "curves", "rollouts", "cost", "settings"];

function header() {
  const saved = (() => {
    try {
      return localStorage.getItem("mintrl-theme");
    } catch {
      return null;
    }
  })();
  const show = (theme) => (document.documentElement.dataset.theme = theme);
  show(saved || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    show(theme);
    try {
      localStorage.setItem("mintrl-theme", theme);
    } catch {
      /* a page from a file may keep nothing */
    }
  });
  const acts = DATA.warnings.filter((one) => one.level === "act").length;
  document
    .querySelector("nav")
    .append(
      ...SECTIONS.map((id) =>
        make(
          "a",
          {href: `#${id}`},
          id[0].toUpperCase() + id.slice(1),
          id === "warnings" && acts ? make("span.count", {}, String(acts)) : null,
        ),
      ),
    );
  document.querySelector("footer").textContent = DATA.footer;
}

function legend() {
  if (!MANY) return;
  $("legend").hidden = false;
  $("legend").append(
    ...RUNS.map((run) => {
      const chip = make(
        "button.chip",
        {
          type: "button",
          "aria-pressed": "true",
          title: `${run.folder}: show or hide its curves`,
          click: () => {
            view.hidden.has(run) ? view.hidden.delete(run) : view.hidden.add(run);
            chip.setAttribute("aria-pressed", String(!view.hidden.has(run)));
            redraw();
          },
        },
        dot(runColour(run)),
        make("span.name", {}, run.name),
      );
      return chip;
    }),
  );
}

const runColour = (run) => colour(GROUPS.length > 1 ? GROUPS.indexOf(run.group) : 0);

function curves() {
  if (!DATA.charts.length) return $("charts").append(make("p.empty", {}, "No numbers were logged."));
  const smoothing = make("input", {
    type: "range",
    min: "0",
    max: "20",
    value: String(view.smoothing),
    "aria-label": "Smoothing in percent of the run",
    input: (event) => {
      view.smoothing = Number(event.target.value);
      width.textContent = `${view.smoothing} %`;
      redraw();
    },
  });
  const width = make("span", {}, `${view.smoothing} %`);
  const axis = make(
    "select",
    {change: () => ((view.clock = axis.value === "clock"), zoom(null))},
    make("option", {value: "update"}, "updates"),
    make("option", {value: "clock"}, "training time"),
  );
  const unzoom = make(
    "button.link",
    {id: "unzoom", type: "button", hidden: true, click: () => zoom(null)},
    "whole run",
  );
  $("curve-tools").append(
    make("label", {}, "over", axis),
    make("label", {title: "A trailing mean over this share of the run"}, "smoothing", smoothing, width),
    unzoom,
    make("span", {}, "Drag over a curve to zoom into all of them, double click to leave."),
  );
  charts.push(...DATA.charts.map((spec) => new Chart(spec)));
  const names = [...new Set(RUNS.flatMap((run) => Object.keys(run.metrics)))].sort();
  const any = new Chart({
    id: "any",
    title: "any metric",
    about: "Any number that was logged.",
    series: [{label: "", metrics: [names.includes("grad_norm") ? "grad_norm" : names[0]]}],
  });
  const choice = make(
    "select",
    {
      "aria-label": "Metric to draw",
      change: () => ((any.spec.series = [{label: "", metrics: [choice.value]}]), any.draw()),
    },
    ...names.map((name) => make("option", {value: name, selected: name === any.spec.series[0].metrics[0]}, name)),
  );
  any.title.replaceWith(choice);
  charts.push(any);
  $("charts").append(...charts.map((chart) => chart.card));
}

header();
legend();
overview();
warnings();
curves();
browser();
cost();
settings();
