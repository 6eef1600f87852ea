// What the programs of npm's peers have in common. It is `../peer` once more: the same words, the same order, the same cases, the same
// line of JSON.
//
// A peer has `enqueue(order)`, `fill(orders)`, `work(handler)` (which returns what `stop` wants), `stop(worker)` and `left()`.

import { createInterface } from 'node:readline'

const JOBS_AT_ONCE = 1_000
const JOBS_FOR_WARMTH = 1_000
const CALLS_FOR_WARMTH = 10
const TICKS_FOR_WARMTH = 10

// Milliseconds between two jobs whose latency is measured. It varies, or it would keep step with whoever polls.
const GAP = { from: 40, to: 60 }

// How long anything may take before something is wrong, in milliseconds.
const PATIENCE = 120_000

const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]()

// The end of the input will do.
const aLine = () => input.next()

export function order(quantity) {
  return {
    sku: 'TEA-EARL-GREY-250',
    quantity,
    note: 'Please ring twice and leave it with the neighbour, or behind the green door if nobody is at home.'
  }
}

// The whole program. `open(url, connections, case)` makes the peer and its tables.
export async function main(open) {
  const [url, name, amount, callers] = process.argv.slice(2)
  const measure = { enqueue: measureEnqueue, drain: measureDrain, latency: measureLatency }[name]
  if (!measure || !(amount > 0) || !(callers > 0)) {
    throw new Error('write: URL enqueue|drain|latency AMOUNT CONCURRENCY')
  }
  const peer = await open(url, Number(callers), name)
  const figures = await measure(peer, Number(amount), Number(callers))
  console.log(JSON.stringify(figures))
  // Whoever has started us looks at what we have used up, and ends our input.
  await aLine()
  process.exit(0)
}

async function ready() {
  console.log('ready')
  await aLine()
}

async function measureEnqueue(peer, amount, callers) {
  await enqueue(peer, callers * CALLS_FOR_WARMTH, callers)
  await ready()
  return await enqueue(peer, amount, callers)
}

async function enqueue(peer, amount, callers) {
  const latencies = []
  let begun = 0
  const began = performance.now()
  const call = async () => {
    while (begun++ < amount) {
      const since = performance.now()
      await peer.enqueue(order(2))
      latencies.push(performance.now() - since)
    }
  }
  await Promise.all(Array.from({ length: callers }, call))
  return figures(latencies.length, began, latencies)
}

async function measureDrain(peer, amount) {
  await fill(peer, JOBS_FOR_WARMTH)
  await drain(peer, JOBS_FOR_WARMTH)
  await fill(peer, amount)
  await ready()
  return await drain(peer, amount)
}

async function fill(peer, amount) {
  for (let left = amount; left > 0; left -= JOBS_AT_ONCE) {
    await peer.fill(Array.from({ length: Math.min(left, JOBS_AT_ONCE) }, () => order(2)))
  }
}

async function drain(peer, amount) {
  let handled = 0
  const enough = Promise.withResolvers()
  const began = performance.now()
  const worker = await peer.work(() => {
    handled += 1
    if (handled === amount) enough.resolve()
  })
  await patiently(enough.promise, () => `${handled} of ${amount} jobs were handled`)
  const drained = figures(amount, began, [])
  await peer.stop(worker)
  const left = await peer.left()
  if (left > 0) throw new Error(`${left} jobs were handled and are not done`)
  return drained
}

async function measureLatency(peer, amount) {
  const heard = new Map()
  const worker = await peer.work(({ quantity }) => heard.get(quantity).resolve(performance.now()))
  await tick(peer, TICKS_FOR_WARMTH, heard)
  await ready()
  const ticked = await tick(peer, amount, heard)
  await peer.stop(worker)
  return ticked
}

async function tick(peer, amount, heard) {
  const began = performance.now()
  const called = []
  for (let number = 0; number < amount; number++) {
    heard.set(number, Promise.withResolvers())
    called.push(performance.now())
    await peer.enqueue(order(number))
    await new Promise(resolve => setTimeout(resolve, GAP.from + Math.random() * (GAP.to - GAP.from)))
  }
  const latencies = []
  for (const [number, since] of called.entries()) {
    const at = await patiently(heard.get(number).promise, () => `job ${number} was not handled`)
    latencies.push(at - since)
  }
  return figures(amount, began, latencies)
}

// Milliseconds come in, and microseconds go out.
function figures(count, began, latencies) {
  return {
    count,
    seconds: (performance.now() - began) / 1_000,
    latencies_us: latencies.map(latency => Math.round(latency * 1_000))
  }
}

async function patiently(promise, complaint) {
  let timer
  const tired = new Promise((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(complaint())), PATIENCE)
  })
  try {
    return await Promise.race([promise, tired])
  } finally {
    clearTimeout(timer)
  }
}
