/** What namespaces may hold, and what they hold now. */
import { html } from "htm/preact";
import { duration, number } from "../../parts/format.js";
import { Empty, Panel } from "../../parts/page.js";

/** `quotas`: the items of `/v1/quotas`. */
export function QuotaTable({ quotas }) {
  return html`<${Panel} title="Quotas, and what is held now">
    ${!quotas.length ? html`<${Empty}>No namespace has a quota, holds a GPU or waits for one.<//>` : html`
    <div class="scroll" tabindex="0" role="group" aria-label="Quotas, can be scrolled"><table>
      <thead><tr><th scope="col">Namespace</th><th scope="col">Held</th><th scope="col" class="num">GPUs</th><th scope="col" class="num">Guaranteed</th><th scope="col" class="num">Borrowed</th><th scope="col" class="num">Limit</th>
        <th scope="col" class="num">Per user</th><th scope="col" class="num">Waiting jobs</th><th scope="col" class="num">Longest job</th><th scope="col">By user</th></tr></thead>
      <tbody>${quotas.map((one) => html`<tr key=${one.namespace}>
        <th scope="row">${one.namespace}${one.parent && html`<small class="muted">below ${one.parent}</small>`}</th>
        <td><${Meter} quota=${one} /></td>
        <td class="num">${number(one.held_gpus)}</td><td class="num">${one.guaranteed_gpus || "–"}</td><td class="num">${borrowed(one)}</td><td class="num">${one.limit_gpus ?? "–"}</td>
        <td class="num">${one.max_gpus_per_user ?? "–"}</td><td class="num">${one.waiting_jobs}${one.max_queue_size ? ` of ${one.max_queue_size}` : ""}</td>
        <td class="num">${one.max_job_duration_s ? duration(one.max_job_duration_s) : "–"}</td>
        <td>${Object.entries(one.held_by_user).map(([user, gpus]) => `${user} ${number(gpus)}`).join(", ") || "–"}</td></tr>`)}</tbody>
    </table></div>`}
  <//>`;
}

/** GPUs beyond the guarantee: they may be taken back for those whose guarantee they are. */
function borrowed({ held_gpus: held, guaranteed_gpus: guaranteed }) {
  return guaranteed ? number(Math.max(0, held - guaranteed)) : "–";
}

/** How full a quota is. Beyond the guarantee GPUs are borrowed. */
function Meter({ quota }) {
  const { held_gpus: held, guaranteed_gpus: guaranteed, limit_gpus: limit } = quota;
  const most = limit ?? Math.max(guaranteed, held);
  if (!most) return html`<span class="muted">–</span>`;
  const share = (gpus) => `${Math.min(100, (gpus / most) * 100)}%`;
  return html`<span class="meter" role="img" aria-label="${number(held)} of ${most} GPUs" title="${number(held)} of ${most} GPUs">
    <i style=${{ width: share(held) }}></i>${guaranteed > 0 && html`<b style=${{ left: share(guaranteed) }}></b>`}</span>`;
}
