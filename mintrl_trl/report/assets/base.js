"use strict";
// What all parts share: the data, elements, numbers. Text from a run reaches the page through textContent alone.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const MANY = RUNS.length > 1;
const $ = (id) => document.getElementById(id);

/** An element: `make("a.link", {href: "#x"}, "text", child)`. Functions become listeners, null and false are left out. */
function make(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function drawn(tag, attributes = {}, text = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return element;
}

const colour = (number) => `var(--run-${number % 8})`;

function dot(fill) {
  const element = make("span.dot", {"aria-hidden": "true"});
  element.style.background = fill;
  return element;
}

/** A number as people read it. Forms: "share", "seconds", "count", "number". */
function shown(value, form = "number") {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (form === "share") {
    const percent = value * 100;
    return `${percent === 0 || Math.abs(percent) >= 9.95 ? percent.toFixed(Math.abs(percent) >= 99.5 || percent === 0 ? 0 : 1) : Number(percent.toPrecision(2))} %`;
  }
  if (form === "seconds") {
    if (value >= 5400) return `${(value / 3600).toFixed(1)} h`;
    if (value >= 120) return `${(value / 60).toFixed(1)} min`;
    return `${Number(value.toPrecision(3))} s`;
  }
  const size = Math.abs(value);
  if (form === "count" || (Number.isInteger(value) && size >= 1000)) {
    if (size >= 1e10) return `${(value / 1e9).toFixed(1)} bn`;
    if (size >= 1e7) return `${(value / 1e6).toFixed(1)} M`;
    return Math.round(value).toLocaleString("en-US");
  }
  if (size !== 0 && (size < 1e-3 || size >= 1e6))
    return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}

const plural = (count, one) => `${count.toLocaleString("en-US")} ${one}${count === 1 ? "" : "s"}`;

/** A table from a head and rows. A cell is text or {text, note, number, best, node}. */
function table(head, rows, name) {
  const cell = (kind, value) => {
    const given = value !== null && typeof value === "object" ? value : {text: value};
    const classes = [kind, given.number && "number", given.best && "best", given.as].filter(Boolean).join(".");
    const attributes = kind === "th" ? {scope: given.column ? "col" : "row"} : {};
    return make(classes, attributes, given.node, given.text, given.note ? make("small", {}, given.note) : null);
  };
  const columns = head.map((one) => (typeof one === "object" ? {...one, column: true} : {text: one, column: true}));
  return make(
    "div.table",
    {tabindex: "0", role: "region", "aria-label": name},
    make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ...columns.map((one) => cell("th", one)))),
      make(
        "tbody",
        {},
        ...rows.map((row) =>
          make(row.as ? `tr.${row.as}` : "tr", {}, ...row.cells.map((one, index) => cell(index ? "td" : "th", one))),
        ),
      ),
    ),
  );
}
