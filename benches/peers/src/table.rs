//! The table at the end: each figure beside the peer's, and the required ratio.

/// All that was measured.
#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

struct Row {
    what: String,
    ours: String,
    peer: String,
    ratio: f64,
    must: Option<f64>,
}

impl Table {
    /// Adds a figure, the peer's, and the largest acceptable ratio.
    pub fn add(&mut self, what: &str, unit: &str, ours: f64, peer: f64, must: Option<f64>) {
        let shown = |value: f64| format!("{value:.1} {unit}");
        let (ours, peer, ratio) = (shown(ours), shown(peer), ours / peer);
        self.push(Row { what: what.to_owned(), ours, peer, ratio, must });
    }

    /// Adds a figure that must be no larger than a number, and the peer's, if it has one.
    pub fn add_against(&mut self, what: &str, unit: &str, ours: f64, peer: Option<f64>, most: f64) {
        let shown = |value: f64| format!("{value:.1} {unit}");
        let (what, ratio) = (format!("{what} (most: {most})"), ours / most);
        let peer = peer.map(shown).unwrap_or_default();
        self.push(Row { what, ours: shown(ours), peer, ratio, must: Some(1.0) });
    }

    fn push(&mut self, row: Row) {
        eprintln!("  {}: {}, peer {}", row.what, row.ours, row.peer);
        self.rows.push(row);
    }

    /// Prints it.
    pub fn print(&self) {
        println!("\n{:<66} {:>13} {:>13} {:>7} {:>7}", "", "tidegate", "peer", "ratio", "must");
        for Row { what, ours, peer, ratio, must } in &self.rows {
            let (must, met) = match must {
                None => (String::new(), ""),
                Some(must) => (format!("{must:.3}"), if ratio <= must { "met" } else { "MISSED" }),
            };
            println!("{what:<66} {ours:>13} {peer:>13} {ratio:>7.3} {must:>7} {met}");
        }
    }
}
