/* Draws from the JSON in #data what needs drawing. Texts go into the page as text, never as HTML. */
(function () {
  "use strict";
  const root = document.documentElement;
  const D = JSON.parse(document.getElementById("data").textContent);
  const T = D.texts;
  root.classList.add("has-js");

  const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const CODE = new Map([...ALPHABET].map((sign, index) => [sign, index]));
  const WORD = { F: "fail", M: "missing", w: "warning", m: "advice missing", p: "pass", s: "does not apply", n: "not asked" };
  const RANK = { FAIL: 0, INCOMPLETE: 1, PASS: 2 };
  const indexOf = new Map(D.nodes.map((node, index) => [node.n, index]));
  const stageNames = [...new Set(D.nodes.flatMap((node) => node.s.map((stage) => T[stage[0]])))];
  const byId = (id) => document.getElementById(id);

  /** Values of a packed curve; null where there is none. */
  function unpack(text, low, high) {
    const values = new Array(text.length / 2);
    for (let i = 0; i < values.length; i++) {
      const code = CODE.get(text[2 * i]) * 64 + CODE.get(text[2 * i + 1]);
      values[i] = code === 4095 ? null : low + ((high - low) * code) / 4094;
    }
    return values;
  }
  const at = (column, index) => (Array.isArray(column) ? column[index] : column.but && index in column.but ? column.but[index] : column.all);

  /** An element with properties and children; strings become text. */
  function make(tag, properties, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (name === "class") element.className = value;
      else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
    return element;
  }

  function digits(value) {
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e15 || size < 1e-4) return value.toExponential(2);
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    const decimals = Math.max(0, 3 - Math.floor(Math.log10(size)));
    return Number(value.toFixed(Math.min(decimals, 12))).toLocaleString("en-US", { maximumFractionDigits: decimals });
  }
  function scaled(value, unit) {
    for (const [factor, prefix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= factor) return (value / factor).toFixed(2) + " " + prefix + unit;
    return digits(value) + " " + unit;
  }
  function duration(seconds) {
    const size = Math.abs(seconds);
    if (size === 0) return "0 s";
    if (size < 1e-3) return digits(seconds * 1e6) + " us";
    if (size < 1) return digits(seconds * 1e3) + " ms";
    if (size < 99.95) return digits(seconds) + " s";
    const minutes = Math.floor(Math.round(size) / 60), rest = Math.round(size) % 60, pad = (n) => String(n).padStart(2, "0");
    return minutes < 60 ? minutes + " min " + pad(rest) + " s" : Math.floor(minutes / 60) + " h " + pad(minutes % 60) + " min";
  }
  /** A figure with its unit as people read it. */
  function human(value, unit) {
    if (value === null || value === undefined) return "";
    if (Array.isArray(value)) return T[value[0]];
    if (typeof value !== "number") return String(value);
    if (unit === "seconds" || unit === "s") return duration(value);
    if (unit === "bytes") return scaled(value, "B");
    if (unit === "bytes_per_second" || unit === "bytes/s") return scaled(value, "B/s");
    if (unit === "hertz") return scaled(value, "Hz");
    if (unit === "watts") return digits(value) + " W";
    if (unit === "celsius") return digits(value) + " °C";
    if (unit === "count" || unit === "ratio" || unit === "") return digits(value);
    return digits(value) + " " + unit.replace("_per_second", "/s");
  }
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  /* ---- a canvas of many rows of which only those in sight are drawn ---- */
  class Grid {
    constructor(host, options) {
      Object.assign(this, options);
      this.host = host;
      this.canvas = make("canvas", { role: "img", "aria-label": options.name });
      this.space = make("div", { class: "grid-space" }, this.canvas);
      host.append(this.space);
      this.cursor = null;
      host.addEventListener("scroll", () => this.later(), { passive: true });
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerleave", () => { this.cursor = null; this.later(); });
      this.canvas.addEventListener("click", (event) => { this.point(event); this.enter(); });
      host.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.layout()).observe(host);
      this.layout();
    }
    layout() {
      const width = this.host.clientWidth;
      if (!width) return;
      this.rows = this.listRows();
      this.label = Math.min(190, Math.max(84, Math.round(width * 0.22)));
      this.rowHeight = this.rows.length <= 40 ? 22 : 15;
      this.measure(width - this.label);
      this.space.style.width = this.label + this.wide + "px";
      this.space.style.height = this.head + Math.max(1, this.rows.length) * this.rowHeight + "px";
      this.later();
    }
    later() {
      if (this.due) return;
      this.due = true;
      requestAnimationFrame(() => { this.due = false; this.draw(); });
    }
    draw() {
      const width = this.host.clientWidth, height = Math.min(this.host.clientHeight, parseFloat(this.space.style.height) || 0);
      if (!width || !height) return;
      const ratio = window.devicePixelRatio || 1, canvas = this.canvas, pen = canvas.getContext("2d");
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
        canvas.style.width = width + "px";
        canvas.style.height = height + "px";
      }
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.paint = this.colours();
      pen.fillStyle = this.paint.back;
      pen.fillRect(0, 0, width, height);
      const left = this.host.scrollLeft, top = this.host.scrollTop;
      const first = Math.floor(top / this.rowHeight), last = Math.min(this.rows.length, Math.ceil((top + height - this.head) / this.rowHeight));
      pen.save();
      pen.beginPath();
      pen.rect(this.label, this.head, width - this.label, height - this.head);
      pen.clip();
      pen.translate(this.label - left, this.head - top);
      if (this.under) this.under(pen, first * this.rowHeight, last * this.rowHeight);
      for (let row = first; row < last; row++) this.drawRow(pen, this.rows[row], row * this.rowHeight, left, left + width - this.label);
      if (this.cursor) this.drawCursor(pen);
      pen.restore();
      pen.save();
      pen.beginPath();
      pen.rect(this.label, 0, width - this.label, this.head);
      pen.clip();
      pen.translate(this.label - left, 0);
      this.drawHead(pen);
      pen.restore();
      pen.font = (this.rowHeight > 16 ? 12 : 10.5) + "px " + this.paint.font;
      pen.textBaseline = "middle";
      pen.save();
      pen.beginPath();
      pen.rect(0, this.head, this.label - 8, height - this.head);
      pen.clip();
      for (let row = first; row < last; row++) {
        const node = D.nodes[this.rows[row]], y = this.head + row * this.rowHeight - top + this.rowHeight / 2;
        pen.fillStyle = node.v === "PASS" ? this.paint.p : node.v === "FAIL" ? this.paint.F : this.paint.M;
        pen.fillRect(2, y - this.rowHeight / 2 + 2, 4, this.rowHeight - 4);
        pen.fillStyle = this.cursor && this.cursor.row === row ? this.paint.accent : node.v === "PASS" ? this.paint.dim : this.paint.ink;
        const short = this.fit(pen, node.n, this.label - 22);
        pen.fillText(short, 12, y);
      }
      pen.restore();
      pen.fillStyle = this.paint.line;
      pen.fillRect(0, this.head - 1, width, 1);
    }
    /** Names differ at their end: what does not fit goes from the middle. */
    fit(pen, text, width) {
      if (pen.measureText(text).width <= width) return text;
      let keep = text.length - 2;
      while (keep > 4 && pen.measureText(text.slice(0, Math.ceil(keep / 3)) + "…" + text.slice(text.length - Math.floor((2 * keep) / 3))).width > width) keep--;
      return text.slice(0, Math.ceil(keep / 3)) + "…" + text.slice(text.length - Math.floor((2 * keep) / 3));
    }
    colours() {
      const found = { back: colour("--card"), ink: colour("--ink"), dim: colour("--dim"), line: colour("--line"), accent: colour("--accent"), font: "system-ui, sans-serif" };
      for (const letter of "FMwmps") found[letter] = colour("--cell-" + letter);
      return found;
    }
    point(event) {
      const box = this.canvas.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top - this.head;
      const row = Math.floor((y + this.host.scrollTop) / this.rowHeight);
      this.cursor = y >= 0 && row < this.rows.length ? { row, place: x < this.label ? null : this.placeAt(x - this.label + this.host.scrollLeft, row) } : null;
      this.tell();
    }
    key(event) {
      const move = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], PageDown: [20, 0], PageUp: [-20, 0] }[event.key];
      if (event.key === "Enter" && this.cursor) { this.enter(); return; }
      if (!move || !this.rows.length) return;
      event.preventDefault();
      const old = this.cursor || { row: -Math.sign(move[0]) || 0, place: 0 };
      const row = Math.min(this.rows.length - 1, Math.max(0, old.row + move[0]));
      this.cursor = { row, place: Math.min(this.places(row) - 1, Math.max(0, (old.place || 0) + move[1])) };
      const y = row * this.rowHeight, seen = this.host.clientHeight - this.head;
      if (y < this.host.scrollTop) this.host.scrollTop = y;
      else if (y + this.rowHeight > this.host.scrollTop + seen) this.host.scrollTop = y + this.rowHeight - seen;
      if (this.reveal) this.reveal();
      this.tell();
    }
    tell() {
      this.canvas.style.cursor = this.cursor ? "pointer" : "";
      if (this.cursor) this.readout.textContent = this.describe(this.rows[this.cursor.row], this.cursor.place);
      this.later();
    }
    enter() { if (this.cursor) openNode(this.rows[this.cursor.row], true); }
  }

  function ordered(indices, how) {
    if (how !== "worst") return indices;
    const wrong = D.nodes.map((node) => (node.l.match(/F/g) || []).length * 1000 + (node.l.match(/M/g) || []).length);
    return indices.sort((a, b) => RANK[D.nodes[a].v] - RANK[D.nodes[b].v] || wrong[b] - wrong[a] || a - b);
  }

  /* ---- nodes by checks ---- */
  function describeCell(index, column) {
    const node = D.nodes[index];
    if (column === null || column === undefined) return node.n + ": " + node.v + (T[node.c] ? " (" + T[node.c] + ")" : "");
    const check = D.columns[column], letter = node.l[column];
    const remark = D.remarks[index].find((one) => one[0] === column);
    let text = node.n + " · " + check.n + ": " + WORD[letter];
    const value = human(at(check.v, index), T[at(check.u, index)]), part = T[at(check.p, index)];
    if (value) text += ", " + value + (part && part !== "node" ? " (" + part + ")" : "");
    if (letter !== "n" && letter !== "s" && T[at(check.e, index)]) text += "; expected " + T[at(check.e, index)];
    return remark ? text + ". " + remark[3] : text;
  }
  const heat = {
    name: "Map of " + D.nodes.length + " nodes by " + D.columns.length + " checks; the same is in the tables of nodes that are not accepted and of all checks",
    readout: byId("map-readout"),
    listRows() {
      const all = D.nodes.map((_, index) => index);
      const rows = byId("map-rows").value === "bad" ? all.filter((index) => D.nodes[index].v !== "PASS") : all;
      const columns = D.columns.map((_, index) => index);
      this.columns = byId("map-columns").value === "bad" ? columns.filter((c) => D.nodes.some((node) => "FMwm".includes(node.l[c]))) : columns;
      return ordered(rows, byId("map-order").value);
    },
    measure(width) {
      const gaps = new Set(this.columns.map((c) => D.columns[c].s)).size;
      this.cell = Math.min(30, Math.max(6, (width - gaps * 5 - 6) / Math.max(1, this.columns.length)));
      this.named = this.cell >= 13;
      this.head = this.named ? 190 : 24;
      this.x = [];
      this.groups = [];
      let x = 0, stage = null;
      for (const c of this.columns) {
        if (D.columns[c].s !== stage) {
          stage = D.columns[c].s;
          x += this.x.length ? 5 : 0;
          this.groups.push({ name: stage || "run", x, end: x });
        }
        this.x.push(x);
        x += this.cell;
        this.groups[this.groups.length - 1].end = x;
      }
      this.wide = Math.max(x + 4, 10);
    },
    drawHead(pen) {
      pen.textBaseline = "middle";
      pen.font = "600 11px " + this.paint.font;
      for (const group of this.groups) {
        pen.fillStyle = this.paint.line;
        pen.fillRect(group.x, 18, group.end - group.x - 1, 2);
        pen.save();
        pen.beginPath();
        pen.rect(group.x, 0, group.end - group.x, 18);
        pen.clip();
        pen.fillStyle = this.paint.dim;
        pen.fillText(group.name, group.x, 9);
        pen.restore();
      }
      if (!this.named) return;
      pen.font = "11px " + this.paint.font;
      this.columns.forEach((c, place) => {
        const check = D.columns[c];
        const name = check.s && check.n.startsWith(check.s + "_") ? check.n.slice(check.s.length + 1) : check.n;
        pen.save();
        pen.translate(this.x[place] + this.cell / 2, this.head - 6);
        pen.rotate(-Math.PI / 2);
        pen.fillStyle = this.cursor && this.cursor.place === place ? this.paint.accent : this.paint.ink;
        pen.fillText(this.fit(pen, name, this.head - 32), 0, 0);
        pen.restore();
      });
    },
    drawRow(pen, index, y, left, right) {
      const letters = D.nodes[index].l, cell = this.cell, height = this.rowHeight, gap = cell > 8 ? 1.5 : 0.6;
      for (let place = 0; place < this.columns.length; place++) {
        const x = this.x[place], letter = letters[this.columns[place]];
        if (x > right || x + cell < left || letter === "n") continue;
        pen.fillStyle = this.paint[letter];
        pen.fillRect(x, y + 1, cell - gap, height - 2);
        if (cell >= 6 && (letter === "F" || letter === "M")) {
          const cx = x + (cell - gap) / 2, cy = y + height / 2, r = Math.min(3.5, cell / 4);
          pen.strokeStyle = this.paint.back;
          pen.lineWidth = 1.5;
          pen.beginPath();
          if (letter === "F") { pen.moveTo(cx - r, cy - r); pen.lineTo(cx + r, cy + r); pen.moveTo(cx + r, cy - r); pen.lineTo(cx - r, cy + r); }
          else { pen.moveTo(cx - r, cy); pen.lineTo(cx + r, cy); }
          pen.stroke();
        }
      }
    },
    drawCursor(pen) {
      const { row, place } = this.cursor;
      pen.strokeStyle = this.paint.accent;
      pen.lineWidth = 2;
      if (place !== null && place >= 0) pen.strokeRect(this.x[place] - 0.5, row * this.rowHeight, this.cell, this.rowHeight);
    },
    placeAt(x) {
      for (let place = this.x.length - 1; place >= 0; place--) if (x >= this.x[place]) return x < this.x[place] + this.cell ? place : null;
      return null;
    },
    places() { return this.columns.length; },
    reveal() {
      const x = this.x[this.cursor.place], seen = this.host.clientWidth - this.label;
      if (x < this.host.scrollLeft) this.host.scrollLeft = x;
      else if (x + this.cell > this.host.scrollLeft + seen) this.host.scrollLeft = x + this.cell - seen;
    },
    describe(index, place) { return describeCell(index, place === null ? null : this.columns[place]); },
  };

  /* ---- time line ---- */
  const ends = D.nodes.flatMap((node) => node.s.map((stage) => (stage[2] === null ? 0 : stage[2] + (stage[3] || 0))));
  const span = Math.max(1, ends.reduce((most, one) => Math.max(most, one), 0));
  function ticks(most, about) {
    const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
    const step = steps.find((one) => most / one <= about) || most;
    const list = [];
    for (let value = 0; value <= most * 1.0001; value += step) list.push(value);
    return list;
  }
  function clock(seconds) {
    const whole = Math.floor(seconds), pad = (n) => String(n).padStart(2, "0");
    if (seconds < 60) return digits(seconds) + " s";
    return whole < 3600 ? Math.floor(whole / 60) + ":" + pad(whole % 60) : Math.floor(whole / 3600) + ":" + pad(Math.floor(whole / 60) % 60) + " h";
  }
  const lines = {
    name: "Time line of the stages of " + D.nodes.length + " nodes over " + duration(span) + "; the table above has the times of each stage",
    readout: byId("lines-readout"),
    listRows() { return ordered(D.nodes.map((_, index) => index), "worst"); },
    measure(width) { this.wide = Math.max(width - 2, 260); this.head = 24; this.scale = (this.wide - 12) / span; },
    under(pen, top, bottom) {
      pen.fillStyle = this.paint.line;
      for (const tick of ticks(span, Math.max(3, this.wide / 90))) pen.fillRect(Math.round(tick * this.scale), top, 1, bottom - top);
    },
    drawHead(pen) {
      pen.textBaseline = "middle";
      pen.font = "11px " + this.paint.font;
      pen.fillStyle = this.paint.dim;
      for (const tick of ticks(span, Math.max(3, this.wide / 90))) pen.fillText(clock(tick), tick * this.scale + 3, 11);
    },
    drawRow(pen, index, y) {
      for (const [name, state, start, lasted] of D.nodes[index].s) {
        if (start === null) continue;
        const x = start * this.scale, width = Math.max(2, (lasted || 0) * this.scale - 1), height = this.rowHeight;
        pen.fillStyle = colour("--w" + (stageNames.indexOf(T[name]) % 8));
        pen.globalAlpha = state === "success" ? 0.85 : 0.35;
        pen.fillRect(x, y + 3, width, height - 6);
        pen.globalAlpha = 1;
        if (state !== "success") {
          pen.fillStyle = ["failure", "crash", "timeout"].includes(state) ? this.paint.F : this.paint.M;
          pen.fillRect(x, y + height - 6, width, 3);
          pen.fillRect(x + width - 3, y + 2, 3, height - 4);
        } else if (height > 16 && width > 30) {
          pen.font = "10.5px " + this.paint.font;
          if (pen.measureText(T[name]).width > width - 8) continue;
          pen.fillStyle = colour("--on-bar");
          pen.textBaseline = "middle";
          pen.fillText(T[name], x + 4, y + height / 2);
        }
      }
    },
    drawCursor(pen) {
      const stage = D.nodes[this.rows[this.cursor.row]].s[this.cursor.place];
      if (!stage || stage[2] === null) return;
      pen.strokeStyle = this.paint.accent;
      pen.lineWidth = 2;
      pen.strokeRect(stage[2] * this.scale, this.cursor.row * this.rowHeight + 2, Math.max(2, (stage[3] || 0) * this.scale - 1), this.rowHeight - 4);
    },
    placeAt(x, row) {
      const stages = D.nodes[this.rows[row]].s, time = x / this.scale;
      const found = stages.findIndex((stage) => stage[2] !== null && time >= stage[2] && time <= stage[2] + Math.max(stage[3] || 0, 3 / this.scale));
      return found < 0 ? null : found;
    },
    places(row) { return Math.max(1, D.nodes[this.rows[row]].s.length); },
    describe(index, place) {
      const node = D.nodes[index], stage = place === null ? null : node.s[place];
      if (!stage) return node.n + ": " + node.v;
      const [name, state, start, lasted, attempt, message] = stage;
      let text = node.n + " · " + T[name] + ": " + state;
      if (lasted !== null) text += ", " + duration(lasted);
      if (start !== null) text += ", from " + clock(start);
      if (attempt > 1) text += ", attempt " + attempt;
      return T[message] ? text + ". " + T[message] : text;
    },
  };

  /* ---- charts ---- */
  const charts = new Map();
  function palette(index) { return colour("--w" + (index % 8)); }
  function axis(extra) {
    return { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "11px system-ui, sans-serif", ...extra };
  }
  function chart(host, data, series, options) {
    const plot = new uPlot(
      {
        width: Math.max(220, host.clientWidth), height: options.height || 190, cursor: { y: false, drag: { x: true, y: false } },
        scales: { x: { time: false, distr: options.logarithmic ? 3 : 1 }, y: options.range ? { range: options.range } : {} },
        legend: { live: true, show: true },
        axes: [axis({ values: options.xText, space: 70, ...(options.logarithmic && { splits: (_, __, low, high) => [1e3, 1e6, 1e9].filter((v) => v >= low && v <= high), filter: (_, splits) => splits }) }), axis({ size: 96, values: options.yText })],
        series: [{ label: options.xLabel, value: options.xValue }, ...series],
        hooks: options.hooks || {},
      },
      data,
      host,
    );
    charts.set(host, plot);
    return plot;
  }
  function drop(host) { for (const [place, plot] of [...charts]) if (host.contains(place)) { plot.destroy(); charts.delete(place); } }
  window.addEventListener("resize", () => { for (const [host, plot] of charts) plot.setSize({ width: Math.max(220, host.clientWidth), height: plot.height }); });

  function curveTitle(name, stage) {
    const text = name.replace(/^gpu_/, "GPU ").replace(/_(watts|celsius|hertz|ratio|bytes|seconds|bytes_per_second)$/, "").replaceAll("_", " ");
    return text.charAt(0).toUpperCase() + text.slice(1) + (stage && !name.startsWith(stage) ? ", " + stage : "");
  }
  function curveChart(node, curve) {
    const [kind, nameNumber, unitNumber, stageNumber, from, to, low, high, packed] = curve;
    const name = T[nameNumber], unit = T[unitNumber], stage = T[stageNumber], scopes = Object.keys(packed);
    let x, ys;
    if (kind === "b") {
      x = [...new Set(Object.values(packed).flat().map((point) => point[0]))].sort((a, b) => a - b);
      ys = scopes.map((scope) => { const known = new Map(packed[scope]); return x.map((one) => (known.has(one) ? known.get(one) : null)); });
    } else {
      ys = scopes.map((scope) => unpack(packed[scope], low, high));
      const count = ys[0].length, step = kind === "t" ? (to - from) / count : count > 1 ? (to - from) / (count - 1) : 0;
      x = Array.from({ length: count }, (_, i) => from + step * (kind === "t" ? i + 0.5 : i));
    }
    const known = ys.flat().filter((value) => value !== null);
    const least = known.reduce((a, b) => Math.min(a, b), Infinity), most = known.reduce((a, b) => Math.max(a, b), -Infinity);
    const title = curveTitle(name, stage);
    const range = human(least, unit) + " to " + human(most, unit);
    const host = make("div", { class: "plot", role: "img", "aria-label": title + " of " + node.n + ": " + range + (scopes.length > 1 ? ", " + scopes.length + " curves" : "") });
    const figure = make("figure", { class: "curve" }, make("figcaption", {}, make("b", {}, title), " ", make("span", { class: "dim" }, range)), host);
    const band = scopes.includes("median") && scopes.includes("least");
    const series = scopes.map((scope, i) => ({
      label: scope, stroke: band ? palette(scope === "median" ? 0 : 7) : palette(i), width: band && scope !== "median" ? 1 : 1.5, spanGaps: kind !== "t",
      points: { show: x.length < 3 || kind === "b", size: 5 }, value: (_, value) => (value === null || value === undefined ? "–" : human(value, unit)),
    }));
    const inX = kind === "b" ? (v) => human(v, "bytes") : kind === "t" ? clock : digits;
    figure.draw = () => chart(host, [x, ...ys], series, {
      xLabel: kind === "b" ? "size" : kind === "t" ? "time" : "step", logarithmic: kind === "b" && x[0] > 0,
      xText: (_, values) => values.map((v) => (v === null ? "" : inX(v))), xValue: (_, v) => (v === null || v === undefined ? "–" : inX(v)),
      yText: (_, values) => values.map((v) => human(v, unit).replace(/\.00(?= )/, "")),
      hooks: kind === "t" ? { drawClear: [(plot) => stageBands(plot, node)] } : {},
    });
    return figure;
  }
  /** Behind telemetry: which stage was at work. */
  function stageBands(plot, node) {
    const first = node.s.reduce((least, stage) => (stage[2] === null ? least : Math.min(least, stage[2])), Infinity);
    const pen = plot.ctx, { left, top, width, height } = plot.bbox;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    for (const [name, , start, lasted] of node.s) {
      if (start === null || !lasted) continue;
      const a = plot.valToPos(start - first, "x", true), b = plot.valToPos(start - first + lasted, "x", true);
      pen.globalAlpha = 0.1;
      pen.fillStyle = palette(stageNames.indexOf(T[name]));
      pen.fillRect(a, top, b - a, height);
      pen.globalAlpha = 1;
      if (b - a > 60 * devicePixelRatio) {
        pen.fillStyle = colour("--dim");
        pen.font = 10 * devicePixelRatio + "px system-ui, sans-serif";
        pen.textBaseline = "top";
        pen.fillText(T[name], Math.max(a, left) + 4, top + 3);
      }
    }
    pen.restore();
  }

  /* ---- one node ---- */
  const badge = (word) => make("span", { class: "badge v-" + word.toLowerCase() }, word);
  function table(head, rows, label) {
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
      make("table", {}, make("thead", {}, make("tr", {}, head.map((text) => make("th", { scope: "col" }, text)))), make("tbody", {}, rows)));
  }
  const safeName = (name) => /^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(name);
  function stageRow(node, [name, state, start, lasted, attempt, message, files]) {
    const links = [];
    const path = safeName(node.n) && safeName(T[name]) ? D.place.replace("{node}", node.n).replace("{stage}", T[name]) : null;
    if (path && files & 1) links.push(make("a", { class: "file", href: path + ".log" }, "log"));
    if (path && files & 2) links.push(make("a", { class: "file", href: path + ".json" }, "record"));
    const bad = ["failure", "crash", "timeout"].includes(state);
    return make("tr", {}, make("th", { scope: "row" }, T[name]), make("td", { class: bad ? "m-fail" : "" }, state + (attempt > 1 ? ", attempt " + attempt : "")),
      make("td", { class: "num" }, start === null ? "" : clock(start)), make("td", { class: "num" }, lasted === null ? "" : duration(lasted)), make("td", {}, T[message]), make("td", {}, links, files & 4 ? make("span", { class: "dim" }, "store only") : []));
  }
  function checkRow(node, index, column) {
    const check = D.columns[column], letter = node.l[column], part = T[at(check.p, index)];
    return make("tr", {}, make("td", {}, make("span", { class: "mark m-" + WORD[letter].split(" ").pop() }, WORD[letter])),
      make("th", { scope: "row" }, check.n), make("td", {}, part === "node" ? "" : part),
      make("td", { class: "num" }, human(at(check.v, index), T[at(check.u, index)])), make("td", {}, T[at(check.e, index)]), make("td", { class: "dim" }, T[check.o]));
  }
  /** The stages of a node as bars over its time; the table has the same as text. */
  function stageBar(node) {
    const known = node.s.filter((stage) => stage[2] !== null && stage[3]);
    if (!known.length) return "";
    const begin = Math.min(...known.map((stage) => stage[2])), end = Math.max(...known.map((stage) => stage[2] + stage[3]));
    return make("div", { class: "stage-bar", "aria-hidden": "true" }, known.map(([name, state, start, lasted]) => {
      const bar = make("span", { class: "w" + (stageNames.indexOf(T[name]) % 8) + (state === "success" ? "" : " broken"), title: T[name] + ": " + state + ", " + duration(lasted) }, T[name]);
      bar.style.left = (100 * (start - begin)) / (end - begin || 1) + "%";
      bar.style.width = (100 * lasted) / (end - begin || 1) + "%";
      return bar;
    }));
  }
  /** The main figures of a node beside the fleet, the baseline and the earlier run. */
  function figureTable(index) {
    const { columns, now, then, earlier, baseline } = D.main, before = then[index];
    const rows = columns.map((_, column) => column).filter((column) => now[index][column] !== null);
    if (!rows.length) return [];
    const cells = (value, other, unit) => {
      if (other === null || other === undefined) return [make("td", {}), make("td", {})];
      const change = (100 * (value - other)) / Math.abs(other);
      return [make("td", { class: "num" }, human(other, unit)), make("td", { class: "num" + (Math.abs(change) >= 2 ? " moved" : "") }, Number.isFinite(change) ? (change > 0 ? "+" : "") + change.toFixed(1) + " %" : "")];
    };
    const head = ["Figure", "This node", "Fleet's median", "Change", ...(baseline ? [baseline, "Change"] : []), ...(before ? ["Run " + earlier, "Change"] : [])];
    return [make("h3", {}, "Figures"), table(head, rows.map((column) => {
      const [stage, metric, unit, median, base] = columns[column], value = now[index][column];
      return make("tr", {}, make("th", { scope: "row" }, metric, make("span", { class: "dim" }, stage)), make("td", { class: "num" }, human(value, unit)), cells(value, median, unit), baseline ? cells(value, base, unit) : [], before ? cells(value, before[column], unit) : []);
    }), "Figures of " + D.nodes[index].n)];
  }
  let shown = -1;
  function showNode(index) {
    const panel = byId("node-panel"), node = D.nodes[index];
    drop(panel);
    shown = index;
    byId("node-search").value = node.n;
    const gpus = node.g.map(([number, ...fields]) => make("tr", {}, make("th", { scope: "row" }, "gpu:" + number), fields.map((field) => make("td", {}, T[field]))));
    const remarks = D.remarks[index].map(([column, letter, part, reason, remedy]) =>
      make("li", {}, make("span", { class: "mark m-" + WORD[letter].split(" ").pop() }, WORD[letter]), " ", make("code", {}, D.columns[column].n), " ", reason,
        T[part] === "node" ? null : make("span", { class: "part" }, T[part]), T[remedy] ? make("span", { class: "remedy" }, make("b", {}, "Remedy"), " ", T[remedy]) : null));
    const columns = D.columns.map((_, column) => column).filter((column) => node.l[column] !== "n");
    const curves = D.curves[index].map((curve) => curveChart(node, curve));
    panel.replaceChildren(
      make("p", { class: "node-head" }, badge(node.v), " ", make("strong", {}, node.n), " ", make("span", { class: "dim" }, [node.i, T[node.k], T[node.c], node.f ? "flaky" : ""].filter(Boolean).join(" · "))),
      node.b.length ? make("p", { class: "labels" }, node.b.map((label) => make("span", { class: "part" }, T[label]))) : "",
      remarks.length ? make("ul", { class: "plain" }, remarks) : make("p", { class: "dim" }, "Every check that applies passed."),
      make("h3", {}, "Stages"),
      stageBar(node),
      table(["Stage", "Ended", "From", "Took", "Message", "Files"], node.s.map((stage) => stageRow(node, stage)), "Stages of " + node.n),
      ...figureTable(index),
      ...(curves.length ? [make("h3", {}, "Curves"), make("div", { class: "curves" }, curves)] : []),
      make("details", {}, make("summary", {}, "All " + columns.length + " checks with their limits"),
        table(["Verdict", "Check", "Part", "Value", "Expected", "Source"], columns.map((column) => checkRow(node, index, column)), "Checks of " + node.n)),
      ...(gpus.length ? [make("details", {}, make("summary", {}, gpus.length + " GPUs"), table(["GPU", "Model", "Serial", "UUID", "PCI address", "Slot"], gpus, "GPUs of " + node.n))] : []),
    );
    for (const curve of curves) curve.draw();
  }
  function openNode(index, jump) {
    const wanted = "#node=" + encodeURIComponent(D.nodes[index].n);
    if (location.hash !== wanted) history.replaceState(null, "", wanted);
    showNode(index);
    if (jump) byId("node").scrollIntoView({ block: "start" });
  }
  function followHash() {
    const found = /^#node=(.+)$/.exec(location.hash);
    if (!found) return false;
    let name = found[1];
    try { name = decodeURIComponent(name); } catch (_) { return false; }
    if (!indexOf.has(name)) return false;
    openNode(indexOf.get(name), true);
    return true;
  }

  /* ---- figures ---- */
  function openFigure(button) {
    const number = Number(button.dataset.openFigure), row = button.closest("tr"), open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { drop(row.nextElementSibling); row.nextElementSibling.remove(); return; }
    const figure = D.figures[number], host = make("div", { class: "plot", role: "img", "aria-label": button.textContent + " of every node" });
    row.after(make("tr", { class: "figure-chart" }, make("td", { colspan: "6" }, host)));
    const scopes = Object.keys(figure.r), x = D.nodes.map((_, index) => index);
    chart(host, [x, ...scopes.map((scope) => unpack(figure.r[scope], figure.l, figure.h))],
      scopes.map((scope, i) => ({ label: scope, stroke: palette(i), paths: () => null, points: { show: true, size: D.nodes.length > 300 ? 3 : 6, fill: palette(i) }, value: (_, v) => (v === null || v === undefined ? "–" : human(v, figure.u)) })),
      { height: 240, xLabel: "node", xText: (_, values) => values.map((v) => (Number.isInteger(v) && D.nodes[v] ? D.nodes[v].n.slice(-14) : "")), xValue: (_, v) => (D.nodes[v] ? D.nodes[v].n : "–"), yText: (_, values) => values.map((v) => human(v, figure.u)) });
  }
  function search(input, selector) {
    if (!input) return;
    const rows = [...document.querySelectorAll(selector)];
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        row.hidden = !words.every((word) => row.dataset.find.toLowerCase().includes(word));
        const next = row.nextElementSibling;
        if (next && next.classList.contains("figure-chart")) next.hidden = row.hidden;
      }
    });
  }

  /* ---- tables that can be ordered ---- */
  const collator = new Intl.Collator("en", { numeric: true });
  function sortable(table) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const kept = [...body.rows];
    const value = (row, column) => {
      const cell = row.cells[column];
      if (!heads[column].classList.contains("num")) return cell.textContent;
      const text = cell.dataset.sort === undefined ? cell.textContent : cell.dataset.sort;
      return text === "" ? -Infinity : Number(text);
    };
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const old = head.getAttribute("aria-sort"), next = { descending: "ascending", ascending: null }[old] || (old ? null : "descending");
      for (const other of heads) other.removeAttribute("aria-sort");
      if (next) head.setAttribute("aria-sort", next);
      const way = next === "ascending" ? 1 : -1;
      const order = (a, b) => (typeof a[0] === "string" ? way * collator.compare(a[0], b[0]) : a[0] === b[0] ? 0 : way * (a[0] < b[0] ? -1 : 1));
      body.append(...(next ? kept.map((row) => [value(row, column), row]).sort(order).map((pair) => pair[1]) : kept));
    }));
  }

  /* ---- the list of nodes ---- */
  function filterNodes() {
    const rows = [...byId("nodes-table").tBodies[0].rows].map((row, index) => ({ row, node: D.nodes[index], text: row.textContent.toLowerCase() }));
    const apply = () => {
      const words = byId("nodes-find").value.toLowerCase().split(/\s+/).filter(Boolean), verdict = byId("nodes-verdict").value;
      let count = 0;
      for (const { row, node, text } of rows) {
        const wanted = !verdict || node.v === verdict || (verdict === "bad" && node.v !== "PASS") || (verdict === "flaky" && node.f);
        row.hidden = !(wanted && words.every((word) => text.includes(word)));
        count += !row.hidden;
      }
      byId("nodes-shown").textContent = count === rows.length ? String(count) : count + " of " + rows.length;
    };
    byId("nodes-find").addEventListener("input", apply);
    byId("nodes-verdict").addEventListener("change", apply);
  }

  /* ---- racks ---- */
  const LEVELS = [["h0", "over 6 deviations under"], ["h1", "3 to 6 under"], ["h2", "near the median"], ["h3", "3 to 6 over"], ["h4", "over 6 deviations over"]];
  const VERDICTS = [["v-pass", "PASS"], ["v-fail", "FAIL"], ["v-incomplete", "INCOMPLETE"]];
  /** Of each node the value that is furthest from the median, with its scope. */
  function furthest(figure) {
    const scopes = Object.keys(figure.r), rows = scopes.map((scope) => unpack(figure.r[scope], figure.l, figure.h));
    for (const [index, row, value] of figure.o) rows[row][index] = value;
    return D.nodes.map((_, index) => {
      let found = null;
      rows.forEach((row, place) => {
        const value = row[index];
        if (value !== null && (found === null || Math.abs(value - figure.m) > Math.abs(found.value - figure.m))) found = { value, scope: scopes[place] };
      });
      return found;
    });
  }
  function tileOf(index, figure, values) {
    const node = D.nodes[index];
    if (!figure) return { class: "v-" + node.v.toLowerCase(), text: node.v === "PASS" ? "" : node.v, shown: node.n + ": " + node.v + (T[node.c] ? ", " + T[node.c] : "") };
    const one = values[index];
    if (!one) return { class: "none", text: "–", shown: node.n + ": no value, " + node.v };
    const far = (one.value - figure.m) / (Math.max(figure.d, Math.abs(figure.m) * 0.0034) || 1);
    const percent = figure.m ? ((100 * (one.value - figure.m)) / Math.abs(figure.m)).toFixed(1) + " %" : "";
    return {
      class: LEVELS[far < -6 ? 0 : far < -3 ? 1 : far <= 3 ? 2 : far <= 6 ? 3 : 4][0], text: human(one.value, figure.u),
      shown: node.n + ": " + human(one.value, figure.u) + (one.scope === "node" ? "" : " (" + one.scope + ")") + ", " + percent + " from the median " + human(figure.m, figure.u) + "; " + node.v,
    };
  }
  function showRacks() {
    const map = byId("rack-map"), select = byId("rack-figure"), by = byId("rack-label");
    const labels = D.nodes.map((node) => new Map(node.b.map((label) => [T[label].slice(0, T[label].indexOf(" ")), T[label].slice(T[label].indexOf(" ") + 1)])));
    const names = [...new Set(labels.flatMap((one) => [...one.keys()]))].sort((a, b) => b.endsWith("rack") - a.endsWith("rack"));
    by.append(...names.map((name) => make("option", { value: name }, name)), make("option", { value: "" }, "nothing"));
    select.append(make("option", { value: "-1" }, "verdict"), ...D.figures.map(({ n: [stage, metric, scope, kind] }, number) => make("option", { value: number }, metric + " (" + stage + (scope === "node" ? "" : ", each " + scope) + ", " + kind + ")")));
    let tiles = [];
    function draw() {
      const figure = D.figures[Number(select.value)], values = figure && furthest(figure), groups = new Map();
      D.nodes.forEach((_, index) => {
        const group = by.value ? labels[index].get(by.value) || "no " + by.value : "all nodes";
        groups.set(group, [...(groups.get(group) || []), index]);
      });
      tiles = [];
      map.classList.toggle("small", D.nodes.length > 300);
      map.replaceChildren(...[...groups].sort((a, b) => collator.compare(a[0], b[0])).map(([name, members]) => {
        const bad = members.filter((index) => D.nodes[index].v !== "PASS").length;
        return make("div", { class: "rack" }, make("p", { class: "rack-name" }, make("b", {}, name), " ", make("span", { class: "dim" }, bad ? bad + " of " + members.length + " not PASS" : String(members.length))),
          make("div", { class: "tiles-of" }, members.map((index) => {
            const tile = tileOf(index, figure, values), node = D.nodes[index];
            const link = make("a", { class: "tile " + tile.class + (node.v === "PASS" ? "" : " bad-tile"), href: "#node=" + encodeURIComponent(node.n), tabindex: tiles.length ? "-1" : "0", "aria-label": tile.shown, "data-node-number": index },
              make("span", { class: "tile-name" }, node.n.slice(-14)), " ", make("span", {}, tile.text));
            tiles.push(link);
            return link;
          })));
      }));
      byId("rack-legend").replaceChildren(...(figure ? LEVELS : VERDICTS).map(([name, text]) => make("span", {}, make("i", { class: "tile " + name }), text)), figure ? make("span", {}, "of several GPUs the one furthest from the median; framed: not PASS") : "");
    }
    const tell = (event) => { const tile = event.target.closest("a.tile"); if (tile) byId("rack-readout").textContent = tile.getAttribute("aria-label"); };
    map.addEventListener("pointerover", tell);
    map.addEventListener("focusin", tell);
    map.addEventListener("keydown", (event) => {
      const at = tiles.indexOf(document.activeElement), step = { ArrowRight: 1, ArrowLeft: -1, Home: -at, End: tiles.length - 1 - at }[event.key];
      if (at < 0 || (step === undefined && !["ArrowDown", "ArrowUp"].includes(event.key))) return;
      event.preventDefault();
      let next = at + (step || 0);
      if (step === undefined) {  // the nearest tile of the next or previous line
        const box = tiles[at].getBoundingClientRect(), down = event.key === "ArrowDown" ? 1 : -1;
        const away = (tile) => { const its = tile.getBoundingClientRect(); return { y: down * (its.top - box.top), x: Math.abs(its.left - box.left) }; };
        const lines = tiles.map((tile, index) => ({ index, ...away(tile) })).filter((one) => one.y > 2);
        if (!lines.length) return;
        const nearest = lines.reduce((least, one) => Math.min(least, one.y), Infinity);
        next = lines.filter((one) => one.y < nearest + 2).reduce((best, one) => (one.x < best.x ? one : best)).index;
      }
      next = Math.max(0, Math.min(tiles.length - 1, next));
      tiles[at].tabIndex = -1;
      tiles[next].tabIndex = 0;
      tiles[next].focus();
    });
    select.addEventListener("change", draw);
    by.addEventListener("change", draw);
    draw();
  }

  /** Copies the command beside the button; where the browser has no clipboard, selects it. */
  async function copy(button) {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch (_) {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  /* ---- all together ---- */
  const grids = [];
  function redraw() {
    for (const grid of grids) grid.layout();
    if (shown >= 0) showNode(shown);
    for (const button of document.querySelectorAll('[data-open-figure][aria-expanded="true"]')) { openFigure(button); openFigure(button); }
  }
  const THEMES = new Set(["auto", "light", "dark"]);
  function setTheme(name) {
    if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
    const button = byId("theme");
    button.textContent = "Colours: " + name;
    button.dataset.now = name;
    try { localStorage.setItem("gpuval-theme", name); } catch (_) { /* a file of its own has no storage in some browsers */ }
    redraw();
  }

  if (D.nodes.length > 300 || matchMedia("(max-width: 700px)").matches) byId("map-columns").value = D.nodes.some((node) => /[FMwm]/.test(node.l)) ? "bad" : "all";
  for (const [id, options] of [["map", heat], ["lines", lines]]) {
    const grid = new Grid(byId(id), options);
    grids.push(grid);
  }
  for (const id of ["map-rows", "map-columns", "map-order"]) byId(id).addEventListener("change", () => { grids[0].cursor = null; byId("map").scrollTop = 0; grids[0].layout(); });
  byId("node-names").append(...D.nodes.map((node) => make("option", { value: node.n })));
  byId("node-search").addEventListener("change", (event) => { if (indexOf.has(event.target.value)) openNode(indexOf.get(event.target.value), false); });
  byId("node-previous").addEventListener("click", () => D.nodes.length && openNode((shown + D.nodes.length - 1) % D.nodes.length, false));
  byId("node-next").addEventListener("click", () => D.nodes.length && openNode((shown + 1) % D.nodes.length, false));
  for (const button of document.querySelectorAll("[data-open-figure]")) button.addEventListener("click", () => openFigure(button));
  search(byId("figure-search"), "tr.figure");
  search(byId("check-search"), "tr.check");
  search(byId("statistic-search"), "tr.statistic");
  for (const id of ["statistics", "nodes-table"]) if (byId(id)) sortable(byId(id));
  filterNodes();
  showRacks();
  for (const button of document.querySelectorAll("button.copy")) button.addEventListener("click", () => copy(button));
  let theme = "auto";
  try { theme = localStorage.getItem("gpuval-theme") || "auto"; } catch (_) { /* see above */ }
  byId("theme").addEventListener("click", () => setTheme({ auto: "light", light: "dark", dark: "auto" }[byId("theme").dataset.now || "auto"]));
  if (THEMES.has(theme) && theme !== "auto") setTheme(theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme };
    root.dataset.theme = "light";
    for (const grid of grids) { grid.layout(); grid.draw(); }
  });
  window.addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    redraw();
  });
  window.addEventListener("hashchange", followHash);
  if (D.nodes.length && !followHash()) showNode(Math.max(0, D.nodes.findIndex((node) => node.v !== "PASS")));
})();
