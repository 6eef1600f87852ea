//! Claiming: which kinds there is room for, and what becomes of the rows that were found.
//!
//! A row whose lease has expired is found by the same look as one that is due, so there is no separate reclaiming: a
//! lease is the time until which others pass the row by. The attempt is counted by the claim, so a row that kills its
//! process runs out of attempts. It would take the rows that were worked on beside it along; so a row whose lease has
//! expired before is worked on while no other such row is.

use std::time::Instant;

use super::engine::{Engine, Kind};
use super::finish::BACK_MAX;
use super::{Buried, Claim, Claimed, Wanted};
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
        let claims = match asking.await {
            Ok(claims) => claims,
            Err(error) => {
                // Nobody else looks at these chains soon.
                self.freed.extend(freed);
                return Err(error);
            }
        };
        let has_buried = !claims.buried.is_empty();
        for Buried { lease, chain } in claims.buried {
            telemetry::row_died(&lease.kind, &lease.item, "lease_expired");
            telemetry::deliveries_ended(&lease.kind, "dead", 1);
            self.freed.extend(chain);
        }
        self.next_in = claims.next_in;
        let room: u32 = wanted.iter().map(|wanted| wanted.room).sum();
        let is_full =
            has_full_kinds || claims.looked_at >= wanted.iter().map(|wanted| wanted.room).min().unwrap_or(0) as usize;
        // Rows that had to wait took the place of others.
        let made_room = is_full && claims.waiting > 0 && claims.rows.len() < room as usize;
        Ok(Found {
            has_more: has_buried || made_room || self.can_go_on(&wanted, &claims.rows),
            rows: claims.rows,
            asked_at: claims.from.unwrap_or(asked_at),
            is_full,
            rested_at,
            crowded: if made_room { wanted } else { Vec::new() },
        })
    }

    /// Puts off what has others ahead of it, beyond what a claim has room for. What fails is done by later claims, only slower.
    pub(super) async fn park(&mut self, crowded: &[Wanted]) {
        let offset = self.sf.clock().ahead();
        for Wanted { kind, lease, .. } in crowded {
            let parking = self.ask("park rows", async |store, link| {
                store.park(link, kind, *lease, offset).await
            });
            if let Err(error) = parking.await {
                return telemetry::not_parked(&error);
            }
        }
    }

    /// Whether a kind had as many rows as were asked for, and there is room for more: the next are claimed while these are
    /// worked on.
    fn can_go_on(&self, wanted: &[Wanted], claimed: &[Claimed]) -> bool {
        wanted.iter().any(|wanted| {
            let claimed = claimed.iter().filter(|row| row.lease.kind == wanted.kind).count();
            let room = self.kinds.get(&wanted.kind).map_or(0, |kind| self.room(kind));
            claimed == wanted.room as usize && wanted.room < room
        })
    }

    /// The kinds that there is room for.
    fn find_room(&self) -> Room {
        let mut room = Room {
            wanted: Vec::new(),
            is_full: false,
            rested_at: None,
        };
        for (name, kind) in &self.kinds {
            if let Some(rest) = kind.work.rests_for() {
                kind.lane.rests();
                let rested_at = Instant::now() + rest.min(BACK_MAX);
                room.rested_at = Some(room.rested_at.map_or(rested_at, |other| other.min(rested_at)));
                continue;
            }
            // The kinds of one work share its hands. A row that is one too many waits for the next that is free.
            let kinds = match self.pace.is_fixed {
                true => 1,
                false => u32::try_from(kind.work.kinds().len()).unwrap_or(u32::MAX),
            };
            let options = &kind.lane.options;
            match self.room(kind) {
                0 => room.is_full = true,
                free => room.wanted.push(Wanted {
                    kind: name.clone(),
                    room: free.div_ceil(kinds).min(self.pace.batch),
                    attempts_max: options.retry.attempts(),
                    lease: self.lease_of(options),
                    dead_make_room: options.dead_make_room,
                }),
            }
        }
        room
    }

    /// How many rows may be claimed for the work of a kind beside those that are held.
    fn room(&self, kind: &Kind<Db>) -> u32 {
        match self.pace.is_fixed {
            true => self.pace.batch.saturating_sub(kind.lane.held()),
            false => kind.lane.room(self.pace.batch.saturating_mul(BATCHES_HELD)),
        }
    }
}
