// The attention map that one can point at.
//
// `<figure class="attention-map">` holds a picture and, put there when the site is built, the weights as JSON:
// `queries` and `keys` are tokens, `layers[layer][head][query][key]` are thousandths, `start` is what to open with.
// Without this script the picture stays.
"use strict";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A token that can be seen, and one that can be heard.
const seen = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "⏎");
const spoken = { " ": "space", "\n": "new line", ",": "comma", ".": "full stop", "-": "hyphen" };
const heard = (token) => spoken[token] ?? token;
const percent = (thousandths) => (thousandths > 0 && thousandths < 10 ? "< 1 %" : `${Math.round(thousandths / 10)} %`);

// Where an arrow key leads in a row or a grid; undefined for other keys.
function moved(key, row, column, rows, columns) {
  const places = {
    ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], Home: [row, 0], End: [row, columns - 1],
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
  };
  if (!(key in places)) return undefined;
  const [r, c] = places[key];
  return [Math.max(0, Math.min(rows - 1, r)), Math.max(0, Math.min(columns - 1, c))];
}

function attentionMap(figure) {
  const { title, queries, keys, start, layers } = JSON.parse(figure.querySelector("script").textContent);
  let [layer, head, query] = start;
  let key = null; // the cell pointed at, or none: then the strongest are told

  // === What is on the page ===
  const select = (label, names, chosen, change) => {
    const box = element("select");
    names.forEach((name, i) => box.append(element("option", { value: i }, name)));
    box.value = chosen;
    box.addEventListener("change", () => change(Number(box.value)));
    return element("label", {}, `${label} `, box);
  };
  const heads = layers[0].map((_, i) => `${i}`);
  const choices = element(
    "div", { class: "map-choices" },
    ...(layers.length > 1 ? [select("Layer", layers.map((_, i) => `${i}`), layer, (n) => { layer = n; draw(); })] : []),
    ...(heads.length > 1 ? [select("Head", [...heads, "mean of all"], head, (n) => { head = n; draw(); })] : []),
  );
  const asking = queries.map((token) => element("span", { role: "radio", "aria-label": heard(token) }, seen(token)));
  const group = { class: "map-tokens", role: "radiogroup", "aria-label": "The token that looks" };
  const row = element("div", group, ...asking);
  const shares = keys.map((token) => element("li", {}, seen(token), element("span", { class: "map-share" })));
  const answers = element("ol", { class: "map-tokens map-answers", "aria-label": "What it looks at" }, ...shares);
  const said = element("p", { class: "map-said", "aria-live": "polite" });
  const cells = queries.map(() => keys.map(() => element("td", { role: "gridcell" })));
  const header = (scope, token) => element("th", { scope, "aria-label": heard(token) }, seen(token));
  const grid = element(
    "table", { class: "map-grid", role: "grid", "aria-label": `${title}: each row is a token that looks` },
    element("tr", {}, element("td"), ...keys.map((token) => header("col", token))),
    ...cells.map((line, q) => element("tr", {}, header("row", queries[q]), ...line)),
  );
  grid.classList.toggle("map-upright", keys.some((token) => token.length > 2));
  grid.classList.toggle("map-wide", queries.some((token) => token.length > 3));
  const picture = element("details", {}, element("summary", {}, "The picture"), ...figure.childNodes);
  figure.append(
    element("figcaption", {}, title), choices,
    element("p", { class: "map-label" }, "This token"), row,
    element("p", { class: "map-label" }, "looks at"), answers, said, grid, picture,
  );

  // === What it shows ===
  function weights(q) {
    const all = layers[layer];
    if (head < all.length) return all[head][q];
    return all[0][q].map((_, k) => all.reduce((sum, one) => sum + one[q][k], 0) / all.length);
  }

  function draw() {
    const now = weights(query);
    const largest = Math.max(...now);
    queries.forEach((_, q) => weights(q).forEach((weight, k) => {
      const cell = cells[q][k];
      cell.style.setProperty("--weight", weight / 1000);
      cell.setAttribute("aria-label", percent(weight));
    }));
    point(now, largest);
  }

  function point(now = weights(query), largest = Math.max(...now)) {
    asking.forEach((token, q) => {
      token.setAttribute("aria-checked", q === query);
      token.tabIndex = q === query ? 0 : -1;
    });
    shares.forEach((token, k) => {
      token.style.setProperty("--weight", now[k] / 1000);
      token.classList.toggle("map-strongest", now[k] === largest);
      token.lastChild.textContent = percent(now[k]);
    });
    cells.forEach((line, q) => {
      line[0].parentNode.classList.toggle("map-chosen", q === query);
      line.forEach((cell, k) => { cell.tabIndex = q === query && k === (key ?? 0) ? 0 : -1; });
    });
    const strongest = now.map((_, k) => k).sort((a, b) => now[b] - now[a]).slice(0, 3);
    const best = key === null ? strongest.filter((k) => now[k] >= 10) : [key];
    const told = best.map((k) => `“${seen(keys[k])}” (${k + 1}) ${percent(now[k])}`);
    said.textContent = `“${seen(queries[query])}” (${query + 1}) looks at ${told.join(", ")}`;
  }

  function choose(q, k) {
    if (q === query && k === key) return;
    [query, key] = [q, k];
    point();
  }

  // === Pointer, finger and keyboard ===
  asking.forEach((token, q) => {
    for (const event of ["pointerenter", "focus", "click"]) token.addEventListener(event, () => choose(q, null));
    token.addEventListener("keydown", (event) => {
      const across = { ArrowUp: "ArrowLeft", ArrowDown: "ArrowRight" }[event.key] ?? event.key;
      const to = moved(across, 0, q, 1, queries.length);
      if (!to) return;
      event.preventDefault();
      asking[to[1]].focus();
    });
  });
  cells.forEach((line, q) => line.forEach((cell, k) => {
    for (const event of ["pointerenter", "focus", "click"]) cell.addEventListener(event, () => choose(q, k));
    cell.addEventListener("keydown", (event) => {
      const to = moved(event.key, q, k, queries.length, keys.length);
      if (!to) return;
      event.preventDefault();
      cells[to[0]][to[1]].focus();
    });
  }));
  draw();
}

document.querySelectorAll("figure.attention-map").forEach(attentionMap);
