/** The dashboard begins here: who uses it, and which page is shown. */
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { html } from "htm/preact";
import { forgetFleet } from "./api/fleet.js";
import { get, knowMe } from "./api/http.js";
import { startLive, stopLive } from "./api/live.js";
import { begin, finish, hasAnswer, isWindow } from "./api/provider.js";
import { askOtherTabs, ended, keep, keepGrant, me, refusal, token } from "./api/session.js";
import { OneArray } from "./pages/array.js";
import { Arrays } from "./pages/arrays.js";
import { Cluster } from "./pages/cluster.js";
import { Host } from "./pages/host.js";
import { Job } from "./pages/job.js";
import { Jobs } from "./pages/jobs.js";
import { Pipeline } from "./pages/pipeline.js";
import { Pipelines } from "./pages/pipelines.js";
import { Queue } from "./pages/queue.js";
import { Schedule } from "./pages/schedule.js";
import { Schedules } from "./pages/schedules.js";
import { SignIn, SignInAgain } from "./pages/sign_in.js";
import { Submit } from "./pages/submit.js";
import { Usage } from "./pages/usage.js";
import { WhatIf } from "./pages/what_if.js";
import { Empty, Failed, Loading, Page } from "./parts/page.js";
import "./parts/shown_texts.js";
import { go, Link, path, search } from "./parts/router.js";
import { Shell } from "./parts/shell.js";

/** Pattern of the path -> the page. Its groups are the page's arguments. @type {[RegExp, (...given: string[]) => any][]} */
const PAGES = [
  [/^\/$/, () => html`<${Cluster} />`],
  [/^\/hosts\/([^/]+)$/, (name) => html`<${Host} name=${name} key=${name} />`],
  [/^\/queue$/, () => html`<${Queue} />`],
  [/^\/submit$/, () => html`<${Submit} key=${search.value} />`],
  [/^\/usage$/, () => html`<${Usage} />`],
  [/^\/jobs$/, () => html`<${Jobs} />`],
  [/^\/jobs\/([^/]+)$/, (id) => html`<${Job} id=${id} key=${id} />`],
  [/^\/arrays$/, () => html`<${Arrays} />`],
  [/^\/arrays\/([^/]+)$/, (id) => html`<${OneArray} id=${id} key=${id} />`],
  [/^\/pipelines$/, () => html`<${Pipelines} />`],
  [/^\/pipelines\/([^/]+)$/, (id) => html`<${Pipeline} id=${id} key=${id} />`],
  [/^\/schedules$/, () => html`<${Schedules} />`],
  [/^\/schedules\/([^/]+)$/, (id) => html`<${Schedule} id=${id} key=${id} />`],
  [/^\/what-if$/, () => html`<${WhatIf} />`],
];

const RETRY_MS = 2000;

function App() {
  const [asked, setAsked] = useState(false);
  const [problem, setProblem] = useState(null);
  const name = me.value?.name;
  const has = token.value !== null;
  useEffect(() => {
    start(setProblem).then(() => setAsked(true));
  }, []);
  useEffect(() => {
    // A tab that waits for somebody to sign in again heard of a token, or got one.
    if (asked && has) ask(setProblem);
  }, [asked, has]);
  useEffect(() => {
    if (name === undefined) return undefined;
    startLive();
    if (path.value === "/sign-in") go("/", { replace: true });
    return () => {
      stopLive();
      forgetFleet();
    };
  }, [name]);
  if (!asked) return html`<${Shell}><main><${Failed} problem=${problem} /><${Loading} /></main><//>`;
  // Another person sees other things: with the name, every page begins anew.
  return html`<${Shell} key=${name}>${name === undefined ? html`<${SignIn} />` : page()}<//>
    ${ended.value && html`<${SignInAgain} />`}`;
}

/** Find a token: the provider's answer in this address, one of this tab or one of another tab. */
async function start(onAway) {
  if (path.value === "/sign-in" && (isWindow(search.value) || hasAnswer(search.value))) {
    try {
      if (await atProvider()) return;
    } catch (error) {
      refusal.value = error;
      return;
    }
  }
  if (token.value === null) {
    const theirs = await askOtherTabs();
    if (theirs?.grant) keepGrant(theirs.grant);
    else if (theirs) keep(theirs.token);
  }
  if (token.value !== null) await ask(onAway);
}

/** Go to the provider or come back from it. True: this window was only for that, and closes. */
async function atProvider() {
  if (!hasAnswer(search.value)) {
    await begin(path.value + search.value);
    return true;
  }
  const answer = search.value;
  // The code is of use once, but need not stay in the list of visited pages.
  go("/sign-in", { replace: true });
  const to = await finish(answer, (await get("/v1/login")).issuer);
  if (to === null) {
    window.close();
    return true;
  }
  go(to, { replace: true });
  return false;
}

/** Ask who the token is of, until the service has said yes or no. */
async function ask(onAway) {
  while (token.value !== null) {
    try {
      return await knowMe();
    } catch (error) {
      if (!error.retryable) return undefined; // The page of signing in says it.
      onAway(error);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
  return undefined;
}

function page() {
  for (const [pattern, show] of PAGES) {
    const match = pattern.exec(path.value);
    if (match) return show(...match.slice(1).map(decoded));
  }
  return html`<${Page} title="No such page">
    <${Empty}>The dashboard has no page <code>${path.value}</code>. <${Link} to="/">Go to the cluster<//>.<//>
  <//>`;
}

/** A part of the path. One that is no valid UTF-8 stays as it is: then the API says that there is no such thing. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
root.textContent = "";
render(html`<${App} />`, root);
