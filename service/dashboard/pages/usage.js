/** Usage and health: key figures of the cluster, who used what, quotas, and what broke. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { now } from "../api/clock.js";
import { get } from "../api/http.js";
import { useLoader } from "../api/poll.js";
import { readsCluster } from "../api/session.js";
import { Failed, Loading, Page } from "../parts/page.js";
import { params, setParams } from "../parts/router.js";
import { Broken } from "./usage/broken.js";
import { Figures } from "./usage/figures.js";
import { QuotaTable } from "./usage/quotas.js";
import { Users } from "./usage/users.js";

const PERIODS = { 1: "1 day", 7: "7 days", 30: "30 days", 90: "90 days", 366: "a year" };

/** The page `/usage`. `?days=` says how far it looks back. */
export function Usage() {
  const days = PERIODS[params().get("days")] ? Number(params().get("days")) : 7;
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const reads = readsCluster.value;
  useLoader(
    async () => {
      const since = new Date(now() - days * 86_400_000).toISOString();
      try {
        const [report, sums, quotas] = await Promise.all([
          reads ? get("/v1/report", { since }) : null,
          reads ? null : get("/v1/usage", { since }),
          get("/v1/quotas"),
        ]);
        setFound({ report, sums, quotas: quotas.items });
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: 60_000, concerns: (event) => event.kind === "gpu.fault" || event.kind === "host.lost", settle: 2000 },
    [days, reads],
  );
  const choose = html`<label>Period <select value=${days} onChange=${(e) => setParams({ days: e.target.value })}>
    ${Object.entries(PERIODS).map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>`;
  return html`<${Page} title="Usage and health" actions=${choose}>
    <${Failed} problem=${problem} />
    ${!found ? !problem && html`<${Loading} what="Computing the figures" />` : html`
      ${!reads && html`<div class="note wait"><strong>Only your namespaces</strong><p>Key figures of the cluster, and faults by host, need the role viewer in the whole cluster.</p></div>`}
      ${found.report && html`<${Figures} report=${found.report} />`}
      <${QuotaTable} quotas=${found.quotas} />
      <${Users} report=${found.report} sums=${found.sums} />
      ${found.report && html`<${Broken} report=${found.report} />`}`}
  <//>`;
}
