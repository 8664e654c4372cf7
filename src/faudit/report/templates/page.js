"use strict";
(() => {
  const data = JSON.parse(document.getElementById("runs").textContent);
  const form = document.getElementById("control");
  const told = document.getElementById("changed");
  const names = Object.keys(data.published);
  const entry = (name) => document.getElementById(name);
  const slider = (name) => document.getElementById(`${name}-slide`);
  const logarithmic = (name) => name !== "margin";
  const tones = { PASS: "good", FAIL: "bad" };

  // The same three-valued rule as faudit.protocol.judge: null is "not evaluated".
  const both = (a, b) => (a === false || b === false ? false : a === null || b === null ? null : true);

  const explodes = (run, limits) => {
    if (run.growth === null) return null;
    if (run.growth > limits.growth) return true;
    return run.whole ? false : null;
  };
  const collapses = (run, limits) =>
    run.reference === null ? null : run.reference < limits.factor * run.eps;
  const idles = (run, limits) =>
    run.margin === null ? null : run.margin < limits.margin / 100 - data.rounding;

  function judge(run, limits) {
    if (run.fixed !== undefined) return run.fixed;
    const found = [["D1", explodes(run, limits)], ["D2", collapses(run, limits)], ["D3", idles(run, limits)]];
    const [d1, d2, d3] = found.map(([, flagged]) => flagged);
    const causes = [...(both(d1, d2) ? ["D1", "D2"] : []), ...(d3 ? ["D3"] : [])];
    if (causes.length) return `FAIL(${causes.join("+")})`;
    const missing = found.filter(([, flagged]) => flagged === null).map(([code]) => code);
    return missing.length ? `INCOMPLETE(${missing.join("+")})` : "PASS";
  }

  function standing(verdicts) {
    const counts = new Map();
    for (const verdict of verdicts) counts.set(verdict, (counts.get(verdict) || 0) + 1);
    const sorted = [...counts].sort((a, b) => b[1] - a[1]);
    if (sorted.length === 1) return sorted[0][0];
    const [first, ...others] = sorted.map(([verdict, count]) => `${verdict} in ${count}`);
    return [`${first} of ${verdicts.length}`, ...others].join(", ");
  }

  function tone(verdicts) {
    const seen = new Set(verdicts.map((verdict) => tones[verdict.split("(")[0]] || "open"));
    return seen.size === 1 ? [...seen][0] : "open";
  }

  function current() {
    const limits = {};
    for (const name of names) {
      const value = Number(entry(name).value);
      const usable = entry(name).value !== "" && Number.isFinite(value) && (value > 0 || !logarithmic(name));
      entry(name).setAttribute("aria-invalid", String(!usable));
      limits[name] = usable ? value : data.published[name];
    }
    return limits;
  }

  function show() {
    const limits = current();
    let changed = 0;
    document.querySelectorAll("#moved tr[data-group]").forEach((row) => {
      const runs = data.groups[Number(row.dataset.group)];
      const before = runs.map((run) => judge(run, data.published));
      const after = runs.map((run) => judge(run, limits));
      const mark = row.querySelector(".now .mark");
      mark.textContent = standing(after);
      mark.className = `mark ${tone(after)}`;
      const differs = standing(before) !== standing(after);
      row.classList.toggle("changed", differs);
      changed += differs;
    });
    const own = names.every((name) => limits[name] === data.published[name]);
    told.textContent = own
      ? "These are the published thresholds."
      : `${changed} of ${data.groups.length} verdicts differ from those at the published thresholds.`;
  }

  const place = (name, value) => {
    slider(name).value = logarithmic(name) ? Math.log10(value) : value;
    slider(name).setAttribute("aria-valuetext", String(value));
  };

  function set(name, value) {
    entry(name).value = value;
    place(name, value);
  }

  function fromAddress() {
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const name of names) {
      const value = Number(asked.get(name));
      if (asked.has(name) && Number.isFinite(value)) set(name, value);
    }
    show();
  }

  for (const name of names) {
    set(name, data.published[name]);
    entry(name).addEventListener("input", () => {
      const value = Number(entry(name).value);
      if (Number.isFinite(value) && (value > 0 || !logarithmic(name))) place(name, value);
      show();
    });
    slider(name).addEventListener("input", () => {
      const raw = Number(slider(name).value);
      const value = logarithmic(name) ? Number((10 ** raw).toPrecision(2)) : raw;
      entry(name).value = value;
      slider(name).setAttribute("aria-valuetext", String(value));
      show();
    });
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    for (const name of names) set(name, data.published[name]);
    show();
  });
  window.addEventListener("hashchange", fromAddress);
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((part) => { part.open = true; });
  });
  fromAddress();
})();
