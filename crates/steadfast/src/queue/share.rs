//! How the room of a lane is divided among its kinds.
//!
//! Nobody knows before a look how many rows there are of which kind. Whoever had as many as were asked for is *hungry*: there may be
//! more. The hungry share the room by their weights, turn by turn, so that none is kept out for ever, however much there is of the
//! others. The rest is asked for a single row, to find out.

/// What was asked of a kind, and what that came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// Whether it had as many rows as it was asked for.
    is_hungry: bool,
    /// How much it has been given, the less the more it weighs: the one with the least has the next turn.
    given: u64,
}

/// A kind that wants a part of the room.
pub(super) struct Guest<'d> {
    pub(super) demand: &'d mut Demand,
    pub(super) weight: u32,
    pub(super) is_rare: bool,
    /// What it is given.
    pub(super) room: u32,
}

/// What a turn costs a kind that weighs one.
const TURN: u64 = 1 << 20;

/// Into how many turns the room is divided at the most: finer shares would only take longer.
const TURNS_MAX: u32 = 64;

/// Divides the room. Each gets something, which may be a row more in all than there is room for; such a row waits.
pub(super) fn share(room: u32, guests: &mut [Guest<'_>]) {
    let is_first = |guest: &Guest<'_>, someone_is_hungry: bool| match someone_is_hungry {
        true => guest.demand.is_hungry,
        false => !guest.is_rare,
    };
    let someone_is_hungry = guests.iter().any(|guest| guest.demand.is_hungry);
    let (mut first, rest): (Vec<_>, Vec<_>) = guests.iter_mut().partition(|guest| is_first(guest, someone_is_hungry));
    for guest in rest {
        guest.room = 1;
    }
    let turn = room.div_ceil(TURNS_MAX).max(1);
    let mut left = room;
    while left > 0
        && let Some(next) = first.iter_mut().min_by_key(|guest| guest.demand.given)
    {
        let given = turn.min(left);
        next.room += given;
        next.demand.given += TURN * u64::from(given) / u64::from(next.weight.max(1));
        left -= given;
    }
}

impl Demand {
    /// Takes note of what was found, beside others that share the same hands: who was not hungry before begins where they are, and
    /// does not make up for what it never wanted.
    pub(super) fn note(&mut self, is_hungry: bool, least_given: u64) {
        if is_hungry && !self.is_hungry {
            self.given = self.given.max(least_given);
        }
        self.is_hungry = is_hungry;
    }

    /// What it has been given, if it is hungry.
    pub(super) fn given(&self) -> Option<u64> {
        self.is_hungry.then_some(self.given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares so much room so often among kinds of these weights, all hungry, and says what each got.
    fn shares<const N: usize>(room: u32, times: u32, weights: [u32; N]) -> [u32; N] {
        let mut demands = [Demand {
            is_hungry: true,
            given: 0,
        }; N];
        let mut sums = [0; N];
        for _ in 0..times {
            let mut guests: Vec<_> = demands
                .iter_mut()
                .zip(weights)
                .map(|(demand, weight)| Guest {
                    demand,
                    weight,
                    is_rare: false,
                    room: 0,
                })
                .collect();
            share(room, &mut guests);
            for (sum, guest) in sums.iter_mut().zip(guests) {
                *sum += guest.room;
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
            for (place, demand) in demands.iter_mut().enumerate() {
                demand.note(hungry == Some(place), 0);
            }
            let mut guests: Vec<_> = demands
                .iter_mut()
                .zip([true, false, true])
                .map(|(demand, is_rare)| Guest {
                    demand,
                    weight: 1,
                    is_rare,
                    room: 0,
                })
                .collect();
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
        demand.note(true, 7 * TURN);
        assert_eq!(demand.given(), Some(7 * TURN));
        demand.note(true, 9 * TURN);
        assert_eq!(demand.given(), Some(7 * TURN), "it was hungry all the time");
        demand.note(false, 0);
        assert_eq!(demand.given(), None);
    }
}
