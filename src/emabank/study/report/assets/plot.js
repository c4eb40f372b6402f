  // The figures of the page, then page.js: one script, put together by page.py. Plain JavaScript, no library, no
  // request, no eval.
  const SVG = "http://www.w3.org/2000/svg";
  const root = document.documentElement;

  // Elements and numbers ------------------------------------------------------------------------------------------
  const put = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const html = (name, attributes = {}, ...children) => put(document.createElement(name), attributes, children);
  const svg = (name, attributes = {}, ...children) => put(document.createElementNS(SVG, name), attributes, children);
  const number = (value, digits) => value.toFixed(digits).replace(/^-(0(?:\.0*)?)$/, "$1").replace("-", "−");
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const isKnown = (value) => value !== null && value !== undefined;
  const least = (values) => values.reduce((one, other) => Math.min(one, other), Infinity); // Math.min(...) has a limit
  const most = (values) => values.reduce((one, other) => Math.max(one, other), -Infinity);

  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
    const first = Math.ceil(low / step - 1e-6), last = Math.floor(high / step + 1e-6);
    const values = Array.from({ length: Math.max(0, last - first + 1) }, (_, place) => (first + place) * step);
    return { values, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }

  // A panel of a figure: what is in it, and where on its axes.
  // Figures -------------------------------------------------------------------------------------------------------
  const RAMP = ["#2b1b6b", "#5a2a93", "#9a3093", "#cf4a6b", "#ee8048", "#f7bd62", "#fff3cf"]; // dark to light
  const shade = (share) => {
    const place = clamp(share, 0, 1) * (RAMP.length - 1), from = Math.min(Math.floor(place), RAMP.length - 2);
    const part = (hex, at) => parseInt(hex.slice(at, at + 2), 16);
    const mix = (at) => part(RAMP[from], at) + (place - from) * (part(RAMP[from + 1], at) - part(RAMP[from], at));
    return `rgb(${[1, 3, 5].map((at) => Math.round(mix(at))).join(",")})`;
  };
  const stroke = ({ colour, dash }, form) =>
    svg(form.d ? "path" : "line", { class: `line c-${colour}`, "stroke-dasharray": dash || undefined, ...form });
  const swatch = (entry) => svg("svg", { class: "swatch", width: 30, height: 12, "aria-hidden": "true" },
    stroke(entry, { x1: 1, x2: 29, y1: 6, y2: 6 }));
  const words = (x, y, text, attributes = {}) => svg("text", { x, y, ...attributes }, text);
  const END = { "text-anchor": "end" }, MIDDLE = { "text-anchor": "middle", class: "x-tick" };
  const within = (value, [low, high]) => value >= low && value <= high;
  const spread = (std, digits) => (isKnown(std) ? ` ± ${number(std, digits)}` : "");
  const note = (label) => ({ label: `◆ ${label}`, text: "" });
  const steps = (x) => (Array.isArray(x) ? x
    : Array.from({ length: x.count }, (_, place) => Number((x.from + place * x.step).toFixed(6))));
  const upwards = (one, other) => one - other;
  const STYLED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "paint-order",
    "font-family", "font-size", "font-weight", "text-anchor"];
  let plots = 0;
  let isSmooth = false; // then a curve is drawn as means of three neighbours; what is read out stays as measured
  const smoothed = (y) => (!isSmooth ? y : y.map((value, place) => {
    const [before, after] = [y[place - 1], y[place + 1]];
    return [before, value, after].every(isKnown) ? (before + value + after) / 3 : value; // ends stay
  }));

  class Axes {
    constructor(panel, figure) {
      Object.assign(this, { panel, figure, id: `plot-${++plots}`, seen: false, stop: null, row: 0 });
      const { xs, legend } = figure.data;
      const full = (line) => {
        const own = steps(xs[line.x]);
        return { ...line, xs: own, at: new Map(own.map((x, place) => [x, place])), entry: legend[line.of] };
      };
      this.lines = panel.lines.map(full);
      this.rate = panel.rate && full(panel.rate);
      this.domain = this.view = this.whole();
      this.build();
      this.listen();
      new ResizeObserver(() => this.resize()).observe(this.host);
    }

    whole() {
      const { grid, bars = [], xLimits } = this.panel;
      if (grid) return [-0.5, grid[0].length - 0.5];
      if (xLimits) return xLimits;
      const lines = this.rate ? [...this.lines, this.rate] : this.lines;
      const ends = [...lines.flatMap((line) => line.xs), ...bars.flatMap(([left, width]) => [left, left + width])];
      const low = least(ends.filter(isKnown)), high = most(ends.filter(isKnown));
      return !ends.length ? [0, 1] : high > low ? [low, high] : [low - 0.5, high + 0.5];
    }

    build() {
      const { grid, title, xLabel, yLabel, marks = [] } = this.panel;
      const name = [title, yLabel].filter(Boolean).join(": ");
      const tool = (sign, act, said) => {
        const button = html("button", { type: "button", "aria-label": `${said}: ${name}`, title: said }, sign);
        button.addEventListener("click", act);
        return button;
      };
      this.reset = tool("reset", () => this.zoom(...this.domain), "Show all");
      this.reset.disabled = true;
      const out = tool("−", () => this.scale(2), "Zoom out"), closer = tool("+", () => this.scale(0.5), "Zoom in");
      const save = tool("SVG", () => this.save(), "Download as SVG");
      this.svg = svg("svg", { "aria-hidden": "true" });
      this.readout = html("div", { class: "readout", hidden: "" });
      this.spoken = html("p", { class: "spoken", "aria-live": "polite" });
      this.host = html("div", {
        class: "plot", tabindex: 0, role: "application", "aria-roledescription": "interactive figure",
        "aria-label": `${name} over ${xLabel}. Arrow keys read the values, plus and minus zoom, Escape shows all.`,
      }, this.svg, this.readout);
      const count = (place) => (marks.length > 1 ? ` ${place + 1}` : "");
      const list = grid ? [] : marks.map(([, , label], place) => `◆${count(place)} ${label}`);
      this.element = html("div", { class: "panel" },
        html("header", {}, html("h4", {}, title), html("div", { class: "tools" }, save, out, closer, this.reset)),
        this.host, this.spoken,
        html("ul", { class: "marks" }, ...list.map((label) => html("li", {}, label))));
    }

    // Where things are ----------------------------------------------------------------------------------------------
    visible() { return this.lines.filter((line) => !this.figure.hidden.has(line.of)); }

    stops() {
      const { grid, bars } = this.panel;
      if (grid) return grid[0].map((_, column) => column);
      if (bars) return bars.map(([left, width]) => left + width / 2);
      const all = new Set(this.visible().flatMap((line) => line.xs.filter((_, place) => isKnown(line.y[place]))));
      return [...all].filter((x) => within(x, this.domain)).sort(upwards);
    }

    x(value) { return this.left + (value - this.view[0]) / (this.view[1] - this.view[0]) * (this.right - this.left); }

    place(event) {
      const share = (event.clientX - this.host.getBoundingClientRect().left - this.left) / (this.right - this.left);
      return this.view[0] + clamp(share, 0, 1) * (this.view[1] - this.view[0]);
    }

    zoom(low, high) {
      const stops = this.stops(), [first, last] = this.domain;
      const few = stops.length > 3 ? 3 * (stops.at(-1) - stops[0]) / (stops.length - 1) : last - first;
      const width = clamp(high - low, Math.min(few, last - first), last - first);
      const from = clamp((low + high - width) / 2, first, last - width);
      this.view = [from, from + width];
      this.reset.disabled = width >= (last - first) * 0.9999;
      this.draw();
    }

    scale(factor, around = this.stop ?? (this.view[0] + this.view[1]) / 2) {
      this.zoom(around - (around - this.view[0]) * factor, around + (this.view[1] - around) * factor);
    }

    resize() {
      const width = Math.round(this.host.clientWidth), { grid, bars, rate } = this.panel;
      if (!width || width === this.width) return;
      const heat = grid && grid.length * clamp(230 / grid.length, 16, 34);
      const tall = Math.round(heat || (bars ? Math.min(width - 60, 320) : clamp(width * 0.56, 210, 340)));
      Object.assign(this, { width, right: width - 14, top: 22, bottom: 22 + tall, foot: 22 + tall + (rate ? 70 : 0) });
      const height = this.foot + (grid ? 78 : 40);
      put(this.svg, { viewBox: `0 0 ${width} ${height}`, height }, []);
      this.draw();
    }

    labelWidth(labels) {
      const ruler = document.createElement("canvas").getContext("2d");
      const { fontSize, fontFamily } = getComputedStyle(this.svg);
      ruler.font = `${fontSize} ${fontFamily}`;
      return most(labels.map((label) => ruler.measureText(label).width)) + 12;
    }

    range() {
      const { yLimits, bars = [], marks = [] } = this.panel;
      const untouched = this.reset.disabled && this.visible().length === this.lines.length;
      if (yLimits && untouched && yLimits[1] > yLimits[0]) return yLimits;
      const values = bars.flatMap((bar) => [0, bar[2]]);
      for (const { xs, y, std, seeds } of this.visible()) {
        xs.forEach((x, place) => {
          const reach = std?.[place] ?? 0;
          const ends = seeds ? seeds.map((seed) => seed[place]) : [y[place] - reach, y[place] + reach];
          if (within(x, this.view) && isKnown(y[place])) values.push(...ends);
        });
      }
      for (const [x, y] of marks) if (within(x, this.view) && isKnown(y)) values.push(y);
      if (!values.length) return [0, 1];
      const low = least(values), high = most(values), margin = (high - low) * 0.04 || Math.abs(high) * 0.05 || 0.5;
      return [bars.length ? low : low - margin, high + margin];
    }
  }

  // A panel of a figure: its curves, bars and heat map.
  class Drawn extends Axes {
    draw() {
      if (!this.seen || !this.width) return;
      const layers = this.panel.grid ? this.heat() : this.curves();
      this.over = svg("g");
      this.svg.replaceChildren(...layers, this.over);
      this.cursor();
    }

    inside(from, to, form, ...children) {
      const id = `${this.id}-${Math.round(from)}`;
      const box = svg("rect", { x: this.left, y: from, width: this.right - this.left, height: to - from });
      return svg("g", { "clip-path": `url(#${id})`, ...form }, svg("clipPath", { id }, box), ...children);
    }

    across(y, kind) { return svg("line", { class: kind, x1: this.left, x2: this.right, y1: y, y2: y }); }

    curves() {
      const [low, high] = this.range(), step = ticks(low, high, clamp((this.bottom - this.top) / 48, 3, 7));
      this.left = this.labelWidth([...step.values.map((value) => number(value, step.digits)), this.rate ? "0.00" : ""]);
      this.y = (value) => this.bottom - (value - low) / (high - low) * (this.bottom - this.top);
      const grid = step.values.flatMap((value) => [this.across(this.y(value), "gridline"),
        words(this.left - 6, this.y(value) + 4, number(value, step.digits), END)]);
      const traces = this.visible().flatMap((line) => this.trace(line));
      const lines = this.inside(this.top - 1, this.bottom + 1, {}, this.bars(), ...traces);
      const rate = this.rate ? this.strip() : [];
      return [...grid, words(0, 11, this.panel.yLabel), lines, ...this.marks(), ...rate, ...this.axis()];
    }

    pieces(y) {
      const pieces = [[]]; // what is missing is a gap
      y.forEach((value, place) => (isKnown(value) ? pieces.at(-1).push(place) : pieces.push([])));
      return pieces;
    }

    thin(xs, y, { colour }) {
      const at = (place) => `${this.x(xs[place]).toFixed(1)} ${this.y(y[place]).toFixed(1)}`;
      const d = this.pieces(y).filter((piece) => piece.length > 1).map((piece) => `M${piece.map(at).join("L")}`).join("");
      return svg("path", { class: `seed c-${colour}`, d: d || "M0 0" });
    }

    trace({ xs, y: measured, std, seeds: curves = [], entry }) {
      const [y, ...seeds] = [measured, ...curves].map((one) => (this.panel.bars ? one : smoothed(one)));
      const at = (place, add = 0) => `${this.x(xs[place]).toFixed(1)} ${this.y(y[place] + add).toFixed(1)}`;
      const pieces = this.pieces(y);
      const band = (piece) => [...piece.map((place) => at(place, std[place])),
        ...[...piece].reverse().map((place) => at(place, -std[place]))];
      const bands = std && !seeds.length ? pieces.map((piece) => piece.filter((place) => isKnown(std[place]))) : [];
      const area = bands.filter((piece) => piece.length > 1).map((piece) => `M${band(piece).join("L")}Z`).join("");
      const path = (piece) => `M${piece.map((place) => at(place)).join("L")}`;
      const line = pieces.filter((piece) => piece.length > 1).map(path);
      const lone = pieces.filter((piece) => piece.length === 1).map(([place]) =>
        svg("circle", { class: `dot c-${entry.colour}`, cx: this.x(xs[place]), cy: this.y(y[place]), r: 3 }));
      return [svg("path", { class: `band c-${entry.colour}`, d: area }),
        ...seeds.map((seed) => this.thin(xs, seed, entry)),
        stroke(entry, { d: line.join("") || "M0 0", "data-label": entry.label }), ...lone];
    }

    bars() {
      return svg("g", { class: "bars" }, ...(this.panel.bars || []).map(([left, width, height]) => svg("rect", {
        x: this.x(left) + 1, width: Math.max(1, this.x(left + width) - this.x(left) - 2),
        y: this.y(height), height: Math.max(0, this.y(0) - this.y(height)),
      })));
    }

    mark(x, y, size) {
      const d = `M${x} ${y - size}l${size} ${size}l${-size} ${size}l${-size} ${-size}z`;
      return svg("path", { class: "mark", d });
    }

    marks() {
      const { marks = [] } = this.panel, tall = [this.top - 1, this.bottom + 1];
      return marks.flatMap(([x, y], place) => {
        if (!within(x, this.view) || !within(this.y(y), tall)) return [];
        const name = marks.length > 1 ? [words(this.x(x) + 9, this.y(y) - 6, place + 1, { class: "mark-number" })] : [];
        return [this.mark(this.x(x), this.y(y), 6), ...name];
      });
    }

    strip() {
      const top = this.bottom + 34, bottom = top + 36, { xs, y, label } = this.rate;
      const peak = Math.max(0, most(y.filter(isKnown))) || 1;
      this.up = (value) => bottom - value / peak * (bottom - top);
      const places = xs.map((_, place) => place).filter((place) => isKnown(y[place]));
      if (!places.length) return [];
      const line = places.map((place) => `${this.x(xs[place]).toFixed(1)} ${this.up(y[place]).toFixed(1)}`).join("L");
      const area = `M${this.x(xs[places[0]])} ${bottom}L${line}L${this.x(xs[places.at(-1)])} ${bottom}Z`;
      const tick = (value) => words(this.left - 6, this.up(value) + 4, String(Number(value.toPrecision(2))), END);
      const path = (kind, d) => svg("path", { class: `${kind} c-rate`, d });
      return [words(0, top - 10, label), tick(0), tick(peak), this.across(bottom, "axis"),
        this.inside(top - 2, bottom + 2, {}, path("area", area), path("line", `M${line}`))];
    }

    axis() {
      const step = ticks(...this.view, clamp((this.right - this.left) / 70, 2, 10));
      const made = step.values.flatMap((value) => [
        svg("line", { class: "axis", x1: this.x(value), x2: this.x(value), y1: this.foot, y2: this.foot + 4 }),
        words(this.x(value), this.foot + 16, number(value, step.digits), MIDDLE)]);
      return [this.across(this.bottom, "axis"), ...made, words(this.right, this.foot + 33, this.panel.xLabel, END)];
    }

    heat() {
      const { grid, xTicks, yTicks, xLabel, yLabel, marks = [] } = this.panel;
      this.left = this.labelWidth(["", ...yTicks]);
      this.y = (row) => this.top + row / grid.length * (this.bottom - this.top);
      const wide = this.x(1) - this.x(0), seen = [this.view[0] - 0.5, this.view[1] + 0.5];
      const columns = grid[0].map((_, column) => column).filter((column) => within(column, seen));
      const [low, high, key] = this.shades(columns);
      const share = (value) => (high > low ? (value - low) / (high - low) : 1);
      const cell = (value, row, column) => svg("rect", {
        x: (this.x(column) - wide / 2).toFixed(2), width: (wide + 0.3).toFixed(2), y: this.y(row).toFixed(2),
        height: (this.y(1) - this.y(0)).toFixed(2), fill: shade(share(value)),
      });
      const cells = grid.flatMap((values, row) => columns.filter((column) => isKnown(values[column]))
        .map((column) => cell(values[column], row, column)));
      const every = [1, 2, 5, 10, 20, 25, 50, 100].find((step) => step * wide > 44) ?? 200;
      const named = columns.filter((column) => (every === 1 ? true : (Number(xTicks[column]) || column) % every === 0));
      return [this.inside(this.top, this.bottom, { class: "cells", "shape-rendering": "crispEdges" }, ...cells),
        ...marks.filter(([x]) => within(x, seen)).map(([x, y]) => this.mark(this.x(x), this.y(y + 0.5), 5)),
        ...named.map((column) => words(this.x(column), this.bottom + 16, xTicks[column], MIDDLE)),
        ...yTicks.map((name, row) => words(this.left - 6, this.y(row + 0.5) + 4, name, END)),
        words(this.right, this.bottom + 33, xLabel, END), words(0, 11, yLabel), ...key];
    }

    shades(columns) {
      // All panels of a figure share their colours, until one is zoomed.
      const own = () => this.panel.grid.flatMap((row) => columns.map((column) => row[column]));
      const all = () => this.figure.data.panels.flatMap((panel) => (panel.grid || []).flat());
      const values = (this.reset.disabled ? all() : own()).filter(isKnown).sort(upwards);
      if (!values.length) return [0, 1, []];
      // The first steep rise would take most colours: the lowest tenth has one, and the key says so.
      const low = values[Math.floor(values.length / 10)], high = values.at(-1), { digits } = this.panel;
      const y = this.bottom + 46, width = Math.min(220, this.right - this.left - 20), id = `${this.id}-ramp`;
      const offset = (place) => place / (RAMP.length - 1);
      const stops = RAMP.map((colour, place) => svg("stop", { offset: offset(place), "stop-color": colour }));
      return [low, high, [svg("linearGradient", { id }, ...stops),
        svg("rect", { x: this.left, y, width, height: 10, fill: `url(#${id})` }),
        words(this.left, y + 25, (low > values[0] ? "≤ " : "") + number(low, digits)),
        words(this.left + width, y + 25, number(high, digits), END)]];
    }

    select(to) {
      const [x, end] = [this.x(this.drag), this.x(to)].sort(upwards);
      const box = { class: "select", x, width: end - x, y: this.top, height: this.bottom - this.top };
      this.readout.hidden = true;
      this.over.replaceChildren(svg("rect", box));
    }
  }

  // A panel of a figure under the hands of a reader, and the figures of the page.
  class Plot extends Drawn {
    // A file of its own: what the page's style gives is written into every element -----------------------------------
    save() {
      this.leave();
      const copy = this.svg.cloneNode(true), copies = [...copy.querySelectorAll("*")];
      [...this.svg.querySelectorAll("*")].forEach((element, place) => {
        const style = getComputedStyle(element);
        for (const name of STYLED) copies[place].setAttribute(name, style.getPropertyValue(name));
      });
      put(copy, { xmlns: SVG, width: this.width }, []);
      const file = new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
      const link = html("a", { href: URL.createObjectURL(file), download: `${this.figure.name}-${this.id}.svg` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }

    // Hands ---------------------------------------------------------------------------------------------------------
    listen() {
      const on = (name, act, options) => this.host.addEventListener(name, act, options);
      on("pointermove", (event) => this.point(event));
      on("pointerdown", (event) => {
        this.point(event);
        if (event.pointerType === "touch" || event.button !== 0) return; // a finger scrolls the page, and reads
        this.drag = this.place(event);
        this.host.setPointerCapture(event.pointerId);
      });
      on("pointerup", (event) => {
        const from = this.drag, to = this.place(event);
        this.drag = undefined;
        if (isKnown(from) && Math.abs(this.x(from) - this.x(to)) > 6) this.zoom(...[from, to].sort(upwards));
        this.point(event);
      });
      on("pointercancel", () => { this.drag = undefined; this.leave(); });
      on("pointerleave", (event) => { if (event.pointerType !== "touch") this.leave(); });
      on("blur", () => this.leave());
      on("dblclick", () => this.zoom(...this.domain));
      on("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // without the key the wheel scrolls the page
        event.preventDefault();
        this.scale(event.deltaY < 0 ? 0.8 : 1.25, this.place(event));
      }, { passive: false });
      on("keydown", (event) => this.key(event));
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const stops = this.stops(), far = Math.max(1, Math.round(stops.length / 10));
      const moves = { ArrowRight: 1, ArrowLeft: -1, PageUp: far, PageDown: -far, Home: -Infinity, End: Infinity };
      const rows = this.panel.grid ? { ArrowUp: -1, ArrowDown: 1 } : {};
      if (event.key in moves && stops.length) this.walk(stops, moves[event.key] * (event.shiftKey ? far : 1));
      else if (event.key in rows) {
        this.row = clamp(this.row + rows[event.key], 0, this.panel.grid.length - 1);
        if (!isKnown(this.stop)) this.walk(stops, 0);
      } else if (["+", "="].includes(event.key)) this.scale(0.5);
      else if (["-", "_"].includes(event.key)) this.scale(2);
      else if (["Escape", "0"].includes(event.key)) {
        this.leave();
        this.zoom(...this.domain);
      } else return;
      event.preventDefault();
      this.cursor();
      this.spoken.textContent = isKnown(this.stop) ? this.said() : "All is shown.";
    }

    walk(stops, steps) {
      const now = stops.indexOf(this.stop), first = stops.findIndex((stop) => stop >= this.view[0]);
      const next = now < 0 && Number.isFinite(steps) ? first : now + steps;
      this.stop = stops[clamp(next, 0, stops.length - 1)];
      const width = this.view[1] - this.view[0];
      if (this.stop < this.view[0]) this.zoom(this.stop, this.stop + width);
      if (this.stop > this.view[1]) this.zoom(this.stop - width, this.stop);
    }

    point(event) {
      const at = this.place(event), { grid } = this.panel;
      if (isKnown(this.drag)) { this.select(at); return; }
      const nearer = (best, stop) => (best === null || Math.abs(stop - at) < Math.abs(best - at) ? stop : best);
      this.stop = this.stops().filter((stop) => within(stop, this.view)).reduce(nearer, null);
      if (grid) {
        const share = (event.clientY - this.host.getBoundingClientRect().top - this.top) / (this.bottom - this.top);
        this.row = clamp(Math.floor(share * grid.length), 0, grid.length - 1);
      }
      this.cursor();
    }

    leave() { this.stop = null; this.cursor(); }

    // Reading: a head, and rows with a label and a text each ---------------------------------------------------------
    values() {
      if (this.panel.grid) return this.cellValues();
      return this.panel.bars ? this.barValues() : this.lineValues();
    }

    finely(x) { return number(x, Number.isInteger(x) ? 0 : ticks(...this.domain, 100).digits); }

    cellValues() {
      const { grid, digits, marks = [], xTicks, yTicks, xLabel } = this.panel, value = grid[this.row][this.stop];
      const here = marks.filter(([x, y]) => x === this.stop && y === this.row).map(([, , label]) => note(label));
      const row = { label: yTicks[this.row], text: isKnown(value) ? number(value, digits) : "–" };
      return { head: `${xLabel} ${xTicks[this.stop]}`, rows: [row, ...here] };
    }

    barValues() {
      const { bars, digits, xLabel, yLabel } = this.panel;
      const [left, width, height] = bars.find(([from, wide]) => from + wide / 2 === this.stop);
      const rows = [{ label: `bar: ${yLabel}`, text: number(height, digits) }];
      for (const { xs, y, std, n, entry } of this.visible().filter((line) => line.entry.colour !== "ideal")) {
        xs.forEach((x, place) => {
          if (x < left || x >= left + width || !isKnown(y[place])) return;
          const text = `${number(y[place], digits)}${spread(std?.[place], digits)}, n = ${n}`;
          rows.push({ entry, x, y: y[place], label: `${entry.label} at ${this.finely(x)}`, text });
        });
      }
      return { head: `${xLabel} ${this.finely(left)} to ${this.finely(left + width)}`, rows };
    }

    lineValues() {
      const { digits, marks = [], xLabel, rate } = this.panel, stop = this.stop;
      const measured = this.visible().map((line) => ({ ...line, place: line.at.get(stop) }))
        .filter(({ y, place }) => isKnown(y[place]));
      const counts = [...new Set(measured.filter(({ entry }) => entry.colour !== "ideal").map(({ n }) => n))];
      const rows = measured.map(({ y, std, n, place, entry }) => {
        const own = counts.length > 1 && entry.colour !== "ideal" ? `, n = ${n}` : "";
        const text = number(y[place], digits) + spread(std?.[place], digits) + own;
        return { entry, label: entry.label, y: y[place], text };
      });
      const now = rate?.y[this.rate.at.get(stop)], apart = rate?.std?.[this.rate.at.get(stop)] || null;
      const text = isKnown(now) && number(now, rate.digits) + spread(apart, rate.digits);
      if (isKnown(now)) rows.push({ label: rate.label, rate: now, text });
      const reach = (this.view[1] - this.view[0]) / 80;
      rows.push(...marks.filter(([x]) => Math.abs(x - stop) <= reach).map(([, , label]) => note(label)));
      return { head: `${xLabel} ${this.finely(stop)}${counts.length === 1 ? `, n = ${counts[0]}` : ""}`, rows };
    }

    said() {
      const { head, rows } = this.values();
      return `${head}: ${rows.map(({ label, text }) => `${label} ${text.replace("±", "plus or minus")}`).join("; ")}`;
    }

    cursor() {
      if (!this.over) return;
      this.readout.hidden = !isKnown(this.stop) || !within(this.stop, this.view);
      const { head, rows } = this.readout.hidden ? { rows: [] } : this.values();
      this.over.replaceChildren(...(this.readout.hidden ? [] : this.pointers(rows)));
      this.svg.querySelectorAll(".bars rect").forEach((bar, place) => {
        const [left, width] = this.panel.bars[place];
        bar.classList.toggle("at", left + width / 2 === this.stop);
      });
      if (this.readout.hidden) return;
      const cells = ({ entry, label, text }) => [entry ? swatch(entry) : "", label, text];
      const line = (row) => html("tr", {}, ...cells(row).map((cell) => html("td", {}, cell)));
      const lines = html("tbody", {}, ...rows.map(line));
      this.readout.replaceChildren(html("b", {}, head), html("table", { role: "presentation" }, lines));
      this.set(this.x(this.stop));
    }

    pointers(rows) {
      const x = this.x(this.stop), tall = [this.top - 1, this.bottom + 1];
      if (this.panel.grid) {
        const wide = this.x(1) - this.x(0), height = this.y(1) - this.y(0);
        return [svg("rect", { class: "cell-at", x: x - wide / 2, width: wide, y: this.y(this.row), height })];
      }
      const dot = (colour, at, y) => svg("circle", { class: `dot c-${colour}`, cx: at, cy: y, r: 4.5 });
      const dots = rows.filter((row) => row.entry && within(this.y(row.y), tall))
        .map((row) => dot(row.entry.colour, isKnown(row.x) ? this.x(row.x) : x, this.y(row.y)));
      const rates = rows.filter((row) => isKnown(row.rate)).map((row) => dot("rate", x, this.up(row.rate)));
      const line = svg("line", { class: "cursor", x1: x, x2: x, y1: this.top, y2: this.foot });
      return [...(this.panel.bars ? [] : [line]), ...dots, ...rates];
    }

    set(x) {
      const box = this.readout, wide = box.offsetWidth, beside = x + 14 + wide <= this.width ? x + 14 : x - 14 - wide;
      const below = this.width < 520 || beside < 0; // where it would hide the lines, it stands below them
      box.style.left = `${below ? clamp(x - wide / 2, 0, Math.max(0, this.width - wide)) : beside}px`;
      box.style.top = `${below ? this.host.clientHeight + 4 : this.top}px`;
    }
  }

  function drawing(element) {
    const data = JSON.parse(element.querySelector("script").textContent);
    const figure = { data, name: element.id, hidden: new Set() };
    const all = data.panels.map((panel) => new Plot(panel, figure));
    const legend = data.legend.map((entry, place) => {
      const name = html("span", {}, entry.label);
      const button = html("button", { type: "button", "aria-pressed": "true" }, swatch(entry), name);
      button.addEventListener("click", () => {
        const shown = figure.hidden.delete(place);
        if (!shown) figure.hidden.add(place);
        button.setAttribute("aria-pressed", shown);
        for (const plot of all) plot.draw();
      });
      return html("li", {}, button);
    });
    const columns = Math.min(data.columns, all.length, 4);
    const about = { class: "legend", "aria-label": "Lines: press to hide or show" };
    element.querySelector("figcaption").before(...(legend.length ? [html("ul", about, ...legend)] : []),
      html("div", { class: "panels", "data-columns": columns }, ...all.map((plot) => plot.element)));
    return [element, all];
  }

  function drawings() {
    const all = new Map([...document.querySelectorAll(".drawing")].map(drawing));
    const show = (plots) => plots.forEach((plot) => { plot.seen = true; plot.draw(); });
    const watch = new IntersectionObserver((entries) => {
      for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
        watch.unobserve(target);
        show(all.get(target));
      }
    }, { rootMargin: "600px" });
    for (const element of all.keys()) watch.observe(element);
    addEventListener("beforeprint", () => all.forEach(show));
    const button = document.getElementById("smooth");
    const texts = [...document.querySelectorAll("figcaption *")].flatMap((element) => [...element.childNodes])
      .filter((node) => node.nodeType === Node.TEXT_NODE && /not smoothed/i.test(node.data))
      .map((node) => [node, node.data]);
    button.addEventListener("click", () => {
      isSmooth = !isSmooth;
      button.setAttribute("aria-pressed", isSmooth);
      for (const [node, text] of texts) {
        const smooth = text.replace("not smoothed", "smoothed over three epochs").replace("Not smoothed", "Smoothed over three epochs");
        node.data = isSmooth ? smooth : text;
      }
      for (const plot of [...all.values()].flat()) plot.draw();
    });
  }
