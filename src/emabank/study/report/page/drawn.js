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
      this.left = this.room([...step.values.map((value) => number(value, step.digits)), this.rate ? "0.00" : ""]);
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
      y.forEach((value, place) => (there(value) ? pieces.at(-1).push(place) : pieces.push([])));
      return pieces;
    }

    thin(xs, y, { colour }) {
      const at = (place) => `${this.x(xs[place]).toFixed(1)} ${this.y(y[place]).toFixed(1)}`;
      const d = this.pieces(y).filter((piece) => piece.length > 1).map((piece) => `M${piece.map(at).join("L")}`).join("");
      return svg("path", { class: `seed c-${colour}`, d: d || "M0 0" });
    }

    trace({ xs, y, std, seeds, entry }) {
      const at = (place, add = 0) => `${this.x(xs[place]).toFixed(1)} ${this.y(y[place] + add).toFixed(1)}`;
      const pieces = this.pieces(y);
      const band = (piece) => [...piece.map((place) => at(place, std[place])),
        ...[...piece].reverse().map((place) => at(place, -std[place]))];
      const bands = std && !seeds ? pieces.map((piece) => piece.filter((place) => there(std[place]))) : [];
      const area = bands.filter((piece) => piece.length > 1).map((piece) => `M${band(piece).join("L")}Z`).join("");
      const path = (piece) => `M${piece.map((place) => at(place)).join("L")}`;
      const line = pieces.filter((piece) => piece.length > 1).map(path);
      const lone = pieces.filter((piece) => piece.length === 1).map(([place]) =>
        svg("circle", { class: `dot c-${entry.colour}`, cx: this.x(xs[place]), cy: this.y(y[place]), r: 3 }));
      return [svg("path", { class: `band c-${entry.colour}`, d: area }),
        ...(seeds || []).map((seed) => this.thin(xs, seed, entry)),
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
      const peak = Math.max(0, most(y.filter(there))) || 1;
      this.up = (value) => bottom - value / peak * (bottom - top);
      const places = xs.map((_, place) => place).filter((place) => there(y[place]));
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
      this.left = this.room(["", ...yTicks]);
      this.y = (row) => this.top + row / grid.length * (this.bottom - this.top);
      const wide = this.x(1) - this.x(0), seen = [this.view[0] - 0.5, this.view[1] + 0.5];
      const columns = grid[0].map((_, column) => column).filter((column) => within(column, seen));
      const [low, high, key] = this.shades(columns);
      const share = (value) => (high > low ? (value - low) / (high - low) : 1);
      const cell = (value, row, column) => svg("rect", {
        x: (this.x(column) - wide / 2).toFixed(2), width: (wide + 0.3).toFixed(2), y: this.y(row).toFixed(2),
        height: (this.y(1) - this.y(0)).toFixed(2), fill: shade(share(value)),
      });
      const cells = grid.flatMap((values, row) => columns.filter((column) => there(values[column]))
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
      const values = (this.reset.disabled ? all() : own()).filter(there).sort(upwards);
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
