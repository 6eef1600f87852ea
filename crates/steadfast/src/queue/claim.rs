//! Claiming: which kinds there is room for, and what becomes of the rows that were found.
//!
//! A row whose lease has expired is found by the same look as one that is due, so there is no separate reclaiming: a
//! lease is the time until which others do not see the row. The attempt is counted by the claim, so a row that kills its
//! process runs out of attempts. It would take the rows that were worked on beside it along; so a row whose lease has
//! expired before is worked on while no other such row is.

use std::sync::Arc;

use super::engine::Engine;
use super::{Buried, Claim, Claimed, Wanted, WorkOptions};
use crate::clock::random;
use crate::error::Result;
use crate::store::{Database, Store};
use crate::telemetry;

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
        Ok(Found {
            // Rows that had to wait took the place of others.
            has_more: has_buried
                || (is_full && claims.rows.len() < room as usize && claims.looked_at > claims.rows.len()),
            rows: claims.rows,
            is_full,
        })
    }

    /// The kinds that there is room for.
    fn wanted(&self) -> Vec<Wanted> {
        let room = |kind: &Arc<str>, options: &WorkOptions| {
            let in_flight = self.in_flight.get(kind).copied().unwrap_or(0);
            let lane = self.lanes.get(kind);
            let room = lane.map_or(0, |lane| lane.room(options, self.pace.batch));
            self.pace.batch.min(room.saturating_sub(in_flight))
        };
        let wanted = self.works.iter().map(|(kind, work)| {
            let options = work.options();
            Wanted {
                kind: kind.clone(),
                room: room(kind, options),
                attempts_max: options.retry.attempts(),
                lease: self.lease_of(options),
                dead_make_room: options.dead_make_room,
            }
        });
        wanted.filter(|wanted| wanted.room > 0).collect()
    }
}
