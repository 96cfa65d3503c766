"use strict";
// Updates the parts of an open page. Without it, or without a connection, the page stays as it was
// when it was loaded.
(() => {
  const TRY_AGAIN_MS = 5000;
  const TRY_AGAIN_MS_MAX = 60000;
  const ANSWER_MS_MAX = 10000;
  const button = document.getElementById("live");
  const state = document.getElementById("live-state");
  const connection = document.getElementById("connection");
  if (!button || !window.EventSource) return;
  let source = null;
  let timer = 0;
  let waitMs = TRY_AGAIN_MS;
  let newsAt = new Date();
  const address = `/events?page=${encodeURIComponent(button.dataset.page)}`;

  const show = (word, kind) => {
    state.textContent = word;
    state.className = `live ${kind}`;
  };

  // Set once, not with every attempt: a screen reader would read each message.
  const notify = (text, link) => {
    if (connection.dataset.message === text) return;
    connection.dataset.message = text;
    connection.replaceChildren();
    if (!text) return;
    const line = document.createElement("p");
    line.className = "notice bad";
    line.textContent = text;
    if (link) {
      const way = document.createElement("a");
      way.href = `/login?after=${encodeURIComponent(location.pathname)}`;
      way.textContent = link;
      line.append(" ", way);
    }
    connection.append(line);
  };

  const lost = (why) => {
    show("Not live", "lost");
    const since = newsAt.toISOString().slice(11, 19);
    notify(`${why} The page shows the state of ${since} UTC and reconnects automatically.`);
  };
  const AWAY = "No connection to the server.";

  // Replace the content of a part, and keep the focus, open details and scroll positions.
  const renew = (place, html) => {
    const reachable = () => [...place.querySelectorAll("a, summary, [tabindex]")];
    const focused = place.contains(document.activeElement) ? document.activeElement : null;
    const at = reachable().indexOf(focused);
    const opened = [...place.querySelectorAll("details[open]")].map((each) => each.id);
    const moved = [...place.querySelectorAll(".grid")].map((each) => [each.id, each.scrollLeft]);
    place.innerHTML = html;
    opened.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
    moved.forEach(([id, left]) => {
      const grid = document.getElementById(id);
      if (grid) grid.scrollLeft = left;
    });
    // Find the focused element by its id, so that the focus does not move to the button of another
    // row; an element without an id is found by its position.
    const again = focused?.id ? document.getElementById(focused.id) : reachable()[at];
    again?.focus({ preventScroll: true });
  };

  // Do not replace a part while text in it is selected or an element in it is pressed: a click on a
  // replaced element would be lost.
  let pressed = null;
  const isHeld = (place) => {
    const selection = document.getSelection();
    const isSelecting = Boolean(selection && !selection.isCollapsed && place.contains(selection.anchorNode));
    return isSelecting || Boolean(pressed && place.contains(pressed));
  };

  // Parts that cannot be replaced yet wait here: the server sends a part again only when it changes.
  const waiting = new Map();
  const catchUp = () => {
    for (const [id, html] of waiting) {
      const place = document.getElementById(id);
      if (place && isHeld(place)) continue;
      waiting.delete(id);
      if (place) renew(place, html);
    }
  };

  const stop = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };

  // A browser reconnects by itself unless the server refused the connection, and does not report the
  // reason. The page then requests the same address to learn it, and tries again: at growing
  // intervals if the server answers, because other pages may need the slot.
  const refused = async (own) => {
    const asked = { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS_MAX) };
    const answer = await fetch(address, asked).catch(() => null);
    const isFull = answer?.status === 503;
    const said = isFull ? await answer.json().catch(() => null) : null;
    // An accepted request is a stream of events that this page would not read.
    if (!isFull) answer?.body?.cancel().catch(() => null);
    // The page was paused, hidden or restarted during the request.
    if (source !== own) return;
    if (answer?.status === 401) {
      show("Logged out", "lost");
      notify("You are logged out. This page is no longer updated.", "Log in again");
    } else {
      lost(isFull ? said?.message ?? "The server has no free slot for this page." : AWAY);
    }
    timer = setTimeout(start, waitMs);
    waitMs = answer && !answer.ok ? Math.min(2 * waitMs, TRY_AGAIN_MS_MAX) : TRY_AGAIN_MS;
  };

  const start = () => {
    stop();
    const own = new EventSource(address);
    source = own;
    own.addEventListener("parts", (event) => {
      newsAt = new Date();
      waitMs = TRY_AGAIN_MS;
      show("Live", "");
      notify("");
      for (const [id, html] of Object.entries(JSON.parse(event.data))) waiting.set(id, html);
      catchUp();
    });
    own.addEventListener("error", () => {
      if (own.readyState === EventSource.CLOSED) refused(own);
      else lost(AWAY);
    });
  };

  document.addEventListener("pointerdown", (event) => { pressed = event.target; });
  // The click event follows the release.
  const release = () => setTimeout(() => { pressed = null; });
  document.addEventListener("pointerup", release);
  document.addEventListener("pointercancel", release);

  let isPaused = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.textContent = isPaused ? "Resume" : "Pause";
    if (isPaused) {
      stop();
      show("Paused", "paused");
      notify("");
    } else {
      start();
    }
  });
  // A hidden page does not occupy a connection.
  document.addEventListener("visibilitychange", () => {
    if (isPaused) return;
    waitMs = TRY_AGAIN_MS;
    if (document.hidden) stop();
    else start();
  });
  show("Connecting", "paused");
  state.hidden = button.hidden = false;
  if (!document.hidden) start();
})();
