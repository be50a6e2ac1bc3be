//! The library against governor and limitador in the same run, with what it must reach beside it.

use tidegate_peers::table::Table;
use tidegate_peers::{decision, fill, keyed, simulated};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, whose, keys] = &arguments[..]
        && flag == fill::FILL
    {
        fill::fill(whose, keys.parse().unwrap_or(0));
        return;
    }
    let mut table = Table::default();
    keyed::measure(&mut table);
    decision::measure(&mut table);
    simulated::measure(&mut table);
    fill::measure(&mut table);
    table.print();
}
