//! Which keys a command is about: flags that become parameters of the call.

use std::net::IpAddr;

use clap::Args;

use crate::command::Error;
use crate::command::admin::pages::Parameters;
use crate::command::name_value::name_value_parser;

/// A limit or a penalty, a subject, or both.
#[derive(Args)]
#[group(id = "Selection", multiple = true)]
pub(super) struct Selection {
    /// The policy, if it is not the first
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// A limit of the policy
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// A penalty of the policy, instead of a limit
    #[arg(long, value_name = "NAME", conflicts_with = "limit")]
    penalty: Option<String>,
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
    /// The parameters of a call that needs a selection: this one, or a key's name.
    pub(super) fn parameters_or_key(&self, key: Option<&str>) -> Result<Parameters, Error> {
        let mut parameters = self.parameters();
        parameters.extend(key.map(|key| ("key".to_owned(), key.to_owned())));
        if parameters.is_empty() {
            return Err(
                "say which: a key, a limit, a penalty or a subject, such as --user u1".into()
            );
        }
        Ok(parameters)
    }

    pub(super) fn parameters(&self) -> Parameters {
        let ip = self.ip.map(|ip| ip.to_string());
        let named = [
            ("policy", &self.policy),
            ("limit", &self.limit),
            ("penalty", &self.penalty),
            ("user", &self.user),
            ("ip", &ip),
            ("tier", &self.tier),
            ("country", &self.country),
            ("operation", &self.operation),
            ("method", &self.method),
            ("path", &self.path),
        ];
        let named =
            named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
        let pairs = |prefix: &'static str, pairs: &[(String, String)]| {
            let pair =
                |(name, value): &(String, String)| (format!("{prefix}.{name}"), value.clone());
            pairs.iter().map(pair).collect::<Parameters>()
        };
        named
            .chain(pairs("attribute", &self.attributes))
            .chain(pairs("header", &self.headers))
            .collect()
    }
}
