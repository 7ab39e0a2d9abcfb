"use strict";
// Values under the pointer, zoom, sorted tables and anchors. The page can be read without it.
const SVG = "http://www.w3.org/2000/svg";
function add(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
function shown(value) { return value === null ? "not a number" : String(Number(value.toPrecision(7))); }
function span(values, low, high) {
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return [0, 1];
  if (low < high) return [low, high];
  const spread = Math.abs(low) * 0.1 || 0.5;
  return [low - spread, high + spread];
}
function ticks(low, high) {
  let step = 10 ** Math.floor(Math.log10((high - low) / 4));
  step *= [1, 2, 5, 10].find(factor => (high - low) / (step * factor) <= 5) || 10;
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9), k = 0; n * step <= high + step * 1e-9 && k < 12; n++, k++) found.push(n * step);
  return found;
}
function draw(group, chart, from, to) {
  const [left, right, top, bottom] = chart.plot;
  const inside = line => line.x.map((x, i) => i).filter(i => line.x[i] >= from && line.x[i] <= to);
  const ys = chart.lines.flatMap(line => inside(line).map(i => line.y[i]).filter(y => y !== null));
  const [low, high] = span(ys, Infinity, -Infinity);
  const across = x => left + (x - from) / (to - from) * (right - left);
  const down = y => bottom - (y - low) / (high - low) * (bottom - top);
  group.replaceChildren();
  for (const y of ticks(low, high)) {
    add(group, "path", {d: `M${left} ${down(y)}H${right}`, class: "grid"});
    add(group, "text", {x: left - 6, y: down(y) + 4, "text-anchor": "end"}, shown(y));
  }
  for (const x of ticks(from, to)) add(group, "text", {x: across(x), y: bottom + 18, "text-anchor": "middle"}, shown(x));
  for (const line of chart.lines) {
    let path = "", pen = false;
    const places = inside(line);
    for (const i of places) {
      if (line.y[i] !== null) path += (pen ? "L" : "M") + across(line.x[i]) + " " + down(line.y[i]);
      pen = line.y[i] !== null;
    }
    add(group, "path", {d: path, fill: "none", stroke: line.colour, "stroke-width": 2});
    if (places.length <= 120)
      for (const i of places) if (line.y[i] !== null) add(group, "circle", {cx: across(line.x[i]), cy: down(line.y[i]), r: 2.5, fill: line.colour});
  }
  for (const mark of chart.marks) if (mark.x >= from && mark.x <= to) {
    add(group, "path", {d: `M${across(mark.x)} ${top}V${bottom}`, stroke: mark.colour, "stroke-width": 1.5});
    add(group, "text", {x: across(mark.x) + 4, y: bottom - 8, "font-size": 11}, mark.text);
  }
}
for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart), [left, right, top, bottom] = chart.plot;
  const box = svg.parentElement, group = svg.querySelector(".plot"), original = [...group.childNodes];
  const width = svg.viewBox.baseVal.width;
  let [from, to] = chart.x, start = null;
  // The browser would show the title over the values.
  const title = svg.querySelector("title");
  if (title) { svg.setAttribute("aria-label", title.textContent); title.remove(); }
  const line = add(svg, "path", {class: "pointer"}), area = add(svg, "rect", {class: "zoom", y: top, height: bottom - top, width: 0});
  const tip = document.createElement("div"), reset = document.createElement("button");
  tip.className = "tip"; tip.hidden = true; reset.textContent = "Whole range"; reset.hidden = true; reset.type = "button";
  box.append(tip, reset);
  const at = event => {
    const bounds = svg.getBoundingClientRect(), x = (event.clientX - bounds.left) / bounds.width * width;
    return Math.min(right, Math.max(left, x));
  };
  const value = x => from + (x - left) / (right - left) * (to - from);
  const clear = () => { tip.hidden = true; line.setAttribute("d", ""); area.setAttribute("width", 0); start = null; };
  const whole = () => { [from, to] = chart.x; group.replaceChildren(...original); reset.hidden = true; clear(); };
  svg.addEventListener("pointerdown", event => { start = at(event); });
  svg.addEventListener("pointermove", event => {
    const x = at(event), wanted = value(x);
    let nearest = null;
    for (const one of chart.lines) for (const place of one.x)
      if (place >= from && place <= to && (nearest === null || Math.abs(place - wanted) < Math.abs(nearest - wanted))) nearest = place;
    if (nearest === null) return;
    const where = left + (nearest - from) / (to - from) * (right - left);
    line.setAttribute("d", `M${where} ${top}V${bottom}`);
    const rows = chart.lines.filter(one => one.x.includes(nearest)).map(one => `${one.name}: ${shown(one.y[one.x.indexOf(nearest)])}`);
    const name = chart.names ? chart.names[nearest] : `${chart.label || "x"} ${shown(nearest)}`;
    tip.textContent = [name, ...rows, ...chart.marks.filter(mark => mark.x === nearest).map(mark => mark.text)].join("\n");
    tip.hidden = false;
    const scale = svg.getBoundingClientRect().width / width;
    tip.style.top = `${top * scale}px`;
    if (where < width / 2) { tip.style.left = `${where * scale + 8}px`; tip.style.right = "auto"; }
    else { tip.style.right = `${(width - where) * scale + 8}px`; tip.style.left = "auto"; }
    if (start !== null) { area.setAttribute("x", Math.min(start, x)); area.setAttribute("width", Math.abs(x - start)); }
  });
  svg.addEventListener("pointerup", event => {
    const end = at(event);
    if (start !== null && Math.abs(end - start) > 8) {
      [from, to] = [value(Math.min(start, end)), value(Math.max(start, end))];
      draw(group, chart, from, to);
      reset.hidden = false;
    }
    clear();
  });
  svg.addEventListener("pointerleave", clear);
  svg.addEventListener("pointercancel", clear);
  svg.addEventListener("dblclick", whole);
  reset.addEventListener("click", whole);
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], given = [...body.rows];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button"; button.textContent = head.textContent; head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = row => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
      const sorted = given.toSorted((a, b) => key(a).localeCompare(key(b), "en", {numeric: true}));
      if (given.every(row => key(row) === "-" || Number.isFinite(Number(key(row)))))
        sorted.sort((a, b) => (Number(key(a)) || 0) - (Number(key(b)) || 0));
      body.append(...(up ? sorted : sorted.reverse()));
    });
  });
}
function reveal() {
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let place = found; place; place = place.parentElement) if (place.tagName === "DETAILS") place.open = true;
  if (found) found.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();
