/** The cluster: every host, every GPU, by switch or NVLink domain. */
import { useMemo, useState } from "preact/hooks";
import { html } from "htm/preact";
import { complete, fleet, holders, look, note } from "../api/fleet.js";
import { useLoader } from "../api/poll.js";
import { count } from "../parts/format.js";
import { Legend, METRICS } from "../parts/gpu_cells.js";
import { useGrowing } from "../parts/growing.js";
import { HostCard } from "../parts/host_card.js";
import { Empty, Failed, Loading, Page } from "../parts/page.js";
import { params, setParams } from "../parts/router.js";
import { shownState } from "../parts/states.js";

/** Telemetry has no events: it is as old as this at most, or older where a look takes long. */
const EVERY_MS = 15_000;
/** Hosts are asked for singly until they were read so long ago; then all. */
let readAll = 0;

const GROUPINGS = {
  switches: { label: "Spine and leaf", of: (host) => [host.spine ?? "", host.leaf ?? ""] },
  nvlink: { label: "NVLink domain", of: (host) => ["", host.nvlink_domain ?? ""] },
  machine: { label: "Machine type", of: (host) => ["", host.machine] },
};

/** The page `/`. */
export function Cluster() {
  const [problem, setProblem] = useState(null);
  useLoader(
    async () => {
      const everything = performance.now() - readAll > EVERY_MS - 1000;
      try {
        await look(everything);
        if (everything) readAll = performance.now();
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: EVERY_MS, concerns: note },
  );
  const asked = params();
  const grouping = GROUPINGS[asked.get("by")] ? asked.get("by") : "switches";
  const metric = METRICS[asked.get("show")] ? asked.get("show") : "state";
  const wanted = (asked.get("find") ?? "").toLowerCase();
  const entries = [...fleet.value.values()];
  const shown = useMemo(() => entries.filter((entry) => fits(entry, wanted)), [fleet.value, wanted]);
  const groups = useMemo(() => grouped(shown, grouping), [shown, grouping]);
  return html`<${Page} title="Cluster" wide>
    <${Failed} problem=${problem} />
    <${Counts} entries=${entries} />
    <div class="toolbar">
      <label>Find <input type="search" value=${asked.get("find") ?? ""} placeholder="host, job, state or model"
        onInput=${(e) => setParams({ find: e.target.value })} /></label>
      <label>Group by <select value=${grouping} onChange=${(e) => setParams({ by: e.target.value })}>
        ${Object.entries(GROUPINGS).map(([key, { label }]) => html`<option value=${key}>${label}</option>`)}
      </select></label>
      <label>Cells show <select value=${metric} onChange=${(e) => setParams({ show: e.target.value })}>
        ${Object.entries(METRICS).map(([key, label]) => html`<option value=${key}>${label}</option>`)}
      </select></label>
      <span class="muted" role="status">${wanted ? `${shown.length} of ${count(entries.length, "host")}` : ""}</span>
    </div>
    <${Legend} metric=${metric} />
    ${!entries.length && (complete.value ? html`<${Empty}>No host has registered yet. Install a node worker, or start <code>gpu-platform up</code>.<//>` : !problem && html`<${Loading} what="Asking for hosts and GPUs" />`)}
    ${entries.length > 0 && !shown.length && html`<${Empty}>No host fits “${wanted}”.<//>`}
    <${Groups} groups=${groups} metric=${metric} grouping=${grouping} />
  <//>`;
}

function Counts({ entries }) {
  let [gpus, free, used, out, lost] = [0, 0, 0, 0, 0];
  for (const { host, gpus: of } of entries) {
    if (host.state === "LOST") lost += 1;
    for (const gpu of of) {
      gpus += 1;
      const state = shownState(gpu);
      if (state === "IN_USE" || state === "ALLOCATED") used += 1;
      else if (state === "AVAILABLE") free += gpu.holders.length || host.state !== "READY" ? 0 : 1;
      else out += 1;
    }
  }
  const facts = [
    ["Hosts", entries.length, lost ? `${lost} lost` : entries.length ? "all report" : "none has registered"],
    ["GPUs", gpus, ""],
    ["In use", used, gpus ? `${Math.round((used / gpus) * 100)} %` : ""],
    ["Free", free, gpus ? `${Math.round((free / gpus) * 100)} %` : ""],
    ["Out of service", out, out ? "drained, faulty or lost" : "none"],
  ];
  return html`<dl class="facts">
    ${facts.map(([name, value, more]) => html`<div key=${name}><dt>${name}</dt><dd>${value}<small>${more}</small></dd></div>`)}
  </dl>`;
}

function Groups({ groups, metric, grouping }) {
  const total = groups.reduce((sum, group) => sum + group.entries.length, 0);
  let left = useGrowing(total);
  return groups.map((group, index) => {
    const shown = group.entries.slice(0, Math.max(0, left));
    left -= group.entries.length;
    if (!shown.length) return null;
    const begins = index === 0 || groups[index - 1].outer !== group.outer;
    return html`<section class="group" key=${`${grouping}/${group.outer}/${group.inner}`}>
      ${grouping === "switches" && begins && html`<h2 class="spine">${group.outer ? `Spine ${group.outer}` : "No spine known"}</h2>`}
      <h3>${nameOf(group, grouping)} <span class="muted">${count(group.entries.length, "host")}</span></h3>
      <div class="hosts">
        ${shown.map((entry) => html`<${HostCard} key=${entry.host.name} entry=${entry} metric=${metric} />`)}
      </div>
    </section>`;
  });
}

function nameOf({ inner }, grouping) {
  if (grouping === "switches") return inner ? `Leaf ${inner}` : "No leaf known";
  if (grouping === "nvlink") return inner ? `NVLink domain ${inner}` : "NVLink inside each host only";
  return inner;
}

function grouped(entries, grouping) {
  const groups = new Map();
  for (const entry of entries) {
    const [outer, inner] = GROUPINGS[grouping].of(entry.host);
    const key = `${outer}\n${inner}`;
    if (!groups.has(key)) groups.set(key, { outer, inner, entries: [] });
    groups.get(key).entries.push(entry);
  }
  const byName = new Intl.Collator("en", { numeric: true }).compare;
  for (const group of groups.values()) group.entries.sort((a, b) => byName(a.host.name, b.host.name));
  return [...groups.values()].sort((a, b) => byName(a.outer, b.outer) || byName(a.inner, b.inner));
}

function fits({ host, gpus }, wanted) {
  if (!wanted) return true;
  const texts = [host.name, host.state, host.leaf, host.spine, host.machine, host.reason];
  for (const gpu of gpus) texts.push(gpu.info.model, gpu.state, ...gpu.holders.flatMap((one) => [one.job_id, holders.value.get(one.job_id)]));
  return texts.some((text) => text?.toLowerCase().replaceAll("_", " ").includes(wanted.replaceAll("_", " ")));
}
