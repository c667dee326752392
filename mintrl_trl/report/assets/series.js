// What curves are made of: the view that all charts share, smoothing, means over seeds, places on an axis.
const view = {hidden: new Set(), smoothing: 5, clock: false, zoom: null, hover: null};
const charts = [];
const GROUPS = [...new Set(RUNS.map((run) => run.group))];

/** The runs of each group that are shown. */
const shownGroups = () => GROUPS.map((name) => RUNS.filter((run) => run.group === name && !view.hidden.has(run)));

const redraw = () => charts.forEach((chart) => chart.draw());

/** Trailing mean over `width` known values; null where nothing is known. */
function smoothed(values, width) {
  if (width <= 1) return values;
  const window = [];
  let total = 0;
  return values.map((value) => {
    if (value === null) return null;
    window.push(value);
    total += value;
    if (window.length > width) total -= window.shift();
    return total / window.length;
  });
}

/** Round places of an axis, at most about `count` of them, within [low, high]. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((one) => one * power >= rough * 0.999);
  const places = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) places.push(n * step);
  return places;
}

/** What stands at places of an axis: as few digits as tell them apart. */
function labels(places, form) {
  const short = places.map((value) => shown(value, form).replace(/(\.0)? %/, "%"));
  if (new Set(short).size === short.length) return short;
  return places.map((value) =>
    form === "share" ? `${Number((value * 100).toPrecision(6))}%` : String(Number(value.toPrecision(6))),
  );
}

/** Mean and spread of a group's smoothed curves at the updates that all of them have; of one run, that run's curve. */
function mean(single) {
  if (single.length === 1) return {x: single[0].x, y: single[0].smooth};
  const average = (values) => values.reduce((a, b) => a + b) / values.length;
  const places = single.map((one) => new Map(one.updates.map((update, index) => [update, index])));
  const line = {x: [], y: [], low: [], high: []};
  for (const update of single[0].updates) {
    const at = places.map((own) => own.get(update));
    if (at.includes(undefined)) continue;
    const values = single.map((one, run) => one.smooth[at[run]]),
      middle = average(values);
    const spread = Math.sqrt(values.reduce((sum, one) => sum + (one - middle) ** 2, 0) / (values.length - 1));
    line.x.push(average(single.map((one, run) => one.x[at[run]])));
    (line.y.push(middle), line.low.push(middle - spread), line.high.push(middle + spread));
  }
  return line.x.length ? line : {x: single[0].x, y: single[0].smooth};
}

/** The least and the largest of any number of values; `Math.min` takes some ten thousand. */
const extent = (values) =>
  values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** From the first to the last place of the runs that are shown: the same in all charts, so that they can be compared. */
function wholeRun() {
  const places = shownGroups()
    .flat()
    .flatMap((run) => (view.clock ? run.clock : run.updates).filter((place) => place !== null));
  return extent(places);
}

function nearest(sorted, value) {
  let low = 0,
    high = sorted.length - 1;
  while (high - low > 1) sorted[(low + high) >> 1] < value ? (low = (low + high) >> 1) : (high = (low + high) >> 1);
  return Math.abs(sorted[low] - value) <= Math.abs(sorted[high] - value) ? low : high;
}

function decades(low, high) {
  const places = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const one of [1, 2, 5]) {
      const value = one * 10 ** power;
      if (value >= low && value <= high) places.push(value);
    }
  return places.length > 7 ? places.filter((value) => String(value.toExponential()).startsWith("1e")) : places;
}

function zoom(range) {
  view.zoom = range;
  $("unzoom").hidden = range === null;
  redraw();
}
