// `pg-boss` of npm, with batches, several workers, and told of new jobs.

import { PgBoss } from 'pg-boss'
import { main } from './peer.js'

const QUEUE = 'place'

// How many jobs are fetched at once, and by how many workers: each fetch is a transaction of its own.
const BATCH = 500
const WORKERS = 4

await main(async (url, connections) => {
  const boss = new PgBoss({ connectionString: url, max: connections, useListenNotify: true })
  boss.on('error', error => console.error(error))
  await boss.start()
  await boss.createQueue(QUEUE, { notify: true })
  return {
    enqueue: order => boss.send(QUEUE, order),
    fill: orders => boss.insert(QUEUE, orders.map(data => ({ data }))),
    work: handler =>
      boss.work(
        QUEUE,
        {
          batchSize: BATCH,
          localConcurrency: WORKERS,
          burstWhenBatchFull: true,
          pollingIntervalSeconds: 0.5,
          notifyPollingIntervalSeconds: 0.5
        },
        async jobs => jobs.forEach(job => handler(job.data))
      ),
    stop: () => boss.offWork(QUEUE),
    async left() {
      const counting = "SELECT count(*)::int AS count FROM pgboss.job WHERE state < 'completed'"
      const { rows } = await boss.getDb().executeSql(counting)
      return rows[0].count
    }
  }
})
