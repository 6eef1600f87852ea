//! What happens to the shops while their clients ask. Each kind has its own pace and its own chance, so they meet.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use steadfast::testing::WorkPoint;
use steadfast::testing::proxy::{Fault, Proxy};
use tokio::time::sleep;

use crate::broker::Broker;
use crate::error::Result;
use crate::options::Kind;
use crate::random::Random;
use crate::scene::{LOOK_AGAIN, SHOPS, Scene};
use crate::shop::{Order, Role, Shop};

/// Every crash point of a command, as the lab's fault that kills the shop there.
pub(crate) const DOOMS: [&str; 5] = [
    "kill=before_claim",
    "kill=after_claim",
    "kill=after_write",
    "kill=before_commit",
    "kill=after_commit",
];

/// How long a command or a delivery has to kill its process, before that is done from outside.
const DOOM_LIMIT: Duration = Duration::from_secs(2);

/// How often what takes the place of a killed process is doomed, too.
const DOOMED: f64 = 0.7;

/// What can happen to a COMMIT. A swallowed reply holds its connection for ten seconds, so it is rarer.
const CUTS: [Fault; 9] = [
    Fault::CutBeforeCommit,
    Fault::CutBeforeCommit,
    Fault::CutBeforeCommit,
    Fault::CutBeforeCommit,
    Fault::CutAfterCommit,
    Fault::CutAfterCommit,
    Fault::CutAfterCommit,
    Fault::CutAfterCommit,
    Fault::SwallowCommitReply,
];

/// The accidents that nobody gives an amount of, in proportion to the kills.
const KILLS_PER_RESTART: u64 = 20;
const KILLS_PER_CONNECTION_CUT: u64 = 5;
const KILLS_PER_BLACK_HOLE: u64 = 10;

/// How long brokers are spared when the shops have opened and their queues are new: RabbitMQ writes down a moment later under which
/// name it has the log of a replicated queue, and one that is killed before never finds the queue's leader again.
const BROKERS_SETTLE: Duration = Duration::from_secs(5);

const BLACK_HOLE_LEAST: Duration = Duration::from_millis(50);
const BLACK_HOLE_MOST: Duration = Duration::from_millis(800);

/// Lets all of them happen, and ends when their amounts are reached and everything is whole again.
pub(crate) async fn happen(scene: &Scene) -> Result<()> {
    let amounts = scene.amounts;
    tokio::try_join!(
        async {
            let random = Random::new(scene.seed, 1);
            match scene.kind {
                Kind::Command => kill(scene, random).await,
                Kind::Outbox | Kind::Inbox => kill_dispatchers(scene, random, Dooms::of(scene)).await,
            }
        },
        kill_brokers(scene, Random::new(scene.seed, 6)),
        crash(scene, Random::new(scene.seed, 2)),
        cut_commits(scene),
        restart(scene, Random::new(scene.seed, 3)),
        cut_connections(scene, Random::new(scene.seed, 4)),
        black_holes(scene, Random::new(scene.seed, 5)),
        async {
            while scene.finished() < amounts.commands {
                sleep(LOOK_AGAIN).await;
            }
            Ok(())
        }
    )?;
    for process in scene.processes() {
        process.until_open().await?;
    }
    Ok(())
}

/// The lab's faults that kill a process by what it delivers or receives: those of shops and workers, and those of warehouses. Each has
/// its turn until it has struck.
struct Dooms {
    faults: [Vec<String>; 2],
    struck: [usize; 2],
}

impl Dooms {
    fn of(scene: &Scene) -> Self {
        let faults = match (scene.kind, scene.brokers.first()) {
            (Kind::Inbox, Some((broker, _))) => [
                message_dooms(*broker, "reservations", "warehouse.reserved", "shop"),
                message_dooms(*broker, "orders", "stock.reserve", "warehouse"),
            ],
            _ => [delivery_dooms(), Vec::new()],
        };
        Self { faults, struck: [0; 2] }
    }

    fn place(role: Role) -> usize {
        match role {
            Role::Shop | Role::Worker => 0,
            Role::Warehouse => 1,
        }
    }

    /// Whose turn it is.
    fn next(&self, role: Role) -> Option<String> {
        let place = Self::place(role);
        self.faults[place].iter().cycle().nth(self.struck[place]).cloned()
    }

    fn has_struck(&mut self, role: Role) {
        self.struck[Self::place(role)] += 1;
    }
}

/// Those by which a process dies when it sends to a broker: every point of a delivery with every broker, and neighbours differ in
/// both, for there are four of one and three of the other.
fn delivery_dooms() -> Vec<String> {
    let points = WorkPoint::ALL.into_iter().map(WorkPoint::as_str).cycle();
    let brokers = Broker::ALL.into_iter().map(Broker::target).cycle();
    points
        .zip(brokers)
        .map(|(point, target)| format!("{target}:kill={point}"))
        .take(WorkPoint::ALL.len() * Broker::ALL.len())
        .collect()
}

/// Those by which a process dies of a message that comes from its source, or of what it makes of it.
fn message_dooms(broker: Broker, source: &str, reaction: &str, sink: &str) -> Vec<String> {
    let broker = broker.suffix();
    vec![
        format!("{source}.{broker}:kill=after_receive"),
        format!("{source}.{broker}:kill=after_commit_before_ack"),
        format!("{reaction}:kill=after_handler"),
        format!("{sink}.{broker}:kill=before_finish"),
    ]
}

/// Kills those who deliver, or consume, from outside at any moment. What takes the place of some is killed by a delivery or a
/// message, at one of its points.
async fn kill_dispatchers(scene: &Scene, mut random: Random, mut dooms: Dooms) -> Result<()> {
    let amount = scene.amounts.kills;
    let processes: Vec<_> = scene.processes().collect();
    while scene.kills() < amount {
        let before = scene.kills();
        scene.until_due(before, amount, &mut random).await;
        let process = random.pick(&processes);
        process.until_open().await?;
        let doom = random.chance(DOOMED).then(|| dooms.next(process.role)).flatten();
        let is_doomed = doom.is_some();
        if let Some(doom) = doom {
            scene
                .recorder
                .accident(format!("the next {} dies by {doom}", process.name()));
            process.set_fault(doom);
        }
        scene.recorder.accident(format!("kill -9 {}", process.name()));
        process.order(Order::Kill);
        wait_for_kill(scene, before).await;
        if is_doomed {
            process.until_open().await?;
            wait_for_kill(scene, before + 1).await;
            if scene.kills() > before + 1 {
                dooms.has_struck(process.role);
            }
        }
    }
    Ok(())
}

/// Kills brokers, each in its turn.
async fn kill_brokers(scene: &Scene, mut random: Random) -> Result<()> {
    let amount = scene.amounts.broker_kills;
    let mut turns = scene.brokers.iter().zip(&scene.tally.broker_kills).cycle();
    sleep(BROKERS_SETTLE).await;
    for number in 0..amount {
        let Some(((_, broker), kills)) = turns.next() else {
            return Ok(());
        };
        scene.until_due(number, amount, &mut random).await;
        scene.recorder.accident(format!("kill -9 {}", broker.name));
        broker.crash().await?;
        scene.recorder.accident(format!("{} is back", broker.name));
        kills.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Kills shops: some from outside, at any moment, some by a command at one of its crash points.
async fn kill(scene: &Scene, mut random: Random) -> Result<()> {
    let amount = scene.amounts.kills;
    // In turn, so that none is left out by chance.
    let mut dooms = DOOMS.into_iter().cycle();
    while scene.kills() < amount {
        let before = scene.kills();
        scene.until_due(before, amount, &mut random).await;
        if random.chance(0.5) {
            scene.set_doom(dooms.next());
            wait_for_kill(scene, before).await;
            scene.set_doom(None);
        }
        if scene.kills() == before {
            let shop = random.below(SHOPS);
            scene.recorder.accident(format!("kill -9 shop {shop}"));
            scene.shops[shop].order(Order::Kill);
            wait_for_kill(scene, before).await;
        }
    }
    Ok(())
}

async fn wait_for_kill(scene: &Scene, before: u64) {
    let start = Instant::now();
    while scene.kills() == before && start.elapsed() < DOOM_LIMIT {
        sleep(LOOK_AGAIN).await;
    }
}

async fn crash(scene: &Scene, mut random: Random) -> Result<()> {
    let Some(server) = &scene.server else { return Ok(()) };
    for number in 0..scene.amounts.crashes {
        scene.until_due(number, scene.amounts.crashes, &mut random).await;
        scene.recorder.accident("crash PostgreSQL");
        server.crash().await?;
        scene.recorder.accident("PostgreSQL is back");
        scene.tally.crashes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Lets a share of all COMMITs lose their connection or their reply. The proxies choose which.
async fn cut_commits(scene: &Scene) -> Result<()> {
    let amount = scene.amounts.cuts;
    let share = 1.1 * amount as f64 / scene.amounts.commands.max(1) as f64;
    for (stream, proxy) in (0..).zip(&scene.proxies) {
        proxy.arm_share(share, scene.seed.wrapping_add(stream), &CUTS);
    }
    while scene.cuts() < amount {
        sleep(LOOK_AGAIN).await;
    }
    scene.proxies.iter().for_each(Proxy::disarm);
    Ok(())
}

/// Restarts shops in order.
async fn restart(scene: &Scene, mut random: Random) -> Result<()> {
    let amount = portion(scene, KILLS_PER_RESTART);
    let processes: Vec<_> = scene.processes().collect();
    let restarts = || scene.processes().map(Shop::restarts).sum::<u64>();
    while restarts() < amount {
        let before = restarts();
        scene.until_due(before, amount, &mut random).await;
        let process = random.pick(&processes);
        process.until_open().await?;
        scene.recorder.accident(format!("terminate {}", process.name()));
        process.order(Order::Terminate);
        // It takes two seconds at least, and is killed meanwhile more often than not: then another one is tried.
        process.until_ended().await?;
    }
    Ok(())
}

/// Cuts all connections of a shop at once, wherever they are.
async fn cut_connections(scene: &Scene, mut random: Random) -> Result<()> {
    let amount = on_wires(scene, KILLS_PER_CONNECTION_CUT);
    for number in 0..amount {
        scene.until_due(number, amount, &mut random).await;
        let (process, proxy) = random.pick(&wires(scene));
        scene
            .recorder
            .accident(format!("cut all connections of {}", process.name()));
        proxy.cut();
        scene.tally.connection_cuts.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Lets nothing through between a shop and the database for a while.
async fn black_holes(scene: &Scene, mut random: Random) -> Result<()> {
    let amount = on_wires(scene, KILLS_PER_BLACK_HOLE);
    for number in 0..amount {
        scene.until_due(number, amount, &mut random).await;
        let (process, proxy) = random.pick(&wires(scene));
        let duration = random.between(BLACK_HOLE_LEAST, BLACK_HOLE_MOST);
        scene
            .recorder
            .accident(format!("black hole of {duration:?} behind {}", process.name()));
        proxy.black_hole(true);
        sleep(duration).await;
        proxy.black_hole(false);
        scene.tally.black_holes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Each process, and what is between it and its database.
fn wires(scene: &Scene) -> Vec<(&Shop, &Proxy)> {
    scene.processes().zip(&scene.proxies).collect()
}

/// At least one, unless nobody is killed at all.
fn portion(scene: &Scene, kills_per: u64) -> u64 {
    scene.amounts.kills.div_ceil(kills_per)
}

fn on_wires(scene: &Scene, kills_per: u64) -> u64 {
    if scene.proxies.is_empty() {
        0
    } else {
        portion(scene, kills_per)
    }
}
