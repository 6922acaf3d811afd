"use strict";
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const charts = page.charts.map(chart => ({
    ...chart,
    figure: document.getElementById("chart-" + chart.name),
    plot: document.querySelector("#chart-" + CSS.escape(chart.name) + " .plot"),
  }));
  const config = {displayModeBar: false, responsive: false, showTips: false, doubleClick: "reset"};
  const finger = matchMedia("(pointer: coarse)").matches;
  const hidden = new Set();
  const logarithmic = new Set(charts.filter(c => c.takesLogarithm && c.layout.yaxis?.type === "log"));
  let axis = page.axes[0], spacing = "linear", weight = page.smoothing;

  // Colours: "$name" in a figure is --name of the style sheet, read when the figure is drawn.

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function paint(value, of = "") {
    if (typeof value === "string") {
      if (!of.endsWith("color") && !of.endsWith("colorscale")) return value;
      if (value === "$shades") return [0, 1, 2, 3].map(i => [i / 3, color("shade-" + i)]);
      return value.startsWith("$") ? color(value.slice(1)) : value;
    }
    if (Array.isArray(value)) {
      return typeof value[0] === "number" ? value : value.map(inner => paint(inner, of));
    }
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, paint(inner, key)]));
  }

  // Drawing

  function shown(chart) {
    return chart.traces.filter(trace => trace.smoothing === undefined || trace.smoothing === weight);
  }

  function cells(chart) {
    return chart.traces.some(trace => trace.type === "heatmap");
  }

  // A chart with a single place has a category axis; a numeric axis would have two more ticks.
  function single(chart) {
    return chart.layout.xaxis?.type === "category";
  }

  // The first cell of a heat map may start below 0, so heat maps stay linear.
  function alongLogarithm(chart) {
    return spacing === "log" && chart.follows && !cells(chart) && !single(chart);
  }

  function traces(chart) {
    return shown(chart).map(({along, decades, smoothing, raw, ...trace}) => {
      const drawn = {cliponaxis: false, ...paint(trace)};
      if (raw && weight) {
        drawn.opacity = 0.35;
        drawn.line.width = 1;
        if (keyed(chart)) drawn.hoverinfo = "skip";
      }
      if (along && trace.z) {
        drawn.customdata = trace.z.map(row => row.map((value, i) => [value, along.step[i]]));
      }
      if (decades) {
        drawn.z = trace.z.map(row => row.map(value => value > 0 ? Math.log10(value) : null));
      }
      if (along) drawn.x = along[axis.column].map(value => value / axis.divide);
      if (along && single(chart)) drawn.x = drawn.x.map(short);
      if (hidden.has(trace.legendgroup)) drawn.visible = false;
      return drawn;
    });
  }

  function short(value) {
    const power = value >= 1000 ? Math.min(6, Math.floor(Math.log10(value) / 3)) : 0;
    return Number((value / 1000 ** power).toPrecision(4)) + ["", "k", "M", "G", "T", "P", "E"][power];
  }

  function vertical(chart, given) {
    if (!chart.takesLogarithm) return given;
    const room = {autorangeoptions: {include: headroom(chart)}};
    if (logarithmic.has(chart)) {
      const {range, rangemode, ...free} = given;
      return {...room, ...free, type: "log", uirevision: "log"};
    }
    const {tickvals, ...free} = given;
    return {...room, ...free, type: "linear", uirevision: "linear"};
  }

  // Room for the label above the highest level.
  function headroom(chart) {
    const levels = (chart.layout.shapes || []).filter(shape => shape.label).map(shape => shape.y0);
    const values = shown(chart).flatMap(trace => trace.y).filter(value => value > 0).concat(levels);
    const [low, high] = [values.reduce((a, b) => Math.min(a, b)), Math.max(...levels)];
    const above = logarithmic.has(chart) ? high * (high / low) ** 0.1 : high + 0.1 * (high - low);
    return values.every(value => value < above) ? [above] : [];  // plotly always includes this value
  }

  function layout(chart) {
    const given = paint(chart.layout), log = alongLogarithm(chart);
    const line = {gridcolor: color("line"), zeroline: false, automargin: true, ticks: "",
                  ticklabelstandoff: 4, title: {}};
    const ends = span(), end = ends[1];
    const place = mark => mark.along[axis.column] / axis.divide;
    const lines = chart.marks.map(mark => ({
      type: "line", yref: "paper", y0: 0, y1: 1, x0: place(mark), x1: place(mark),
      line: {width: 1, color: color("muted"), dash: "dash"}, opacity: 0.6,
      label: {text: mark.text, textangle: 0, textposition: "end",
              xanchor: place(mark) > (log ? 0.5 : 0.9) * end ? "right" : "left",
              font: {size: 11, color: color("muted")}},
    }));
    const along = {
      title: {text: axis?.title},
      tickformat: "~s",
      uirevision: axis?.column + spacing,
      unifiedhovertitle: {text: axis?.hover},
    };
    // Curves start at zero and share their end; heat map cells extend beyond their centres.
    const extent = log ? {type: "log", autorangeoptions: {minallowed: Math.log10(ends[0]), maxallowed: Math.log10(ends[1])}}
      : {type: "linear", rangemode: "tozero", autorangeoptions: {clipmin: 0, clipmax: end}};
    return {
      margin: {l: 8, r: 12, t: 8, b: 8},
      font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: color("muted")},
      paper_bgcolor: color("page"),
      plot_bgcolor: color("page"),
      ...(keyed(chart) ? {showlegend: false} : {}),
      hovermode: chart.follows && !cells(chart) ? "x unified" : "closest",
      hoverlabel: {bgcolor: color("raised"), bordercolor: color("line"),
                   font: {color: color("ink"), size: 12}},
      legend: {orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom",
               font: {color: color("ink")}},
      dragmode: finger ? false : "zoom",
      uirevision: "kept",
      ...given,
      xaxis: {
        ...line,
        showgrid: false,
        ...(chart.follows ? along : {}),
        ...(chart.follows && !cells(chart) && !single(chart) ? extent : {}),
        ...given.xaxis,
      },
      yaxis: {...line, ...vertical(chart, given.yaxis || {})},
      shapes: [...(given.shapes || []), ...lines],
    };
  }

  // First positive and last coordinate of all curves.
  function span() {
    if (!axis) return [0, 0];
    const values = charts.flatMap(c => c.traces).flatMap(t => t.along ? t.along[axis.column] : []);
    const first = values.reduce((a, b) => b > 0 ? Math.min(a, b) : a, Infinity);
    return [first / axis.divide, values.reduce((a, b) => Math.max(a, b), 0) / axis.divide];
  }

  function draw(chart) {
    return Plotly.react(chart.plot, traces(chart), layout(chart), config);
  }

  function drawAll() {
    return Promise.all(charts.map(draw));
  }

  // Zoom: charts with a common axis move together; `moving` stops the recursion.

  let moving = false;

  async function follow(chart, change) {
    const zoomed = "xaxis.range[0]" in change;
    if (moving) return;
    if (!zoomed && !change["xaxis.autorange"]) {
      if ("yaxis.range[0]" in change) reset(chart).hidden = false;
      return;
    }
    const moved = zoomed
      ? {"xaxis.range": [change["xaxis.range[0]"], change["xaxis.range[1]"]]}
      : {"xaxis.autorange": true, "yaxis.autorange": true};
    moving = true;
    const alike = c => c.follows && chart.follows && alongLogarithm(c) === alongLogarithm(chart);
    for (const other of charts.filter(c => c === chart || alike(c))) {
      reset(other).hidden = !zoomed;
      if (other !== chart) await Plotly.relayout(other.plot, moved);
    }
    moving = false;
  }

  function reset(chart) {
    return chart.figure.querySelector("[data-action=reset]");
  }

  // Downloads and copies

  function csv(chart) {
    const rows = [];
    const saved = Object.entries(chart.saved);
    if (saved.length) {
      rows.push(saved.map(([name]) => name), ...saved[0][1].map((_, i) => saved.map(([, v]) => v[i])));
    }
    for (const trace of saved.length ? [] : shown(chart)) {
      const along = trace.along || {x: trace.x || []};
      const names = Object.keys(along);
      if (trace.z) {
        if (!rows.length) rows.push(["series", "y", ...names, "value"]);
        trace.z.forEach((line, i) => line.forEach((value, j) =>
          rows.push([trace.name || "", trace.y ? trace.y[i] : i, ...names.map(n => along[n][j]), value])));
      } else {
        if (!rows.length) rows.push(["series", ...names, "value"]);
        trace.y.forEach((value, i) =>
          rows.push([trace.name || "", ...names.map(n => along[n][i]), value]));
      }
    }
    const cell = value => /[",\n]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : value ?? "";
    return rows.map(row => row.map(cell).join(",")).join("\n") + "\n";
  }

  function save(text, name, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], {type}));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function picture(chart, format) {
    const box = chart.plot.getBoundingClientRect();
    const scale = format === "png" ? 2 : 1;
    const drawn = layout(chart);
    drawn.title = {text: chart.title.replaceAll("<", "&lt;"), subtitle: {text: chart.unit}, automargin: true,
                   x: 0, xref: "container", y: 1, yref: "container", yanchor: "top",
                   pad: {l: 16, t: 16, b: 12}, font: {size: 15, color: color("ink")}};
    drawn.margin = {l: 16, r: 24, t: 64, b: 16};
    let width = box.width;
    if (keyed(chart)) {  // the saved chart needs its own legend
      width = Math.max(width, 560) + 240;
      drawn.showlegend = true;
      drawn.legend = {x: 1.02, xanchor: "left", y: 1, yanchor: "top", font: {color: color("ink")}};
    }
    return Plotly.downloadImage({data: traces(chart), layout: drawn},
      {format, scale, width, height: box.height + 64, filename: chart.name});
  }

  function keyed(chart) {
    return chart.traces.some(trace => trace.legendgroup);
  }

  async function copy(text, button) {
    await navigator.clipboard.writeText(text);
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  }

  // The key hides a series in all charts

  function toggle(group) {
    if (!hidden.delete(group)) hidden.add(group);
    for (const button of document.querySelectorAll("[data-action=toggle]")) {
      button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.group)));
    }
    charts.filter(keyed).forEach(draw);
  }

  function markPressed(chart) {
    const button = chart.figure.querySelector("[data-action=logarithm]");
    button?.setAttribute("aria-pressed", String(logarithmic.has(chart)));
  }

  const onChart = {
    logarithm: chart => {
      if (!logarithmic.delete(chart)) logarithmic.add(chart);
      markPressed(chart);
      draw(chart);
    },
    csv: chart => save(csv(chart), chart.name + ".csv", "text/csv"),
    svg: chart => picture(chart, "svg"),
    png: chart => picture(chart, "png"),
    reset: chart => Plotly.relayout(chart.plot, {"xaxis.autorange": true, "yaxis.autorange": true}),
  };

  const onText = {
    copy: (block, button) => copy(block.querySelector("pre").textContent, button),
    save: block => save(block.querySelector("pre").textContent, block.dataset.file, "text/plain"),
  };

  document.addEventListener("click", event => {
    const button = event.target.closest("button[data-action]");
    if (!button) return;
    const {action, group} = button.dataset;
    if (action === "toggle") return toggle(group);
    const chart = charts.find(c => c.figure.contains(button));
    if (chart) onChart[action](chart);
    else onText[action](button.closest(".verbatim"), button);
  });

  // The switches apply to all sections

  const onSwitch = {
    axis: value => { axis = page.axes.find(a => a.column === value); },
    scale: value => { spacing = value; },
    smoothing: value => { weight = Number(value); },
  };

  document.addEventListener("change", event => {
    if (!event.target.closest(".switch")) return;
    const {name, value} = event.target, what = name.split("-")[0];
    onSwitch[what](value);
    for (const input of document.querySelectorAll(`.switch input[name^="${what}-"]`)) {
      input.checked = input.value === value;
    }
    if (what !== "smoothing") for (const chart of charts) reset(chart).hidden = true;
    charts.filter(c => c.follows).forEach(draw);
  });

  // Colour scheme, size and paper

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  const resized = new ResizeObserver(entries => {
    for (const {target} of entries) if (target.offsetWidth) Plotly.Plots.resize(target);
  });

  // A chart cannot be redrawn while printing, so its SVG is scaled.

  function scale(chart, paper) {
    const [width, height] = [chart.plot.clientWidth, chart.plot.clientHeight];
    chart.plot.style.setProperty("--shape", `${width} / ${height}`);
    for (const svg of chart.plot.querySelectorAll(".main-svg")) {
      if (paper) svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      else svg.removeAttribute("viewBox");
    }
  }

  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    drawAll();
    charts.forEach(chart => scale(chart, true));
  });

  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.theme;
    charts.forEach(chart => scale(chart, false));
    drawAll();
  });

  charts.forEach(markPressed);
  drawAll().then(() => {
    for (const chart of charts) {
      chart.plot.on("plotly_relayout", change => follow(chart, change));
      resized.observe(chart.plot);
    }
    document.documentElement.dataset.ready = "";
  });
})();
