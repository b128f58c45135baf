/** A list of the API on a page, a part at a time. Filters and the place in the list are in the address. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { get } from "../api/http.js";
import { useLoader } from "../api/poll.js";
import { Filter } from "./filter.js";
import { Empty, Failed, Loading } from "./page.js";
import { params, setParams } from "./router.js";

const PAGE = 100;

/**
 * @param {{path: string, what: string, fields?: string[], concerns: (event: any) => boolean, empty: any,
 *   children: (items: any[]) => any}} props  fields: the filters, which are text. children: draws the items.
 */
export function Listing({ path, what, fields = [], concerns, empty, children }) {
  const [page, setPage] = useState(null);
  const [problem, setProblem] = useState(null);
  const asked = params();
  const filters = Object.fromEntries(fields.map((name) => [name, asked.get(name)]));
  const cursor = asked.get("after");
  useLoader(
    async () => {
      try {
        setPage(await get(path, { ...filters, cursor, limit: PAGE }));
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: 15_000, concerns, settle: 700 },
    [asked.toString()],
  );
  return html`<${Failed} problem=${problem} />
    ${fields.length > 0 && html`<div class="toolbar">${fields.map((name) => html`<${Filter} key=${name} name=${name} label=${name[0].toUpperCase() + name.slice(1)} />`)}</div>`}
    ${!page ? !problem && html`<${Loading} what="Asking for ${what}" />` : html`
      <div class="panel flush">${page.items.length ? html`<div class="scroll" tabindex="0" role="group" aria-label="${what}, can be scrolled">${children(page.items)}</div>` : html`<${Empty}>${empty}<//>`}</div>
      ${(cursor || page.next_cursor) && html`<div class="actions">
        <button type="button" disabled=${!cursor} onClick=${() => setParams({ after: null }, { replace: false })}>First</button>
        <button type="button" disabled=${!page.next_cursor} onClick=${() => setParams({ after: page.next_cursor }, { replace: false })}>Next</button>
      </div>`}`}`;
}
