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
  const merged = (base, more) => {
    const out = {...base};
    for (const [key, of] of Object.entries(more)) {
      out[key] = of && typeof of === "object" && !Array.isArray(of) ? merged(base[key] ?? {}, of) : of;
    }
    return out;
  };
  const shared = () => {
    const axis = {gridcolor: colour("grid"), zeroline: false, linecolor: colour("rule"), automargin: true, title: {standoff: 8, font: {size: 12}}};
    return {
      autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
      font: {family: "system-ui, sans-serif", size: 12, color: colour("fg")}, margin: {l: 8, r: 10, t: 14, b: 8},
      hoverlabel: {bgcolor: colour("card"), bordercolor: colour("rule"), font: {color: colour("fg")}},
      legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0}, xaxis: axis, yaxis: axis, yaxis2: axis, yaxis3: axis,
    };
  };
  // What figures leave out because it is the same in each: see `figures.py`.
  const whole = {
    band: {type: "rect", xref: "paper", x0: 0, x1: 1, yref: "y", fillcolor: "@band", line: {width: 0}, layer: "below"},
    stretch: {type: "rect", yref: "paper", y0: 0, y1: 1, xref: "x", fillcolor: "@edge", line: {width: 0}, layer: "below", label: {font: {size: 11, color: "@muted"}}},
    curve: {type: "scatter", line: {color: "@line", width: 1.6}, marker: {color: "@line", size: 4}},
    heatmap: {hoverongaps: false, xgap: 1, ygap: 1, colorbar: {thickness: 10, outlinewidth: 0, nticks: 5}},
  };
  const completed = (each) => {
    const {is, ...own} = each;
    if (is === "level") {
      return coloured({
        type: "line", xref: "paper", x0: 0, x1: 1, yref: "y", y0: own.at, y1: own.at, line: {width: 1.5, color: own.color, dash: own.dash},
        label: {text: own.text ?? "", textposition: "end", font: {size: 11, color: own.color}, yanchor: own.below ? "top" : "bottom"},
      });
    }
    return coloured(merged(whole[is ?? each.type] ?? {}, own));
  };
  const drawn = new Set();
  const read = (figure) => JSON.parse(figure.querySelector("script").textContent);
  const figureOf = (plot) => {
    const figure = read(plot.parentElement);
    for (const trace of figure.data) {
      if (!trace.amount) continue;
      // A rate of as many tokens in each step follows from the step times, which are the first figure of the run.
      const {y, x, x0, dx} = read(plot.closest(".figures").querySelector("figure")).data[0];
      Object.assign(trace, {y: y.map((seconds) => seconds && Number((trace.amount / seconds).toPrecision(5)))}, x ? {x} : {x0, dx});
      delete trace.amount;
    }
    return figure;
  };
  const draw = async (plot) => {
    const figure = figureOf(plot);
    const layout = merged(shared(), coloured(figure.layout));
    layout.shapes = (figure.layout.shapes ?? []).map(completed);
    for (const axis of ["yaxis2", "yaxis3"]) if (!(axis in figure.layout)) delete layout[axis];
    try {
      const Plotly = await plotly();
      await Plotly.react(plot, figure.data.map(completed), layout, {responsive: true, displayModeBar: false, displaylogo: false});
      plot.dataset.drawn = "yes";
    } catch (error) {
      plot.textContent = "This browser cannot draw the figure: its numbers are below.";
      console.error(error);
    }
    if (!drawn.has(plot)) offerTable(plot, figure);
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

  // The numbers of a figure as a table, for whoever does not see it.
  const cell = (row, kind, text) => {
    const made = document.createElement(kind);
    made.textContent = text ?? "—";
    if (kind === "th") made.scope = row.parentElement?.tagName === "THEAD" ? "col" : "row";
    row.append(made);
  };
  const offerTable = (plot, figure) => {
    const button = document.createElement("button"), title = plot.parentElement.querySelector("h4").textContent;
    button.type = "button";
    button.textContent = "Numbers";
    button.setAttribute("aria-expanded", "false");
    button.setAttribute("aria-label", `Numbers of ${title} as a table`);
    plot.parentElement.append(button);
    button.addEventListener("click", () => {
      let box = plot.parentElement.querySelector(".wide");
      if (!box) {
        box = document.createElement("div");
        box.className = "wide";
        box.hidden = true;
        box.tabIndex = 0;
        box.setAttribute("role", "region");
        box.setAttribute("aria-label", `Numbers of ${title}`);
        box.append(table(figure, title));
        plot.parentElement.append(box);
      }
      box.hidden = !box.hidden;
      button.setAttribute("aria-expanded", String(!box.hidden));
    });
  };
  const plainText = (text) => typeof text === "string" ? new DOMParser().parseFromString(text, "text/html").body.textContent : text;
  const table = (figure, title) => {
    const made = document.createElement("table"), head = made.createTHead().insertRow(), body = made.createTBody();
    made.className = "plain";
    made.createCaption().textContent = title;
    const [first] = figure.data;
    if (first.type === "heatmap") {
      ["", ...first.x].forEach((name) => cell(head, "th", plainText(name)));
      first.z.forEach((values, n) => {
        const row = body.insertRow();
        cell(row, "th", plainText(first.y[n]));
        values.forEach((value) => cell(row, "td", value));
      });
      return made;
    }
    const at = new Map();
    figure.data.forEach((trace, n) => trace.y.forEach((value, m) => {
      const x = trace.x ? trace.x[m] : trace.x0 + m * trace.dx;
      if (!at.has(x)) at.set(x, []);
      at.get(x)[n] = value;
    }));
    cell(head, "th", plainText(figure.layout.xaxis?.title?.text ?? ""));
    figure.data.forEach((trace) => cell(head, "th", plainText(trace.name ?? "")));
    [...at].sort(([one], [two]) => one - two).forEach(([x, values]) => {
      const row = body.insertRow();
      cell(row, "th", x);
      figure.data.forEach((_, n) => cell(row, "td", values[n]));
    });
    return made;
  };
  open();
})();
