//! The library against governor and limitador in the same run, with the required ratios: all parts, or
//! the named ones (`-- decision simulated`).

use tidegate_peers::table::Table;
use tidegate_peers::{decision, fill, keyed, simulated};

/// The name of a part, and its measurement.
type Part = (&'static str, fn(&mut Table));

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, whose, keys] = &arguments[..]
        && flag == fill::FILL
    {
        fill::fill(whose, keys.parse().unwrap_or(0));
        return;
    }
    let parts: [Part; 4] = [
        ("keyed", keyed::measure),
        ("decision", decision::measure),
        ("simulated", simulated::measure),
        ("fill", fill::measure),
    ];
    let all = !parts.iter().any(|(name, _)| arguments.iter().any(|asked| asked == name));
    let mut table = Table::default();
    for (name, measure) in parts {
        if all || arguments.iter().any(|asked| asked == name) {
            measure(&mut table);
        }
    }
    table.print();
}
