//! How the room of a lane is divided among its kinds, and how what a queue may begin is.
//!
//! Nobody knows before a look how many rows there are of which kind. Whoever had as many as were asked for is *hungry*: there may be
//! more. The hungry share the room by their weights, turn by turn, so that none is kept out for ever, however much there is of the
//! others. The rest is asked for a single row, to find out.
//!
//! A queue may begin fewer than that, which only the database knows. There each row has a place by the [`Turns`] of its kind, and the
//! first ones begin.

/// What was asked of a kind, and what that came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// Whether it had as many rows as it was asked for.
    is_hungry: bool,
    /// How much it has had, the less the more it weighs: the one with the least has the next turn.
    had: i64,
}

/// When a kind has its turns: its first row comes at `from + step`, and each other one a step later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    pub(crate) from: i64,
    pub(crate) step: i64,
}

/// A kind that wants a part of the room.
pub(super) struct Guest {
    pub(super) demand: Demand,
    pub(super) weight: u32,
    pub(super) is_rare: bool,
    /// What it is given.
    pub(super) room: u32,
}

/// What a row costs a kind that weighs one.
const STEP: i64 = 1 << 20;

/// Into how many turns the room is divided at the most: finer shares would only take longer.
const TURNS_MAX: u32 = 64;

/// Divides the room. Each gets something, which may be a row more in all than there is room for; such a row waits.
pub(super) fn share(room: u32, guests: &mut [Guest]) {
    let someone_is_hungry = guests.iter().any(|guest| guest.demand.is_hungry);
    let is_first = |guest: &Guest| match someone_is_hungry {
        true => guest.demand.is_hungry,
        false => !guest.is_rare,
    };
    let mut first = Vec::new();
    for guest in guests {
        match is_first(guest) {
            true => first.push((guest.demand.turns(guest.weight, 0), guest)),
            false => guest.room = 1,
        }
    }
    let turn = room.div_ceil(TURNS_MAX).max(1);
    let mut left = room;
    while left > 0
        && let Some((turns, guest)) = first.iter_mut().min_by_key(|(turns, _)| turns.next())
    {
        let given = turn.min(left);
        turns.take(given);
        guest.room += given;
        left -= given;
    }
}

fn step(weight: u32) -> i64 {
    STEP / i64::from(weight.max(1))
}

impl Turns {
    /// When the next one is.
    pub(crate) fn next(&self) -> i64 {
        self.from.saturating_add(self.step)
    }

    /// Has so many of them.
    pub(crate) fn take(&mut self, count: u32) {
        self.from = self.from.saturating_add(self.step.saturating_mul(count.into()));
    }
}

impl Demand {
    /// When its turns are, after those that somebody has had who has had the least.
    pub(super) fn turns(&self, weight: u32, least_had: i64) -> Turns {
        Turns {
            from: if self.is_hungry {
                self.had.saturating_sub(least_had)
            } else {
                0
            },
            step: step(weight),
        }
    }

    /// Takes note of what was found, beside others that share the same hands: who was not hungry before begins where they are. It does
    /// not make up for what it never wanted, and what it had in its time is no debt, but for its last turn.
    pub(super) fn note(&mut self, is_hungry: bool, weight: u32, least_had: i64) {
        if is_hungry && !self.is_hungry {
            self.had = self.had.clamp(least_had, least_had.saturating_add(step(weight)));
        }
        self.is_hungry = is_hungry;
    }

    /// It has had so many rows.
    pub(super) fn has_had(&mut self, rows: u32, weight: u32) {
        let mut turns = Turns {
            from: self.had,
            ..self.turns(weight, 0)
        };
        turns.take(rows);
        self.had = turns.from;
    }

    /// What it has had, if it is hungry.
    pub(super) fn had(&self) -> Option<i64> {
        self.is_hungry.then_some(self.had)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUNGRY: Demand = Demand {
        is_hungry: true,
        had: 0,
    };

    /// Shares so much room so often among kinds of these weights, all hungry, and says what each got.
    fn shares<const N: usize>(room: u32, times: u32, weights: [u32; N]) -> [u32; N] {
        let mut demands = [HUNGRY; N];
        let mut sums = [0; N];
        for _ in 0..times {
            let mut guests = Vec::new();
            for (&demand, weight) in demands.iter().zip(weights) {
                guests.push(Guest {
                    demand,
                    weight,
                    is_rare: false,
                    room: 0,
                });
            }
            share(room, &mut guests);
            for ((sum, demand), guest) in sums.iter_mut().zip(&mut demands).zip(guests) {
                *sum += guest.room;
                demand.has_had(guest.room, guest.weight);
            }
        }
        sums
    }

    #[test]
    fn the_hungry_have_their_turns_by_their_weights_whatever_the_room() {
        assert_eq!(shares(1, 210, [16, 4, 1]), [160, 40, 10]);
        assert_eq!(shares(21, 10, [16, 4, 1]), [160, 40, 10]);
        let [high, normal, low] = shares(1_500, 100, [16, 4, 1]);
        assert_eq!(high + normal + low, 150_000);
        assert!(low >= 7_000 && normal >= 28_000, "{high}, {normal}, {low}");
        assert_eq!(shares(10, 3, [1]), [30], "one alone has all of it");
    }

    #[test]
    fn who_wants_nothing_is_asked_for_one() {
        let mut demands = [Demand::default(); 3];
        let mut rooms = |hungry: Option<usize>| {
            let mut guests = Vec::new();
            for (place, (demand, is_rare)) in demands.iter_mut().zip([true, false, true]).enumerate() {
                demand.note(hungry == Some(place), 1, 0);
                guests.push(Guest {
                    demand: *demand,
                    weight: 1,
                    is_rare,
                    room: 0,
                });
            }
            share(64, &mut guests);
            guests.iter().map(|guest| guest.room).collect::<Vec<_>>()
        };
        assert_eq!(rooms(None), [1, 64, 1], "what is not rare may be there");
        assert_eq!(rooms(Some(0)), [64, 1, 1], "there is more of the first");
        assert_eq!(rooms(Some(1)), [1, 64, 1]);
    }

    #[test]
    fn who_comes_late_does_not_make_up_for_it() {
        let mut demand = Demand::default();
        demand.note(true, 1, 7 * STEP);
        assert_eq!(demand.had(), Some(7 * STEP));
        demand.note(true, 1, 9 * STEP);
        assert_eq!(demand.had(), Some(7 * STEP), "it was hungry all the time");
        demand.note(false, 1, 0);
        assert_eq!(demand.had(), None);
    }

    #[test]
    fn what_somebody_had_long_ago_is_no_debt() {
        let mut urgent = Demand::default();
        urgent.has_had(160_000, 16);
        let mut demands = [Demand::default(), urgent];
        let weights = [4, 16];
        let mut sums = [0, 0];
        for _ in 0..30 {
            let hungry = demands.iter().filter_map(Demand::had).min().unwrap_or_default();
            for (demand, weight) in demands.iter_mut().zip(weights) {
                demand.note(true, weight, hungry);
            }
            let guests = demands.iter().zip(weights).map(|(&demand, weight)| Guest {
                demand,
                weight,
                is_rare: false,
                room: 0,
            });
            let mut guests: Vec<_> = guests.collect();
            share(1, &mut guests);
            for ((sum, demand), guest) in sums.iter_mut().zip(&mut demands).zip(guests) {
                *sum += guest.room;
                demand.has_had(guest.room, guest.weight);
            }
        }
        assert_eq!(sums, [6, 24], "they share from the beginning on");
    }
}
