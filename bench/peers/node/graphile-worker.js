// `graphile-worker` of npm, with the settings of its page on performance.

import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import pg from 'pg'
import { main } from './peer.js'

const TASK = 'place'

await main(async (url, connections) => {
  const pgPool = new pg.Pool({ connectionString: url, max: connections })
  // A connection that is lost fails whatever it was for.
  pgPool.on('error', error => console.error(error))
  pgPool.on('connect', client => client.on('error', error => console.error(error)))
  // It would say something about each start and stop.
  const logger = new Logger(() => () => {})
  const utils = await makeWorkerUtils({ pgPool, logger })
  await utils.migrate()
  return {
    enqueue: order => utils.addJob(TASK, order),
    fill: orders => utils.addJobs(orders.map(payload => ({ identifier: TASK, payload }))),
    work: handler =>
      run({
        pgPool,
        logger,
        noHandleSignals: true,
        taskList: { [TASK]: async order => handler(order) },
        preset: {
          worker: {
            concurrentJobs: 24,
            localQueue: { size: 500 },
            completeJobBatchDelay: 0,
            failJobBatchDelay: 0
          }
        }
      }),
    stop: runner => runner.stop(),
    async left() {
      const { rows } = await pgPool.query('SELECT count(*)::int AS count FROM graphile_worker._private_jobs')
      return rows[0].count
    }
  }
})
