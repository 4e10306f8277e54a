// Draws the charts of the page. Every name in their rows comes from a log: it is shown as text, and never as markup.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const views = new Map();

  function rows(columns) {
    const names = Object.keys(columns);
    return columns[names[0]].map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
  }

  // A specification with each "@name" replaced by the colour of that name in page.css.
  function coloured(value, style) {
    if (typeof value === "string") return value.startsWith("@") ? style.getPropertyValue(`--${value.slice(1)}`).trim() : value;
    if (Array.isArray(value)) return value.map((each) => coloured(each, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, style)]));
  }

  const theme = {
    background: null,
    font: "system-ui, sans-serif",
    padding: 2,
    view: { stroke: null },
    axis: {
      domainColor: "@line", gridColor: "@line", tickColor: "@line", labelColor: "@muted", titleColor: "@muted",
      labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500, titlePadding: 8, gridOpacity: 0.7,
    },
    axisY: { labelOverlap: false },
    legend: { labelColor: "@text", labelFontSize: 12, titleColor: "@muted", symbolStrokeWidth: 0, symbolSize: 90, columnPadding: 14 },
  };

  async function draw(chart) {
    const place = document.getElementById(chart.name);
    const style = getComputedStyle(document.documentElement);
    const datasets = Object.fromEntries(chart.empty.map((name) => [name, []]));
    let count = 0;
    for (const [name, columns] of Object.entries(chart.columns)) {
      datasets[name] = rows(columns);
      count += datasets[name].length;
    }
    const spec = coloured(chart.spec, style);
    spec.config = coloured(theme, style);
    spec.config.legend.columns = narrow.matches ? 1 : 4;
    if (narrow.matches) spec.config.axisY.labelLimit = 90;
    const { view } = await vegaEmbed(place, { ...spec, datasets }, {
      actions: false,
      ast: true, // expressions are interpreted: the page forbids that text becomes code
      defaultStyle: false,
      renderer: count > 1500 ? "canvas" : "svg",
      tooltip: { disableDefaultStyle: true, theme: "page" },
    });
    views.get(chart.name)?.finalize();
    views.set(chart.name, view);
    place.dataset.drawn = count;
  }

  // Buttons beside the wheel, which a keyboard and a phone lack.
  function zoomed(chart, factor) {
    const view = views.get(chart.name);
    const [low, high] = view.scale("x").domain();
    const [first, last] = chart.spec.layer[0].encoding.x.scale.domain;
    const middle = (low + high) / 2;
    const half = factor ? ((high - low) / 2) * factor : (last - first) / 2;
    const at = factor ? middle : (first + last) / 2;
    view.signal(`zoom_${chart.spec.layer[0].encoding.x.field}`, [Math.max(first, at - half), Math.min(last, at + half)]);
    if (!factor) {
      const y = chart.spec.layer[0].encoding.y;
      try { view.signal(`zoom_${y.field}`, y.scale.domain); } catch { /* this chart zooms in x alone */ }
    }
    view.run();
  }

  function buttons(chart) {
    const group = document.createElement("div");
    group.className = "zoom";
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Zoom");
    for (const [text, label, factor] of [["+", "Zoom in", 0.5], ["−", "Zoom out", 2], ["Reset", "Show all", 0]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", () => zoomed(chart, factor));
      group.append(button);
    }
    document.getElementById(chart.name).before(group);
  }

  // A chart in a closed element has no width to be drawn in.
  const folded = (chart) => document.getElementById(chart.name).closest("details:not([open])");

  // Whatever is first on the page is shown first, and a reader can act on it while the others are drawn.
  const pause = () => new Promise((resume) => (window.requestIdleCallback ?? setTimeout)(resume));

  async function drawAll() {
    for (const chart of charts) {
      if (folded(chart)) continue;
      await draw(chart);
      await pause();
    }
    document.documentElement.dataset.drawn = "";
  }
  for (const chart of charts) {
    document.getElementById(chart.name).style.minHeight = `${chart.spec.height + 60}px`; // so that nothing moves later
    if (chart.zooms) buttons(chart);
    folded(chart)?.addEventListener("toggle", (event) => event.target.open && draw(chart));
  }
  dark.addEventListener("change", drawAll);
  narrow.addEventListener("change", drawAll);
  drawAll();
})();
