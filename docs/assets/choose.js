// The page where blocks are chosen.
//
// `<div class="chooser">` holds the costs as JSON, put there when the site is built, and tables of them, which stay for
// those who have no script. By family: `slots` with their blocks, `refused` choices with the reasons, and `presets`
// with the blocks they have, what they cost, and how each other block changes that. Where a head `reads` the features
// of few positions, and all blocks are among those that can `narrow`, the last layer computes no others: a mode with
// costs of its own. `choices.py` wrote it; `total` there and here are the same.
"use strict";

function chooser(place) {
  const { measures, values, families } = JSON.parse(place.querySelector("script").textContent);
  const names = { parameters: "Parameters", flops: "FLOPs", activation_bytes: "Activations" };
  let family = Object.keys(families)[0];
  let preset = Object.keys(families[family].presets)[0];
  let chosen = {};

  // === Numbers and calls ===
  function inUnits(number, base, units) {
    let i = 0;
    while (number >= base && i < units.length - 1) { number /= base; i += 1; }
    return `${Number(number.toPrecision(3))} ${units[i]}`.trim();
  }
  function told(measure, number) {
    if (measure === "parameters") return number.toLocaleString("en");
    if (measure === "flops") return inUnits(number, 1000, ["", "k", "M", "G", "T", "P"]);
    return inUnits(number, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
  }
  const python = (value) => (typeof value === "string" ? `"${value}"` : typeof value === "object"
    ? `{${Object.entries(value).map(([k, v]) => `"${k}": ${python(v)}`).join(", ")}}` : `${value}`);

  function call(different) {
    const given = { ...families[family].presets[preset].given };
    for (const slot of different) given[slot] = values[chosen[slot]] ?? chosen[slot];
    const lines = Object.entries(given).map(([k, v]) => `    ${k}=${python(v).replace(/^10000$/, "10_000")},\n`);
    return `import kerastf\n\nmodel = kerastf.create_model(\n    "${family}.${preset}",\n${lines.join("")})`;
  }

  function modeOf(blocks) {
    const { reads = {}, narrow = {} } = families[family];
    const able = Object.entries(narrow).every(([slot, names]) => names.includes(blocks[slot]));
    return able ? reads[blocks.head] ?? "all" : "all";
  }

  function total() {
    const known = families[family].presets[preset];
    const mode = modeOf(chosen);
    const { cost, changes, head } = mode === modeOf(known.default) ? known : known.modes[mode];
    const base = { ...known.default, ...(head ? { head } : {}) };
    let keys = Object.keys(chosen).filter((slot) => chosen[slot] !== base[slot]).map((slot) => `${slot}:${chosen[slot]}`);
    for (const a of keys) for (const b of keys) {
      if (!(`${a}+${b}` in changes)) continue;
      keys = [...keys.filter((k) => k !== a && k !== b), `${a}+${b}`];
    }
    return cost.map((sum, i) => keys.reduce((s, k) => s + changes[k][i], sum));
  }

  // === What is on the page ===
  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const select = (label, options, value, change, defaultValue) => {
    const box = element("select");
    for (const name of options) {
      box.append(element("option", { value: name }, name === defaultValue ? `${name} (default)` : name));
    }
    box.value = value;
    box.addEventListener("change", () => change(box.value));
    return element("label", {}, element("span", {}, label), box);
  };
  const model = element("div", { class: "chooser-row" });
  const slots = element("div", { class: "chooser-row", role: "group", "aria-label": "Slots" });
  const code = element("code");
  const copy = element("button", { type: "button", class: "md-button" }, "Copy");
  const back = element("button", { type: "button", class: "md-button" }, "Back to the preset");
  const why = element("div", { class: "chooser-why", role: "status" });
  const body = element("tbody");
  const table = element(
    "table", { class: "chooser-costs" },
    element("caption", {}, "What it costs"),
    element("thead", {}, element("tr", {}, element("td"), ...["preset", "yours", "change"].map(
      (text) => element("th", { scope: "col" }, text),
    ))),
    body,
  );
  const stays = element("details", {}, element("summary", {}, "All of it as a table"), ...place.childNodes);
  const typed = element("div", { class: "chooser-call" }, element("pre", {}, code), copy, back);
  place.append(model, slots, typed, why, table, stays);

  function build() {
    const presets = Object.keys(families[family].presets);
    if (!presets.includes(preset)) [preset] = presets;
    chosen = { ...families[family].presets[preset].default };
    const focus = (number) => model.querySelectorAll("select")[number].focus(); // the boxes were made anew
    model.replaceChildren(
      select("Family", Object.keys(families), family, (name) => { family = name; build(); focus(0); }),
      select("Preset", presets, preset, (name) => { preset = name; build(); focus(1); }),
    );
    buildSlots();
  }

  function buildSlots() {
    const { default: usual } = families[family].presets[preset];
    slots.replaceChildren(...Object.entries(families[family].slots).map(([slot, options]) => select(
      slot.replace("_", " "), options, chosen[slot], (name) => { chosen[slot] = name; draw(); }, usual[slot],
    )));
    draw();
  }

  function draw() {
    const { default: usual, cost } = families[family].presets[preset];
    const different = Object.keys(chosen).filter((slot) => chosen[slot] !== usual[slot]);
    const reasons = families[family].refused.filter(
      ({ when }) => Object.entries(when).every(([slot, name]) => chosen[slot] === name),
    );
    code.textContent = call(different);
    why.replaceChildren(...reasons.map((r) => element("p", {}, `Refused: ${r.why}`)));
    const sums = reasons.length ? null : total();
    const largest = measures.map((_, i) => Math.max(cost[i], sums ? sums[i] : 0));
    body.replaceChildren(...measures.map((measure, i) => {
      const bar = (number, kind) => {
        const made = element("span", { class: `bar bar-${kind}`, "aria-hidden": "true" });
        made.style.width = `${(100 * number) / largest[i]}%`;
        return made;
      };
      const ratio = sums ? sums[i] / cost[i] - 1 : 0;
      const size = Number((100 * Math.abs(ratio)).toPrecision(3));
      const share = size < 0.005 ? "none" : `${ratio > 0 ? "+" : "−"}${size} %`;
      const kind = share === "none" ? "usual" : ratio > 0 ? "more" : "less";
      return element(
        "tr", {}, element("th", { scope: "row" }, names[measure]),
        element("td", {}, told(measure, cost[i]), bar(cost[i], "usual")),
        element("td", {}, sums ? told(measure, sums[i]) : "refused", ...(sums ? [bar(sums[i], kind)] : [])),
        element("td", {}, sums ? share : ""),
      );
    }));
  }

  back.addEventListener("click", () => { chosen = { ...families[family].presets[preset].default }; buildSlots(); });
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = "Copied";
    } catch { // no clipboard without https: select the text instead
      getSelection().selectAllChildren(code);
      copy.textContent = "Selected";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });
  build();
}

document.querySelectorAll(".chooser").forEach(chooser);
