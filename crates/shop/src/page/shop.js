// The page of the shop: it sends orders as any client would, and shows what came back, byte for byte.

const byId = (id) => document.getElementById(id);
const order = byId("order");
const field = (name) => order.elements[name];

/** The order as the form has it, optionally with another quantity. */
function body(quantity = Number(field("quantity").value)) {
  return JSON.stringify({ sku: field("sku").value, quantity });
}

/** Sends one request. An answer is its status, whether it was given before, and its bytes. */
async function send(text, key, fault) {
  const headers = {
    Authorization: `Bearer ${field("user").value}`,
    "Idempotency-Key": key,
    "Content-Type": "application/json",
  };
  if (fault) headers["Shop-Fault"] = fault;
  const response = await fetch("/orders", { method: "POST", headers, body: text });
  return {
    status: `${response.status} ${response.statusText}`,
    isGood: response.ok,
    isReplayed: response.headers.get("Idempotent-Replayed") === "true",
    bytes: new Uint8Array(await response.arrayBuffer()),
  };
}

const isSame = (a, b) => a.length === b.length && a.every((byte, index) => byte === b[index]);
const text = (answer) => new TextDecoder().decode(answer.bytes);

function show(place, title, answer) {
  const card = byId("answer").content.cloneNode(true);
  card.querySelector("h3").textContent = title;
  const status = card.querySelector(".status");
  status.textContent = answer.status;
  status.classList.add(answer.isGood ? "good" : "warn");
  const replayed = card.querySelector(".replayed");
  if (answer.isGood) replayed.textContent = answer.isReplayed ? "Idempotent-Replayed: true" : "executed";
  if (answer.isReplayed) replayed.classList.add("good");
  card.querySelector(".body").textContent = text(answer);
  byId(place).replaceChildren(card);
}

function say(place, sentence, mood = "") {
  byId(place).textContent = sentence;
  byId(place).className = `verdict ${mood}`;
}

const REFUSED = "The shop refused it, and nothing was changed. The answer says why.";
const GONE = "The shop does not answer. Is it running? Nothing is lost: start it and send the same again.";
const BACK = "The shop is back. Send the same again: it happens once, whether or not it had happened.";

/** Runs something that a button asked for; while it runs, the buttons of its form wait. */
async function run(form, place, work) {
  const buttons = [...form.querySelectorAll("button:not(:disabled)")];
  const focused = document.activeElement;
  buttons.forEach((button) => (button.disabled = true));
  try {
    await work();
  } catch {
    say(place, GONE, "warn");
  } finally {
    buttons.forEach((button) => (button.disabled = false));
    if (buttons.includes(focused)) focused.focus();
  }
}

async function sendTwice() {
  const [wish, key] = [body(), field("key").value];
  const first = await send(wish, key);
  show("first", "First answer", first);
  const second = await send(wish, key);
  show("second", "Second answer", second);
  if (!first.isGood) {
    say("verdict", REFUSED, "warn");
  } else if (isSame(first.bytes, second.bytes)) {
    const length = first.bytes.length;
    say("verdict", `Sent twice, ordered once: both answers are byte-identical (${length} bytes).`, "good");
  } else {
    say("verdict", "The two answers differ. That should never happen.", "warn");
  }
  look();
}

async function sendOther() {
  const key = field("key").value;
  const first = await send(body(), key);
  show("first", "The order under this key", first);
  const other = await send(body(Number(field("quantity").value) + 1), key);
  show("second", "The same key, one more", other);
  const isKept = first.isGood && !other.isGood;
  say("verdict", isKept ? "A key stands for one order: for another one it is refused, and nothing was changed." : REFUSED, "warn");
  look();
}

function renew() {
  field("key").value = crypto.randomUUID?.() ?? `key-${Date.now()}`;
  byId("first").replaceChildren();
  byId("second").replaceChildren();
  say("verdict", "A new key: the next order is a new one.");
  describe();
}

/** Asks the shop as the customer. */
const ask = (path) => fetch(path, { headers: { Authorization: `Bearer ${field("user").value}` } });

/** What the shop answers to the customer. */
async function get(path) {
  const response = await ask(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

/** A row of a table. */
function row(...values) {
  const row = document.createElement("tr");
  for (const value of values) row.insertCell().textContent = value;
  return row;
}

function tag(words) {
  const tag = document.createElement("span");
  tag.className = "tag";
  tag.textContent = words;
  return tag;
}

/** The time; with the day, unless that is today. */
function at(time) {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString() : date.toLocaleString();
}

/** The order that the line with `cancel` is about. */
let newest = "ID";

/** The orders, the newest first, and the stock. */
async function list() {
  const mine = following;
  const { orders } = await get("/orders");
  if (mine !== following) return;
  const known = new Set([...byId("orders").rows].map((row) => row.dataset.id));
  const rows = orders.map((placed) => {
    const placedRow = row(placed.sku, placed.quantity, at(placed.created_at), placed.id);
    placedRow.dataset.id = placed.id;
    if (placed.cancelled_at) placedRow.cells[0].append(" ", tag("cancelled"));
    else if (placed.reservation) placedRow.cells[0].append(" ", tag(placed.reservation.replace("_", "-")));
    placedRow.classList.toggle("fresh", mine.hasList && !known.has(placed.id));
    return placedRow;
  });
  byId("orders").replaceChildren(...rows);
  byId("no-orders").hidden = orders.length > 0;
  byId("count").textContent = orders.length ? `${orders.length}` : "";
  mine.hasList = true;
  newest = orders.find((placed) => !placed.cancelled_at)?.id ?? "ID";
  describe();
  await listStock();
}

/** The stock. It changes after an order was answered, by whoever reacts. A shop whose stock a warehouse keeps has none to show. */
async function listStock() {
  const answer = await ask("/stock");
  const isElsewhere = answer.status === 404;
  byId("stock-here").hidden = isElsewhere;
  byId("stock-elsewhere").hidden = !isElsewhere;
  if (isElsewhere) return;
  if (!answer.ok) throw new Error(`/stock: ${answer.status}`);
  const { stock } = await answer.json();
  const rows = stock.map((article) => row(article.sku, article.on_hand, article.reserved, article.back_ordered));
  byId("stock").replaceChildren(...rows);
}

/** How many of the things that were heard are shown. */
const HEARD_MAX = 100;

/** How long the page waits before it tries again what did not work. */
const AGAIN_MS = 1000;

/**
 * Whom the page follows, and how far it has come: `EventSource` knows the place too, but forgets it when it gives up. Another
 * customer is another object, so that what comes late for the one before is known for what it is.
 */
let following;

/** Hears what becomes of the customer's orders, from now on. */
function follow() {
  following?.source?.close();
  following = { user: field("user").value, place: "", heard: 0, hasList: false, source: undefined };
  byId("heard").replaceChildren();
  byId("heard-count").textContent = 0;
  connect(following);
}

/**
 * Connects, from the place where it was. What is heard is a reason to look again; the list itself comes from where it always
 * comes from. A page cannot send a header with this, so the shop keeps the token in a cookie.
 */
async function connect(mine) {
  const headers = { Authorization: `Bearer ${mine.user}` };
  const session = await fetch("/session", { method: "POST", headers }).catch(() => undefined);
  // Meanwhile somebody may have chosen another customer.
  if (mine !== following) return;
  if (!session?.ok) return comeBack(mine);
  const parameters = new URLSearchParams({ last_event_id: mine.place });
  const source = new EventSource(`/events/${mine.user}?${parameters}`);
  mine.source = source;
  const on = (type, then) =>
    source.addEventListener(type, (event) => {
      mine.place = event.lastEventId;
      then(event);
      look();
    });
  // From here on everything is heard: whatever was before is fetched now.
  on("ready", () => showLive(true));
  on("resync", () => note("missed too much to be told: everything was fetched anew"));
  on("message", (event) => hear(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    showLive(false);
    // It comes back by itself, unless it was refused.
    if (source.readyState === EventSource.CLOSED) comeBack(mine);
  });
}

function comeBack(mine) {
  showLive(false);
  setTimeout(() => mine === following && connect(mine), AGAIN_MS);
}

/** Whether the page is connected; nobody knows before the first time. */
let isLive;

function showLive(isNowLive) {
  if (isLive === isNowLive) return;
  if (isLive !== undefined) note(isNowLive ? "back, from where it was" : "connection lost");
  isLive = isNowLive;
  byId("live").textContent = isLive ? "live" : "reconnecting…";
  byId("live").className = `live ${isLive ? "good" : "warn"}`;
  if (isLive && byId("verdict").textContent === GONE) say("verdict", BACK, "good");
}

/** A line in what was heard, the newest on top. */
function note(words, time = Date.now()) {
  const item = document.createElement("li");
  item.textContent = `${at(time)} ${words}`;
  byId("heard").prepend(item);
  while (byId("heard").children.length > HEARD_MAX) byId("heard").lastChild.remove();
  return item;
}

function hear(entry) {
  const order = entry.data.order_id ? ` of order ${entry.data.order_id}` : "";
  const item = note(`${entry.type}${order}`, entry.time);
  item.dataset.id = entry.id;
  following.heard += 1;
  item.value = following.heard;
  byId("heard-count").textContent = following.heard;
}

/** Looks again, once for all that comes while it looks. What could not be seen is looked for again, as long as somebody tells. */
let isLooking = false;
let isStale = false;
async function look() {
  isStale = true;
  if (isLooking) return;
  isLooking = true;
  while (isStale) {
    isStale = false;
    try {
      await list();
    } catch {
      await new Promise((done) => setTimeout(done, AGAIN_MS));
      isStale ||= isLive;
    }
  }
  isLooking = false;
}

/** Keeps the curl lines true to the form. Single quotes are closed and escaped, as a shell wants it. */
function describe() {
  const quote = (value) => `'${String(value).replaceAll("'", "'\\''")}'`;
  const user = quote(`Authorization: Bearer ${field("user").value}`);
  const line = (key, wish) =>
    `curl -i ${location.origin}/orders -H ${user} -H ${quote(`Idempotency-Key: ${key}`)} ` +
    `-H 'Content-Type: application/json' -d ${quote(wish)}`;
  const key = field("key").value;
  byId("curl-order").textContent = line(key, body());
  byId("curl-other").textContent = line(key, body(Number(field("quantity").value) + 1));
  byId("curl-list").textContent = `curl -s ${location.origin}/orders -H ${user}`;
  byId("curl-events").textContent = `curl -N ${location.origin}/events -H ${user}`;
  byId("curl-stock").textContent = `curl -s ${location.origin}/stock -H ${user}`;
  byId("curl-cancel").textContent =
    `curl -i -X POST ${location.origin}/orders/${newest}/cancel -H ${user} -H ${quote(`Idempotency-Key: cancel-${newest}`)}`;
  if (byId("crash")) {
    const point = byId("crash").elements.point.value;
    byId("curl-crash").textContent = `${line("crash-1", body())} -H 'Shop-Fault: kill=${point}'`;
  }
}

/** The crash, only in the lab's page. The key outlives a reload: it is all a client must remember. */
function prepareCrash(crash) {
  const point = crash.elements.point;
  const remembered = () => JSON.parse(sessionStorage.getItem("crashed") ?? "null");
  byId("retry").disabled = !remembered();

  const strike = async () => {
    const crashed = { key: crypto.randomUUID?.() ?? `crash-${Date.now()}`, wish: body() };
    sessionStorage.setItem("crashed", JSON.stringify(crashed));
    byId("retried").replaceChildren();
    try {
      show("retried", "It survived", await send(crashed.wish, crashed.key, `kill=${point.value}`));
    } catch {
      say("aftermath", `The process is dead (kill -9, ${point.value}). Start it again with cargo run -- --lab, on the ` +
        "same port, and press Retry.", "warn");
    }
  };
  const retry = async () => {
    const { key, wish } = remembered();
    const answer = await send(wish, key);
    show("retried", "Answer to the retry", answer);
    const { id } = JSON.parse(text(answer));
    const { orders } = await get("/orders");
    const count = orders.filter((placed) => placed.id === id).length;
    look();
    const how = answer.isReplayed ? "it had been placed before the crash" : "the crash had left nothing behind";
    if (answer.isGood) say("aftermath", `There is ${count} order for this key: ${how}.`, "good");
    else say("aftermath", REFUSED, "warn");
  };
  crash.addEventListener("submit", (event) => {
    event.preventDefault();
    run(crash, "aftermath", strike).then(() => (byId("retry").disabled = false));
  });
  byId("retry").addEventListener("click", () => run(crash, "aftermath", retry));
  crash.addEventListener("input", describe);
}

order.addEventListener("submit", (event) => {
  event.preventDefault();
  run(order, "verdict", sendTwice);
});
byId("other").addEventListener("click", () => order.reportValidity() && run(order, "verdict", sendOther));
byId("renew").addEventListener("click", renew);
order.addEventListener("input", describe);
field("user").addEventListener("change", follow);
if (byId("crash")) prepareCrash(byId("crash"));

renew();
say("verdict", "Nothing sent yet.");
follow();
// Nobody is told when a reaction is done.
setInterval(() => isLive && !document.hidden && listStock().catch(() => {}), 2000);
