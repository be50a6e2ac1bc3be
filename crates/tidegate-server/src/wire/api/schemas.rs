//! The bodies of calls and answers, as types for the OpenAPI document alone.

#![expect(
    dead_code,
    reason = "no value of these types exists: they describe JSON that is read and written by hand"
)]

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::openapi::schema::{
    AdditionalProperties, AllOfBuilder, AnyOfBuilder, ArrayBuilder, KnownFormat, Object,
    ObjectBuilder, OneOfBuilder, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::challenge::ChallengeJson;
use crate::respond::Problem;
use crate::wire::openapi::{Schemas, schema};

/// The schemas with fields that only names of a policy fit.
pub(in crate::wire) const WITH_NAMES: [&str; 4] = ["Check", "Acquire", "EventReport", "Solution"];

/// Any JSON object.
pub(in crate::wire) fn object(_: &mut Schemas) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Object).into()
}

pub(in crate::wire) fn check_batch(schemas: &mut Schemas) -> RefOr<Schema> {
    ArrayBuilder::new().items(schema::<Check>(schemas)).max_items(Some(1_000)).into()
}

pub(in crate::wire) fn decision_batch(schemas: &mut Schemas) -> RefOr<Schema> {
    let (decision, problem) = (schema::<Decision>(schemas), schema::<Problem<'static>>(schemas));
    ArrayBuilder::new().items(OneOfBuilder::new().item(decision).item(problem)).into()
}

pub(in crate::wire) fn challenge_or_pass(schemas: &mut Schemas) -> RefOr<Schema> {
    let (challenge, pass) = (schema::<Challenged>(schemas), schema::<Pass>(schemas));
    OneOfBuilder::new().item(challenge).item(pass).into()
}

/// The schema of a check, changed into that of another call.
fn check_like(description: &str, change: impl FnOnce(&mut Object)) -> RefOr<Schema> {
    let mut schema = Check::schema();
    if let RefOr::T(Schema::Object(check)) = &mut schema {
        change(check);
        check.description = Some(description.to_owned());
    }
    schema
}

fn add(object: &mut Object, name: &str, field: impl Into<RefOr<Schema>>) {
    object.properties.insert(name.to_owned(), field.into());
}

/// A check, with how long it may wait.
pub(in crate::wire) struct Acquire;

impl PartialSchema for Acquire {
    fn schema() -> RefOr<Schema> {
        check_like("A check that may wait its turn.", |check| {
            let wait = one_of(&[Type::Integer, Type::Null])
                .description(Some("How long to wait at most; 0 without it. Where it would take longer, the answer comes at once."))
                .minimum(Some(0))
                .maximum(Some(3_600_000));
            add(check, "max_wait_ms", wait);
        })
    }
}

impl ToSchema for Acquire {}

/// A report: of an event, or of a load alone.
pub(in crate::wire) fn report(schemas: &mut Schemas) -> RefOr<Schema> {
    let (event, load) = (schema::<EventReport>(schemas), schema::<LoadReport>(schemas));
    schema::<Decimal>(schemas);
    OneOfBuilder::new().item(event).item(load).into()
}

/// A check without a charge, and what happened.
struct EventReport;

impl PartialSchema for EventReport {
    fn schema() -> RefOr<Schema> {
        check_like("What befell a subject.", |check| {
            check.properties.remove("cost");
            check.properties.remove("reserve");
            let name = one_of(&[Type::String]);
            add(check, "event", name.description(Some("The event's name in the policy.")));
            add(check, "value", or_null(Ref::from_schema_name("Decimal")));
            add(check, "load", one_of(&[Type::Null]));
            check.required.push("event".to_owned());
        })
    }
}

impl ToSchema for EventReport {}

/// How loaded a service is.
struct LoadReport;

impl PartialSchema for LoadReport {
    fn schema() -> RefOr<Schema> {
        let number = decimal(1).description(Some("From 0, idle, to 1, saturated."));
        let text = one_of(&[Type::String]).pattern(Some(r"^0*(0(\.[0-9]{1,6})?|1(\.0{1,6})?)$"));
        let object = ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some("How loaded a service is."))
            .property("load", OneOfBuilder::new().item(number).item(text))
            .property("event", one_of(&[Type::Null]))
            .property("value", one_of(&[Type::Null]))
            .additional_properties(Some(AdditionalProperties::FreeForm(false)));
        object.required("load").into()
    }
}

impl ToSchema for LoadReport {}

/// Who the client is, and either nothing else or the token and the solution of its challenge.
pub(in crate::wire) fn solution(schemas: &mut Schemas) -> RefOr<Schema> {
    let call = schema::<Solution>(schemas);
    let user = one_of(&[Type::String, Type::Number, Type::Boolean]).min_length(Some(1));
    let client = AnyOfBuilder::new()
        .item(requires("user", user))
        .item(requires("ip", one_of(&[Type::String])));
    let text = || one_of(&[Type::String]);
    let solved = requires("token", text()).property("solution", text()).required("solution");
    let null = || one_of(&[Type::Null]);
    let asked = ObjectBuilder::new().property("token", null()).property("solution", null());
    let either = OneOfBuilder::new().item(asked).item(solved);
    AllOfBuilder::new().item(call).item(client).item(either).into()
}

/// A check, with the fields of a solution.
struct Solution;

impl PartialSchema for Solution {
    fn schema() -> RefOr<Schema> {
        check_like("A client, and perhaps the solution of its challenge.", |check| {
            for (name, text) in [
                ("token", "The challenge's; without it and a solution, a challenge is given."),
                ("solution", "The number that solves it, or what the CAPTCHA service gave."),
            ] {
                let field = one_of(&[Type::String, Type::Null]).description(Some(text));
                add(check, name, field);
            }
        })
    }
}

impl ToSchema for Solution {}

/// The true cost, the answer's status, or both.
pub(in crate::wire) fn settle(schemas: &mut Schemas) -> RefOr<Schema> {
    let call = schema::<Settle>(schemas);
    let told = AnyOfBuilder::new()
        .item(requires("cost", Ref::from_schema_name("Decimal")))
        .item(requires("status", one_of(&[Type::Integer])));
    AllOfBuilder::new().item(call).item(told).into()
}

/// A condition of its own: this field is there, and is like this.
fn requires(field: &str, like: impl Into<RefOr<Schema>>) -> ObjectBuilder {
    ObjectBuilder::new().property(field, like).required(field)
}

fn or_null(like: impl Into<RefOr<Schema>>) -> OneOfBuilder {
    OneOfBuilder::new().item(like).item(one_of(&[Type::Null]))
}

/// A request to decide. What is said here is believed.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Check {
    /// The policy's name; the first policy without it.
    policy: Option<String>,
    method: Option<String>,
    #[schema(value_type = Option<RequestPath>)]
    path: Option<String>,
    /// The client's address.
    ip: Option<Address>,
    user: Option<Scalar>,
    tier: Option<Scalar>,
    /// Called by another service of the same owner.
    internal: Option<bool>,
    /// ISO 3166-1 alpha-2.
    country: Option<String>,
    /// An operation of the policy; found from method and path without it.
    operation: Option<String>,
    /// Facts that limits count by, compare or charge.
    attributes: Option<BTreeMap<String, Member>>,
    /// The client's headers; they feed attributes, and user and tier where these are absent.
    headers: Option<BTreeMap<String, Lines>>,
    /// The client's body: a string is its text, of the type that `content-type` in `headers` says, else
    /// JSON; anything else is JSON.
    body: Option<Value>,
    /// What it costs on limits that name no cost of their own; 0 looks and charges nothing.
    cost: Option<Decimal>,
    /// Ask for a lease, to settle the true cost later.
    reserve: Option<bool>,
}

/// A decision.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Decision {
    /// Whether the request may pass.
    allowed: bool,
    /// `allowed`, `exempt`, `warned`, `limited`, `blocked`, `banned` or `challenged`.
    #[schema(pattern = "^(allowed|exempt|warned|limited|blocked|banned|challenged)$")]
    outcome: String,
    /// The limit that refuses, or the one that is closest.
    #[schema(required)]
    limit: Option<String>,
    /// The status for the client: 200, or that of the refusal.
    #[schema(minimum = 100, maximum = 599)]
    status: u16,
    /// When the same request would pass if nobody else came; null where no waiting helps.
    #[schema(required)]
    retry_after_ms: Option<u64>,
    /// The operation that the request was found to be.
    operation: String,
    /// The tier that it was decided by.
    tier: String,
    /// What the client should be told although it passes.
    warnings: Vec<String>,
    /// Headers for the client.
    headers: BTreeMap<String, String>,
    /// The body of the refusal, for the client.
    #[schema(required)]
    body: Option<Value>,
    /// Every limit that applied.
    limits: Vec<LimitState>,
    /// What to release, renew or settle by, where there is something to.
    #[schema(required, pattern = "^[0-9a-f]{32}$")]
    lease: Option<String>,
    /// Decided without the store.
    degraded: bool,
    /// How long a penalty asks to hold the answer to the client; only where one does.
    delay_ms: Option<u64>,
    /// How long it waited; only in acquire.
    waited_ms: Option<u64>,
    /// The status that the lease is settled with makes no event, as the request is too large to be
    /// kept; only where that is so.
    status_unseen: Option<bool>,
}

/// What a client is asked for.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Challenged {
    challenge: ChallengeJson<'static>,
}

/// What a solution has earned.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Pass {
    /// For the header or the cookie `Tidegate-Pass` of the client's requests.
    pass: String,
    expires_in_ms: u64,
    /// For `Set-Cookie`.
    cookie: String,
}

/// A limit that applied to the request.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct LimitState {
    /// The limit's name.
    name: String,
    /// How it counts.
    algorithm: String,
    /// The number in its spec.
    limit: f64,
    /// Its window; null where it has none.
    #[schema(required)]
    window_ms: Option<u64>,
    /// How many more of this cost would pass now.
    remaining: u64,
    /// When nothing is owed any more, from now.
    #[schema(required)]
    reset_ms: Option<u64>,
    /// Whether this limit lets it pass.
    allowed: bool,
    /// On trial: told, but without effect.
    shadow: bool,
}

/// A string, or a number or truth value as its text.
pub(in crate::wire) struct Scalar;

impl PartialSchema for Scalar {
    fn schema() -> RefOr<Schema> {
        let text = "A string, or a number or truth value as its text.";
        one_of(&[Type::String, Type::Number, Type::Boolean]).description(Some(text)).into()
    }
}

impl ToSchema for Scalar {}

/// The same, or nothing.
pub(in crate::wire) struct Member;

impl PartialSchema for Member {
    fn schema() -> RefOr<Schema> {
        let text = "A string, or a number or truth value as its text; null is as good as left out.";
        let types = [Type::String, Type::Number, Type::Boolean, Type::Null];
        one_of(&types).description(Some(text)).into()
    }
}

impl ToSchema for Member {}

/// A header's value, or one for each of its lines.
pub(in crate::wire) struct Lines;

impl PartialSchema for Lines {
    fn schema() -> RefOr<Schema> {
        let many = ArrayBuilder::new().items(Ref::from_schema_name("Scalar"));
        let either = OneOfBuilder::new().item(Ref::from_schema_name("Member")).item(many);
        either.description(Some("A header's value, or one for each of its lines.")).into()
    }
}

impl ToSchema for Lines {}

/// An IP address.
pub(in crate::wire) struct Address;

impl PartialSchema for Address {
    fn schema() -> RefOr<Schema> {
        let of_format =
            |format| one_of(&[Type::String]).format(Some(SchemaFormat::KnownFormat(format)));
        let either = AnyOfBuilder::new().item(of_format(KnownFormat::Ipv4));
        either.item(of_format(KnownFormat::Ipv6)).into()
    }
}

impl ToSchema for Address {}

/// A path that every server reads alike: without backslashes, control characters, encoded slashes, and
/// escapes of anything but UTF-8.
pub(in crate::wire) struct RequestPath;

impl PartialSchema for RequestPath {
    fn schema() -> RefOr<Schema> {
        // The second and further bytes of a letter in UTF-8.
        let more = "%[89ABab][0-9A-Fa-f]";
        let escapes = [
            "%(?:[346][0-9A-Fa-f]|2[0-9A-Ea-e]|5[0-9ABDEFabdef]|7[0-9A-Ea-e])".to_owned(),
            // The letters that begin with C2 80 to C2 9F are control characters.
            "%[Cc]2%[ABab][0-9A-Fa-f]".to_owned(),
            format!("%(?:[Cc][3-9A-Fa-f]|[Dd][0-9A-Fa-f]){more}"),
            format!("%[Ee]0%[ABab][0-9A-Fa-f]{more}"),
            format!("%[Ee][1-9ABCEFabcef]{more}{more}"),
            format!("%[Ee][Dd]%[89][0-9A-Fa-f]{more}"),
            format!("%[Ff]0%[9ABab][0-9A-Fa-f]{more}{more}"),
            format!("%[Ff][1-3]{more}{more}{more}"),
            format!("%[Ff]4%8[0-9A-Fa-f]{more}{more}"),
        ];
        let letter = r"[^%\\?#\u0000-\u001f\u007f-\u009f]";
        let path = format!(r"/(?:{letter}|{})*", escapes.join("|"));
        let pattern = format!(r"^(?:\*|{path})(?:[?#][\s\S]*)?$");
        let path = one_of(&[Type::String]).pattern(Some(pattern));
        path.description(Some("A path as it stands in a request line, with its query.")).into()
    }
}

impl ToSchema for RequestPath {}

/// An exact decimal.
pub(in crate::wire) struct Decimal;

impl PartialSchema for Decimal {
    fn schema() -> RefOr<Schema> {
        let description = "An exact decimal with at most six places, as a number or as a string.";
        let places = r"(\.[0-9]{1,6})?";
        let pattern =
            format!(r"^0*([0-9]{{1,9}}{places}|[1-3][0-9]{{9}}{places}|4000000000(\.0{{1,6}})?)$");
        let text = one_of(&[Type::String]).pattern(Some(pattern));
        let either = OneOfBuilder::new().item(decimal(4_000_000_000)).item(text);
        either.description(Some(description)).into()
    }
}

/// A number from 0 to this, with at most six places.
fn decimal(max: u32) -> ObjectBuilder {
    let number = one_of(&[Type::Number]).minimum(Some(0)).maximum(Some(max));
    number.multiple_of(Some(0.000_001))
}

impl ToSchema for Decimal {}

fn one_of(types: &[Type]) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::from_iter(types.iter().cloned()))
}

/// The lease of a decision.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Reservation {
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    lease: String,
}

/// What became of it: the true cost, the answer's status, or both.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
struct Settle {
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    lease: String,
    /// What it really cost.
    cost: Option<Decimal>,
    /// What it was answered with.
    #[schema(minimum = 100, maximum = 599)]
    status: Option<u16>,
}

/// Whether places were still held, and are free now.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Released {
    released: bool,
    /// True while the store is lost: it is done once that is back.
    degraded: Option<bool>,
}

/// Whether all places are held for another while.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Renewed {
    renewed: bool,
    /// True while the store is lost: nobody could be asked, and its holder goes on.
    degraded: Option<bool>,
}

/// It is settled; what was settled before stays as it is.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Settled {
    settled: bool,
    /// How long to hold the answer to the client, by penalties; only where the status made an event.
    delay_ms: Option<u64>,
    /// What penalties warn the client of; only where the status made an event.
    warnings: Option<Vec<String>>,
    /// The subject is banned from now on; only where the status made an event.
    banned: Option<bool>,
    /// The subject is to solve a challenge; only where the status made an event.
    challenged: Option<bool>,
    /// The flags that the subject was given; only where the status made an event.
    flags: Option<Vec<String>>,
    /// True while the store is lost: it is done once that is back.
    degraded: Option<bool>,
}

/// The daemon's state.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::wire) struct Health {
    /// `ok` or `ready`.
    status: String,
}
