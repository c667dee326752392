// Curves: one card a chart; all share zoom, smoothing, x axis and the runs shown. Drag to zoom, double click to leave.
const MARGIN = {left: 46, right: 12, top: 18, bottom: 22};
const DASHES = ["", "6 4", "2 3", "9 3 2 3"];

class Chart {
  constructor(spec) {
    this.spec = spec;
    this.log = false;
    this.svg = drawn("svg", {
      height: 190,
      role: "img",
      tabindex: "0",
      "aria-label": `${spec.title}. Drag to zoom, arrow keys to read values.`,
    });
    this.keys = make("div.keys");
    this.tip = make("div.tip", {hidden: true});
    this.title = make("h3", {}, spec.title);
    this.about = make("p.about", {}, spec.about || "");
    const scale = make(
      "button.plain",
      {
        type: "button",
        "aria-pressed": "false",
        title: "Logarithmic scale",
        click: () => {
          this.log = !this.log;
          scale.setAttribute("aria-pressed", String(this.log));
          this.draw();
        },
      },
      "log",
    );
    const wide = make(
      "button.plain",
      {
        type: "button",
        "aria-pressed": "false",
        title: "Whole width",
        click: () => {
          wide.setAttribute("aria-pressed", String(this.card.classList.toggle("wide")));
        },
      },
      "wide",
    );
    this.card = make(
      "article.chart.card",
      {id: `chart-${spec.id}`},
      make("header", {}, this.title, scale, wide),
      this.about,
      this.keys,
      this.svg,
      this.tip,
    );
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  /** Lines to draw: a mean over a group's runs for each series, with the values of single runs behind it. */
  lines() {
    const found = [];
    shownGroups().forEach((runs, group) =>
      this.spec.series.forEach((series, number) => {
        const known = runs.map((run) => this.values(run, series)).filter((one) => one !== null);
        if (!known.length) return;
        const single = known.map((points) => ({
          ...points,
          smooth: smoothed(points.y, Math.ceil((points.y.length * view.smoothing) / 100)),
        }));
        const several = GROUPS.length > 1;
        found.push({
          name: several
            ? series.label
              ? `${GROUPS[group]}, ${series.label}`
              : GROUPS[group]
            : series.label || this.spec.title,
          stroke: colour(several ? group : number),
          dash: several ? DASHES[number % DASHES.length] : "",
          single,
          ...mean(single),
        });
      }),
    );
    return found;
  }

  values(run, series) {
    const name = series.metrics.find((one) => run.metrics[one]);
    if (!name) return null;
    const y = [],
      x = [],
      updates = [];
    run.metrics[name].forEach((value, index) => {
      const place = view.clock ? run.clock[index] : run.updates[index];
      if (value !== null && place !== null) (x.push(place), y.push(value), updates.push(run.updates[index]));
    });
    return x.length ? {x, y, updates} : null;
  }

  draw() {
    const width = this.svg.clientWidth,
      height = this.card.classList.contains("wide") ? 340 : 190;
    if (!width) return;
    this.svg.setAttribute("height", height);
    this.drawnLines = this.lines();
    this.svg.replaceChildren();
    this.key();
    if (!this.drawnLines.length)
      return ((this.scale = null), this.svg.append(drawn("text", {x: 10, y: 24}, "not logged by the runs shown")));
    let [x0, x1] = view.zoom || wholeRun();
    if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
    const [y0, y1] = this.range(x0, x1);
    const way = this.log ? Math.log10 : (value) => value;
    const x = (value) => MARGIN.left + ((value - x0) / (x1 - x0)) * (width - MARGIN.left - MARGIN.right);
    const y = (value) =>
      height - MARGIN.bottom - ((way(value) - way(y0)) / (way(y1) - way(y0))) * (height - MARGIN.top - MARGIN.bottom);
    this.scale = {x, y, x0, x1, width, height};
    this.axes(x0, x1, y0, y1);
    const inside = drawn("svg", {
      x: MARGIN.left,
      y: 0,
      width: width - MARGIN.left - MARGIN.right,
      height,
      viewBox: `${MARGIN.left} 0 ${width - MARGIN.left - MARGIN.right} ${height}`,
    });
    this.svg.append(inside);
    for (const line of this.drawnLines) {
      if (line.low) inside.append(drawn("path", {class: "band", fill: line.stroke, d: this.area(line)}));
      for (const one of this.behind(line))
        inside.append(drawn("path", {class: "raw", stroke: line.stroke, d: this.path(one.x, one.y)}));
      inside.append(
        drawn("path", {
          class: "mean",
          stroke: line.stroke,
          "stroke-dasharray": line.dash,
          d: this.path(line.x, line.y),
        }),
      );
      if (line.x.length === 1)
        inside.append(drawn("circle", {cx: x(line.x[0]), cy: y(line.y[0]), r: 3, fill: line.stroke}));
    }
    this.cross = drawn("g");
    this.svg.append(this.cross);
    this.point();
  }

  /** What the lines are: of several groups the page's legend names the colours, and here stand the dashes alone. */
  key() {
    const several = GROUPS.length > 1;
    const entries = several
      ? this.spec.series.map((series, number) => ({
          name: series.label,
          stroke: "currentColor",
          dash: DASHES[number % DASHES.length],
        }))
      : this.drawnLines;
    this.keys.replaceChildren(
      ...(entries.length > 1 ? entries : []).map(({name, stroke, dash}) => {
        const sample = drawn("svg", {viewBox: "0 0 18 8", "aria-hidden": "true"});
        sample.append(drawn("path", {d: "M0 4H18", stroke, "stroke-width": 2, "stroke-dasharray": dash}));
        return make("span", {}, sample, name);
      }),
    );
  }

  range(x0, x1) {
    const seen = this.drawnLines
      .flatMap((line) => [line, ...this.behind(line)])
      .flatMap((line) => line.y.filter((_, index) => line.x[index] >= x0 && line.x[index] <= x1))
      .filter((value) => !this.log || value > 0);
    let [low, high] = seen.length ? extent(seen) : [this.log ? 0.1 : 0, 1];
    const limit = this.spec.limit;
    if (limit && !this.log && limit.value <= Math.max(high * 3, 1e-9))
      ((high = Math.max(high, limit.value * 1.08)), (low = Math.min(low, limit.value)));
    if (this.log) return [low / 1.1, high * 1.1];
    if (this.spec.form === "share" && low >= 0) low = Math.min(low, 0);
    const room = (high - low || Math.abs(high) || 1) * 0.05;
    return [low === 0 ? 0 : low - room, high + room];
  }

  axes(x0, x1, y0, y1) {
    const {x, y, width, height} = this.scale;
    const hours = x1 > 7200,
      unit = view.clock ? (hours ? 3600 : 60) : 1;
    const heights = this.log ? decades(y0, y1) : ticks(y0, y1, height / 48);
    const names = labels(heights, this.spec.form);
    for (const [number, value] of heights.entries()) {
      this.svg.append(
        drawn("line", {class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value)}),
      );
      this.svg.append(
        drawn("text", {x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end"}, names[number]),
      );
    }
    const places = ticks(x0 / unit, x1 / unit, width / 90).filter((value) => view.clock || Number.isInteger(value));
    for (const value of places)
      this.svg.append(
        drawn(
          "text",
          {x: x(value * unit), y: height - 6, "text-anchor": "middle"},
          `${shown(value)}${view.clock ? (hours ? " h" : " min") : ""}`,
        ),
      );
    this.svg.append(
      drawn("line", {
        class: "axis",
        x1: MARGIN.left,
        x2: width - MARGIN.right,
        y1: height - MARGIN.bottom,
        y2: height - MARGIN.bottom,
      }),
    );
    const limit = this.spec.limit;
    if (limit && limit.value < y1 && limit.value > y0) {
      this.svg.append(
        drawn("line", {
          class: "limit",
          x1: MARGIN.left,
          x2: width - MARGIN.right,
          y1: y(limit.value),
          y2: y(limit.value),
        }),
      );
      this.svg.append(
        drawn(
          "text",
          {class: "limit-name", x: width - MARGIN.right, y: y(limit.value) - 4, "text-anchor": "end"},
          limit.name,
        ),
      );
    }
    const switches = new Set(
      shownGroups()
        .flat()
        .map((run) => run.switch)
        .filter((one) => one !== null),
    );
    if (!view.clock)
      for (const one of switches)
        if (one > x0 && one < x1) {
          this.svg.append(
            drawn("line", {class: "switch", x1: x(one), x2: x(one), y1: MARGIN.top, y2: height - MARGIN.bottom}),
          );
          this.svg.append(drawn("text", {x: x(one), y: MARGIN.top - 6, "text-anchor": "middle"}, "interventions end"));
        }
  }

  /** What is drawn behind a line: the curves of a group's runs; of a run alone on the page, its values as they were logged. */
  behind(line) {
    if (line.single.length > 1) return line.single.map((one) => ({x: one.x, y: one.smooth}));
    return view.smoothing && GROUPS.length === 1 ? line.single : [];
  }

  path(xs, ys) {
    let path = "",
      pen = "M";
    ys.forEach((value, index) => {
      if (this.log && value <= 0) return (pen = "M");
      path += `${pen}${this.scale.x(xs[index]).toFixed(1)} ${this.scale.y(value).toFixed(1)}`;
      pen = "L";
    });
    return path;
  }

  area(line) {
    const positive = (value) => (this.log ? Math.max(value, 1e-12) : value);
    const place = (index, value) =>
      `${this.scale.x(line.x[index]).toFixed(1)} ${this.scale.y(positive(value)).toFixed(1)}`;
    return `M${[...line.high.map((v, i) => place(i, v)), ...line.low.map((v, i) => place(i, v)).reverse()].join("L")}Z`;
  }

  /** The cross at the place that is read, in every chart; the values only in the chart under the pointer. */
  point() {
    if (!this.scale || !this.cross) return;
    const {x, y, x0, x1, width, height} = this.scale;
    this.cross.replaceChildren();
    this.tip.hidden = true;
    const at = view.hover && view.hover.x;
    if (at === null || at === undefined || at < x0 || at > x1) return;
    this.cross.append(
      drawn("line", {class: "cross", x1: x(at), x2: x(at), y1: MARGIN.top, y2: height - MARGIN.bottom}),
    );
    const read = this.drawnLines
      .map((line) => ({line, index: nearest(line.x, at)}))
      .filter(({line, index}) => Math.abs(line.x[index] - at) <= (x1 - x0) / 12);
    for (const {line, index} of read)
      if (!this.log || line.y[index] > 0)
        this.cross.append(drawn("circle", {cx: x(line.x[index]), cy: y(line.y[index]), r: 3.5, fill: line.stroke}));
    if (view.hover.chart !== this || !read.length) return;
    const where = read[0].line.x[read[0].index];
    this.tip.replaceChildren(
      make("div", {}, view.clock ? shown(where, "seconds") : `update ${shown(where)}`),
      ...read.map(({line, index}) =>
        make("div", {}, dot(line.stroke), line.name, make("b", {}, shown(line.y[index], this.spec.form))),
      ),
    );
    this.tip.hidden = false;
    const place = this.svg.offsetLeft + x(at),
      own = this.card.getBoundingClientRect().left,
      room = this.tip.offsetWidth + 14;
    const fits = own + place + room < document.documentElement.clientWidth - 4;
    this.tip.style.left = `${Math.max(4 - own, fits ? place + 14 : place - room)}px`;
    this.tip.style.top = `${this.svg.offsetTop + 10}px`;
  }

  listen() {
    let from = null,
      brush = null;
    const place = (event) => {
      const {x0, x1, width} = this.scale;
      const share =
        (event.clientX - this.svg.getBoundingClientRect().left - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
      return x0 + Math.min(1, Math.max(0, share)) * (x1 - x0);
    };
    const read = (x) => ((view.hover = x === null ? null : {x, chart: this}), charts.forEach((chart) => chart.point()));
    this.svg.addEventListener("pointerdown", (event) => {
      if (!this.scale || event.button) return;
      from = place(event);
      read(from);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!this.scale) return;
      const at = place(event);
      read(at);
      if (from === null) return;
      if (!brush || !brush.isConnected)
        this.svg.append(
          (brush = drawn("rect", {
            class: "brush",
            y: MARGIN.top,
            height: this.scale.height - MARGIN.top - MARGIN.bottom,
          })),
        );
      const [left, right] = [this.scale.x(from), this.scale.x(at)].sort((a, b) => a - b);
      brush.setAttribute("x", left);
      brush.setAttribute("width", right - left);
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [low, high] = [from, place(event)].sort((a, b) => a - b);
      const far = this.scale.x(high) - this.scale.x(low) > 8;
      from = null;
      if (brush) brush.remove();
      if (far) zoom([low, high]);
    });
    this.svg.addEventListener("pointercancel", () => ((from = null), brush && brush.remove()));
    // A finger leaves whenever it is lifted; what it read stays until it reads elsewhere.
    this.svg.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && read(null));
    this.svg.addEventListener("dblclick", () => zoom(null));
    this.svg.addEventListener("keydown", (event) => {
      const line = this.drawnLines && this.drawnLines[0];
      if (event.key === "Escape") return zoom(null);
      if (!line || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const index = view.hover ? nearest(line.x, view.hover.x) + (event.key === "ArrowLeft" ? -1 : 1) : 0;
      read(line.x[Math.min(line.x.length - 1, Math.max(0, index))]);
      event.preventDefault();
    });
  }
}
