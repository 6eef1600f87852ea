//! Claiming: which kinds there is room for, and what becomes of the rows that were found.
//!
//! A row whose lease has expired is found by the same look as one that is due, so there is no separate reclaiming: a
//! lease is the time until which others pass the row by. The attempt is counted by the claim, so a row that kills its
//! process runs out of attempts. It would take the rows that were worked on beside it along; so a row whose lease has
//! expired before is worked on while no other such row is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::engine::{Engine, Kind, Kinds};
use super::finish::BACK_MAX;
use super::lane::Lane;
use super::share::{Guest, share};
use super::{Buried, Claim, Claimed, Claims, Wanted};
use crate::clock::random;
use crate::error::Result;
use crate::store::{Database, Store};
use crate::telemetry;

/// How many batches of a work are held at once at the most: two that are worked on, and one that is on its way.
const BATCHES_HELD: u32 = 3;

/// What a claim leaves to be known.
pub(super) struct Found {
    pub(super) rows: Vec<Claimed>,
    /// Before the database was asked: its leases begin later.
    pub(super) asked_at: Instant,
    /// Whether there may be more that could be claimed, were there room.
    pub(super) is_full: bool,
    /// Whether more can be claimed at once.
    pub(super) has_more: bool,
    /// When work that rests will have rested.
    pub(super) rested_at: Option<Instant>,
    /// The kinds of which rows that had to wait took the place of others.
    pub(super) crowded: Vec<Wanted>,
    /// The keys that have no room for more.
    pub(super) full_keys: Vec<Arc<str>>,
}

/// What the engine has room for.
struct Room {
    wanted: Vec<Wanted>,
    /// Whether there is none for some work.
    is_full: bool,
    /// When work that rests will have rested.
    rested_at: Option<Instant>,
}

impl<Db: Database> Engine<Db> {
    /// Claims what there is room for.
    pub(super) async fn claim(&mut self) -> Result<Found> {
        let Room {
            wanted,
            is_full: has_full_kinds,
            rested_at,
        } = self.find_room();
        if wanted.is_empty() {
            self.next_in = None;
            return Ok(Found {
                rows: Vec::new(),
                asked_at: Instant::now(),
                is_full: has_full_kinds,
                has_more: false,
                rested_at,
                crowded: Vec::new(),
                full_keys: Vec::new(),
            });
        }
        let mut freed = std::mem::take(&mut self.freed);
        // Two who wait for the same rows do so in the same order.
        freed.sort_unstable();
        freed.dedup();
        let holder = self.holder.clone();
        let claim = Claim {
            wanted: &wanted,
            freed: &freed,
            takes_suspect: !self.held.values().any(|held| held.claimed.is_suspect),
            token: (random() >> 1).cast_signed(),
            holder: &holder,
        };
        let (asked_at, offset) = (Instant::now(), self.sf.clock().ahead());
        let asking = self.ask("claim rows", async |store, link| {
            store.claim(link, &claim, offset).await
        });
        let mut claims = match asking.await {
            Ok(claims) => claims,
            Err(error) => {
                // Nobody else looks at these chains soon.
                self.freed.extend(freed);
                return Err(error);
            }
        };
        let has_buried = !claims.buried.is_empty();
        for Buried { lease, chain } in std::mem::take(&mut claims.buried) {
            telemetry::row_died(&lease.kind, &lease.item, "lease_expired");
            telemetry::deliveries_ended(&lease.kind, "dead", 1);
            self.freed.extend(chain);
        }
        self.next_in = claims.next_in;
        let room: u32 = wanted.iter().map(|wanted| wanted.room).sum();
        let can_go_on = self.note_demand(&wanted, &claims);
        for queue in wanted.iter().filter_map(|wanted| wanted.queue.as_ref()) {
            self.held_up.remove(queue);
        }
        self.held_up.extend(claims.held_up);
        let is_full = has_full_kinds || !claims.full.is_empty();
        // Rows that had to wait took the place of others.
        let made_room = is_full && claims.waiting > 0 && claims.rows.len() < room as usize;
        Ok(Found {
            has_more: has_buried || made_room || can_go_on,
            rows: in_turn(&wanted, claims.rows),
            asked_at: claims.from.unwrap_or(asked_at),
            is_full,
            rested_at,
            crowded: if made_room { wanted } else { Vec::new() },
            full_keys: claims.full_keys,
        })
    }

    /// Puts off what has others ahead of it, beyond what a claim has room for.
    pub(super) async fn park(&mut self, crowded: &[Wanted], full_keys: &[Arc<str>]) -> Result<()> {
        let offset = self.sf.clock().ahead();
        for Wanted { kind, lease, .. } in crowded {
            self.ask("park rows", async |store, link| {
                store.park(link, kind, full_keys, *lease, offset).await
            })
            .await?;
        }
        Ok(())
    }

    /// Takes note of what each kind had, and says whether more can be claimed at once: the next rows while these are worked on.
    fn note_demand(&mut self, wanted: &[Wanted], claims: &Claims) -> bool {
        let mut claimed: HashMap<&str, u32> = HashMap::new();
        for row in &claims.rows {
            *claimed.entry(&row.lease.kind).or_default() += 1;
        }
        let claimed = |kind: &Arc<str>| claimed.get(&**kind).copied().unwrap_or_default();
        let mut can_go_on = false;
        for lane in &self.lanes {
            let of_lane: u32 = lane.kinds.iter().map(claimed).sum();
            let is_held_up = lane.queue.as_ref().is_some_and(|queue| claims.held_up.contains(queue));
            // Where nothing could begin, nobody has looked.
            let was_looked_at = !is_held_up || of_lane > 0;
            // Who rests is not asked. When it comes back, it begins where the others are.
            for name in &lane.kinds {
                if let Some(kind) = self.kinds.get_mut(name).filter(|kind| kind.work.rests_for().is_some()) {
                    kind.demand.note(false, kind.weight, 0);
                }
            }
            let least_had = least_had(&self.kinds, &lane.kinds);
            for Wanted { kind: name, .. } in wanted.iter().filter(|wanted| lane.kinds.contains(&wanted.kind)) {
                if let Some(kind) = self.kinds.get_mut(name).filter(|_| was_looked_at) {
                    let is_hungry = claims.full.contains(name);
                    kind.demand.note(is_hungry, kind.weight, least_had);
                    kind.demand.has_had(claimed(name), kind.weight);
                }
            }
            // Who rests is not hungry.
            let can_eat = |kind: &Kind<Db>| kind.demand.had().is_some() && kind.takes_at_most() != Some(0);
            if !is_held_up && lane.kinds.iter().any(|name| self.kinds.get(name).is_some_and(can_eat)) {
                can_go_on |= of_lane < self.room(lane);
            }
        }
        can_go_on
    }

    /// The kinds that there is room for.
    fn find_room(&self) -> Room {
        let mut room = Room {
            wanted: Vec::new(),
            is_full: false,
            rested_at: None,
        };
        for lane in &self.lanes {
            let free = self.room(lane);
            room.is_full |= free == 0;
            let mut names = Vec::with_capacity(lane.kinds.len());
            for name in &lane.kinds {
                let Some(Kind { work, .. }) = self.kinds.get(name) else {
                    continue;
                };
                let counts_probes = work.takes_at_most().is_some();
                // What ends may show that more can be claimed.
                room.is_full |= counts_probes;
                match work.rests_for() {
                    None => names.push(name.clone()),
                    Some(rest) => {
                        if !counts_probes {
                            lane.rests();
                        }
                        let rested_at = Instant::now() + rest.min(BACK_MAX);
                        room.rested_at = Some(room.rested_at.map_or(rested_at, |other| other.min(rested_at)));
                    }
                }
            }
            if free == 0 {
                continue;
            }
            room.wanted.extend(self.divide(free, &names));
        }
        room
    }

    /// What is asked for of each of these kinds, which share so much room: first of those with the most weight.
    fn divide(&self, free: u32, names: &[Arc<str>]) -> Vec<Wanted> {
        let pace = self.pace;
        let kinds = names.iter().filter_map(|name| Some((name, self.kinds.get(name)?)));
        let mut kinds: Vec<_> = kinds.collect();
        kinds.sort_unstable_by(|(a, one), (b, other)| other.weight.cmp(&one.weight).then_with(|| a.cmp(b)));
        let guests = kinds.iter().map(|(_, kind)| Guest {
            demand: kind.demand,
            weight: kind.weight,
            is_rare: kind.is_rare,
            room: if pace.is_fixed { free } else { 0 },
        });
        let mut guests: Vec<_> = guests.collect();
        if !pace.is_fixed {
            share(free, &mut guests);
        }
        for ((_, kind), guest) in kinds.iter().zip(&mut guests) {
            guest.room = guest.room.min(kind.takes_at_most().unwrap_or(u32::MAX));
        }
        let least_had = least_had(&self.kinds, names);
        let asked = kinds.into_iter().zip(guests).filter(|(_, guest)| guest.room > 0);
        let wanted = asked.map(|((name, kind), guest)| {
            let options = kind.work.options();
            Wanted {
                kind: name.clone(),
                queue: kind.lane.queue.clone(),
                room: guest.room.min(pace.batch),
                turns: kind.demand.turns(kind.weight, least_had),
                attempts_max: options.retry.attempts(),
                lease: options.lease.unwrap_or(pace.lease),
                dead_make_room: options.dead_make_room,
            }
        });
        wanted.collect()
    }

    /// How many rows may be claimed for a lane beside those that are held.
    fn room(&self, lane: &Lane) -> u32 {
        match self.pace.is_fixed {
            true => self.pace.batch.saturating_sub(lane.held()),
            false => lane.room(self.pace.batch.saturating_mul(BATCHES_HELD)),
        }
    }
}

impl<Db: Database> Kind<Db> {
    /// How many rows its work can take now, beside what waits for a hand already; `None`: as many as there are hands for.
    fn takes_at_most(&self) -> Option<u32> {
        let most = self.work.takes_at_most()?;
        Some(most.saturating_sub(self.lane.waiting_of(self.work.kinds())))
    }
}

/// Rows of several kinds, in the order of their turns. The database has them in an order of its own, and who waits for a hand is taken in
/// the order in which he came.
fn in_turn(wanted: &[Wanted], rows: Vec<Claimed>) -> Vec<Claimed> {
    let first = rows.first().map(|row| row.lease.kind.clone());
    if rows.iter().all(|row| Some(&row.lease.kind) == first.as_ref()) {
        return rows;
    }
    let mut turns: HashMap<_, _> = wanted.iter().map(|wanted| (&wanted.kind, wanted.turns)).collect();
    let places = rows.into_iter().map(|row| {
        let place = turns.get_mut(&row.lease.kind).map(|turns| {
            turns.take(1);
            turns.from
        });
        (place, row)
    });
    let mut rows: Vec<_> = places.collect();
    rows.sort_by_key(|(place, _)| *place);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// What the one of these kinds has had that is hungry and has had the least.
fn least_had<Db: Database>(kinds: &Kinds<Db>, names: &[Arc<str>]) -> i64 {
    let had = names.iter().filter_map(|name| kinds.get(name)?.demand.had());
    had.min().unwrap_or_default()
}
