//! The subject of bans and flags: flags that become the key of a new mark, or parameters.

use std::net::IpAddr;

use clap::Args;
use serde_json::Value;

use crate::command::Error;
use crate::command::admin::pages::Parameters;
use crate::command::name_value::name_value_parser;

#[derive(Args)]
#[group(id = "MarkSelection", multiple = true)]
pub(super) struct Selection {
    /// The policy that it holds for; all of them if left out
    #[arg(long, value_name = "NAME")]
    pub(super) policy: Option<String>,
    /// A user
    #[arg(long)]
    user: Option<String>,
    /// A client: `user:ID`, or `ip:ADDRESS` for those without a user
    #[arg(long)]
    client: Option<String>,
    /// An address
    #[arg(long)]
    ip: Option<IpAddr>,
    /// A network, such as 203.0.113.0/24
    #[arg(long, value_name = "CIDR")]
    network: Option<String>,
    /// An attribute
    #[arg(long = "attr", value_name = "NAME=VALUE", value_parser = name_value_parser('='))]
    attributes: Vec<(String, String)>,
}

impl Selection {
    /// The key of a new mark: `{"user": "u1"}`.
    pub(super) fn key(&self) -> Result<Value, Error> {
        let parts = self.parts();
        if parts.is_empty() {
            return Err(
                "say whom: such as --user u1, --ip 203.0.113.7 or --attr email=a@b.c".into()
            );
        }
        Ok(parts.into_iter().map(|(name, value)| (name, Value::from(value))).collect())
    }

    pub(super) fn parameters(&self) -> Parameters {
        let policy = self.policy.iter().map(|policy| ("policy".to_owned(), policy.clone()));
        policy.chain(self.parts()).collect()
    }

    fn parts(&self) -> Parameters {
        let named = [
            ("user", self.user.clone()),
            ("client", self.client.clone()),
            ("ip", self.ip.map(|ip| ip.to_string())),
            ("network", self.network.clone()),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        named.chain(self.attributes.iter().cloned()).collect()
    }
}
