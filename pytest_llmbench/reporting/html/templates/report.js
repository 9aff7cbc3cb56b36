"use strict";
(() => {
  const page = document.documentElement;
  page.classList.add("js");
  const all = (query, from = document) => [...from.querySelectorAll(query)];

  // Filters: by verdict and by text, of verdicts, checks and runs alike.
  // Parts of a large page are comments until they are needed: of so many elements a browser would take seconds.
  const madeOf = (place) => {
    const comment = [...place.childNodes].find((node) => node.nodeType === Node.COMMENT_NODE);
    if (!comment) return false;
    const made = document.createElement("template");
    made.innerHTML = comment.data;
    comment.replaceWith(made.content);
    return true;
  };
  let seen = null;
  const fill = (item) => {
    const body = item.querySelector(":scope > .body");
    if (body && madeOf(body)) all(".plot", body).forEach((plot) => seen.observe(plot));
  };
  document.addEventListener("toggle", (event) => event.target.open && fill(event.target), true);

  const form = document.querySelector(".filter"), tbody = document.querySelector("#rows tbody"), items = all("details.item[data-k]");
  const more = document.querySelector(".more"), shown = document.getElementById("shown"), FIRST = 100;
  const texts = new Map();
  const textOf = (each) => {
    if (!texts.has(each)) texts.set(each, (each.tagName === "TR" ? each : each.querySelector("summary")).textContent.toLowerCase() + (each.id || ""));
    return texts.get(each);
  };
  // On a narrow screen a row is a card: CSS takes the table's roles away, so they are given back.
  const ROLES = {TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell", TH: "rowheader"};
  const narrow = matchMedia("(max-width: 46rem)");
  const keepRoles = () => {
    if (!narrow.matches) return;
    const table = document.getElementById("rows");
    for (const each of [table, ...all("thead, tbody, tr, td, th", table)]) each.setAttribute("role", each.scope === "col" ? "columnheader" : ROLES[each.tagName]);
  };
  narrow.addEventListener("change", keepRoles);
  keepRoles();
  const total = Number(form.dataset.total);
  let unfolded = total <= FIRST, rows = all("tr", tbody);
  const everyRow = () => {
    if (madeOf(tbody)) {
      rows = all("tr", tbody);
      keepRoles();
    }
  };
  const filter = () => {
    const kinds = new Set(all("input[name=kind]:checked", form).map((box) => box.value));
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (each) => kinds.has(each.dataset.k) && words.every((word) => textOf(each).includes(word));
    let found = 0;
    for (const row of rows) {
      const fit = fits(row);
      found += fit;
      row.hidden = !fit;
      row.classList.toggle("late", fit && !unfolded && found > FIRST);
    }
    const every = kinds.size === all("input[name=kind]", form).length && !words.length;
    // A run is shown with any of its verdicts: its own colour is the worst of them.
    const named = every ? null : new Set(rows.filter((row) => !row.hidden).map((row) => row.querySelector("a")?.hash.slice(1)));
    for (const item of items) item.hidden = named !== null && !named.has(item.id) && !fits(item);
    const whole = `${total} verdict${total === 1 ? "" : "s"}`;
    shown.textContent = found === total ? whole : `${found} of ${whole}`;
    more.hidden = unfolded || found <= FIRST;
  };
  form.addEventListener("input", () => { everyRow(); filter(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("all").addEventListener("click", () => { everyRow(); unfolded = true; filter(); });
  more.hidden = unfolded;

  // A link to a run or check opens it.
  const open = () => {
    const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!place) return;
    for (let each = place; each; each = each.parentElement) {
      if (each.tagName === "DETAILS") {
        fill(each);
        each.open = true;
      }
      if (each.hidden) each.hidden = false;
    }
    place.scrollIntoView();
    if (place.tagName === "DETAILS") place.querySelector("summary").focus({preventScroll: true});
  };
  addEventListener("hashchange", open);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (link && link.hash === location.hash) { event.preventDefault(); open(); }
  });

  // Figures: drawn when they come into view, by a script that is unpacked for the first of them.
  let library = null;
  const plotly = () => library ??= (async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
    const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
    return window.Plotly;
  })();
  const colour = (name) => getComputedStyle(page).getPropertyValue(`--${name}`).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const scale = () => dark.matches
    ? [[0, "#16304f"], [0.35, "#2a6fb0"], [0.7, "#e0a458"], [1, "#ffe3ad"]]
    : [[0, "#e8f1fb"], [0.35, "#74a9dd"], [0.7, "#c77320"], [1, "#6b2500"]];
  const coloured = (thing) => {
    if (typeof thing === "string" && thing[0] === "@") {
      if (thing === "@scale") return scale();
      if (thing === "@reversed") return scale().map(([at, of], n, every) => [at, every[every.length - 1 - n][1]]);
      return colour(thing.slice(1)) || thing;
    }
    if (Array.isArray(thing)) return thing.map(coloured);
    if (thing && typeof thing === "object") return Object.fromEntries(Object.entries(thing).map(([key, of]) => [key, coloured(of)]));
    return thing;
  };
  // What all figures share; plotly.js uses it where a figure has nothing of its own.
  const template = () => {
    const axis = {gridcolor: colour("grid"), zeroline: false, linecolor: colour("rule"), automargin: true, title: {standoff: 8, font: {size: 12}}};
    return {
      data: {
        scatter: [{line: {width: 1.6}, marker: {size: 4}}],
        heatmap: [{hoverongaps: false, xgap: 1, ygap: 1, colorbar: {thickness: 10, outlinewidth: 0, nticks: 5}}],
      },
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest", colorway: ["line", "second", "bad"].map(colour),
        font: {family: "system-ui, sans-serif", size: 12, color: colour("fg")},
        shapedefaults: {xref: "paper", x0: 0, x1: 1, layer: "between", line: {width: 1.5}, label: {textposition: "end", font: {size: 11}}},
        hoverlabel: {bgcolor: colour("card"), bordercolor: colour("rule"), font: {color: colour("fg")}},
        legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0}, xaxis: axis, yaxis: axis,
      },
    };
  };
  const drawn = new Set();
  const figureOf = (plot) => JSON.parse(plot.parentElement.querySelector("script").textContent);
  const draw = async (plot) => {
    const {data, layout} = coloured(figureOf(plot));
    const own = {autosize: true, showlegend: false, margin: {l: 8, r: 10, t: 14, b: 8}, ...layout, template: template()};
    try {
      const Plotly = await plotly();
      await Plotly.react(plot, data, own, {responsive: true, displayModeBar: false});
      plot.dataset.drawn = "yes";
    } catch (error) {
      plot.textContent = "This browser cannot draw the figure: its numbers are below.";
      console.error(error);
    }
    if (!drawn.has(plot)) offerTable(plot);
    drawn.add(plot);
  };
  seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, {rootMargin: "200px"});
  all(".plot").forEach((plot) => seen.observe(plot));
  dark.addEventListener("change", () => drawn.forEach(draw));
  addEventListener("beforeprint", () => all("details.item[open] .plot").forEach((plot) => drawn.has(plot) || draw(plot)));

  // The numbers of a figure as a table, for readers who do not see it.
  const rowsOf = ({data, layout}) => {
    const [{type, x, y, z}] = data;
    if (type === "heatmap") return [["", ...x], ...z.map((values, n) => [y[n], ...values])];
    const at = new Map();
    data.forEach((trace, n) => trace.y.forEach((value, m) => {
      if (!at.has(trace.x[m])) at.set(trace.x[m], data.map(() => null));
      at.get(trace.x[m])[n] = value;
    }));
    const names = [layout.xaxis?.title?.text ?? "", ...data.map((trace) => trace.name ?? "")];
    return [names, ...[...at].sort(([one], [two]) => one - two).map(([step, values]) => [step, ...values])];
  };
  const plainText = (text) => typeof text === "string" ? new DOMParser().parseFromString(text, "text/html").body.textContent : text;
  const offerTable = (plot) => {
    const box = document.createElement("details"), table = document.createElement("table");
    box.className = "wide";
    box.append(Object.assign(document.createElement("summary"), {textContent: "Numbers"}), table);
    table.className = "plain";
    table.createCaption().textContent = plot.parentElement.querySelector("h4").textContent;
    box.addEventListener("toggle", () => rowsOf(figureOf(plot)).forEach((values, n) => {
      const row = (n ? table.tBodies[0] ?? table.createTBody() : table.createTHead()).insertRow();
      values.forEach((value, m) => {
        const cell = row.appendChild(document.createElement(n && m ? "td" : "th"));
        cell.textContent = plainText(value ?? "—");
        if (!n || !m) cell.scope = n ? "row" : "col";
      });
    }), {once: true});
    plot.parentElement.append(box);
  };
  open();
})();
