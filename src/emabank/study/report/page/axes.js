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
  const spread = (std, digits) => (there(std) ? ` ± ${number(std, digits)}` : "");
  const note = (label) => ({ label: `◆ ${label}`, text: "" });
  const steps = (x) => (Array.isArray(x) ? x
    : Array.from({ length: x.count }, (_, place) => Number((x.from + place * x.step).toFixed(6))));
  const upwards = (one, other) => one - other;
  let plots = 0;

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
      const low = least(ends.filter(there)), high = most(ends.filter(there));
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
        html("header", {}, html("h4", {}, title), html("div", { class: "tools" }, out, closer, this.reset)),
        this.host, this.spoken,
        html("ul", { class: "marks" }, ...list.map((label) => html("li", {}, label))));
    }

    // Where things are ----------------------------------------------------------------------------------------------
    visible() { return this.lines.filter((line) => !this.figure.hidden.has(line.of)); }

    stops() {
      const { grid, bars } = this.panel;
      if (grid) return grid[0].map((_, column) => column);
      if (bars) return bars.map(([left, width]) => left + width / 2);
      const all = new Set(this.visible().flatMap((line) => line.xs.filter((_, place) => there(line.y[place]))));
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

    room(labels) {
      const ruler = document.createElement("canvas").getContext("2d");
      const { fontSize, fontFamily } = getComputedStyle(this.svg);
      ruler.font = `${fontSize} ${fontFamily}`;
      return most(labels.map((label) => ruler.measureText(label).width)) + 12;
    }

    range() {
      const { yLimits, bars = [], marks = [] } = this.panel;
      const untouched = this.reset.disabled && this.visible().length === this.lines.length;
      if (yLimits && untouched && yLimits[1] > yLimits[0]) return yLimits;
      const found = bars.flatMap((bar) => [0, bar[2]]);
      for (const { xs, y, std, seeds } of this.visible()) {
        xs.forEach((x, place) => {
          const reach = std?.[place] ?? 0;
          const ends = seeds ? seeds.map((seed) => seed[place]) : [y[place] - reach, y[place] + reach];
          if (within(x, this.view) && there(y[place])) found.push(...ends);
        });
      }
      for (const [x, y] of marks) if (within(x, this.view) && there(y)) found.push(y);
      if (!found.length) return [0, 1];
      const low = least(found), high = most(found), margin = (high - low) * 0.04 || Math.abs(high) * 0.05 || 0.5;
      return [bars.length ? low : low - margin, high + margin];
    }
  }
