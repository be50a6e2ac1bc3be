//! Which keys are meant: flags that become parameters of the call.

use std::net::IpAddr;

use clap::Args;
use form_urlencoded::Serializer;

use crate::command::name_value::name_value_parser;

/// A limit, a subject, or both.
#[derive(Args)]
#[group(id = "Selection", multiple = true)]
pub(super) struct Selection {
    /// The policy, if it is not the first
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// A limit of the policy
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// The user
    #[arg(long)]
    user: Option<String>,
    /// The client's address
    #[arg(long)]
    ip: Option<IpAddr>,
    /// The tier, where keys have one; else each of them
    #[arg(long)]
    tier: Option<String>,
    /// The client's country
    #[arg(long)]
    country: Option<String>,
    /// The operation's name: only limits that it meets
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,
    /// The method, with a path
    #[arg(long, requires = "path")]
    method: Option<String>,
    /// The path, instead of the operation's name
    #[arg(long)]
    path: Option<String>,
    /// An attribute; may be given again
    #[arg(long = "attr", value_name = "NAME=VALUE", value_parser = name_value_parser('='))]
    attributes: Vec<(String, String)>,
    /// A header line; may be given again
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = name_value_parser(':'))]
    headers: Vec<(String, String)>,
}

impl Selection {
    /// Whether nothing is said.
    pub(super) fn is_empty(&self) -> bool {
        self.query(None).is_empty()
    }

    /// As parameters, with a key's name if there is one.
    pub(super) fn query(&self, key: Option<&str>) -> String {
        let mut query = Serializer::new(String::new());
        let ip = self.ip.map(|ip| ip.to_string());
        for (name, value) in [
            ("key", key),
            ("policy", self.policy.as_deref()),
            ("limit", self.limit.as_deref()),
            ("user", self.user.as_deref()),
            ("ip", ip.as_deref()),
            ("tier", self.tier.as_deref()),
            ("country", self.country.as_deref()),
            ("operation", self.operation.as_deref()),
            ("method", self.method.as_deref()),
            ("path", self.path.as_deref()),
        ] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        for (name, value) in &self.attributes {
            query.append_pair(&format!("attribute.{name}"), value);
        }
        for (name, value) in &self.headers {
            query.append_pair(&format!("header.{name}"), value);
        }
        query.finish()
    }
}
