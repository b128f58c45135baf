/** The list of arrays, newest first. */
import { html } from "htm/preact";
import { ago, number } from "../parts/format.js";
import { CountBar } from "../parts/elements.js";
import { gpusText } from "../parts/jobs.js";
import { Listing } from "../parts/listing.js";
import { Page } from "../parts/page.js";
import { Link } from "../parts/router.js";
import { State } from "../parts/states.js";
import { WorkTabs } from "../parts/work_tabs.js";

/** The page `/arrays`. */
export function Arrays() {
  return html`<${Page} title="Arrays" wide><${WorkTabs} />
    <${Listing} path="/v1/arrays" what="arrays" fields=${["name", "user", "namespace"]} concerns=${(event) => event.kind.startsWith("array.")}
      empty="No array fits. gpu-platform submit --array 0-99 makes one.">
      ${(items) => html`<table class="jobs stack">
        <thead><tr><th scope="col">Array</th><th scope="col">State</th><th scope="col">Elements</th><th scope="col" class="num">Ended</th><th scope="col">User</th>
          <th scope="col" class="num">GPUs each</th><th scope="col" class="num">Submitted</th></tr></thead>
        <tbody>${items.map((array) => html`<tr key=${array.id}>
          <th scope="row"><${Link} to=${`/arrays/${array.id}`}>${array.spec.name}<//><small class="mono muted">${array.id}</small></th>
          <td><${State} of=${array.state} /></td>
          <td class="wide-text"><${CountBar} array=${array} /></td>
          <td class="num" data-name="Ended">${number(ended(array), 0)} of ${number(array.size, 0)}</td>
          <td data-name="User">${array.spec.user}<small class="muted">${array.spec.namespace}</small></td>
          <td class="num" data-name="GPUs each">${gpusText(array.spec)}</td>
          <td class="num" data-name="Submitted">${ago(array.created_at)}</td></tr>`)}</tbody>
      </table>`}
    <//>
  <//>`;
}

function ended({ counts }) {
  return (counts.COMPLETED ?? 0) + (counts.FAILED ?? 0) + (counts.CANCELLED ?? 0);
}
