/** A text by which a list is filtered. It is in the address once Enter is pressed or the field is left. */
import { useEffect, useState } from "preact/hooks";
import { html } from "htm/preact";
import { params, setParams } from "./router.js";

/** `name`: of the parameter in the address. What is half typed stays, however often the list is drawn again. */
export function Filter({ name, label }) {
  const said = params().get(name) ?? "";
  const [text, setText] = useState(said);
  useEffect(() => setText(said), [said]);
  return html`<label>${label} <input type="search" value=${text} onInput=${(e) => setText(e.target.value)}
    onChange=${(e) => setParams({ [name]: e.target.value.trim(), after: null })} /></label>`;
}
