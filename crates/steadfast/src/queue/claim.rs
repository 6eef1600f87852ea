//! Claiming: which kinds there is room for, and what becomes of the rows that were found.
//!
//! A row whose lease has expired is found by the same look as one that is due, so there is no separate reclaiming: a
//! lease is the time until which others do not see the row. The attempt is counted by the claim, so a row that kills its
//! process runs out of attempts. It would take the rows that were worked on beside it along; so a row whose lease has
//! expired before is worked on while no other such row is.

use std::sync::Arc;

use super::engine::Engine;
use super::{Buried, Claim, Claimed, Wanted};
use crate::clock::random;
use crate::error::Result;
use crate::store::{Database, Store};
use crate::telemetry;

/// How many batches of a kind are held at once at the most: one that is worked on, and one that is on its way.
const BATCHES_HELD: u32 = 2;

/// What a claim leaves to be known.
pub(super) struct Found {
    pub(super) rows: Vec<Claimed>,
    /// Whether there may be more that could be claimed, were there room.
    pub(super) is_full: bool,
    /// Whether more can be claimed at once.
    pub(super) has_more: bool,
}

impl<Db: Database> Engine<Db> {
    /// Claims what there is room for.
    pub(super) async fn claim(&mut self) -> Result<Found> {
        let wanted = self.wanted();
        if wanted.is_empty() {
            self.next_in = None;
            return Ok(Found {
                rows: Vec::new(),
                is_full: true,
                has_more: false,
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
        let sf = self.sf.clone();
        let claims = self
            .ask("claim rows", async |link| {
                sf.store().claim(link, &claim, sf.clock().ahead()).await
            })
            .await;
        let claims = match claims {
            Ok(claims) => claims,
            Err(error) => {
                // Nobody else looks at these chains soon.
                self.freed = freed;
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
        let has_full_kinds = wanted.len() < self.works.len();
        let is_full =
            has_full_kinds || claims.looked_at >= wanted.iter().map(|wanted| wanted.room).min().unwrap_or(0) as usize;
        // Rows that had to wait took the place of others.
        let made_room = is_full && claims.waiting > 0 && claims.rows.len() < room as usize;
        if made_room {
            self.park(&wanted).await;
        }
        Ok(Found {
            has_more: has_buried || made_room || self.can_go_on(&wanted, &claims.rows),
            rows: claims.rows,
            is_full,
        })
    }

    /// Puts off what has others ahead of it, beyond what a claim has room for. What fails is done by later claims, only slower.
    async fn park(&mut self, wanted: &[Wanted]) {
        let sf = self.sf.clone();
        for wanted in wanted {
            let parking = self.ask("park rows", async |link| {
                let offset = sf.clock().ahead();
                sf.store().park(link, &wanted.kind, wanted.lease, offset).await
            });
            if let Err(error) = parking.await {
                telemetry::not_parked(&error);
            }
        }
    }

    /// Whether a kind had as many rows as were asked for, and there is room for more: the next are claimed while these are
    /// worked on.
    fn can_go_on(&self, wanted: &[Wanted], claimed: &[Claimed]) -> bool {
        wanted.iter().any(|wanted| {
            let claimed = claimed.iter().filter(|row| row.lease.kind == wanted.kind).count();
            claimed == wanted.room as usize && wanted.room < self.room(&wanted.kind)
        })
    }

    /// The kinds that there is room for.
    fn wanted(&self) -> Vec<Wanted> {
        let wanted = self.works.iter().map(|(kind, work)| {
            let options = work.options();
            Wanted {
                kind: kind.clone(),
                room: self.room(kind).min(self.pace.batch),
                attempts_max: options.retry.attempts(),
                lease: self.lease_of(options),
                dead_make_room: options.dead_make_room,
            }
        });
        wanted.filter(|wanted| wanted.room > 0).collect()
    }

    /// How many rows of a kind may be claimed beside those that are held.
    fn room(&self, kind: &Arc<str>) -> u32 {
        let (Some(work), Some(lane)) = (self.works.get(kind), self.lanes.get(kind)) else {
            return 0;
        };
        let held_max = match self.pace.is_fixed {
            true => self.pace.batch,
            false => self.pace.batch.saturating_mul(BATCHES_HELD),
        };
        let in_flight = self.in_flight.get(kind).copied().unwrap_or(0);
        lane.room(work.options(), held_max).saturating_sub(in_flight)
    }
}
