/** What if: the scheduler is run on the live state as it is, and with more hosts or another policy, and both are compared. */
import { useEffect, useState } from "preact/hooks";
import { html } from "htm/preact";
import { get, getAll, post } from "../api/http.js";
import { operatesCluster } from "../api/session.js";
import { Failed, Page } from "../parts/page.js";
import { seconds } from "./submit/words.js";
import { Compared } from "./what_if/compared.js";

const ORDERS = ["priority", "fcfs", "fair_share", "shortest", "size_classes", "multifactor"];
const AHEAD = { "": "until all have run", 14400: "4 hours", 86400: "1 day", 604800: "7 days" };
const EMPTY = { count: "1", like: "", order: "", backfill: "", preemption: "", settings: "", lasting: "4h", until: "" };

/** The page `/what-if`. */
export function WhatIf() {
  const [form, setForm] = useState(EMPTY);
  const [kinds, setKinds] = useState(/** @type {any[]} */ ([]));
  const [names, setNames] = useState(new Map());
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const may = operatesCluster.value;
  useEffect(() => {
    if (!may) return;
    getAll("/v1/hosts", { limit: 1000 }).then((hosts) => setKinds(kindsOf(hosts)), setProblem);
  }, [may]);
  const set = (name) => (event) => setForm((before) => ({ ...before, [name]: event.target.value }));
  const ask = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const [answer, queue] = await Promise.all([post("/v1/snapshot:what-if", bodyOf(form)), get("/v1/queue", { limit: 1000 })]);
      setNames(new Map(queue.items.map((entry) => [entry.job_id, entry.spec.name])));
      setFound(answer);
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  const choice = (name, label, values, texts = {}) => html`<div class="field"><label for=${`w-${name}`}>${label}</label>
    <select id=${`w-${name}`} value=${form[name]} onChange=${set(name)}>${values.map((one) => html`<option key=${one} value=${one}>${texts[one] ?? one}</option>`)}</select></div>`;
  const text = (name, label, hint, placeholder = "") => html`<div class="field"><label for=${`w-${name}`}>${label}</label>
    <input id=${`w-${name}`} type="text" autocomplete="off" value=${form[name]} placeholder=${placeholder} onInput=${set(name)} /><small class="muted">${hint}</small></div>`;
  return html`<${Page} title="What if" wide>
    ${!may && html`<div class="note wait"><strong>You may not ask this</strong><p>It needs the role operator in the cluster, since it computes with the jobs of everybody.</p></div>`}
    <div class="what-if">
      <form class="panel" onSubmit=${ask}>
        <p class="muted small-text">The jobs that run and wait now are run to their end by the scheduler, once as it is and once with these changes. Nothing is changed.</p>
        <fieldset><legend>More hosts</legend><div class="fields">
          ${text("count", "How many", "")}
          ${choice("like", "Like", ["", ...kinds.map((kind) => kind.host)], { "": "none are added", ...Object.fromEntries(kinds.map((kind) => [kind.host, kind.text])) })}
        </div></fieldset>
        <fieldset><legend>Another policy</legend><div class="fields">
          ${choice("order", "Order of the queue", ["", ...ORDERS], { "": "as it is" })}
          ${choice("backfill", "Backfill", ["", "none", "easy", "conservative"], { "": "as it is" })}
          ${choice("preemption", "Preemption", ["", "true", "false"], { "": "as it is", true: "on", false: "off" })}
          ${text("settings", "Other settings", "with a space between two", "weights.topology=3")}
        </div></fieldset>
        <fieldset><legend>Assumptions</legend><div class="fields">
          ${text("lasting", "Jobs without a time limit run for", "")}
          ${choice("until", "Look ahead", Object.keys(AHEAD).sort(), AHEAD)}
        </div></fieldset>
        <${Failed} problem=${problem} again="Try again in a moment." />
        <div class="actions"><button type="submit" class="primary" disabled=${busy || !may}>${busy ? "Computing…" : "Compare"}</button></div>
      </form>
      <div aria-live="polite" aria-busy=${busy}>${found ? html`<${Compared} answer=${found} names=${names} />` : html`<div class="panel"><p class="empty">The comparison is shown here. It takes some seconds, on a large cluster up to a minute.</p></div>`}</div>
    </div>
  <//>`;
}

/** One host of each machine type, as an example of it. */
function kindsOf(hosts) {
  const kinds = new Map();
  for (const host of hosts) if (!kinds.has(host.machine)) kinds.set(host.machine, { host: host.name, text: `${host.machine} (${host.gpus_total} GPUs)` });
  return [...kinds.values()];
}

function bodyOf(form) {
  const count = Number(form.count);
  if (form.like && !(Number.isInteger(count) && count >= 1 && count <= 1000)) throw new Error("write how many hosts are added, 1 to 1000");
  const chosen = ["order", "backfill", "preemption"].filter((name) => form[name]).map((name) => `${name}=${form[name]}`);
  const settings = [...chosen, ...form.settings.split(/\s+/).filter(Boolean)];
  return {
    hosts: form.like ? [{ count, like: form.like }] : [],
    settings,
    lasting_s: seconds(form.lasting),
    until_s: form.until ? Number(form.until) : null,
  };
}
