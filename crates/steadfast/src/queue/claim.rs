//! Claiming: which kinds there is room for, and what becomes of the rows that were found.
//!
//! A row whose lease has expired is found by the same look as one that is due, so there is no separate reclaiming: a
//! lease is the time until which others pass the row by. The attempt is counted by the claim, so a row that kills its
//! process runs out of attempts. It would take the rows that were worked on beside it along; so a row whose lease has
//! expired before is worked on while no other such row is.

use std::sync::Arc;
use std::time::Instant;

use super::engine::Engine;
use super::line::{Line, Meanwhile};
use super::{Buried, Claim, Claimed, Claims, Wanted};
use crate::clock::random;
use crate::error::Result;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::telemetry;

/// How many batches of a kind are held at once at the most: one that is worked on, and one that is on its way.
const BATCHES_HELD: u32 = 2;

/// What a claim leaves to be known.
pub(super) struct Found {
    pub(super) rows: Vec<Claimed>,
    /// Before the database was asked: its leases begin later.
    pub(super) asked_at: Instant,
    /// Whether there may be more that could be claimed, were there room.
    pub(super) is_full: bool,
    /// Whether more can be claimed at once.
    pub(super) has_more: bool,
}

impl Found {
    pub(super) fn no_room() -> Self {
        Self {
            rows: Vec::new(),
            asked_at: Instant::now(),
            is_full: true,
            has_more: false,
        }
    }
}

/// A claim that is about to be made.
pub(super) struct Plan {
    wanted: Vec<Wanted>,
    freed: Vec<Arc<str>>,
    takes_suspect: bool,
    token: i64,
    asked_at: Instant,
}

impl Plan {
    pub(super) async fn ask<Db: Database>(
        &self,
        line: &mut Line<Db>,
        sf: &Steadfast<Db>,
        holder: &str,
        meanwhile: Meanwhile<'_>,
    ) -> Result<Claims> {
        let claim = Claim {
            wanted: &self.wanted,
            freed: &self.freed,
            takes_suspect: self.takes_suspect,
            token: self.token,
            holder,
        };
        let offset = sf.clock().ahead();
        let asking = async |store: &Db::Store, link: &mut _| store.claim(link, &claim, offset).await;
        line.ask("claim rows", meanwhile, asking).await
    }
}

impl<Db: Database> Engine<Db> {
    /// Claims what there is room for.
    pub(super) async fn claim(&mut self) -> Result<Found> {
        let Some(plan) = self.plan_claim() else {
            return Ok(Found::no_room());
        };
        let meanwhile = Meanwhile::new(&self.held, self.pace.lease);
        let claims = plan.ask(&mut self.line, &self.sf, &self.holder, meanwhile).await;
        self.take_claims(plan, claims).await
    }

    /// What to claim; `None`: there is room for nothing.
    pub(super) fn plan_claim(&mut self) -> Option<Plan> {
        let wanted = self.wanted();
        if wanted.is_empty() {
            self.next_in = None;
            return None;
        }
        let mut freed = std::mem::take(&mut self.freed);
        // Two who wait for the same rows do so in the same order.
        freed.sort_unstable();
        freed.dedup();
        Some(Plan {
            wanted,
            freed,
            takes_suspect: !self.held.values().any(|held| held.claimed.is_suspect),
            token: (random() >> 1).cast_signed(),
            asked_at: Instant::now(),
        })
    }

    /// Takes note of what was claimed.
    pub(super) async fn take_claims(&mut self, plan: Plan, claims: Result<Claims>) -> Result<Found> {
        let Plan {
            wanted,
            freed,
            asked_at,
            ..
        } = plan;
        let claims = match claims {
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
            asked_at,
            is_full,
        })
    }

    /// Puts off what has others ahead of it, beyond what a claim has room for. What fails is done by later claims, only slower.
    async fn park(&mut self, wanted: &[Wanted]) {
        let offset = self.sf.clock().ahead();
        for Wanted { kind, lease, .. } in wanted {
            let parking = self.ask("park rows", async |store, link| {
                store.park(link, kind, *lease, offset).await
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
