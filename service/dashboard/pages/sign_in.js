/** Sign in: at the identity provider, or with an API token. The service says who the token belongs to. */
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "htm/preact";
import { get, signIn } from "../api/http.js";
import { begin, beginInWindow, canBegin } from "../api/provider.js";
import { endAtProvider, me, refusal, signOut } from "../api/session.js";
import { Failed, Page, sentence } from "../parts/page.js";

/** So long after no answer the service is asked again. */
const AGAIN_MS = 2000;

/** The page that is shown until somebody has signed in. */
export function SignIn() {
  const provider = useProvider();
  return html`<${Page} title="Sign in">
    <div class="sign-in">
      ${refusal.value &&
      html`<div class="note bad" role="alert"><strong>You are not signed in</strong><p>${sentence(refusal.value.message)}</p></div>`}
      ${endAtProvider.value && html`<div class="note" role="status"><strong>You signed out here</strong>
        <p>At ${nameOf(provider)} you may still be signed in. <a href=${endAtProvider.value} rel="noreferrer">Sign out there, too</a></p></div>`}
      <div class="panel">
        ${provider?.issuer && html`<${AtProvider} provider=${provider} go=${() => begin(location.pathname === "/sign-in" ? "/" : location.pathname + location.search)} />
          <p class="muted">Or with an API token:</p>`}
        ${provider && html`<${WithToken} first=${!provider.issuer} />`}
        <p class="muted">This tab keeps the token until you close it or sign out. It is sent to this service only.</p>
      </div>
      <section class="panel" aria-labelledby="where">
        <h2 id="where">Where do I get a token?</h2>
        ${provider?.issuer
          ? html`<p>You need none if you sign in at <code>${provider.issuer}</code>. For programs:</p>
              <pre tabindex="0">gpu-platform login
gpu-platform tokens create --expires 12h</pre>`
          : html`<p>An administrator makes one for you:</p>
              <pre tabindex="0">gpu-platform tokens create --user NAME --role NAMESPACE=user</pre>`}
        <p>On your own machine, <code>gpu-platform up</code> keeps one in the file <code>.gpu-platform/token</code>.</p>
        <h2>What may I see?</h2>
        <p>Without a token: this page. With a role in some namespace: all hosts and GPUs, and the jobs of your namespaces.
          With the role viewer in the whole cluster: everything but the output of jobs. Your roles are those of the token.</p>
      </section>
    </div>
  <//>`;
}

/** Over a page of somebody whose sign-in has ended: the page, and what was typed into it, stay. */
export function SignInAgain() {
  const dialog = useRef(null);
  const provider = useProvider();
  const here = location.pathname + location.search;
  const [blocked, setBlocked] = useState(false);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="again" onCancel=${(event) => event.preventDefault()}>
    <h2 id="again">Sign in again, ${me.value.name}</h2>
    <p>${sentence(refusal.value?.message ?? "your sign-in has ended")} This page stays as it is meanwhile.</p>
    ${provider?.issuer && html`<${AtProvider} provider=${provider} go=${() => setBlocked(!beginInWindow())} />
      ${blocked && html`<p>This browser opens no window for it. <button type="button" onClick=${() => begin(here)}>Sign in on this page</button> What you typed is lost then.</p>`}
      <p class="muted">Or with an API token:</p>`}
    ${provider && html`<${WithToken} first=${!provider.issuer} />`}
    <div class="actions end"><button type="button" onClick=${signOut}>Sign out</button></div>
  </dialog>`;
}

function AtProvider({ provider, go }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const start = async () => {
    setBusy(true);
    setProblem(null);
    try {
      await go();
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  if (!canBegin()) return html`<p>Signing in at ${nameOf(provider)} needs an address of this service with https.</p>`;
  return html`<${Failed} problem=${problem} again="Try again in a moment." />
    <button type="button" class="primary" disabled=${busy} autofocus onClick=${start}>Sign in at ${nameOf(provider)}</button>`;
}

function WithToken({ first }) {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await signIn(text.trim());
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  return html`<form class="with-token" onSubmit=${send}>
    <label>API token
      <input type="password" name="token" autocomplete="off" spellcheck=${false} placeholder="gpt_…" required autofocus=${first}
        value=${text} onInput=${(e) => setText(e.target.value)} />
    </label>
    <${Failed} problem=${problem} again="Try again in a moment." />
    <button type="submit" class=${first ? "primary" : ""} disabled=${busy || !text.trim()}>${busy ? "Checking…" : "Sign in"}</button>
  </form>`;
}

/** The answer of `/v1/login`, or null while it is not known: where the first field is, which gets the focus, depends on it. */
function useProvider() {
  const [provider, setProvider] = useState(null);
  useEffect(() => {
    let timer = 0;
    const ask = () => get("/v1/login").then(setProvider, (problem) => {
      // Until the service answers one may paste a token all the same.
      setProvider({ issuer: null });
      if (problem.retryable) timer = setTimeout(ask, AGAIN_MS);
    });
    ask();
    return () => clearTimeout(timer);
  }, []);
  return provider;
}

function nameOf(provider) {
  return provider?.issuer ? new URL(provider.issuer).host : "the identity provider";
}
