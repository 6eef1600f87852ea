//! What happens to the shops while their clients ask. Each kind has its own pace and its own chance, so they meet.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use steadfast::testing::proxy::{Fault, Proxy};
use tokio::time::sleep;

use crate::error::Result;
use crate::random::Random;
use crate::scene::{LOOK_AGAIN, SHOPS, Scene};
use crate::shop::{Order, Shop};

/// Every crash point of a command, as the lab's fault that kills the shop there.
pub(crate) const DOOMS: [&str; 5] = [
    "kill=before_claim",
    "kill=after_claim",
    "kill=after_write",
    "kill=before_commit",
    "kill=after_commit",
];

/// How long a command has to kill its shop, before that is done from outside.
const DOOM_LIMIT: Duration = Duration::from_secs(2);

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

const BLACK_HOLE_LEAST: Duration = Duration::from_millis(50);
const BLACK_HOLE_MOST: Duration = Duration::from_millis(800);

/// Lets all of them happen, and ends when their amounts are reached and everything is whole again.
pub(crate) async fn happen(scene: &Scene) -> Result<()> {
    let amounts = scene.amounts;
    tokio::try_join!(
        kill(scene, Random::new(scene.seed, 1)),
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
    for shop in &scene.shops {
        shop.until_open().await?;
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
    let restarts = || scene.shops.iter().map(Shop::restarts).sum::<u64>();
    while restarts() < amount {
        let before = restarts();
        scene.until_due(before, amount, &mut random).await;
        let shop = random.below(SHOPS);
        scene.shops[shop].until_open().await?;
        scene.recorder.accident(format!("terminate shop {shop}"));
        scene.shops[shop].order(Order::Terminate);
        // It takes two seconds at least, and is killed meanwhile more often than not: then another one is tried.
        scene.shops[shop].until_ended().await?;
    }
    Ok(())
}

/// Cuts all connections of a shop at once, wherever they are.
async fn cut_connections(scene: &Scene, mut random: Random) -> Result<()> {
    let amount = on_wires(scene, KILLS_PER_CONNECTION_CUT);
    for number in 0..amount {
        scene.until_due(number, amount, &mut random).await;
        let shop = random.below(SHOPS);
        scene.recorder.accident(format!("cut all connections of shop {shop}"));
        scene.proxies[shop].cut();
        scene.tally.connection_cuts.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Lets nothing through between a shop and the database for a while.
async fn black_holes(scene: &Scene, mut random: Random) -> Result<()> {
    let amount = on_wires(scene, KILLS_PER_BLACK_HOLE);
    for number in 0..amount {
        scene.until_due(number, amount, &mut random).await;
        let shop = random.below(SHOPS);
        let duration = random.between(BLACK_HOLE_LEAST, BLACK_HOLE_MOST);
        scene
            .recorder
            .accident(format!("black hole of {duration:?} behind shop {shop}"));
        scene.proxies[shop].black_hole(true);
        sleep(duration).await;
        scene.proxies[shop].black_hole(false);
        scene.tally.black_holes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
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
