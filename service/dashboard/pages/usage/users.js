/** Who used how much, by namespace and user. */
import { html } from "htm/preact";
import { duration, number } from "../../parts/format.js";
import { Empty, Panel } from "../../parts/page.js";
import { Link } from "../../parts/router.js";

/** `report` for who reads the whole cluster, else `sums`: the answer of `/v1/usage`. */
export function Users({ report, sums }) {
  const rows = report
    ? report.users
    : sums.users.map((one) => ({ ...one, gpu_hours: one.gpu_seconds / 3600, energy_kwh: one.energy_j / 3.6e6 }));
  const sorted = [...rows].sort((a, b) => b.gpu_hours - a.gpu_hours);
  return html`<${Panel} title="By namespace and user">
    ${!sorted.length ? html`<${Empty}>No attempt ended in this period.<//>` : html`
    <div class="scroll" tabindex="0" role="group" aria-label="Usage, can be scrolled"><table>
      <thead><tr><th scope="col">User</th><th scope="col">Namespace</th><th scope="col" class="num">GPU hours</th><th scope="col" class="num">Energy</th>
        ${report ? html`<th scope="col" class="num">Utilisation</th><th scope="col" class="num">Completed</th><th scope="col" class="num">Failed</th><th scope="col" class="num">Cancelled</th><th scope="col" class="num">Wait, median</th>` : html`<th scope="col" class="num">Attempts</th><th scope="col" class="num">CPU time</th>`}</tr></thead>
      <tbody>${sorted.map((one) => html`<tr key=${`${one.namespace}/${one.user}`}>
        <th scope="row"><${Link} to=${`/jobs?user=${encodeURIComponent(one.user)}&namespace=${encodeURIComponent(one.namespace)}`}>${one.user}<//></th><td>${one.namespace}</td>
        <td class="num">${number(one.gpu_hours, 2)}</td><td class="num">${number(one.energy_kwh, one.energy_kwh < 0.1 ? 4 : 2)} kWh</td>
        ${report ? html`<td class="num">${one.utilization_percent === null ? "–" : `${number(one.utilization_percent, 0)} %`}</td><td class="num">${one.completed}</td><td class="num">${one.failed}</td><td class="num">${one.cancelled}</td><td class="num">${duration(one.wait_p50_s)}</td>` : html`<td class="num">${one.attempts}</td><td class="num">${duration(one.cpu_s)}</td>`}</tr>`)}</tbody>
    </table></div>`}
  <//>`;
}
