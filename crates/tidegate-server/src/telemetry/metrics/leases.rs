//! What this node has borrowed of leased limits.

use std::fmt;

use tidegate_redis::LeaseHealth;

use super::text::{Kind, Page};

pub(super) fn write(page: &mut Page, leases: &LeaseHealth) {
    let help = "Buckets of the shared store of which this node holds tokens.";
    page.single("tidegate_store_leases", Kind::Gauge, help, leases.held);
    let help = "Tokens that this node has borrowed and not spent.";
    page.single("tidegate_store_lease_tokens", Kind::Gauge, help, Tokens(leases.outstanding));
    let family = |page: &mut Page, name, help, results: [(&str, u64); 2]| {
        page.family(name, Kind::Counter, help);
        for (result, count) in results {
            page.sample(name, &[("result", result)], count);
        }
    };
    let help = "Charges of leased limits: spent (of what this node held), exact (the store was \
                asked, for want of a lease).";
    let results = [("spent", leases.spent), ("exact", leases.exact)];
    family(page, "tidegate_store_lease_charges_total", help, results);
    let help = "Loans that this node asked for: granted or refused (too little was there, or no \
                answer came).";
    let results = [("granted", leases.granted), ("refused", leases.refused)];
    family(page, "tidegate_store_lease_loans_total", help, results);
    let name = "tidegate_store_lease_unspent_total";
    let help = "Borrowed tokens that were not spent: returned to the store, or expired (those are \
                returned too, if the store still knows of them).";
    page.family(name, Kind::Counter, help);
    page.sample(name, &[("result", "returned")], Tokens(leases.returned));
    page.sample(name, &[("result", "expired")], Tokens(leases.expired));
}

/// Millionths, as a decimal.
struct Tokens(u64);

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if micros == 0 { write!(f, "{units}") } else { write!(f, "{units}.{micros:06}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_decimals() {
        assert_eq!(Tokens(3_000_000).to_string(), "3");
        assert_eq!(Tokens(12_500_001).to_string(), "12.500001");
    }
}
