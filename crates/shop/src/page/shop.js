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
  await list();
}

async function sendOther() {
  const key = field("key").value;
  const first = await send(body(), key);
  show("first", "The order under this key", first);
  const other = await send(body(Number(field("quantity").value) + 1), key);
  show("second", "The same key, one more", other);
  const isKept = first.isGood && !other.isGood;
  say("verdict", isKept ? "A key stands for one order: for another one it is refused, and nothing was changed." : REFUSED, "warn");
  await list();
}

function renew() {
  field("key").value = crypto.randomUUID?.() ?? `key-${Date.now()}`;
  byId("first").replaceChildren();
  byId("second").replaceChildren();
  say("verdict", "A new key: the next order is a new one.");
  describe();
}

/** The list below, newest first. */
async function list() {
  const headers = { Authorization: `Bearer ${field("user").value}` };
  const response = await fetch("/orders", { headers });
  const { orders } = await response.json();
  const rows = orders.map((placed) => {
    const row = document.createElement("tr");
    const at = new Date(placed.created_at).toLocaleString();
    const article = placed.cancelled_at ? `${placed.sku} (cancelled)` : placed.sku;
    for (const value of [article, placed.quantity, at, placed.id]) row.insertCell().textContent = value;
    row.cells[1].className = "number";
    return row;
  });
  if (rows.length === 0) {
    const row = document.createElement("tr");
    const cell = row.insertCell();
    cell.colSpan = 4;
    cell.className = "empty";
    cell.textContent = "Nothing yet.";
    rows.push(row);
  }
  byId("orders").replaceChildren(...rows);
  byId("count").textContent = orders.length ? `${orders.length}` : "";
  newest = orders.find((placed) => !placed.cancelled_at)?.id ?? "ID";
  describe();
  await listStock();
  return orders;
}

/** The order that the line with `cancel` is about. */
let newest = "ID";

/** The stock. It changes after an order was answered, by whoever reacts. */
async function listStock() {
  const headers = { Authorization: `Bearer ${field("user").value}` };
  const { stock } = await (await fetch("/stock", { headers })).json();
  const rows = stock.map((article) => {
    const row = document.createElement("tr");
    for (const value of [article.sku, article.on_hand, article.reserved, article.back_ordered]) {
      row.insertCell().textContent = value;
    }
    [...row.cells].slice(1).forEach((cell) => (cell.className = "number"));
    return row;
  });
  byId("stock").replaceChildren(...rows);
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
    const count = (await list()).filter((placed) => placed.id === id).length;
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
field("user").addEventListener("change", () => run(order, "verdict", list));
if (byId("crash")) prepareCrash(byId("crash"));

renew();
say("verdict", "Nothing sent yet.");
run(order, "verdict", list);
// A shop that is away will be back; the next look finds it.
setInterval(() => document.hidden || listStock().catch(() => {}), 2000);
