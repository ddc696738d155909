/* Curves, drawn by uPlot. */

const CHARTS = new Set();
const SHADES = ["--run-0", "--run-1", "--run-2", "--run-3", "--run-4", "--run-5"];
const shadeOf = (run, alpha = 1) => colour(SHADES[RUNS.indexOf(run) % SHADES.length], alpha);

/** Vertical lines from low to high at each point, so that a single point shows its interval too. */
function whiskers(intervals) {
  return (plot) => {
    const { ctx } = plot;
    ctx.save();
    for (const { low, high, stroke } of intervals) {
      ctx.strokeStyle = stroke;
      ctx.globalAlpha = 0.55;
      ctx.lineWidth = devicePixelRatio;
      ctx.beginPath();
      plot.data[0].forEach((x, i) => {
        if (plot.data[low][i] == null || !plot.series[low].show) return;
        const left = plot.valToPos(x, "x", true);
        ctx.moveTo(left, plot.valToPos(plot.data[low][i], "y", true));
        ctx.lineTo(left, plot.valToPos(plot.data[high][i], "y", true));
      });
      ctx.stroke();
    }
    ctx.restore();
  };
}

/** A figure of curves {label, stroke, fill, dash, x, y, low, high}; `format` writes a value, `unit` names x. */
function chart(title, curves, { unit = "iteration", format = percent, range = null, whole = true } = {}) {
  const place = h("div", { className: "plot" });
  const figure = h("figure", {}, h("figcaption", {}, title), place);
  const known = curves.filter((curve) => curve.y.some((value) => value != null));
  if (!known.length) {
    place.append(h("p", { className: "muted" }, "nothing measured"));
    return figure;
  }
  const series = [{ label: unit, value: (_, x) => (x == null ? "–" : number(x, 6)) }], bands = [], intervals = [];
  const tables = known.map(({ label, stroke, fill, dash, x, y, low, high }) => {
    series.push({ label, stroke, dash, width: 1.75, spanGaps: true, value: (_, v) => format(v),
      points: { show: y.length < 40, size: 5, fill: stroke } });
    if (!low) return [x, y];
    const at = series.length;
    const hidden = { stroke: "transparent", class: "interval", spanGaps: true, points: { show: false } };
    series.push({ ...hidden, label: `${label} low` }, { ...hidden, label: `${label} high` });
    bands.push({ series: [at + 1, at], fill });
    intervals.push({ low: at, high: at + 1, stroke });
    return [x, y, low, high];
  });
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const scaleY = range ? { range: () => range } : {};
  const draw = () => {
    const values = (_, splits) => splits.map((x) => (whole && !Number.isInteger(x) ? "" : number(x, 4)));
    const plot = new uPlot({
      width: Math.max(280, place.clientWidth), height: 210, series, bands,
      scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: scaleY },
      axes: [{ ...axis, values, size: 34, label: unit, labelSize: 18, labelFont: "12px system-ui" },
        { ...axis, size: 52, values: (_, splits) => splits.map(format) }],
      cursor: { y: false, points: { size: 6 } }, legend: { markers: { width: 2, dash: (u, i) => (u.series[i].dash ? "dotted" : "solid"),
        fill: (u, i) => (u.series[i].dash ? null : u.series[i].stroke(u, i)) } },
      hooks: { draw: [whiskers(intervals)] },
    }, uPlot.join(tables), place);
    CHARTS.add({ plot, place });
  };
  requestAnimationFrame(draw);
  return figure;
}

/** Forget the charts of a page that is left. */
function dropCharts() {
  for (const { plot } of CHARTS) plot.destroy();
  CHARTS.clear();
}

addEventListener("resize", () => {
  for (const { plot, place } of CHARTS) plot.setSize({ width: Math.max(280, place.clientWidth), height: 210 });
});
