  // A panel of a figure under the hands of a reader, and the figures of the page.
  class Plot extends Drawn {
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
        if (there(from) && Math.abs(this.x(from) - this.x(to)) > 6) this.zoom(...[from, to].sort(upwards));
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
        if (!there(this.stop)) this.walk(stops, 0);
      } else if (["+", "="].includes(event.key)) this.scale(0.5);
      else if (["-", "_"].includes(event.key)) this.scale(2);
      else if (["Escape", "0"].includes(event.key)) {
        this.leave();
        this.zoom(...this.domain);
      } else return;
      event.preventDefault();
      this.cursor();
      this.spoken.textContent = there(this.stop) ? this.said() : "All is shown.";
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
      if (there(this.drag)) { this.select(at); return; }
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
      const row = { label: yTicks[this.row], text: there(value) ? number(value, digits) : "–" };
      return { head: `${xLabel} ${xTicks[this.stop]}`, rows: [row, ...here] };
    }

    barValues() {
      const { bars, digits, xLabel, yLabel } = this.panel;
      const [left, width, height] = bars.find(([from, wide]) => from + wide / 2 === this.stop);
      const rows = [{ label: `bar: ${yLabel}`, text: number(height, digits) }];
      for (const { xs, y, std, n, entry } of this.visible().filter((line) => line.entry.colour !== "ideal")) {
        xs.forEach((x, place) => {
          if (x < left || x >= left + width || !there(y[place])) return;
          const text = `${number(y[place], digits)}${spread(std?.[place], digits)}, n = ${n}`;
          rows.push({ entry, x, y: y[place], label: `${entry.label} at ${this.finely(x)}`, text });
        });
      }
      return { head: `${xLabel} ${this.finely(left)} to ${this.finely(left + width)}`, rows };
    }

    lineValues() {
      const { digits, marks = [], xLabel, rate } = this.panel, stop = this.stop;
      const found = this.visible().map((line) => ({ ...line, place: line.at.get(stop) }))
        .filter(({ y, place }) => there(y[place]));
      const counts = [...new Set(found.filter(({ entry }) => entry.colour !== "ideal").map(({ n }) => n))];
      const rows = found.map(({ y, std, n, place, entry }) => {
        const own = counts.length > 1 && entry.colour !== "ideal" ? `, n = ${n}` : "";
        const text = number(y[place], digits) + spread(std?.[place], digits) + own;
        return { entry, label: entry.label, y: y[place], text };
      });
      const now = rate?.y[this.rate.at.get(stop)], apart = rate?.std?.[this.rate.at.get(stop)] || null;
      const text = there(now) && number(now, rate.digits) + spread(apart, rate.digits);
      if (there(now)) rows.push({ label: rate.label, rate: now, text });
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
      this.readout.hidden = !there(this.stop) || !within(this.stop, this.view);
      const { head, rows } = this.readout.hidden ? { rows: [] } : this.values();
      this.over.replaceChildren(...(this.readout.hidden ? [] : this.pointers(rows)));
      this.svg.querySelectorAll(".bars rect").forEach((bar, place) => {
        const [left, width] = this.panel.bars[place];
        bar.classList.toggle("at", left + width / 2 === this.stop);
      });
      if (this.readout.hidden) return;
      const cells = ({ entry, label, text }) => [entry ? swatch(entry) : "", label, text];
      const line = (row) => html("tr", {}, ...cells(row).map((each) => html("td", {}, each)));
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
        .map((row) => dot(row.entry.colour, there(row.x) ? this.x(row.x) : x, this.y(row.y)));
      const rates = rows.filter((row) => there(row.rate)).map((row) => dot("rate", x, this.up(row.rate)));
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
    const figure = { data, hidden: new Set() };
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
    const show = () => all.forEach((plot) => { plot.seen = true; plot.draw(); });
    return [element, show];
  }

  function drawings() {
    const all = new Map([...document.querySelectorAll(".drawing")].map(drawing));
    const watch = new IntersectionObserver((entries) => {
      for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
        watch.unobserve(target);
        all.get(target)();
      }
    }, { rootMargin: "600px" });
    for (const element of all.keys()) watch.observe(element);
    addEventListener("beforeprint", () => { for (const show of all.values()) show(); });
  }
