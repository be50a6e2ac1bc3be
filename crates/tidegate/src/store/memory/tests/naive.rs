//! The same store as it would be written without a thought for time or memory: a map of ledgers.

use std::collections::HashMap;

use super::*;
use crate::algorithm::{Ledger, Reading, State, Verdict, concurrency};
use crate::store::Change;

#[derive(Default)]
pub(super) struct Naive {
    records: HashMap<(u64, Key), Kept>,
}

struct Kept {
    ledger: Ledger,
    created_us: u64,
    charged_us: u64,
}

/// Whether a key is live, how much of its limit it had used when it was last charged, and when it ends.
type Worth = (bool, u64, u64);

impl Kept {
    fn worth(&self, now_us: u64) -> Worth {
        let end_us = self.ledger.meaningless_at_us().unwrap_or(u64::MAX);
        let pace = self.ledger.paces(self.charged_us)[0];
        let limit = pace.spec.capacity();
        let used = limit.saturating_sub(pace.reading.available).micros() * 255 / limit.micros();
        let is_bucket = matches!(pace.spec, Spec::TokenBucket(_));
        let is_live = end_us > now_us;
        (is_live, if is_bucket || !is_live { 0 } else { used }, end_us)
    }
}

impl Naive {
    pub(super) fn answer(&mut self, plan: &Plan) -> Answer {
        let verdict = |level: &Level| {
            self.ledger(level).evaluate(&level.spec, level.time_us(plan.now), level.cost)
        };
        let verdicts: Vec<Verdict> = plan.levels.iter().map(verdict).collect();
        let commits = plan.commits(&verdicts);
        let reply = |(level, verdict): (&Level, Verdict)| {
            let charged = commits && verdict == Verdict::Allowed && !level.cost.is_zero();
            let charged_at_us = if charged { self.charge(level, plan) } else { 0 };
            if verdict != Verdict::Allowed {
                self.open(level, plan.now);
            }
            let reading: Reading = self.ledger(level).reading(&level.spec, level.time_us(plan.now));
            Reply { verdict, charged, charged_at_us, reading }
        };
        Answer { now: plan.now, replies: plan.levels.iter().zip(verdicts).map(reply).collect() }
    }

    pub(super) fn amend(&mut self, amendment: &Amendment, now: Now) -> bool {
        let Amendment { level, charged_at_us, holder, change, .. } = amendment;
        let (place, now_us) = ((level.family, level.key), level.time_us(now));
        if *change == Change::Reset {
            return self.records.remove(&place).is_some();
        }
        if let Change::Debit(amount) = change {
            if matches!(level.spec, Spec::Concurrency(_)) {
                return false;
            }
            let kept = self.kept(level, now_us);
            kept.ledger.debit(&level.spec, now_us, *amount);
            kept.charged_us = kept.charged_us.max(now_us);
            self.let_go(level);
            return !amount.is_zero();
        }
        let Some(kept) = self.records.get_mut(&place) else { return false };
        if matches!(change, Change::Renew | Change::Release) {
            let Some((_, State::Concurrency(places))) = kept.ledger.only() else { return false };
            let is_its = |other: &&concurrency::Holder| other.id == *holder;
            let is_held =
                places.holders().iter().find(is_its).is_some_and(|place| place.expires_us > now_us);
            if *change == Change::Release {
                kept.ledger.release(*holder);
                self.let_go(level);
            } else {
                kept.ledger.renew(&level.spec, now_us, *holder);
            }
            return is_held;
        }
        if *charged_at_us < kept.created_us {
            return false;
        }
        match change {
            Change::Refund(amount) => {
                kept.ledger.refund(&level.spec, now_us, *charged_at_us, *amount);
            }
            Change::Surcharge(amount) => {
                kept.ledger.surcharge(&level.spec, now_us, *charged_at_us, *amount);
            }
            _ => {}
        }
        self.let_go(level);
        true
    }

    /// When each key of a limit ends, in no order.
    pub(super) fn ends_us(&self, family: u64) -> Vec<u64> {
        let of_family = self.records.iter().filter(|((of, _), _)| *of == family);
        of_family.map(|(_, kept)| kept.ledger.meaningless_at_us().unwrap_or(u64::MAX)).collect()
    }

    /// Whether there are as many keys as there may be and this one is new, so that one has to go.
    pub(super) fn lacks_room(&self, level: &Level, share: usize) -> bool {
        !self.records.contains_key(&(level.family, level.key)) && self.records.len() >= share
    }

    /// Lets go of the keys of a limit that are not among these; says how much each of them meant, and
    /// how much that meant which meant least.
    pub(super) fn keep(&mut self, family: u64, keys: &[Key], now_us: u64) -> (Vec<Worth>, Worth) {
        let least = self.records.values().map(|kept| kept.worth(now_us)).min().unwrap();
        let gone = self.records.extract_if(|(of, key), _| *of == family && !keys.contains(key));
        (gone.map(|(_, kept)| kept.worth(now_us)).collect(), least)
    }

    fn charge(&mut self, level: &Level, plan: &Plan) -> u64 {
        let now_us = level.time_us(plan.now);
        let kept = self.kept(level, now_us);
        kept.ledger.charge(&level.spec, now_us, plan.holder, level.cost);
        kept.charged_us = kept.charged_us.max(now_us);
        let charged_us = kept.charged_us;
        self.let_go(level);
        charged_us
    }

    fn open(&mut self, level: &Level, now: Now) {
        if let Some(kept) = self.records.get_mut(&(level.family, level.key))
            && !kept.ledger.has_pace_of(&level.spec)
        {
            kept.ledger.open(&level.spec, level.time_us(now));
        }
    }

    fn kept(&mut self, level: &Level, now_us: u64) -> &mut Kept {
        self.records.entry((level.family, level.key)).or_insert_with(|| Kept {
            ledger: Ledger::new(&level.spec).unwrap(),
            created_us: now_us,
            charged_us: now_us,
        })
    }

    fn ledger(&self, level: &Level) -> Ledger {
        let kept = self.records.get(&(level.family, level.key));
        kept.map_or_else(|| Ledger::new(&level.spec).unwrap(), |kept| kept.ledger.clone())
    }

    fn let_go(&mut self, level: &Level) {
        let place = (level.family, level.key);
        if self.records.get(&place).is_some_and(|kept| kept.ledger.meaningless_at_us() == Some(0)) {
            self.records.remove(&place);
        }
    }
}
