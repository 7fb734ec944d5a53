"use strict";
/* What the page does beyond showing: tables that sort, source lines that find their instructions,
   timelines that zoom. */

/* -- tables: a click on a heading sorts by its column, the largest number first */
for (const head of document.querySelectorAll("th[data-sort]")) {
  head.tabIndex = 0;
  const sort = () => {
    const body = head.closest("table").tBodies[0], column = head.cellIndex;
    const key = row => {
      const cell = row.cells[column], text = cell ? cell.textContent : "";
      return cell && cell.dataset.v !== undefined ? +cell.dataset.v
        : text.startsWith("0x") ? parseInt(text, 16) : parseFloat(text.replace(/,/g, ""));
    };
    const down = head.dataset.sort !== "down";
    head.dataset.sort = down ? "down" : "up";
    const rows = [...body.rows].map(row => [row, key(row)]);
    const value = x => Number.isNaN(x) ? -Infinity : x;
    rows.sort((a, b) => (value(b[1]) - value(a[1])) * (down ? 1 : -1));
    body.append(...rows.map(pair => pair[0]));
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
}

/* -- code: a source line marks its instructions, an instruction its line and those it is called by */
const mark = (rows, target) => {
  for (const row of document.querySelectorAll("tr.of")) row.classList.remove("of");
  for (const row of rows) row.classList.add("of");
  if (target) target.scrollIntoView({ block: "nearest" });
};
document.addEventListener("click", event => {
  const row = event.target.closest(".code tr");
  if (!row) return;
  if (row.dataset.line) {
    const lines = row.dataset.line.split(" ").map(id => document.getElementById(id)).filter(Boolean);
    mark([row, ...lines], lines[lines.length - 1]);
  } else if (row.id) {
    const own = [...document.querySelectorAll(`tr[data-line~="${row.id}"]`)];
    mark([row, ...own], own[0]);
  }
});

/* -- a link into a launch that is folded opens it */
const open = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const launch = target && target.closest("details");
  if (launch) launch.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", open);

/* -- timelines */
class Timeline {
  constructor(box) {
    this.data = JSON.parse(box.querySelector("script").textContent);
    this.canvas = box.querySelector("canvas");
    this.note = box.querySelector("output");
    [this.from, this.to] = [0, this.data.end];
    this.row = 13; this.top = 22;
    this.canvas.style.height = `${this.top + this.row * this.data.rows.length + 4}px`;
    this.canvas.addEventListener("wheel", event => this.wheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", event => this.grab(event));
    this.canvas.addEventListener("pointermove", event => this.move(event));
    this.canvas.addEventListener("pointerleave", () => { this.note.style.display = "none"; });
    this.canvas.addEventListener("dblclick", () => this.show(0, this.data.end));
    this.canvas.addEventListener("keydown", event => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.draw();
  }
  get left() { return this.canvas.clientWidth < 600 ? 6 : 130; }
  get perNs() { return (this.canvas.clientWidth - this.left - 6) / (this.to - this.from); }
  x(ns) { return this.left + (ns - this.from) * this.perNs; }
  ns(event) { return this.from + (event.offsetX - this.left) / this.perNs; }
  show(from, to) {
    const width = Math.min(Math.max(to - from, 20), this.data.end);
    this.from = Math.min(Math.max(from, 0), this.data.end - width);
    this.to = this.from + width;
    this.draw();
  }
  zoom(at, factor) { this.show(at - (at - this.from) * factor, at + (this.to - at) * factor); }
  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey && this.from === 0 && this.to === this.data.end &&
        event.deltaY > 0) return;
    event.preventDefault();
    if (event.shiftKey) {
      const step = (this.to - this.from) * Math.sign(event.deltaY + event.deltaX) / 10;
      this.show(this.from + step, this.to + step);
    } else this.zoom(this.ns(event), event.deltaY > 0 ? 1.25 : 0.8);
  }
  key(event) {
    const middle = (this.from + this.to) / 2, step = (this.to - this.from) / 8;
    if (event.key === "+") this.zoom(middle, 0.8);
    else if (event.key === "-") this.zoom(middle, 1.25);
    else if (event.key === "ArrowLeft") this.show(this.from - step, this.to - step);
    else if (event.key === "ArrowRight") this.show(this.from + step, this.to + step);
    else if (event.key === "0") this.show(0, this.data.end);
    else return;
    event.preventDefault();
  }
  grab(event) {
    this.held = [event.offsetX, this.from, this.to];
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.addEventListener("pointerup", () => { this.held = null; }, { once: true });
  }
  move(event) {
    if (this.held) {
      const step = (event.offsetX - this.held[0]) / this.perNs;
      this.show(this.held[1] - step, this.held[2] - step);
      return;
    }
    const row = Math.floor((event.offsetY - this.top) / this.row), at = this.ns(event);
    const near = 2 / this.perNs;
    const hit = this.data.slices.find(([r, start, length, kind]) =>
      r === row && kind && start - near <= at && at <= start + length + near);
    this.note.style.display = hit ? "block" : "none";
    if (!hit) return;
    this.note.textContent = `${this.data.texts[hit[4]]}: ${hit[2]} ns, at ${(hit[1] / 1e3).toFixed(3)} us`;
    this.note.style.left =
      `${Math.min(event.offsetX + 12, Math.max(0, this.canvas.clientWidth - this.note.offsetWidth))}px`;
    this.note.style.top = `${event.offsetY + 14}px`;
  }
  draw() {
    const canvas = this.canvas, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    const ratio = devicePixelRatio || 1, style = getComputedStyle(document.body);
    canvas.width = width * ratio; canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    const text = style.color, soft = style.getPropertyValue("--soft"),
      line = style.getPropertyValue("--line"), card = style.getPropertyValue("--card");
    this.ticks(pen, height, soft, line);
    pen.save();
    pen.beginPath(); pen.rect(this.left, 0, width - this.left, height); pen.clip();
    for (const [row, start, length, kind] of this.data.slices) {
      const x = this.x(start), wide = Math.max(length * this.perNs, 0.5);
      if (x > width || x + wide < this.left) continue;
      const [color, opacity] = this.data.kinds[kind];
      pen.globalAlpha = opacity;
      pen.fillStyle = color || card;
      pen.fillRect(x, this.top + row * this.row + 1, wide, this.row - 2);
    }
    pen.restore();
    if (this.left < 50) return;
    pen.fillStyle = text; pen.textAlign = "right";
    this.data.rows.forEach((name, row) => {
      pen.fillText(name, this.left - 6, this.top + row * this.row + 10);
    });
  }
  ticks(pen, height, soft, line) {
    const span = this.to - this.from, wanted = Math.max(3, this.canvas.clientWidth / 120);
    let step = 10 ** Math.floor(Math.log10(span / wanted));
    step *= [1, 2, 5, 10].find(n => span / (n * step) <= wanted);
    pen.fillStyle = soft; pen.strokeStyle = line; pen.textAlign = "center";
    for (let ns = Math.ceil(this.from / step) * step; ns <= this.to; ns += step) {
      const x = this.x(ns);
      pen.beginPath(); pen.moveTo(x, 16); pen.lineTo(x, height); pen.stroke();
      if (x < this.canvas.clientWidth - 20)
        pen.fillText(step >= 1000 ? `${ns / 1000} us` : `${Math.round(ns)} ns`, x, 12);
    }
  }
}
const timelines = new WeakMap();
const start = launch => {
  for (const box of launch.querySelectorAll(".timeline")) {
    if (!timelines.has(box)) timelines.set(box, new Timeline(box));
  }
};
for (const launch of document.querySelectorAll("details.launch")) {
  launch.addEventListener("toggle", () => { if (launch.open) start(launch); });
}
/* After loading: a reader sees the text first, and 20,000 slices take a third of a second. */
addEventListener("load", () => setTimeout(() => {
  for (const launch of document.querySelectorAll("details.launch[open]")) start(launch);
}));
open();
