//! The protection of a policy, as it is written: events, penalties, ratios, factors, challenges,
//! notices.

use std::time::Duration;

use super::Policy;
use super::model::{AttributeId, Missing, Part};
use super::names::Names;
use super::when::When;
use crate::decision::Outcome;
use crate::key::Template;
use crate::policy::message::MessageTemplate;
use crate::units::Amount;

/// The index of an event; the built-in events come first.
pub(crate) type EventId = u16;

/// The events that every policy has, in the order of their ids.
pub(crate) const BUILT_IN_EVENTS: [&str; 4] = ["limited", "blocked", "banned", "challenge_failed"];

/// One, in millionths: factors and shares are written so.
pub(crate) const PPM: u64 = 1_000_000;
/// How far the load must fall below the bound of a load factor to end it.
pub(crate) const LOAD_LOWER_PPM: u64 = 100_000;

/// All sections that protect.
#[derive(Debug, Default)]
pub(crate) struct Protection {
    /// The built-in events, then those of the policy.
    pub(crate) event_names: Names,
    /// By the id of the event.
    pub(crate) events: Vec<Event>,
    pub(crate) penalties: Vec<Penalty>,
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) factors: Vec<Factor>,
    pub(crate) challenge: Option<Challenge>,
    pub(crate) webhooks: Vec<Webhook>,
}

/// Something that happens to a subject: an application reports it, an answer shows it, or a decision
/// makes it.
#[derive(Debug, Default)]
pub(crate) struct Event {
    /// The requests that may make the event. A reported event ignores it.
    pub(crate) when: When,
    /// The statuses of answers that make the event.
    pub(crate) statuses: Vec<Statuses>,
    /// The outcome of a decision that makes the event.
    pub(crate) outcome: Option<Outcome>,
    /// The indices of the limits whose violation makes the event; any limit without them.
    pub(crate) limits: Option<Vec<u16>>,
    /// The attribute that ratios sum; 1 without it.
    pub(crate) value: Option<AttributeId>,
}

/// HTTP statuses from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Statuses {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

/// A penalty: which events are counted, within which span, and the steps that the count climbs.
#[derive(Debug)]
pub(crate) struct Penalty {
    pub(crate) name: String,
    pub(crate) events: Vec<EventId>,
    pub(crate) by: Vec<Part>,
    pub(crate) within_us: u64,
    pub(crate) forgive: Vec<EventId>,
    /// Rising by the count; never empty.
    pub(crate) ladder: Vec<Step>,
    /// What becomes of a request without a part of `by`. Without it, a part that cannot be read is
    /// refused, and a request that lacks one is not counted.
    pub(crate) missing: Option<Missing>,
    /// The template of the count's name in a store that has names.
    pub(crate) key: Option<Template>,
}

/// What happens from a count on.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) from: u32,
    /// Grace: the violation passes, with a warning.
    pub(crate) allow: bool,
    pub(crate) delay_us: u64,
    pub(crate) warn: Option<String>,
    pub(crate) challenge: bool,
    pub(crate) ban: Option<Ban>,
    pub(crate) flag: Option<String>,
    /// The indices of webhooks.
    pub(crate) notify: Vec<usize>,
}

/// The ban of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ban {
    pub(crate) for_us: u64,
    /// The subject; without it, the subject of the count.
    pub(crate) by: Option<BanBy>,
}

/// A subject of a ban other than that of the count. Its debug format is hashed into keys: see
/// `Step::label`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BanBy {
    User,
    Client,
    Ip,
    /// The network of the address.
    Network {
        v4_bits: u8,
        v6_bits: u8,
    },
}

/// The share that one event has of another.
#[derive(Debug)]
pub(crate) struct Ratio {
    pub(crate) name: String,
    pub(crate) of: EventId,
    pub(crate) to: EventId,
    pub(crate) by: Vec<Part>,
    pub(crate) within_us: u64,
    /// With fewer events of `to` the ratio means nothing.
    pub(crate) at_least: u32,
    /// Above this share, in millionths, `then` applies.
    pub(crate) above_ppm: Option<u64>,
    pub(crate) then: Option<Step>,
}

/// A factor makes limits larger or smaller.
#[derive(Debug)]
pub(crate) struct Factor {
    pub(crate) name: String,
    pub(crate) when: When,
    pub(crate) kind: FactorKind,
}

#[derive(Debug)]
pub(crate) enum FactorKind {
    /// Applies whenever `when` holds.
    Fixed { times_ppm: u64 },
    /// Applies while the load is above this share, in millionths. Ten points lower ends it.
    Load { above_ppm: u64, times_ppm: u64 },
    /// Moves step by step within a range, for each subject.
    Behaviour(Behaviour),
}

#[derive(Debug)]
pub(crate) struct Behaviour {
    pub(crate) by: Vec<Part>,
    pub(crate) good: Vec<RatioCondition>,
    pub(crate) step_ppm: u64,
    pub(crate) every_us: u64,
    pub(crate) lowest_ppm: u64,
    pub(crate) highest_ppm: u64,
}

/// A condition on a ratio: `cancel-rate < 90%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RatioCondition {
    /// The index of the ratio.
    pub(crate) ratio: usize,
    pub(crate) comparison: Comparison,
    pub(crate) share_ppm: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Below,
    AtMost,
    Above,
    AtLeast,
}

/// What a challenged client must do, and for how long it then passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// What the client must do.
    pub kind: ChallengeKind,
    /// How long a pass is valid, in microseconds.
    pub pass: Duration,
}

/// What a challenge asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChallengeKind {
    /// Find a number whose hash begins with zero bits.
    ProofOfWork {
        /// How many zero bits.
        difficulty: u8,
    },
    /// Get a token of a CAPTCHA service.
    Captcha {
        /// The service's siteverify address.
        verify_url: String,
        /// The operator's secret at the service.
        secret: Secret,
        /// The operator's public key at the service.
        site_key: Option<String>,
        /// The service's script.
        script_url: Option<String>,
    },
}

/// A secret that a policy names. Its debug format does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(secret: String) -> Self {
        Self(secret)
    }

    /// The secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A receiver of notices.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Its name in the policy.
    pub name: String,
    /// The address that messages are sent to.
    pub url: String,
    /// The secret that signs the messages.
    pub secret: Option<String>,
    /// True if messages say who it is, and not a keyed hash.
    pub identities: bool,
    /// The body of its messages, instead of the documented one.
    pub body: Option<MessageTemplate>,
}

impl std::fmt::Debug for Webhook {
    /// The address of a webhook is a secret too.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Policy {
    /// How clients are challenged; `None` if nothing in the policy challenges.
    #[must_use]
    pub fn challenge(&self) -> Option<&Challenge> {
        self.protection.challenge.as_ref()
    }

    /// The receivers of its notices.
    #[must_use]
    pub fn webhooks(&self) -> &[Webhook] {
        &self.protection.webhooks
    }

    /// The names of its ratios.
    pub fn ratios(&self) -> impl Iterator<Item = &str> {
        self.protection.ratios.iter().map(|ratio| &*ratio.name)
    }

    /// The names of its events, the built-in ones first.
    pub fn events(&self) -> impl Iterator<Item = &str> {
        self.protection.event_names.iter()
    }
}

/// `10%`, in millionths.
pub(crate) fn percent_ppm(text: &str, percent_max: u64) -> Option<u64> {
    let percent = Amount::parse(text.strip_suffix('%')?).ok()?;
    let ppm = percent.micros() / 100;
    (ppm <= percent_max * PPM / 100).then_some(ppm)
}

impl Statuses {
    pub(crate) const fn contains(self, status: u16) -> bool {
        self.first <= status && status <= self.last
    }
}

impl Protection {
    /// The parts of all subjects.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        let penalties = self.penalties.iter().flat_map(|penalty| &penalty.by);
        let ratios = self.ratios.iter().flat_map(|ratio| &ratio.by);
        penalties.chain(ratios).chain(self.factors.iter().flat_map(Factor::by))
    }

    /// The steps of all ladders and ratios.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        let ladders = self.penalties.iter().flat_map(|penalty| &penalty.ladder);
        ladders.chain(self.ratios.iter().filter_map(|ratio| ratio.then.as_ref()))
    }

    /// Nothing but the built-in events.
    pub(crate) fn none() -> Self {
        let outcomes =
            [Some(Outcome::Limited), Some(Outcome::Blocked), Some(Outcome::Banned), None];
        let built_in = |outcome| Event { outcome, ..Event::default() };
        Self {
            event_names: BUILT_IN_EVENTS.into_iter().collect(),
            events: outcomes.map(built_in).into(),
            ..Self::default()
        }
    }
}

impl Factor {
    /// The parts of the subjects whose behaviour the factor follows; none if it follows no behaviour.
    pub(crate) fn by(&self) -> &[Part] {
        match &self.kind {
            FactorKind::Behaviour(behaviour) => &behaviour.by,
            FactorKind::Fixed { .. } | FactorKind::Load { .. } => &[],
        }
    }
}

impl Penalty {
    /// The step that applies at a count, if one does.
    pub(crate) fn step_at(&self, count: u64) -> Option<&Step> {
        self.ladder.iter().rev().find(|step| u64::from(step.from) <= count)
    }

    /// The count of the highest step: more events need not be told apart.
    pub(crate) fn highest(&self) -> u32 {
        self.ladder.last().map_or(1, |step| step.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Options;
    use crate::policy::model::Exceed;
    use crate::units::SECOND_US;

    const POLICY: &str = r#"
tidegate: 1
name: shop
identity: { attributes: { email: { body: /email, fold: true }, notional: given } }
operations: { login: POST /login, book: "POST /rooms/{room}/bookings" }
block: { countries: [kp] }
limits:
  a: { when: login, by: ip, sliding_window: 5/min }
  b: { by: user, sliding_window: 5/min, exceed: challenge }
  c: { by: user, total: 5 }
  d: { by: user, sliding_window: 100/min, cost: notional }
  e: { by: user, sliding_window: 100/min, cost: notional, scaled: true }
events:
  auth_failure: { when: login, status: [401, 4xx] }
  auth_success: { when: login, status: 2xx }
  rate_hit: { outcome: limited, limit: [a, c] }
  booked: { when: book, status: 2xx }
  order: { value: notional }
  cancel: {}
penalties:
  brute-force:
    event: auth_failure
    by: email
    within: 15min
    forgive: auth_success
    ladder:
      11: { ban: 15min, notify: [security] }
      4: { delay: 2s }
      6: { delay: 5s, warn: captcha }
  rooms: { event: booked, by: room, within: 1h, ladder: { 9: { ban: { for: 1h, by: network } } } }
ratios:
  cancel-rate: { of: cancel, to: order, by: user, within: 1day, at_least: 50 }
  wash: { of: cancel, to: order, by: user, within: 1day, above: 10.5%, then: { flag: wash } }
factors:
  makers: { when: { ip: [198.51.100.0/24] }, times: 10 }
  overload: { load_above: 80%, times: 0.5 }
  behaviour: { by: user, good: [wash < 90%, cancel-rate >= 5%], step: 0.1 every 1h, range: 0.5..2 }
notify:
  security: { webhook: "${HOOK}", secret_env: KEY }
"#;

    fn policy() -> Policy {
        let env = [("HOOK", "https://example.org/h"), ("KEY", "hush")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let options = Options { profile: None, env };
        Policy::check("p.yaml", POLICY, &options).unwrap_or_else(|errors| panic!("{errors}")).policy
    }

    #[test]
    fn the_highest_step_not_above_the_count_holds() {
        let policy = policy();
        let penalty = &policy.protection.penalties[0];
        let at = |count| penalty.step_at(count).map(|step| step.from);
        let steps = [3, 4, 5, 6, 10, 11, 99].map(at);
        assert_eq!(steps, [None, Some(4), Some(4), Some(6), Some(6), Some(11), Some(11)]);
        assert_eq!(penalty.highest(), 11);
        let steps: Vec<_> = penalty.ladder.iter().map(|step| step.delay_us / SECOND_US).collect();
        assert_eq!(steps, [2, 5, 0]);
        assert_eq!(penalty.ladder[1].warn.as_deref(), Some("captcha"));
        assert_eq!(penalty.ladder[2].notify, [0]);
        assert_eq!(penalty.ladder[2].ban, Some(Ban { for_us: 900 * SECOND_US, by: None }));
    }

    #[test]
    fn built_in_events_come_first_and_others_in_the_order_of_the_file() {
        let policy = policy();
        let names: Vec<&str> = policy.events().collect();
        assert_eq!(names[..4], BUILT_IN_EVENTS);
        assert_eq!(
            names[4..],
            ["auth_failure", "auth_success", "rate_hit", "booked", "order", "cancel"]
        );
        let protection = &policy.protection;
        assert_eq!(protection.events.len(), names.len());
        assert_eq!(protection.penalties[0].events, [4]);
        assert_eq!(protection.penalties[0].forgive, [5]);
        let failure = &protection.events[4];
        let seen = |status| failure.statuses.iter().any(|range| range.contains(status));
        assert_eq!([200, 400, 401, 499, 500].map(seen), [false, true, true, true, false]);
        assert_eq!(protection.events[6].limits.as_deref(), Some(&[0, 2][..]));
        assert_eq!(protection.events[6].outcome, Some(Outcome::Limited));
        assert_eq!(protection.events[8].value, policy.attribute_names.id("notional"));
    }

    #[test]
    fn a_penalty_may_count_by_what_its_events_operations_capture() {
        let policy = policy();
        let rooms = &policy.protection.penalties[1];
        let room = policy.attribute_names.id("room").unwrap();
        assert_eq!(rooms.by, [Part::Attribute(room)]);
        let by = rooms.ladder[0].ban.as_ref().and_then(|ban| ban.by);
        assert_eq!(by, Some(BanBy::Network { v4_bits: 24, v6_bits: 64 }));
    }

    #[test]
    fn shares_and_factors_are_exact_millionths() {
        let policy = policy();
        let protection = &policy.protection;
        let [rate, wash] = &protection.ratios[..] else { panic!("{protection:?}") };
        assert_eq!((rate.at_least, rate.above_ppm), (50, None));
        assert_eq!((wash.at_least, wash.above_ppm), (1, Some(105_000)));
        let [makers, overload, behaviour] = &protection.factors[..] else { panic!() };
        assert!(matches!(makers.kind, FactorKind::Fixed { times_ppm: 10_000_000 }));
        let FactorKind::Load { above_ppm, times_ppm } = overload.kind else { panic!() };
        assert_eq!((above_ppm, times_ppm), (800_000, 500_000));
        let FactorKind::Behaviour(behaviour) = &behaviour.kind else { panic!() };
        let range = (behaviour.lowest_ppm, behaviour.highest_ppm);
        assert_eq!((behaviour.step_ppm, range), (100_000, (500_000, 2_000_000)));
        let below = RatioCondition { ratio: 1, comparison: Comparison::Below, share_ppm: 900_000 };
        let at_least =
            RatioCondition { ratio: 0, comparison: Comparison::AtLeast, share_ppm: 50_000 };
        assert_eq!(behaviour.good, [below, at_least]);
    }

    #[test]
    fn money_and_what_is_held_are_not_scaled_unless_told() {
        let scaled: Vec<bool> = policy().limits.iter().map(|limit| limit.scaled).collect();
        assert_eq!(scaled, [true, true, false, false, true]);
    }

    #[test]
    fn a_policy_that_challenges_says_how_or_has_a_proof_of_work() {
        let policy = policy();
        assert_eq!(policy.limits[1].exceed, Exceed::Challenge);
        let expected = ChallengeKind::ProofOfWork { difficulty: 18 };
        let challenge = policy.challenge().map(|one| (&one.kind, one.pass));
        assert_eq!(challenge, Some((&expected, Duration::from_secs(3_600))));
        let none = Policy::parse("p.yaml", "{tidegate: 1, name: n}").unwrap();
        assert_eq!(none.challenge(), None);
    }

    #[test]
    fn webhooks_take_their_address_and_secret_from_the_environment_and_keep_them_to_themselves() {
        let policy = policy();
        let [security] = policy.webhooks() else { panic!() };
        assert_eq!(
            (&*security.url, security.secret.as_deref()),
            ("https://example.org/h", Some("hush"))
        );
        let shown = format!("{policy:?}");
        assert!(!shown.contains("hush") && !shown.contains("example.org/h"), "{shown}");
    }

    #[test]
    fn blocked_countries_are_in_capitals() {
        assert_eq!(policy().blocked_countries, ["KP"]);
    }
}
