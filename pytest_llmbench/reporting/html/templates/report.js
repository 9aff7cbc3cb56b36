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
  const fill = (item) => {
    const body = item.querySelector(":scope > .body");
    if (body && madeOf(body)) all("figure", body).forEach(offerTable);
  };
  document.addEventListener("toggle", (event) => event.target.open && fill(event.target), true);

  const form = document.querySelector(".filter"), tbody = document.querySelector("#rows tbody"), items = all("details.item[data-k]");
  const more = document.querySelector(".more"), shown = document.getElementById("shown"), FIRST = 100;
  const texts = new Map();
  const textOf = (each) => {
    if (!texts.has(each)) texts.set(each, (each.tagName === "TR" ? each : each.querySelector("summary")).textContent.toLowerCase() + (each.id || ""));
    return texts.get(each);
  };
  const total = Number(form.dataset.total);
  let unfolded = total <= FIRST, rows = all("tr", tbody);
  const everyRow = () => {
    if (madeOf(tbody)) rows = all("tr", tbody);
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

  // Paper has every run that the page has made, and its figures.
  let shut = [];
  addEventListener("beforeprint", () => (shut = items.filter((item) => !item.open)).forEach((item) => { item.open = true; }));
  addEventListener("afterprint", () => shut.forEach((item) => { item.open = false; }));

  // Each table sorts by the column whose title is pressed, as text or, if all cells begin with one, as numbers.
  const sort = (title, table) => {
    const body = table.tBodies[0], column = title.cellIndex, up = title.getAttribute("aria-sort") !== "ascending";
    const key = (row) => row.cells[column].firstChild?.textContent.trim().replace("—", "") ?? "";
    const keys = new Map([...body.rows].map((row, n) => [row, [key(row), n]]));
    const number = (text) => parseFloat(text.replace(/[,≥≤ ]/g, ""));
    const numeric = [...keys.values()].every(([text]) => !text || !isNaN(number(text)));
    const order = ([one, n], [two, m]) => (!one - !two) || (up ? 1 : -1) * (numeric ? number(one) - number(two) : one.localeCompare(two, "en", {numeric: true})) || n - m;
    body.append(...[...body.rows].sort((one, two) => order(keys.get(one), keys.get(two))));
    all("th", table.tHead).forEach((each) => each.removeAttribute("aria-sort"));
    title.setAttribute("aria-sort", up ? "ascending" : "descending");
  };
  for (const title of all("#rows thead th, .plain thead th")) {
    const button = Object.assign(document.createElement("button"), {type: "button", className: "sort"});
    button.append(...title.childNodes);
    title.append(button);
  }
  document.addEventListener("click", (event) => {
    const title = event.target.closest?.(".sort")?.parentElement;
    if (!title) return;
    const table = title.closest("table");
    if (table.id === "rows") everyRow();
    sort(title, table);
    if (table.id === "rows") {
      rows = all("tr", tbody);
      filter();
    }
  });

  // The numbers of a figure as a table, and those under the pointer as a text. A curve is a path in their units.
  const pointsOf = (curve) => {
    const names = JSON.parse(curve.dataset.n ?? "[]");
    return [...curve.getAttribute("d").matchAll(/[ML]([^ ]+) ([^MLh]+)/g)].map(([, x, y], n) => [Number(x), Number(y), names[n] ?? Number(x)]);
  };
  const rowsOf = (figure) => {
    const title = figure.querySelector("em").textContent || "Name";
    if (figure.dataset.heat) {
      const {x, y, z} = JSON.parse(figure.dataset.heat);
      return [[title, ...x], ...z.map((values, n) => [y[n], ...values])];
    }
    const curves = all("path[data-name]", figure), at = new Map();
    curves.forEach((curve, n) => pointsOf(curve).forEach(([x, y, name]) => {
      const key = curve.dataset.n ? name : x;
      if (!at.has(key)) at.set(key, [x, name, ...curves.map(() => null)]);
      at.get(key)[n + 2] = y;
    }));
    const rows = [...at.values()].sort(([one], [two]) => one - two).map(([, ...row]) => row);
    return [[title, ...curves.map((curve) => curve.dataset.name)], ...rows];
  };
  const offerTable = (figure) => {
    const box = document.createElement("details"), table = document.createElement("table");
    box.className = "wide";
    box.append(Object.assign(document.createElement("summary"), {textContent: "Numbers"}), table);
    table.className = "plain";
    table.createCaption().textContent = figure.querySelector("h3").textContent;
    box.addEventListener("toggle", () => rowsOf(figure).forEach((values, n) => {
      const row = (n ? table.tBodies[0] ?? table.createTBody() : table.createTHead()).insertRow();
      values.forEach((value, m) => {
        const cell = row.appendChild(document.createElement(n && m ? "td" : "th"));
        cell.textContent = value ?? "—";
        if (!n || !m) cell.scope = n ? "row" : "col";
      });
    }), {once: true});
    (figure.closest(".overview") ?? figure).append(box);  // the map stands directly below its figure
  };
  all("figure").forEach(offerTable);
  document.addEventListener("pointermove", (event) => {
    const plot = event.target.closest?.(".plot"), figure = plot?.parentElement;
    if (!figure) return;
    const box = plot.getBoundingClientRect();
    const across = (event.clientX - box.left) / box.width, down = (event.clientY - box.top) / box.height;
    const part = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    if (figure.dataset.heat) {
      const [titles, ...values] = rowsOf(figure), row = values[part(down, values.length)], column = 1 + part(across, titles.length - 1);
      plot.title = `${row[0]}, ${titles[column]}: ${row[column] ?? "—"}`;
      return;
    }
    const {x, width} = plot.querySelector("svg").viewBox.baseVal, at = x + across * width;
    const points = all("path[data-name]", plot).flatMap((curve) => pointsOf(curve).map((point) => [curve.dataset.name, ...point]));
    const [name, , y, text] = points.reduce((one, two) => Math.abs(two[1] - at) < Math.abs(one[1] - at) ? two : one);
    plot.title = typeof text === "string" ? text : `${name} ${text}: ${y}`;
  });
  open();
})();
