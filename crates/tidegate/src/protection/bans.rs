//! The precheck's question: is this request's subject banned?

use crate::clock::Now;
use crate::context::Context;
use crate::identity::canonical;
use crate::key::{HashKey, Key};
use crate::policy::Policy;
use crate::policy::model::Part;
use crate::policy::protection::Step;
use crate::protection::marks::{Mark, MarkKeys, MarkKind, Marks, SubjectKind};

/// The subjects that a request of a policy may be banned by: its user, client, address and networks, and
/// the other parts that the policy's penalties ban by.
#[derive(Debug)]
pub(crate) struct BanLookups(Vec<BanLookup>);

#[derive(Debug)]
struct BanLookup {
    kind: SubjectKind,
    /// In all policies, or in the request's own.
    everywhere: bool,
    keys: MarkKeys,
}

impl BanLookups {
    pub(crate) fn new(secret: &HashKey, policy: &Policy) -> Self {
        let mut lookups = Self(Vec::new());
        lookups.add(secret, policy, SubjectKind::User, &[Part::User]);
        lookups.add(secret, policy, SubjectKind::Client, &[Part::Client]);
        lookups.add(secret, policy, SubjectKind::Ip, &[Part::Ip]);
        lookups.add(secret, policy, SubjectKind::Network, &[]);
        let bans = |step: &Step| step.ban.as_ref().is_some_and(|ban| ban.by.is_none());
        let protection = &policy.protection;
        let penalties = protection.penalties.iter().filter(|one| one.ladder.iter().any(bans));
        let ratios = protection.ratios.iter().filter(|one| one.then.as_ref().is_some_and(bans));
        for by in penalties.map(|one| &one.by).chain(ratios.map(|one| &one.by)) {
            lookups.add_other(secret, policy, by);
        }
        lookups
    }

    /// The ban of a request; of several, the one that ends last.
    #[inline]
    pub(crate) fn find(&self, marks: &Marks, context: &Context<'_>, now: Now) -> Option<Mark> {
        if marks.count(MarkKind::Ban) == 0 {
            return None;
        }
        self.find_among(marks, context, now)
    }

    fn find_among(&self, marks: &Marks, context: &Context<'_>, now: Now) -> Option<Mark> {
        marks.drop_expired_bans(now);
        let mut longest: Option<Mark> = None;
        let mut look_up = |id: Key| {
            let end = |ban: &Mark| ban.until_unix_us.unwrap_or(u64::MAX);
            let ban = marks.get(MarkKind::Ban, id, now);
            if ban
                .as_ref()
                .is_some_and(|ban| longest.as_ref().is_none_or(|one| end(ban) > end(one)))
            {
                longest = ban;
            }
        };
        for BanLookup { kind, everywhere, keys } in &self.0 {
            if !marks.has_bans(*kind, *everywhere) {
                continue;
            }
            if *kind != SubjectKind::Network {
                keys.id(context).into_iter().for_each(&mut look_up);
            } else if let Some(ip) = context.address.map(canonical) {
                let lengths = marks.banned_prefix_lengths(ip);
                lengths.for_each(|length| look_up(keys.network_id(ip, length)));
            }
        }
        unreadable_ids(marks, context).for_each(look_up);
        longest
    }

    /// The parts by which requests that cannot be read are banned, if there are such bans.
    pub(crate) fn unreadable_parts<'p>(
        policy: &'p Policy,
        marks: &Marks,
    ) -> impl Iterator<Item = &'p [Part]> {
        let has_bans = marks.has_bans(SubjectKind::Unreadable, false);
        let penalties = policy.protection.penalties.iter().filter(move |_| has_bans);
        penalties.filter(|one| one.may_ban_unreadable(policy)).map(|one| &*one.by)
    }

    /// The parts of the subjects that are no user, client, address or network.
    pub(crate) fn other_parts(&self) -> impl Iterator<Item = &[Part]> {
        let others = self.0.iter().filter(|lookup| lookup.kind == SubjectKind::Other);
        others.filter(|lookup| !lookup.everywhere).map(|lookup| &*lookup.keys.by)
    }

    /// The same, if there are bans on such subjects.
    pub(crate) fn other_parts_with_bans(&self, marks: &Marks) -> impl Iterator<Item = &[Part]> {
        let has_bans = [false, true].iter().any(|all| marks.has_bans(SubjectKind::Other, *all));
        self.other_parts().filter(move |_| has_bans)
    }

    /// Whether a request may be banned by a subject of these parts.
    pub(crate) fn covers(&self, names: &[&str], policy: &Policy) -> bool {
        matches!(names, ["user" | "client" | "ip" | "network"])
            || self.other_parts().any(|by| {
                by.len() == names.len()
                    && by.iter().zip(names).all(|(part, name)| part.name(policy) == *name)
            })
    }

    /// Keeps the bans by parts that only the policy before a reload banned by, if the new policy knows
    /// their attributes.
    pub(crate) fn keep_bans(
        &mut self,
        secret: &HashKey,
        policy: &Policy,
        marks: &Marks,
        before: &Self,
        policy_before: &Policy,
    ) {
        let same_part = |part: &Part| match part {
            Part::Attribute(_) => {
                let id = policy.attribute_names.id(&part.name(policy_before))?;
                Some(Part::Attribute(id))
            }
            Part::Row { .. } => None,
            other => Some(other.clone()),
        };
        for by in before.other_parts_with_bans(marks) {
            if let Some(by) = by.iter().map(same_part).collect::<Option<Vec<Part>>>() {
                self.add_other(secret, policy, &by);
            }
        }
    }

    fn add_other(&mut self, secret: &HashKey, policy: &Policy, by: &[Part]) {
        if SubjectKind::of(by) == SubjectKind::Other && self.other_parts().all(|known| known != by)
        {
            self.add(secret, policy, SubjectKind::Other, by);
        }
    }

    fn add(&mut self, secret: &HashKey, policy: &Policy, kind: SubjectKind, by: &[Part]) {
        for scope in [Some(&*policy.name), None] {
            let keys = MarkKeys::new(secret, MarkKind::Ban, scope, None, by, policy);
            self.0.push(BanLookup { kind, everywhere: scope.is_none(), keys });
        }
    }
}

/// The ids of the bans that refuse a request because a part of it cannot be read.
fn unreadable_ids(marks: &Marks, context: &Context<'_>) -> impl Iterator<Item = Key> {
    let has_bans = marks.has_bans(SubjectKind::Unreadable, false);
    let policy = context.policy();
    let penalties = policy.protection.penalties.iter().filter(move |_| has_bans);
    penalties.filter(|penalty| penalty.bans_unreadable(context)).filter_map(|penalty| {
        let subject = penalty.unreadable_subject(context)?;
        Some(marks.id_of(MarkKind::Ban, Some(&policy.name), None, &subject))
    })
}
