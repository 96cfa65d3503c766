"use strict";
// Keeps the parts of an open page fresh. Without it, or without news, the page is as it was when it was loaded.
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

  // Said once, and not again with every try: a screen reader would read each.
  const tell = (text, link) => {
    if (connection.dataset.told === text) return;
    connection.dataset.told = text;
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
    tell(`${why} What is shown is from ${since} UTC. It is tried again by itself.`);
  };
  const AWAY = "No connection to the server.";

  // What the reader has done to a part outlives its renewal: focus, what is folded out, how far a table is moved.
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
    // By its name, so that a button never becomes another row's; what has none, by its place.
    const again = focused?.id ? document.getElementById(focused.id) : reachable()[at];
    again?.focus({ preventScroll: true });
  };

  // Text that is being selected stays, and so does what is being pressed: a click on what is gone would be lost.
  let pressed = null;
  const isHeld = (place) => {
    const selection = document.getSelection();
    const isSelecting = Boolean(selection && !selection.isCollapsed && place.contains(selection.anchorNode));
    return isSelecting || Boolean(pressed && place.contains(pressed));
  };

  // What cannot be shown yet waits: it is not sent again before it changes again.
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

  // A browser tries again by itself unless it was refused, and does not say why. Then the page asks for the same, and
  // tries again all the same: more and more seldom where it is answered, because others may want the place.
  const refused = async (own) => {
    const asked = { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS_MAX) };
    const answer = await fetch(address, asked).catch(() => null);
    const isFull = answer?.status === 503;
    const said = isFull ? await answer.json().catch(() => null) : null;
    // Taken now, it would be news that nobody reads.
    if (!isFull) answer?.body?.cancel().catch(() => null);
    // Paused meanwhile, or hidden, or begun anew.
    if (source !== own) return;
    if (answer?.status === 401) {
      show("Logged out", "lost");
      tell("The login is over. What is shown stands still.", "Log in again");
    } else {
      lost(isFull ? said?.message ?? "The server has no place for this page." : AWAY);
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
      tell("");
      for (const [id, html] of Object.entries(JSON.parse(event.data))) waiting.set(id, html);
      catchUp();
    });
    own.addEventListener("error", () => {
      if (own.readyState === EventSource.CLOSED) refused(own);
      else lost(AWAY);
    });
  };

  document.addEventListener("pointerdown", (event) => { pressed = event.target; });
  // The click itself comes after the release.
  const release = () => setTimeout(() => { pressed = null; });
  document.addEventListener("pointerup", release);
  document.addEventListener("pointercancel", release);

  let isPaused = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.textContent = isPaused ? "Go on" : "Pause";
    if (isPaused) {
      stop();
      show("Paused", "paused");
      tell("");
    } else {
      start();
    }
  });
  // A page that nobody looks at takes no place.
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
