//! `tidegate explain`

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tidegate::Amount;
use tidegate::engine::identity::Claims;
use tidegate::engine::policy::Options;
use tidegate::engine::{Counting, Explanation, LimitExplanation, PenaltyExplanation};
use tidegate::{HashKey, Limiter, Policy, Request};
use tidegate_server::files;

use super::Error;
use super::name_value::name_value_parser;
use crate::{paint, say};

/// Say which limits and penalties a request meets, and why it does not meet the others.
///
/// What is said of the request is believed, headers included, unless --peer makes it come from a
/// socket: then only headers from trusted proxies count. Nothing is charged. Ends with 1 if the
/// policy is not valid, or the path or operation cannot be understood.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate explain policy.yaml --method POST --path /auth/login --ip 192.0.2.1\n  tidegate explain policy.yaml --path /orders --user u1 --attr amount_usd=12.50 --json"
)]
pub(crate) struct Arguments {
    /// The policy
    policy: PathBuf,
    /// The method
    #[arg(long, default_value = "GET")]
    method: String,
    /// The path, with its query if an attribute needs it
    #[arg(long)]
    path: Option<String>,
    /// The user
    #[arg(long)]
    user: Option<String>,
    /// The tier
    #[arg(long)]
    tier: Option<String>,
    /// The client's address
    #[arg(long)]
    ip: Option<IpAddr>,
    /// The socket's peer: believe headers only if it is a trusted proxy
    #[arg(long)]
    peer: Option<IpAddr>,
    /// The operation's name, instead of finding it from method and path
    #[arg(long)]
    operation: Option<String>,
    /// The client's country
    #[arg(long)]
    country: Option<String>,
    /// Another service of the same owner calls
    #[arg(long)]
    internal: bool,
    /// An attribute; may be given again
    #[arg(long = "attr", value_name = "NAME=VALUE", value_parser = name_value_parser('='))]
    attributes: Vec<(String, String)>,
    /// A header line; may be given again
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = name_value_parser(':'))]
    headers: Vec<(String, String)>,
    /// A claim of the client's token, which counts as verified; may be given again. A name that
    /// starts with `/` is a JSON pointer
    #[arg(long = "claim", value_name = "NAME=VALUE", value_parser = name_value_parser('='))]
    claims: Vec<(String, String)>,
    /// The body: of the type that `--header "Content-Type: …"` says; JSON without one, unless it
    /// comes from a --peer
    #[arg(long)]
    body: Option<String>,
    /// The cost, on limits that name none
    #[arg(long, value_parser = Amount::parse)]
    cost: Option<Amount>,
    /// The load that factors go by, from 0 to 1
    #[arg(long, value_parser = load)]
    load: Option<Amount>,
    /// Lay this profile over the policy; several, separated by commas, in this order
    #[arg(long, value_name = "NAME,…")]
    profile: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Error> {
    let file = arguments.policy.display().to_string();
    let source = files::read(&arguments.policy)?;
    let options = Options { profile: arguments.profile.clone(), env: files::environment() };
    let policy = match Policy::check(&file, &source, &options) {
        Ok(checked) => checked.policy,
        Err(errors) => {
            for found in errors.iter() {
                anstream::eprintln!("{}", paint::diagnostic(&file, &source, found));
            }
            return Ok(false);
        }
    };
    let limiter = Limiter::builder().policy(policy).hash_key(HashKey::new([0; 16])).build()?;
    if let Some(load) = arguments.load {
        limiter.set_load(load.micros());
    }
    let explanation = limiter.explain(&request(arguments))?;
    if arguments.json {
        say!("{:#}", as_json(&explanation));
    } else {
        print(&explanation);
    }
    Ok(true)
}

fn load(text: &str) -> Result<Amount, String> {
    let load = Amount::parse(text).map_err(|error| error.to_string())?;
    if load > Amount::ONE { Err("expected a load from 0 to 1".to_owned()) } else { Ok(load) }
}

fn request(arguments: &Arguments) -> Request<'_> {
    fn text(text: Option<&String>) -> Option<Cow<'_, str>> {
        text.map(|text| Cow::Borrowed(text.as_str()))
    }
    fn pairs(pairs: &[(String, String)]) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }
    let mut request = Request::default();
    request.path = text(arguments.path.as_ref());
    request.method = text(arguments.path.as_ref().map(|_| &arguments.method));
    request.user = text(arguments.user.as_ref());
    request.tier = text(arguments.tier.as_ref());
    request.operation = text(arguments.operation.as_ref());
    request.country = text(arguments.country.as_ref());
    request.ip = arguments.ip;
    request.peer = arguments.peer;
    request.internal = arguments.internal;
    request.cost = arguments.cost;
    request.body = arguments.body.as_ref().map(|body| body.as_bytes().into());
    request.attributes = pairs(&arguments.attributes);
    request.headers = pairs(&arguments.headers);
    let with = |claims: Claims, (name, value): &(String, String)| claims.with(name, &**value);
    request.claims = (!arguments.claims.is_empty())
        .then(|| arguments.claims.iter().fold(Claims::default(), with));
    request
}

fn print(explanation: &Explanation) {
    let line = |name: &str, value: &str| {
        say!("{} {value}", paint::faint(format!("{name:<10}")));
    };
    let missing = || paint::faint("none");
    line("policy", &explanation.policy);
    line("operation", &paint::strong(&explanation.operation));
    line("method", &explanation.method.as_ref().map_or_else(missing, paint::plain));
    line("path", &explanation.path.as_ref().map_or_else(missing, paint::plain));
    line("user", &explanation.user.as_ref().map_or_else(missing, paint::plain));
    line("address", &explanation.address.as_ref().map_or_else(missing, paint::plain));
    let unknown = explanation.unknown_tier.as_ref();
    let unknown = unknown.map(|tier| format!(" (`{}` is not a tier)", paint::plain(tier)));
    line("tier", &format!("{}{}", explanation.tier, unknown.unwrap_or_default()));
    line("internal", if explanation.internal { "yes" } else { "no" });
    for header in &explanation.ignored_headers {
        let why = "ignored: the peer is none of `trusted_proxies`";
        line("header", &format!("{} {}", paint::plain(header), paint::careful(why)));
    }
    match (explanation.standing, explanation.enabled) {
        ("exempt", _) => line("standing", &paint::good("exempt: never counted, never limited")),
        ("blocked", _) => {
            line("standing", &paint::bad("blocked: the address or country is refused"));
        }
        (_, false) => {
            line(
                "standing",
                &paint::careful("the policy is off (`enabled: false`): no limit acts"),
            );
        }
        (standing, true) => line("standing", standing),
    }
    for (name, ppm) in &explanation.factors {
        line("factor", &format!("{} {}", paint::plain(name), times(*ppm)));
    }
    for (name, why) in &explanation.unreadable {
        line("unreadable", &format!("{name}: {}", paint::careful(why)));
    }
    print_limits(explanation);
    print_penalties(&explanation.penalties);
    say!(
        "\n{}",
        paint::faint("Keys are hashed with the deployment's secret; these with an empty one.")
    );
}

fn print_limits(explanation: &Explanation) {
    let (applying, others): (Vec<_>, Vec<_>) =
        explanation.limits.iter().partition(|limit| limit.applies.is_ok());
    let acting = explanation.standing == "ordinary" && explanation.enabled;
    let verb = if acting { "apply" } else { "would apply" };
    let counted = format!("{} of {} limits {verb}", applying.len(), explanation.limits.len());
    say!(
        "
{}",
        paint::strong(counted)
    );
    applying.into_iter().for_each(print_applying);
    if !others.is_empty() {
        let whose = if others.len() == explanation.limits.len() {
            "Because:"
        } else {
            "The others do not:"
        };
        say!("\n{}", paint::strong(whose));
    }
    for LimitExplanation { name, applies, .. } in others {
        if let Err(why) = applies {
            say!("  {} {name}: {}", paint::faint("-"), paint::plain(why));
        }
    }
}

fn print_penalties(penalties: &[PenaltyExplanation]) {
    if penalties.is_empty() {
        return;
    }
    let (counting, others): (Vec<_>, Vec<_>) =
        penalties.iter().partition(|penalty| penalty.applies.is_ok());
    let counted = format!("{} of {} penalties may count it", counting.len(), penalties.len());
    say!("\n{}", paint::strong(counted));
    for PenaltyExplanation { name, applies, .. } in counting.into_iter().chain(others) {
        match applies {
            Ok(counting) => print_counting(name, counting),
            Err(why) => say!("  {} {name}: {}", paint::faint("-"), paint::plain(why)),
        }
    }
}

fn print_counting(name: &str, counting: &Counting) {
    let Counting { key, by, events, within, ladder, .. } = counting;
    let (events, by) = (events.join(", "), by.join(", "));
    say!("  {}: {} within {within}, by {by}", paint::good(name), paint::strong(events));
    for (from, step) in ladder {
        say!("    {} {}", paint::faint(format!("from {from}")), paint::plain(step));
    }
    say!("    {} {}", paint::faint("key"), paint::plain(key));
}

/// Millionths as a decimal number.
fn times(ppm: u64) -> String {
    Amount::from_micros(ppm).map_or_else(|| "very much".to_owned(), |times| times.to_string())
}

fn print_applying(limit: &LimitExplanation) {
    let Ok(application) = &limit.applies else { return };
    let mut notes = vec![format!("by {}", application.by.join(", "))];
    if limit.algorithm == "ceiling" {
        notes = vec![format!("value {}", application.cost)];
    } else if application.cost != "1" {
        notes.push(format!("cost {}", application.cost));
    }
    if application.exceed != "reject" {
        notes.push(application.exceed.clone());
    }
    let (name, algorithm, spec) =
        (paint::good(&limit.name), limit.algorithm, paint::strong(&application.spec));
    say!("  {name}: {algorithm} {spec}, {}", notes.join(", "));
    say!("    {} {}", paint::faint("key"), paint::plain(&application.key));
}

fn as_json(explanation: &Explanation) -> Value {
    let limits: Vec<Value> = explanation.limits.iter().map(limit_json).collect();
    json!({
        "policy": explanation.policy,
        "enabled": explanation.enabled,
        "operation": explanation.operation,
        "method": explanation.method,
        "path": explanation.path,
        "user": explanation.user,
        "address": explanation.address,
        "tier": explanation.tier,
        "unknown_tier": explanation.unknown_tier,
        "internal": explanation.internal,
        "ignored_headers": explanation.ignored_headers,
        "standing": explanation.standing,
        "factors": explanation
            .factors
            .iter()
            .map(|(name, ppm)| json!({ "name": name, "times": times(*ppm) }))
            .collect::<Vec<_>>(),
        "unreadable": explanation
            .unreadable
            .iter()
            .map(|(name, why)| json!({ "attribute": name, "reason": why.name() }))
            .collect::<Vec<_>>(),
        "limits": limits,
        "penalties": explanation.penalties.iter().map(penalty_json).collect::<Vec<_>>(),
    })
}

fn limit_json(limit: &LimitExplanation) -> Value {
    let LimitExplanation { name, algorithm, applies, .. } = limit;
    match applies {
        Ok(application) => json!({
            "name": name,
            "algorithm": algorithm,
            "applies": true,
            "spec": application.spec,
            "by": application.by,
            "key": application.key,
            "cost": application.cost,
            "exceed": application.exceed,
        }),
        Err(why) => json!({ "name": name, "algorithm": algorithm, "applies": false, "why": why }),
    }
}

fn penalty_json(penalty: &PenaltyExplanation) -> Value {
    let PenaltyExplanation { name, applies, .. } = penalty;
    let ladder = |counting: &Counting| {
        let step = |(from, step): &(u32, String)| json!({ "from": from, "step": step });
        counting.ladder.iter().map(step).collect::<Vec<_>>()
    };
    match applies {
        Ok(counting) => json!({
            "name": name,
            "applies": true,
            "events": counting.events,
            "within": counting.within,
            "by": counting.by,
            "key": counting.key,
            "ladder": ladder(counting),
        }),
        Err(why) => json!({ "name": name, "applies": false, "why": why }),
    }
}
