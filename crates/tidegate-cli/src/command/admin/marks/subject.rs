//! Whom a ban or a flag is of: flags that become the key of a call, or its parameters.

use std::net::IpAddr;

use clap::Args;
use form_urlencoded::Serializer;
use serde_json::{Map, Value, json};

use crate::command::Error;
use crate::command::name_value::name_value_parser;

/// Whom marks are of.
#[derive(Args)]
#[group(id = "Chosen", multiple = true)]
pub(super) struct Chosen {
    /// The policy that it holds for; all of them if left out
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
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

impl Chosen {
    /// As the call has it: `{"user": "u1"}`.
    pub(super) fn key(&self) -> Result<Value, Error> {
        let parts = self.parts();
        if parts.is_empty() {
            return Err(
                "say whom: such as --user u1, --ip 203.0.113.7 or --attr email=a@b.c".into()
            );
        }
        let key: Map<String, Value> =
            parts.into_iter().map(|(name, value)| (name, json!(value))).collect();
        Ok(Value::Object(key))
    }

    pub(super) fn policy(&self) -> Option<&String> {
        self.policy.as_ref()
    }

    /// As further parameters, each with its `&`.
    pub(super) fn query(&self) -> String {
        let policy = self.policy.iter().map(|policy| ("policy".to_owned(), policy.clone()));
        policy.chain(self.parts()).map(|(name, value)| pair(&name, &value)).collect()
    }

    fn parts(&self) -> Vec<(String, String)> {
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

/// One further parameter.
pub(super) fn pair(name: &str, value: &str) -> String {
    format!("&{}", Serializer::new(String::new()).append_pair(name, value).finish())
}
